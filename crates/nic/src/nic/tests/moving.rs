//! Connections that move to another NIC and back, in the middle of everything.

use proptest::prelude::*;

use super::*;
use crate::qp::body::{Carry, Resume};

/// Two hosts with two NICs each. NIC 0 and 1 are the first host's, 2 and 3 the second's; even ones
/// are on one rail, odd ones on the other.
struct Rig {
    nics: Vec<Nic>,
    cqs: [CqId; 4],
    qpns: [Qpn; 4],
    buffers: [Arc<Buffer>; 2],
    keys: [MrKey; 2],
    /// Where each host's connection is.
    home: [usize; 2],
    dead: [bool; 2],
    now: Time,
}

const BASE: u64 = 0x1_0000;

impl Rig {
    fn new() -> Rig {
        let mut nics: Vec<Nic> =
            (0..4).map(|i| Nic::new(NicConfig::new(addr(i), [i as u8; 32])).unwrap()).collect();
        let now = Time::from_micros(1);
        let pds: Vec<PdId> = nics.iter_mut().map(|nic| nic.alloc_pd().unwrap()).collect();
        let cqs = core::array::from_fn(|i| nics[i].create_cq(1024).unwrap());
        let buffers: [Arc<Buffer>; 2] = core::array::from_fn(|_| Buffer::new(1 << 20));
        let keys = core::array::from_fn(|host| {
            let region = || Region::owned(buffers[host].clone());
            let (a, b) = (2 * host, 2 * host + 1);
            let key = nics[a].register(pds[a], region(), BASE, ALL).unwrap();
            let shared = nics[a].share_key(key).unwrap();
            nics[b].register_as(&shared, pds[b], region(), BASE, ALL).unwrap();
            key
        });
        let qpns = core::array::from_fn(|i| {
            let init = QpInit { max_inline: 64, ..QpInit::new(QpType::Rc, pds[i], cqs[i]) };
            let made =
                if i % 2 == 0 { nics[i].create_qp(&init) } else { nics[i].create_spare_qp(&init) };
            made.unwrap()
        });
        for (me, peer) in [(0, 2), (2, 0)] {
            let nic: &mut Nic = &mut nics[me];
            let (rq, sq) = if me == 0 { (0xff_fff0, 0xff_fffd) } else { (0xff_fffd, 0xff_fff0) };
            let (rq_psn, sq_psn) = (Psn::new(rq), Psn::new(sq));
            let to = Connect { rq_psn, sq_psn, ..connect_to(addr(peer), qpns[peer]) };
            nic.connect(now, qpns[me], &to).unwrap();
            nic.guard_qp(qpns[me], true).unwrap();
        }
        for (me, peer) in [(1, 3), (3, 1)] {
            let av = AddressVector::new(addr(peer));
            let peer = qpns[peer];
            nics[me].aim_spare_qp(qpns[me], av, peer).unwrap();
        }
        Rig { nics, cqs, qpns, buffers, keys, home: [0, 0], dead: [false; 2], now }
    }

    fn at(&self, host: usize) -> usize {
        2 * host + self.home[host]
    }

    fn post(&mut self, host: usize, wr_id: u64, op: SendOp, offset: u64, len: u32) {
        let at = self.at(host);
        let sge = [Sge::new(self.keys[host], BASE + offset, len)];
        let wr = SendWr::new(wr_id, op, &sge);
        self.nics[at].post_send(self.now, self.qpns[at], &wr).unwrap();
    }

    fn recv(&mut self, host: usize, wr_id: u64, offset: u64, len: u32) {
        let at = self.at(host);
        let sges = [Sge::new(self.keys[host], BASE + offset, len)];
        self.nics[at].post_recv(self.qpns[at], &RecvWr::new(wr_id, &sges)).unwrap();
    }

    fn remote(&self, host: usize, offset: u64) -> Remote {
        Remote { addr: BASE + offset, rkey: self.keys[host].0 }
    }

    /// Lets up to `limit` packets through; those of a dead rail vanish.
    fn step(&mut self, limit: usize) -> usize {
        let caps = TxCaps { max_segments: 16, max_burst_bytes: 65_507 };
        let mut batch = TxBatch::new(caps, limit.clamp(1, 64));
        let mut moved = 0;
        for i in 0..4 {
            batch.clear();
            self.nics[i].poll_transmit(self.now, &mut batch);
            moved += batch.len();
            let to = (i + 2) % 4;
            for burst in batch.bursts() {
                for (id, packet) in batch.packets(burst).iter().enumerate() {
                    if !self.dead[i % 2] {
                        let meta = envelope(i, burst, id);
                        self.nics[to].handle_frame(self.now, &meta, batch.bytes(packet));
                    }
                }
            }
        }
        moved
    }

    /// Runs until no packet and no timer is left.
    fn run_out(&mut self) {
        for _ in 0..10_000 {
            if self.step(64) > 0 {
                continue;
            }
            let Some(at) = self.nics.iter().filter_map(Nic::poll_timeout).min() else { return };
            self.now = self.now.max(at);
            self.nics.iter_mut().for_each(|nic| nic.handle_timeout(self.now));
        }
        panic!("timers never end");
    }

    /// Moves both ends to the other rail.
    fn switch(&mut self, carry: Carry) {
        let resumes: Vec<Resume> = (0..2)
            .map(|host| {
                let from = self.at(host);
                self.home[host] = 1 - self.home[host];
                let to = self.at(host);
                self.nics[from].hold_qp(self.qpns[from]).unwrap();
                let body = self.nics[from].detach_qp(self.now, self.qpns[from], carry).unwrap();
                let resume = Resume { received: body.received(), psn: body.expected_psn() };
                self.nics[to]
                    .attach_qp(self.now, self.qpns[to], body)
                    .unwrap_or_else(|(error, _)| panic!("{error}"));
                resume
            })
            .collect();
        for host in 0..2 {
            let at = self.at(host);
            let resume = (carry == Carry::Requests).then(|| resumes[1 - host]);
            self.nics[at].release_sends(self.qpns[at], resume).unwrap();
        }
    }

    /// Completions of a host, wherever they are.
    fn completions(&mut self, host: usize) -> Vec<Completion> {
        let mut all = Vec::new();
        for i in [2 * host, 2 * host + 1] {
            let mut out = vec![Completion::default(); 256];
            let n = self.nics[i].poll_cq(self.cqs[i], &mut out).unwrap();
            all.extend_from_slice(&out[..n]);
        }
        all
    }
}

#[test]
fn a_dead_path_holds_a_guarded_qp_and_the_other_rail_finishes() {
    let mut rig = Rig::new();
    let bytes: Vec<u8> = (0..100_000).map(|k| (k * 13) as u8).collect();
    rig.buffers[0].write_at(0, &bytes);
    let remote = rig.remote(1, 0);
    rig.post(0, 7, SendOp::Write(remote), 0, 100_000);
    rig.step(8);
    rig.dead[0] = true;
    rig.run_out();
    assert_eq!(rig.completions(0), []);
    let qpn = rig.qpns[0];
    let events: Vec<Event> = std::iter::from_fn(|| rig.nics[0].poll_event()).collect();
    assert_eq!(events, [Event::PathFailed(qpn)]);
    rig.switch(Carry::Transport);
    rig.run_out();
    let done = rig.completions(0);
    assert_eq!(done.len(), 1);
    assert_eq!((done[0].wr_id, done[0].status, done[0].qpn), (7, WcStatus::Success, qpn));
    let mut got = vec![0; bytes.len()];
    rig.buffers[1].read_at(0, &mut got);
    assert!(got == bytes);
}

#[test]
fn a_key_that_was_revoked_on_one_nic_is_revoked_on_the_other() {
    for revoked_away in [false, true] {
        let mut rig = Rig::new();
        if revoked_away {
            rig.switch(Carry::Transport);
        }
        rig.recv(1, 1, 0, 8);
        let rkey = rig.keys[1].0;
        rig.post(0, 2, SendOp::SendInvalidate(rkey), 0, 8);
        rig.run_out();
        let got = rig.completions(1);
        assert_eq!(got.iter().map(|c| c.invalidated).collect::<Vec<_>>(), [Some(rkey)]);
        assert_eq!(rig.completions(0)[0].status, WcStatus::Success);
        rig.switch(Carry::Transport);
        rig.post(0, 3, SendOp::Write(rig.remote(1, 0)), 0, 8);
        rig.run_out();
        let refused = rig.completions(0);
        assert_eq!(refused[0].status, WcStatus::RemAccessErr, "revoked away: {revoked_away}");
    }
}

#[test]
fn posts_to_a_qp_that_is_away_are_refused_and_a_spare_needs_a_peer() {
    let mut rig = Rig::new();
    rig.switch(Carry::Transport);
    let wr = SendWr::new(1, SendOp::Send, &[]);
    assert_eq!(rig.nics[0].post_send(rig.now, rig.qpns[0], &wr), Err(PostError::Away));
    let recv = RecvWr::new(1, &[]);
    assert_eq!(rig.nics[0].post_recv(rig.qpns[0], &recv), Err(PostError::Away));
    assert!(rig.nics[0].is_away(rig.qpns[0]) && !rig.nics[1].is_away(rig.qpns[1]));
    // A second connection cannot go where one is.
    let body = rig.nics[1].detach_qp(rig.now, rig.qpns[1], Carry::Transport).unwrap();
    let init = rig.nics[1].query_qp(rig.qpns[1]).unwrap().init;
    let fresh = rig.nics[1].create_spare_qp(&init).unwrap();
    let refused = rig.nics[1].attach_qp(rig.now, fresh, body);
    assert!(refused.is_err(), "it has no peer");
    assert!(rig.nics[1].detach_qp(rig.now, fresh, Carry::Transport).is_err());
}

#[test]
fn a_failed_move_fails_the_connection_as_exhausted_retries_would() {
    let mut rig = Rig::new();
    rig.recv(0, 3, 0, 64);
    let remote = rig.remote(1, 0);
    rig.post(0, 1, SendOp::Write(remote), 0, 64);
    rig.post(0, 2, SendOp::Write(remote), 0, 64);
    let (now, qpn) = (rig.now, rig.qpns[0]);
    rig.nics[0].hold_qp(qpn).unwrap();
    rig.nics[0].fail_qp(now, qpn).unwrap();
    let statuses: Vec<_> = rig.completions(0).iter().map(|c| (c.wr_id, c.status)).collect();
    let flushed = WcStatus::WrFlushErr;
    assert_eq!(statuses, [(1, WcStatus::RetryExcErr), (2, flushed), (3, flushed)]);
    assert_eq!(rig.nics[0].query_qp(qpn).unwrap().state, QpState::Err);
}

#[test]
fn a_fence_holds_back_what_follows_the_next_signaled_request() {
    let mut rig = Rig::new();
    let (at, qpn) = (0, rig.qpns[0]);
    let remote = rig.remote(1, 0);
    let quiet = |rig: &mut Rig, wr_id| {
        let sge = [Sge::new(rig.keys[0], BASE, 8)];
        let mut wr = SendWr::new(wr_id, SendOp::Write(remote), &sge);
        wr.flags = SendFlags::empty();
        rig.nics[at].post_send(rig.now, qpn, &wr).unwrap();
    };
    quiet(&mut rig, 1);
    rig.nics[at].fence_sends(qpn).unwrap();
    quiet(&mut rig, 2);
    assert_eq!(rig.nics[at].fence(qpn), Fence::WaitSignaled);
    rig.post(0, 3, SendOp::Write(remote), 0, 8);
    rig.post(0, 4, SendOp::Write(remote), 0, 8);
    assert_eq!(rig.nics[at].fence(qpn), Fence::WaitDrained);
    rig.run_out();
    assert_eq!(rig.nics[at].fence(qpn), Fence::Drained);
    assert_eq!(rig.completions(0).iter().map(|c| c.wr_id).collect::<Vec<_>>(), [3]);
    rig.nics[at].release_sends(qpn, None).unwrap();
    rig.run_out();
    assert_eq!(rig.completions(0).iter().map(|c| c.wr_id).collect::<Vec<_>>(), [4]);
}

#[test]
fn a_key_that_becomes_known_does_not_lift_a_fence() {
    let mut rig = Rig::new();
    let (qpn, remote) = (rig.qpns[0], rig.remote(1, 0));
    rig.nics[0].set_peer_keys_differ(qpn, true).unwrap();
    let done = |rig: &mut Rig| rig.completions(0).iter().map(|c| c.wr_id).collect::<Vec<_>>();
    // Without a fence a request waits for its key alone.
    rig.post(0, 1, SendOp::Write(remote), 0, 8);
    rig.run_out();
    assert_eq!(done(&mut rig), [] as [u64; 0]);
    rig.nics[0].learn_peer_key(qpn, remote.rkey, remote.rkey).unwrap();
    rig.run_out();
    assert_eq!(done(&mut rig), [1]);
    // Before the fence, or the request in front of it, a key is missing.
    for ahead in [true, false] {
        rig.nics[0].set_peer_keys_differ(qpn, true).unwrap();
        let quiet = SendWr::new(2, SendOp::Send, &[]);
        let sge = [Sge::new(rig.keys[0], BASE, 8)];
        let first = SendWr::new(2, SendOp::Write(remote), &sge);
        rig.recv(1, 9, 0, 8);
        rig.nics[0].post_send(rig.now, qpn, if ahead { &first } else { &quiet }).unwrap();
        rig.nics[0].fence_sends(qpn).unwrap();
        rig.post(0, 3, SendOp::Write(remote), 0, 8);
        rig.run_out();
        let before = done(&mut rig);
        assert_eq!(rig.nics[0].fence(qpn), Fence::Drained);
        rig.nics[0].learn_peer_key(qpn, remote.rkey, remote.rkey).unwrap();
        rig.run_out();
        assert_eq!(rig.nics[0].fence(qpn), Fence::Drained, "ahead: {ahead}");
        assert_eq!(done(&mut rig), [] as [u64; 0], "ahead: {ahead}");
        rig.nics[0].release_sends(qpn, None).unwrap();
        rig.run_out();
        assert_eq!([before, done(&mut rig)].concat(), [2, 3]);
    }
}

#[test]
fn a_fence_behind_requests_that_ask_for_nothing_is_there_when_they_are_done() {
    let mut rig = Rig::new();
    let qpn = rig.qpns[0];
    let sge = [Sge::new(rig.keys[0], BASE, 8)];
    let mut wr = SendWr::new(1, SendOp::Write(rig.remote(1, 0)), &sge);
    wr.flags = SendFlags::empty();
    rig.nics[0].post_send(rig.now, qpn, &wr).unwrap();
    rig.nics[0].fence_sends(qpn).unwrap();
    assert_eq!(rig.nics[0].fence(qpn), Fence::WaitSignaled);
    rig.run_out();
    rig.nics[0].fence_sends(qpn).unwrap();
    assert_eq!(rig.nics[0].fence(qpn), Fence::Drained);
}

#[test]
fn a_queue_that_drains_while_its_connection_starts_anew_is_drained() {
    let mut rig = Rig::new();
    rig.dead[0] = true;
    let remote = rig.remote(1, 0);
    rig.post(0, 1, SendOp::Write(remote), 0, 64);
    rig.step(8);
    let modify = |rig: &mut Rig, at: usize, state, sqd_notify| {
        let attr = QpAttr { state: Some(state), sqd_notify, ..QpAttr::default() };
        rig.nics[at].modify_qp(rig.now, rig.qpns[at], &attr).unwrap();
    };
    modify(&mut rig, 0, QpState::Sqd, Some(true));
    rig.run_out();
    rig.switch(Carry::Requests);
    rig.run_out();
    assert_eq!(rig.nics[1].poll_event(), Some(Event::SqDrained(rig.qpns[0])));
    assert_eq!(rig.completions(0), []);
    modify(&mut rig, 1, QpState::Rts, None);
    rig.run_out();
    assert_eq!(rig.completions(0).len(), 1);
}

/// What a host does in the property below.
#[derive(Clone, Copy, Debug)]
enum Act {
    Send(u32),
    WriteImm(u32),
    Read(u32),
    Add,
    Step(usize),
    Switch,
    Kill,
}

fn acts(atomics: bool) -> impl Strategy<Value = Vec<Act>> {
    let len = 0_u32..6000;
    let act = prop_oneof![
        3 => len.clone().prop_map(Act::Send),
        3 => len.clone().prop_map(Act::WriteImm),
        2 => (1_u32..6000).prop_map(Act::Read),
        2 => Just(if atomics { Act::Add } else { Act::Send(1) }),
        6 => (1_usize..12).prop_map(Act::Step),
        2 => Just(Act::Switch),
        1 => Just(Act::Kill),
    ];
    proptest::collection::vec(act, 1..60)
}

/// Plays a script; every message must arrive exactly once and in order, every request complete
/// exactly once and in order, and the counter count each addition once.
fn play(script: &[Act], carry: Carry) {
    let mut rig = Rig::new();
    for i in 0..64 {
        rig.recv(1, i, 0x4_0000, 8192);
    }
    let (mut posted, mut two_sided, mut added) = (Vec::new(), 0_u64, 0_u64);
    let mut completed = Vec::new();
    let mut received = Vec::new();
    for act in script {
        let id = posted.len() as u64;
        let mut post = |rig: &mut Rig, op, len| {
            rig.post(0, id, op, 0, len);
            posted.push(id);
        };
        let remote = rig.remote(1, 0x8_0000);
        match *act {
            _ if id >= 60 => break,
            Act::Send(len) => post(&mut rig, SendOp::SendImm(two_sided as u32), len),
            Act::WriteImm(len) => post(&mut rig, SendOp::WriteImm(remote, two_sided as u32), len),
            Act::Read(len) => post(&mut rig, SendOp::Read(remote), len),
            Act::Add => {
                let remote = rig.remote(1, 0);
                post(&mut rig, SendOp::FetchAdd { remote, add: 1 }, 8);
                added += 1;
            }
            Act::Step(n) => _ = rig.step(n),
            Act::Switch => {
                rig.dead = [false; 2];
                rig.switch(carry);
            }
            Act::Kill => rig.dead[rig.home[0]] = true,
        }
        two_sided += u64::from(matches!(act, Act::Send(_) | Act::WriteImm(_)));
        completed.extend(rig.completions(0).iter().map(|c| (c.wr_id, c.status)));
        received.extend(rig.completions(1).iter().map(|c| (c.wr_id, c.imm)));
    }
    if rig.dead.contains(&true) {
        rig.dead = [false; 2];
        rig.switch(carry);
    }
    rig.run_out();
    completed.extend(rig.completions(0).iter().map(|c| (c.wr_id, c.status)));
    received.extend(rig.completions(1).iter().map(|c| (c.wr_id, c.imm)));
    let wanted: Vec<_> = posted.iter().map(|id| (*id, WcStatus::Success)).collect();
    assert_eq!(completed, wanted);
    let wanted: Vec<_> = (0..two_sided).map(|k| (k, Some(k as u32))).collect();
    assert_eq!(received, wanted);
    let mut counter = [0; 8];
    rig.buffers[1].read_at(0, &mut counter);
    assert_eq!(u64::from_ne_bytes(counter), added);
}

proptest! {
    #[test]
    fn a_connection_that_moves_whole_does_everything_exactly_once(script in acts(true)) {
        play(&script, Carry::Transport);
    }

    #[test]
    fn a_connection_that_starts_anew_receives_nothing_twice(script in acts(false)) {
        play(&script, Carry::Requests);
    }
}
