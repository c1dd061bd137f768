//! Many messages over a wire that loses, duplicates, delays and reorders.

use std::collections::BTreeMap;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha12Rng;

use super::*;

const MESSAGES: u64 = 60;
const ROOM: u32 = 4000;

/// A posted receive, and its outcome.
struct Slot {
    deadline: Time,
    len: u32,
    imm: Option<u32>,
    done: bool,
}

struct Storm {
    pair: Pair,
    rng: ChaCha12Rng,
    /// Frames in flight, by arrival time.
    wire: BTreeMap<(Time, u64), Frame>,
    next_frame: u64,
    slots: Vec<Slot>,
    /// Receives that ended with each mark, as [`EndMark`] lists them.
    marks: [u32; 4],
}

impl Storm {
    fn new(seed: u64) -> Storm {
        let mut rng = ChaCha12Rng::seed_from_u64(seed);
        let options = XpOptions {
            window: 1 << rng.random_range(0..4),
            grace_ns: if rng.random() { 0 } else { 20_000 },
            loss_log: 1024,
        };
        let pair = Pair::new(options);
        Storm { pair, rng, wire: BTreeMap::new(), next_frame: 0, slots: Vec::new(), marks: [0; 4] }
    }

    fn post(&mut self) {
        let n = self.slots.len() as u64;
        let len = self.rng.random_range(0..=ROOM);
        let target = match self.rng.random_range(0..3) {
            0 => Target::Send(None),
            1 => Target::Send(Some(self.rng.random())),
            _ => Target::WriteImm(0, self.rng.random()),
        };
        let nanos = self.rng.random_range(20_000..400_000);
        let deadline = self.pair.now.plus_nanos(nanos);
        self.pair.recv(n, n * u64::from(ROOM), ROOM, nanos);
        self.pair.send(n, len, target);
        let imm = match target {
            Target::Send(imm) => imm,
            Target::WriteImm(_, imm) => Some(imm),
        };
        self.slots.push(Slot { deadline, len, imm, done: false });
    }

    fn transmit(&mut self) {
        for i in 0..2 {
            for frame in self.pair.take(i) {
                let copies = match self.rng.random_range(0..100) {
                    0..8 => 0,
                    8..12 => 2,
                    _ => 1,
                };
                for _ in 0..copies {
                    // Some come after every deadline.
                    let delay = match self.rng.random_range(0..100) {
                        0..5 if frame.is_data() => self.rng.random_range(0..2_000_000),
                        5..15 => self.rng.random_range(0..30_000),
                        _ => 5_000,
                    };
                    let at = self.pair.now.plus_nanos(delay);
                    self.wire.insert((at, self.next_frame), frame.clone());
                    self.next_frame += 1;
                }
            }
        }
    }

    /// Takes completions, and checks each.
    fn judge(&mut self) {
        while let Some(got) = self.pair.qps[1].poll() {
            self.marks[got.end as usize] += 1;
            let slot = &mut self.slots[got.wr_id as usize];
            assert!(!std::mem::replace(&mut slot.done, true), "completed twice");
            assert!(self.pair.now <= slot.deadline, "{got:?} after its deadline");
            let at = got.wr_id as usize * ROOM as usize;
            let bytes = self.pair.received(at, ROOM as usize);
            let (whole, wanted) = (got.end == EndMark::Whole, pattern(slot.len));
            let (mut missing, end) = match whole {
                true => (Vec::new(), slot.len),
                false => {
                    let loss = self.pair.qps[1].take_loss().expect("a record of what is missing");
                    assert_eq!(loss.wr_id, got.wr_id);
                    (loss.missing, loss.message_len.unwrap_or(ROOM))
                }
            };
            missing.push(end..ROOM);
            let is_missing = |i: u32| missing.iter().any(|range| range.contains(&i));
            let mut placed = 0;
            for (i, byte) in bytes.iter().enumerate() {
                // Patterns are odd, untouched bytes even.
                match is_missing(i as u32) {
                    true => assert_eq!(*byte, 0xee, "{i} of {got:?} is said to be missing"),
                    false => {
                        assert_eq!(*byte, wanted[i], "{i} of {got:?}");
                        placed += 1;
                    }
                }
            }
            assert_eq!(placed, got.byte_len);
            assert!(!whole || (got.byte_len, got.imm) == (slot.len, slot.imm));
            assert!(got.imm.is_none() || got.imm == slot.imm);
            // Nothing may touch it from now on.
            self.pair.ends[1].buffer.write_at(at, &[0x54; ROOM as usize]);
        }
    }

    /// Advances time to the next event.
    fn advance(&mut self, end: Time) -> bool {
        let wakes = (0..2)
            .flat_map(|i| [self.pair.qps[i].poll_timeout(), self.pair.ends[i].nic.poll_timeout()]);
        let arrival = self.wire.keys().next().map(|(at, _)| *at);
        let next = wakes.chain([arrival]).flatten().min().unwrap_or(end).min(end);
        self.pair.now = next.max(self.pair.now);
        while let Some(entry) = self.wire.first_entry()
            && entry.key().0 <= self.pair.now
        {
            let frame = entry.remove();
            self.pair.deliver(&frame);
            self.judge();
        }
        self.pair.drive(0);
        self.pair.drive(1);
        self.judge();
        self.pair.now < end
    }
}

#[test]
fn every_receive_ends_by_its_deadline_with_what_is_there_and_stays_as_it_was() {
    let (mut marks, mut refused) = ([0; 4], 0);
    for seed in 0..150 {
        let mut storm = Storm::new(seed);
        let end = Time::from_millis(60);
        let mut sent = 0;
        loop {
            let ahead = storm.slots.iter().filter(|slot| !slot.done).count();
            if (storm.slots.len() as u64) < MESSAGES && ahead < 6 {
                storm.post();
            }
            storm.transmit();
            if !storm.advance(end) {
                break;
            }
            while let Some(completion) = storm.pair.qps[0].poll() {
                assert_eq!(completion.status, WcStatus::Success);
                sent += 1;
            }
        }
        assert!(!storm.pair.qps.iter().any(ExpressQp::has_failed), "seed {seed}");
        assert_eq!(sent, MESSAGES, "seed {seed}");
        assert!(storm.slots.iter().all(|slot| slot.done), "seed {seed}");
        let all = storm.pair.received(0, (MESSAGES * u64::from(ROOM)) as usize);
        assert!(all.iter().all(|byte| *byte == 0x54), "seed {seed}: a late write");
        marks.iter_mut().zip(storm.marks).for_each(|(sum, seen)| *sum += seen);
        refused += storm.pair.ends[1].nic.counters().access_violations;
    }
    assert!(marks.iter().all(|seen| *seen > 100), "every kind of end: {marks:?}");
    assert!(refused > 100, "late packets: {refused}");
}
