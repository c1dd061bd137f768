//! Shims below a transport.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use bowline_wire::{Bth, OpcodeSet};

use super::*;
use crate::shim::{OutPacket, PassThrough, Shim, ShimOut, ShimPeer};
use crate::tx::HeaderBuf;

/// Sends every packet twice, and loses the first copy of every third that arrives.
#[derive(Default)]
struct Twice {
    arrived: u32,
}

impl Shim for Twice {
    fn max_out(&self) -> usize {
        2
    }

    fn outgoing(&mut self, _now: Time, packet: OutPacket<'_>, out: &mut ShimOut<'_>) {
        out.send(packet);
        out.send(packet);
    }

    fn incoming(
        &mut self,
        _now: Time,
        packet: &PacketView<'_>,
        up: &mut dyn FnMut(&PacketView<'_>),
    ) -> bool {
        self.arrived += 1;
        if self.arrived % 3 != 1 {
            up(packet);
        }
        false
    }
}

/// Holds every packet back for a millisecond.
#[derive(Default)]
struct Late {
    held: Vec<(Time, Vec<u8>)>,
}

impl Shim for Late {
    fn outgoing(&mut self, _now: Time, packet: OutPacket<'_>, out: &mut ShimOut<'_>) {
        out.send(packet);
    }

    fn incoming(
        &mut self,
        now: Time,
        packet: &PacketView<'_>,
        _up: &mut dyn FnMut(&PacketView<'_>),
    ) -> bool {
        self.held.push((now.plus_nanos(1_000_000), packet.as_bytes().to_vec()));
        true
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.held.first().map(|h| h.0)
    }

    fn handle_timeout(
        &mut self,
        now: Time,
        _out: &mut ShimOut<'_>,
        up: &mut dyn FnMut(&PacketView<'_>),
    ) {
        while self.held.first().is_some_and(|h| h.0 <= now) {
            let (_, bytes) = self.held.remove(0);
            up(&PacketView::parse(&bytes).unwrap());
        }
    }
}

fn with_shims(shim: impl Fn() -> Box<dyn Shim>) -> Pair {
    with_chains(|| vec![shim()])
}

/// Puts chains of shims, innermost first, under both QPs.
fn with_chains(chain: impl Fn() -> Vec<Box<dyn Shim>>) -> Pair {
    let mut p = Pair::rc();
    let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
    for i in 0..2 {
        let (now, qpn) = (p.now, p.ends[i].qpn);
        p.ends[i].nic.modify_qp(now, qpn, &reset).unwrap();
        for shim in chain() {
            p.ends[i].nic.add_shim(qpn, shim).unwrap();
        }
    }
    p.connect(0, 1);
    p.connect(1, 0);
    p
}

fn moves_data(p: Pair) -> Pair {
    moves(p, 50_000)
}

fn moves(mut p: Pair, len: u32) -> Pair {
    let bytes = p.fill(0, 0, len as usize);
    p.post(0, 1, SendOp::Write(p.ends[1].remote(0)), &[p.ends[0].sge(0, len)]);
    p.post(0, 2, SendOp::Read(p.ends[1].remote(0)), &[p.ends[0].sge(400_000, len)]);
    p.run_out();
    assert_eq!(p.ends[0].statuses(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert!(p.ends[0].buffer.to_vec(400_000, len as usize) == bytes);
    p
}

#[test]
fn a_pass_through_changes_nothing() {
    // Long enough not to be divided without a shim.
    let with = moves(with_shims(|| Box::new(PassThrough)), 150_000);
    let without = moves(Pair::rc(), 150_000);
    assert_eq!(with.ends[0].nic.counters(), without.ends[0].nic.counters());
}

#[test]
fn a_shim_may_add_and_swallow_packets() {
    let p = moves_data(with_shims(|| Box::<Twice>::default()));
    assert!(p.ends[1].nic.counters().duplicates > 0);
}

#[test]
fn a_shim_may_hold_packets_back_and_release_them_by_its_timer() {
    let p = moves_data(with_shims(|| Box::<Late>::default()));
    assert!(p.now >= Time::from_millis(2));
}

#[test]
fn a_shim_cannot_be_put_under_a_running_qp() {
    let mut p = Pair::rc();
    let qpn = p.ends[0].qpn;
    assert!(p.ends[0].nic.add_shim(qpn, Box::new(PassThrough)).is_err());
}

/// Changes each byte of every payload, and back.
struct Change {
    there: fn(u8) -> u8,
    back: fn(u8) -> u8,
}

impl Shim for Change {
    fn outgoing(&mut self, _now: Time, packet: OutPacket<'_>, out: &mut ShimOut<'_>) {
        let mut payload = Vec::new();
        packet.append_payload(&mut payload);
        payload.iter_mut().for_each(|byte| *byte = (self.there)(*byte));
        out.send_copy(packet.header, &payload, packet.ecn);
    }

    fn incoming(
        &mut self,
        _now: Time,
        packet: &PacketView<'_>,
        up: &mut dyn FnMut(&PacketView<'_>),
    ) -> bool {
        let mut bytes = packet.as_bytes().to_vec();
        let at = packet.payload().as_ptr() as usize - packet.as_bytes().as_ptr() as usize;
        bytes[at..at + packet.payload().len()].iter_mut().for_each(|b| *b = (self.back)(*b));
        up(&PacketView::parse(&bytes).unwrap());
        false
    }
}

fn add_one() -> Box<dyn Shim> {
    Box::new(Change { there: |b| b.wrapping_add(1), back: |b| b.wrapping_sub(1) })
}

fn flip() -> Box<dyn Shim> {
    Box::new(Change { there: |b| b ^ 0x5a, back: |b| b ^ 0x5a })
}

#[test]
fn packets_leave_through_the_innermost_shim_first_and_arrive_through_the_outermost() {
    let mut p = with_chains(|| vec![add_one(), flip()]);
    let bytes = p.fill(0, 0, 1_000);
    p.post(0, 1, SendOp::Write(p.ends[1].remote(0)), &[p.ends[0].sge(0, 1_000)]);
    let frames = p.take(0);
    let on_the_wire: Vec<u8> = bytes.iter().map(|b| b.wrapping_add(1) ^ 0x5a).collect();
    assert_eq!(parse(&frames[0]).payload(), on_the_wire);
    p.deliver_all(&frames);
    p.run_out();
    assert_eq!(p.ends[0].statuses(), [(1, WcStatus::Success)]);
    assert!(p.ends[1].buffer.to_vec(0, 1_000) == bytes);
}

#[test]
fn every_shim_of_a_chain_may_add_swallow_and_delay() {
    let chain = || [flip(), Box::<Twice>::default(), add_one(), Box::<Late>::default()].into();
    let p = moves_data(with_chains(chain));
    assert!(p.ends[1].nic.counters().duplicates > 0);
    assert!(p.now >= Time::from_millis(2));
}

#[test]
fn makers_put_their_shims_under_new_qps_in_order() {
    let mut end = End::new(0, |_| {});
    let order = Arc::new(Mutex::new(Vec::new()));
    for number in [1, 2] {
        let order = order.clone();
        end.nic.add_shim_maker(Box::new(move |transport| {
            order.lock().unwrap().push((transport.name, number));
            Some(Box::new(PassThrough))
        }));
    }
    for qp_type in QpType::ALL {
        end.nic.create_qp(&QpInit::new(qp_type, end.pd, end.cq)).unwrap();
    }
    // Datagrams have no peer whose shims could understand them.
    assert_eq!(*order.lock().unwrap(), [("RC", 1), ("RC", 2), ("UC", 1), ("UC", 2)]);
}

/// Sends a packet of its own at the start, which looks like a UC packet, and counts its peer's.
struct Signal {
    due: bool,
    heard: Arc<AtomicU32>,
    dest: Qpn,
}

impl Shim for Signal {
    fn opcodes(&self, transport: &TransportDescriptor) -> OpcodeSet {
        assert_eq!(transport.name, "RC");
        OpcodeSet::of(&[Opcode::UC_SEND_ONLY])
    }

    fn started(&mut self, _now: Time, peer: &ShimPeer) {
        self.dest = peer.dest_qpn;
    }

    fn incoming(
        &mut self,
        _now: Time,
        packet: &PacketView<'_>,
        up: &mut dyn FnMut(&PacketView<'_>),
    ) -> bool {
        if packet.opcode() == Opcode::UC_SEND_ONLY {
            self.heard.fetch_add(1, Ordering::Relaxed);
        }
        // The transport must not see packets that are not its own.
        up(packet);
        false
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.due.then_some(Time::ZERO)
    }

    fn handle_timeout(
        &mut self,
        _now: Time,
        out: &mut ShimOut<'_>,
        _up: &mut dyn FnMut(&PacketView<'_>),
    ) {
        self.due = false;
        let bth = Bth::new(Opcode::UC_SEND_ONLY, self.dest, Psn::new(0));
        out.send_copy(&HeaderBuf::new(&bth), &[7; 4], 0);
    }
}

#[test]
fn shims_claim_opcodes_and_the_transport_never_sees_them() {
    let heard: Arc<AtomicU32> = Arc::default();
    let signal = || Signal { due: true, heard: heard.clone(), dest: Qpn::new(0) };
    let p = moves_data(with_chains(|| vec![Box::new(signal()), flip()]));
    assert_eq!(heard.load(Ordering::Relaxed), 2);
    assert_eq!(p.ends[0].nic.counters().drop_state, 0);
    assert_eq!(p.ends[0].nic.counters().drop_message, 0);
}
