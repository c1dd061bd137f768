//! FEC in a chain with a shim that changes payloads.

use bowline_nic::{Mtu, OutPacket, QpType, SendOp, Shim, ShimOut, Time, WcStatus};
use bowline_wire::{Opcode, PacketView, ShimPacket};

use super::repair::is_data;
use super::rig::Rig;
use crate::{FecConfig, FecMode, Params};

/// XORs every payload with a key stream that depends on nothing but the place.
struct Xor;

fn xor(bytes: &mut [u8]) {
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte ^= (i as u8).wrapping_mul(37).wrapping_add(0xa5);
    }
}

impl Shim for Xor {
    fn outgoing(&mut self, _now: Time, packet: OutPacket<'_>, out: &mut ShimOut<'_>) {
        let mut payload = Vec::new();
        packet.append_payload(&mut payload);
        xor(&mut payload);
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
        let end = at + packet.payload().len();
        xor(&mut bytes[at..end]);
        up(&PacketView::parse(&bytes).unwrap());
        false
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    /// Payloads are changed under FEC: repairs too.
    FecInside,
    /// FEC codes changed payloads.
    FecOutside,
}

fn rig(order: Order, qp_type: QpType) -> Rig {
    let config = FecConfig::new(FecMode::Fixed(Params::new(8, 2).unwrap()));
    let xor = || Some(Box::new(Xor) as Box<dyn Shim>);
    let none = || None;
    let mut rig = match order {
        Order::FecInside => Rig::chained(qp_type, Mtu::B1024, [Some(config); 2], none, xor),
        Order::FecOutside => Rig::chained(qp_type, Mtu::B1024, [Some(config); 2], xor, none),
    };
    rig.run(|_, _| true);
    assert_eq!(rig.ends[0].counters.snapshot().peers_found, 1, "{order:?}");
    rig
}

const LEN: usize = 20_000;

#[test]
fn a_loss_is_repaired_whichever_shim_is_outside() {
    for order in [Order::FecInside, Order::FecOutside] {
        for qp_type in [QpType::Rc, QpType::Uc] {
            for lost in 0..20 {
                let mut rig = rig(order, qp_type);
                rig.post(0, 1, SendOp::Write(rig.remote(1, 0)), 100_000, LEN);
                let mut count = 0;
                rig.run(|from, packet| {
                    let counts = from == 0 && is_data(packet);
                    count += u32::from(counts);
                    !(counts && count == lost + 1)
                });
                assert_eq!(rig.statuses(0), [(1, WcStatus::Success)]);
                let [a, b] = &rig.ends;
                let what = format!("{order:?} {qp_type:?} without packet {lost}");
                assert!(b.memory.to_vec(0, LEN) == a.memory.to_vec(100_000, LEN), "{what}");
                assert_eq!(b.counters.snapshot().recovered, 1, "{what}");
                assert_eq!(a.nic.counters().retransmitted_packets, 0, "{what}");
            }
        }
    }
}

#[test]
fn the_outermost_shim_has_the_last_word() {
    for order in [Order::FecInside, Order::FecOutside] {
        let mut rig = rig(order, QpType::Rc);
        rig.post(0, 1, SendOp::Write(rig.remote(1, 0)), 100_000, LEN);
        let plain = rig.ends[0].memory.to_vec(100_000, 1_024);
        let (mut repairs, mut readable) = (0, 0);
        rig.run(|_, packet| {
            if packet.opcode() == Opcode::RC_REPAIR {
                repairs += 1;
                readable += u32::from(matches!(
                    ShimPacket::parse(packet.payload()),
                    Some(ShimPacket::Repair(..))
                ));
            }
            assert!(packet.payload() != plain, "{order:?}: in the clear");
            true
        });
        assert!(repairs > 0);
        let expected = if order == Order::FecOutside { repairs } else { 0 };
        assert_eq!(readable, expected, "{order:?}");
    }
}
