//! How exactly XP keeps deadlines over real sockets: `cargo test --release -p bowline --test
//! xp_deadlines -- --nocapture`.

mod common;

use std::time::Duration;

use bowline::{Completion, EndMark, QpType, RecvWr, Time};
use common::pair;

/// Receives that are outstanding at once.
const AT_ONCE: usize = 50;
const ROUNDS: usize = 200;

#[test]
fn receives_end_at_their_deadline_and_never_before() {
    let (_a, b) = pair(QpType::Xp);
    let now = || b.qp.deadline_in(Duration::ZERO).unwrap();
    let mut late_ns = Vec::new();
    for round in 0..ROUNDS {
        // In no order, and none at the same time as another.
        let after = |i: usize| Duration::from_micros(200 + (i * 37 + round) as u64 % 50 * 40);
        let deadlines: Vec<Time> =
            (0..AT_ONCE).map(|i| b.qp.deadline_in(after(i)).unwrap()).collect();
        for (i, deadline) in deadlines.iter().enumerate() {
            let wr = RecvWr { deadline: *deadline, ..RecvWr::new(i as u64, &[]) };
            b.qp.post_recv(&wr).unwrap();
        }
        let mut left = AT_ONCE;
        while left > 0 {
            let mut polled = [Completion::default(); AT_ONCE];
            let taken = b.cq.poll(&mut polled).unwrap();
            for completion in &polled[..taken] {
                let deadline = deadlines[completion.wr_id as usize];
                assert_eq!(completion.end, EndMark::Deadline);
                assert!(now() >= deadline, "ended before its deadline");
                late_ns.push(now().nanos_since(deadline));
            }
            left -= taken;
        }
    }
    late_ns.sort_unstable();
    let at = |percent: usize| late_ns[(late_ns.len() - 1) * percent / 100] / 1_000;
    println!("{} deadlines: late by {} us (p50), {} us (p99)", late_ns.len(), at(50), at(99));
    // A busy machine is late; one that is stuck is not working.
    assert!(at(50) < 50_000, "late by {} us", at(50));
}
