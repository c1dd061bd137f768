//! A carrier that reports arbitrary events.

use bowline_nic::{Mtu, Remote, Time, XpOptions};
use proptest::prelude::*;

use super::super::*;

/// Reports the events that it is given, and ignores requests.
struct Liar(VecDeque<CarrierEvent>);

impl Carrier for Liar {
    type Place = ();

    fn open(&mut self, number: u64, (): (), _: u32) {
        let remote = Remote { addr: 0, rkey: 1 };
        self.0.push_back(CarrierEvent::Opened { number, remote });
    }

    fn revoke(&mut self, number: u64) {
        self.0.push_back(CarrierEvent::Revoked { number });
    }

    fn write(&mut self, fragments: &Fragments<()>) -> u32 {
        fragments.count
    }

    fn tell(&mut self, message: &[u8; GRANT_LEN]) {
        // Its own grants come back: it is its own peer.
        self.0.push_back(CarrierEvent::Control(message.to_vec()));
    }

    fn next_event(&mut self) -> Option<CarrierEvent> {
        self.0.pop_front()
    }
}

fn event() -> impl Strategy<Value = CarrierEvent> {
    let remote = Remote { addr: 5, rkey: 6 };
    prop_oneof![
        8 => (any::<u32>(), 0_u32..600)
            .prop_map(|(imm, bytes)| CarrierEvent::Landed { imm, bytes }),
        8 => (0_u32..8, 0_u32..6, 0_u32..20, 0_u32..300).prop_map(|(op, message, k, bytes)| {
            CarrierEvent::Landed { imm: op << 29 | message << 17 | k, bytes }
        }),
        1 => (0_u64..8).prop_map(move |number| CarrierEvent::Opened { number, remote }),
        1 => (0_u64..8).prop_map(|number| CarrierEvent::Revoked { number }),
        1 => (0_u32..8).prop_map(|fragments| CarrierEvent::Sent { fragments }),
        1 => prop::collection::vec(any::<u8>(), 0..40).prop_map(CarrierEvent::Control),
    ]
}

proptest! {
    #[test]
    fn nothing_that_a_carrier_says_breaks_it(
        events in prop::collection::vec(event(), 0..200), window in 0_u8..5, grace_ns in 0_u64..100,
    ) {
        let options = XpOptions { window: 1 << window, grace_ns, loss_log: 2 };
        let mut qp = ExpressQp::new(Mtu::B256, options).unwrap();
        let mut carrier = Liar(VecDeque::new());
        let (mut posted, mut done) = (0, 0);
        for (n, event) in events.into_iter().enumerate() {
            let now = Time::from_nanos(n as u64 * 10);
            let (deadline, len) = (now.plus_nanos(300), 1000 + n as u32);
            qp.post_recv(&ExpressRecv { wr_id: 0, place: (), len, deadline }).unwrap();
            let target = Target::Send(Some(9));
            qp.post_send(&ExpressSend { wr_id: 1, place: (), len, target, deadline }).unwrap();
            posted += 2;
            carrier.0.push_back(event);
            qp.drive(now, &mut carrier);
            while let Some(completion) = qp.poll() {
                prop_assert!(completion.byte_len <= 1000 + n as u32);
                done += 1;
            }
        }
        // Fragments that were taken and never reported keep their requests; receives always end.
        let now = Time::from_nanos(1 << 40);
        qp.drive(now, &mut carrier);
        done += std::iter::from_fn(|| qp.poll()).count();
        prop_assert!(done >= posted / 2, "{done} of {posted}");
        prop_assert!(std::iter::from_fn(|| qp.take_loss()).count() <= 2);
    }
}
