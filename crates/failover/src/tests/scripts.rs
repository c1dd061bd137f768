//! Random scripts: traffic in both directions, wires cut and mended, ports down and up, loss, late
//! frames.

use bowline_nic::{SendOp, WcOpcode, WcStatus};
use proptest::prelude::*;

use super::rig::{Rig, SECOND};
use crate::config::Mode;
use crate::rail::Rail;

#[derive(Clone, Copy, Debug)]
pub(super) enum Act {
    Send(usize, u32),
    WriteImm(usize, u32),
    Read(usize, u32),
    Add(usize),
    Wait(u64),
    Cut(usize),
    Mend(usize),
    Down(usize, usize),
    Up(usize, usize),
    Loss(u64),
    Late(u64),
}

pub(super) fn any(atomics: bool) -> impl Strategy<Value = Vec<Act>> {
    let (end, rail, len) = (0_usize..2, 0_usize..2, 0_u32..9000);
    let act = prop_oneof![
        3 => (end.clone(), len.clone()).prop_map(|(e, l)| Act::Send(e, l)),
        3 => (end.clone(), len).prop_map(|(e, l)| Act::WriteImm(e, l)),
        2 => (end.clone(), 1_u32..9000).prop_map(|(e, l)| Act::Read(e, l)),
        2 => end.clone().prop_map(move |e| if atomics { Act::Add(e) } else { Act::Send(e, 1) }),
        6 => (0_u64..2_000_000).prop_map(Act::Wait),
        3 => (0_u64..SECOND / 2).prop_map(Act::Wait),
        2 => rail.clone().prop_map(Act::Cut),
        3 => rail.clone().prop_map(Act::Mend),
        1 => (end.clone(), rail.clone()).prop_map(|(e, r)| Act::Down(e, r)),
        2 => (end, rail).prop_map(|(e, r)| Act::Up(e, r)),
        1 => prop_oneof![Just(0), Just(50), Just(8)].prop_map(Act::Loss),
        1 => prop_oneof![Just(0), Just(20)].prop_map(Act::Late),
    ];
    proptest::collection::vec(act, 1..80)
}

#[derive(Default)]
struct Book {
    posted: u64,
    two_sided: u64,
    added: u64,
    completed: Vec<(u64, WcStatus)>,
    received: Vec<(u64, Option<u32>)>,
}

impl Book {
    fn post(&mut self, rig: &mut Rig, end: usize, op: SendOp, len: u32) {
        rig.post(end, self.posted, op, len);
        self.posted += 1;
    }

    /// Messages are numbered by their immediates.
    fn next_imm(&mut self) -> u32 {
        self.two_sided += 1;
        self.two_sided as u32 - 1
    }
}

/// Plays a script. Then checks that every message arrived exactly once and in order, every request
/// completed exactly once and in order, and every addition counted once. At least one rail works at
/// any time, so nothing may fail.
pub(super) fn play(mode: Mode, seed: u64, script: &[Act]) -> Result<(), TestCaseError> {
    let mut rig = Rig::new(mode, seed);
    for host in 0..2 {
        (0..100).for_each(|id| rig.recv(host, id));
    }
    let mut books = [Book::default(), Book::default()];
    let mut down = [[false; 2]; 2];
    for act in script {
        match *act {
            Act::Send(e, len) => {
                let imm = books[e].next_imm();
                books[e].post(&mut rig, e, SendOp::SendImm(imm), len);
            }
            Act::WriteImm(e, len) => {
                let (imm, remote) = (books[e].next_imm(), rig.remote(1 - e, 0x8_0000));
                books[e].post(&mut rig, e, SendOp::WriteImm(remote, imm), len);
            }
            Act::Read(e, len) => {
                let remote = rig.remote(1 - e, 0x8_0000);
                books[e].post(&mut rig, e, SendOp::Read(remote), len);
            }
            Act::Add(e) => {
                rig.add_one(e, books[e].posted);
                books[e].posted += 1;
                books[e].added += 1;
            }
            Act::Wait(nanos) => rig.run(nanos),
            Act::Cut(rail) => {
                // Make sure that the other rail works.
                let (rail, other) = (Rail::ALL[rail], Rail::ALL[1 - rail]);
                rig.cut(rail, true);
                rig.cut(other, false);
                for (host, down) in down.iter_mut().enumerate() {
                    if core::mem::take(&mut down[other.index()]) {
                        rig.port(host, other, true);
                    }
                }
            }
            Act::Mend(rail) => rig.cut(Rail::ALL[rail], false),
            Act::Down(e, rail)
                if !rig.is_cut(Rail::ALL[1 - rail])
                    && down[0] == down[1]
                    && down[0] == [false; 2] =>
            {
                down[e][rail] = true;
                rig.cut(Rail::ALL[rail], true);
                rig.port(e, Rail::ALL[rail], false);
            }
            Act::Down(..) => {}
            Act::Up(e, rail) => {
                if core::mem::take(&mut down[e][rail]) {
                    rig.cut(Rail::ALL[rail], false);
                    rig.port(e, Rail::ALL[rail], true);
                }
            }
            Act::Loss(n) => rig.loss = n,
            Act::Late(n) => rig.late = n,
        }
    }
    (rig.loss, rig.late) = (0, 0);
    for rail in Rail::ALL {
        rig.cut(rail, false);
        for (host, down) in down.iter().enumerate() {
            if down[rail.index()] {
                rig.port(host, rail, true);
            }
        }
    }
    rig.run(40 * SECOND);
    for (host, book) in books.iter_mut().enumerate() {
        for c in rig.completions(host) {
            match c.opcode {
                WcOpcode::Recv | WcOpcode::RecvWriteImm => book.received.push((c.wr_id, c.imm)),
                _ => book.completed.push((c.wr_id, c.status)),
            }
        }
    }
    prop_assert_eq!(rig.homes(), [Rail::Default; 2], "both must come home");
    for host in 0..2 {
        let (book, peer) = (&books[host], &books[1 - host]);
        let wanted: Vec<_> = (0..book.posted).map(|id| (id, WcStatus::Success)).collect();
        prop_assert_eq!(&book.completed, &wanted, "completions of {}", host);
        let wanted: Vec<_> = (0..peer.two_sided).map(|k| (k, Some(k as u32))).collect();
        prop_assert_eq!(&book.received, &wanted, "receptions of {}", host);
        prop_assert_eq!(rig.counter(host), peer.added);
    }
    Ok(())
}
