//! Merging against an omniscient model: receivers that take packets in order, a sender that goes
//! back, and a network that loses, duplicates and delays arbitrarily.

use bowline_wire::{NakCode, Syndrome};
use proptest::prelude::*;

use crate::testing::{Rig, Told, root};
use crate::{Minimum, Paper, Policy, RootConfig};

/// PSNs begin where they wrap around.
const FIRST: u32 = 0xff_fff0;

fn psn(place: u32) -> u32 {
    FIRST.wrapping_add(place) & 0xff_ffff
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The sender sends its next packet; a bit for each member that loses it.
    Send(u16),
    /// One of the responses in flight arrives, perhaps twice.
    Answer { which: u8, twice: bool },
    /// One of the responses is lost.
    Lose(u8),
    /// The sender goes back to the first unacknowledged packet.
    Timeout,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => any::<[u16; 3]>().prop_map(|bits| Step::Send(bits[0] & bits[1] & bits[2])),
        4 => any::<(u8, bool)>().prop_map(|(which, twice)| Step::Answer { which, twice }),
        1 => any::<u8>().prop_map(Step::Lose),
        1 => Just(Step::Timeout),
    ]
}

/// A receiver that takes packets in order and responds to each.
#[derive(Clone, Copy, Default)]
struct Receiver {
    /// Packets that it has.
    has: u32,
    nak_sent: bool,
}

impl Receiver {
    /// Its response to the packet at an index.
    fn take(&mut self, place: u32) -> Option<(u32, Syndrome)> {
        if place > self.has {
            let nak = Syndrome::Nak(NakCode::PsnSequence);
            return (!core::mem::replace(&mut self.nak_sent, true)).then_some((self.has, nak));
        }
        if place == self.has {
            self.has += 1;
            self.nak_sent = false;
        }
        Some((self.has - 1, Syndrome::Ack { credits: 31 }))
    }
}

struct Model {
    rig: Rig,
    receivers: Vec<Receiver>,
    in_flight: Vec<(usize, u32, Syndrome)>,
    /// The sender's next packet, the first unacknowledged one, and the end of what was sent.
    next: u32,
    una: u32,
    end: u32,
    need: usize,
}

/// Most packets that the sender has outstanding.
const WINDOW: u32 = 12;

impl Model {
    fn new(members: usize, config: RootConfig, need: usize) -> Model {
        Model {
            rig: Rig::new(members, config),
            receivers: vec![Receiver::default(); members],
            in_flight: Vec::new(),
            next: 0,
            una: 0,
            end: 0,
            need,
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Send(lost) if self.next < self.una + WINDOW => {
                let place = self.next;
                self.next += 1;
                self.end = self.end.max(self.next);
                for member in self.rig.send(psn(place)) {
                    let answer =
                        (lost >> member & 1 == 0).then(|| self.receivers[member].take(place));
                    self.in_flight.extend(answer.flatten().map(|(at, s)| (member, at, s)));
                }
                let told = self.rig.told();
                self.hear(&told);
            }
            Step::Send(_) => {}
            Step::Answer { which, twice } => {
                if let Some(index) = usize::from(which).checked_rem(self.in_flight.len()) {
                    let (member, at, syndrome) = self.in_flight[index];
                    if !twice {
                        self.in_flight.swap_remove(index);
                    }
                    let told = self.rig.answer(member, psn(at), syndrome);
                    self.hear(&told);
                }
            }
            Step::Lose(which) => {
                if let Some(index) = usize::from(which).checked_rem(self.in_flight.len()) {
                    self.in_flight.swap_remove(index);
                }
            }
            Step::Timeout => self.next = self.una,
        }
    }

    /// Everything reported to the sender must be true.
    fn hear(&mut self, told: &[Told]) {
        for told in told {
            let (psn, goes_back) = match *told {
                Told::Ack(psn) => (psn, false),
                Told::Nak(psn) => (psn, true),
                // The group has failed.
                Told::Refused(..) => return,
                other => panic!("{other:?}"),
            };
            let place = psn.wrapping_sub(FIRST) & 0xff_ffff;
            if place == 0xff_ffff {
                // A switch that has lost its state may repeat what was true before the first
                // packet.
                continue;
            }
            let acked = if goes_back { place } else { place + 1 };
            let having = self.receivers.iter().filter(|receiver| receiver.has >= acked).count();
            assert!(having >= self.need, "{told:?}: {having} have it");
            // The sender ignores responses about packets that are not in flight.
            if place < self.una || place >= self.end {
                continue;
            }
            self.una = self.una.max(acked);
            if goes_back {
                self.next = self.una;
            }
            self.next = self.next.max(self.una);
        }
    }

    /// Without further faults, everything sent is acknowledged in the end.
    fn settle(&mut self) {
        for _ in 0..200 {
            while !self.in_flight.is_empty() {
                self.step(Step::Answer { which: 0, twice: false });
            }
            if self.una == self.end {
                return;
            }
            if self.next == self.end {
                self.step(Step::Timeout);
            }
            self.step(Step::Send(0));
        }
        let has: Vec<u32> = self.receivers.iter().map(|receiver| receiver.has).collect();
        panic!("{} of {} acknowledged, members have {has:?}", self.una, self.end);
    }
}

fn check(members: usize, steps: &[Step], config: RootConfig, need: usize) {
    let mut model = Model::new(members, config, need);
    for step in steps {
        model.step(*step);
    }
    model.settle();
}

proptest! {
    #[test]
    fn nothing_is_acknowledged_that_a_member_lacks_and_all_is_in_the_end(
        members in 1_usize..16,
        steps in prop::collection::vec(step(), 0..300),
        paper: bool,
    ) {
        let config = root(Some(FIRST));
        let config = if paper { config.as_in_the_paper() } else { config };
        check(members, &steps, config, members);
    }

    #[test]
    fn a_restarted_switch_acknowledges_nothing_that_a_member_lacks(
        members in 1_usize..16,
        steps in prop::collection::vec(step(), 0..100),
        more in prop::collection::vec(step(), 0..100),
        paper: bool,
    ) {
        let merge: &'static dyn crate::Merge = if paper { &Paper } else { &Minimum };
        let mut model = Model::new(members, RootConfig { merge, ..root(Some(FIRST)) }, members);
        for step in &steps {
            model.step(*step);
        }
        // The switch loses its state; responses in flight may be arbitrarily late.
        model.rig = Rig::new(members, RootConfig { merge, ..root(None) });
        for step in &more {
            model.step(*step);
        }
        model.settle();
    }

    #[test]
    fn a_quorum_is_never_smaller_than_it_says(
        (members, k) in (1_usize..8).prop_flat_map(|n| (Just(n), 1..=n)),
        steps in prop::collection::vec(step(), 0..300),
    ) {
        let policy = Policy::Quorum { k, after_ns: u64::MAX };
        let mut model = Model::new(members, RootConfig { policy, ..root(Some(FIRST)) }, k);
        for step in &steps {
            // A member that missed too much leaves, and below a quorum the group fails.
            if model.rig.switch.counters().failed > 0 {
                return Ok(());
            }
            model.step(*step);
        }
    }
}
