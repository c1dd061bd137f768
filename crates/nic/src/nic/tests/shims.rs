//! The seam under a transport.

use super::*;
use crate::shim::{OutPacket, PassThrough, Shim, ShimOut};

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
    let mut p = Pair::rc();
    let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
    for i in 0..2 {
        let (now, qpn) = (p.now, p.ends[i].qpn);
        p.ends[i].nic.modify_qp(now, qpn, &reset).unwrap();
        p.ends[i].nic.set_shim(qpn, shim()).unwrap();
    }
    p.connect(0, 1);
    p.connect(1, 0);
    p
}

fn moves_data(mut p: Pair) -> Pair {
    let bytes = p.fill(0, 0, 50_000);
    p.post(0, 1, SendOp::Write(p.ends[1].remote(0)), &[p.ends[0].sge(0, 50_000)]);
    p.post(0, 2, SendOp::Read(p.ends[1].remote(0)), &[p.ends[0].sge(100_000, 50_000)]);
    p.run_out();
    assert_eq!(p.ends[0].statuses(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert!(p.ends[0].buffer.to_vec(100_000, 50_000) == bytes);
    p
}

#[test]
fn a_pass_through_changes_nothing() {
    let with = moves_data(with_shims(|| Box::new(PassThrough)));
    let without = moves_data(Pair::rc());
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
    assert!(p.ends[0].nic.set_shim(qpn, Box::new(PassThrough)).is_err());
}
