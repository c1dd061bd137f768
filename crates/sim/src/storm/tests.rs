use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;

use super::testing::without_violation;
use super::{OpKind, Scenario, SeedReport, run_many, run_seed_traced};
use crate::attack::Attacker;
use crate::rng::SimRng;

/// Enough for a change that breaks the transport to be seen before it is pushed.
const SEEDS: u64 = 200;

fn run_seed(seed: u64) -> SeedReport {
    super::run_seed(seed, Attacker::Drawn)
}

#[test]
fn no_seed_breaks_a_rule() {
    let totals = without_violation(SEEDS, run_seed);

    // A storm that exercises nothing proves nothing.
    let coverage = &totals.coverage;
    for (kind, count) in coverage.ops.iter() {
        assert!(count > 100, "{kind:?}: {count}");
    }
    for (name, count) in totals.faults.iter() {
        assert!(count > 10, "{name}: {count}");
    }
    let atomics: u64 =
        coverage.ops.iter().filter(|(kind, _)| kind.is_atomic()).map(|(_, n)| n).sum();
    assert!(coverage.atomic_requests_sent > atomics, "atomics were sent again");
    let reads = coverage.ops.iter().find(|(kind, _)| *kind == OpKind::Read).map_or(0, |(_, n)| n);
    assert!(coverage.read_requests_sent > reads, "READs were sent again");
    let nic = &coverage.nic;
    for (name, count) in [
        ("FEC repairs", coverage.fec.recovered),
        ("FEC blocks beyond repair", coverage.fec.given_up),
        ("FEC repairs in vain", coverage.fec.wasted),
        ("FEC out of memory", coverage.fec.unprotected),
        ("FEC changes of code", coverage.fec.changes),
        ("retransmissions", nic.retransmitted_packets),
        ("timeouts", nic.timeouts),
        ("duplicates", nic.duplicates),
        ("sequence NAKs", nic.rx_nak_sequence),
        ("RNR NAKs", nic.rx_rnr),
        ("READ gaps", nic.read_gaps),
        ("CNPs", nic.rx_cnps),
        ("wrong ICRCs", nic.drop_icrc),
        ("ICRCs solved", nic.icrc_solved),
        ("stray requests", coverage.strays),
        ("drained queues", coverage.drains),
        ("lost messages", nic.drop_message),
        ("PSN wraps", coverage.psn_wraps),
        ("reconnects", coverage.reconnects),
        ("bad requests caught", coverage.crimes_caught),
        ("CQ notifications", coverage.cq_notifications),
        ("packets coalesced", coverage.coalesced),
        ("QPs on further lanes", coverage.lanes),
    ] {
        assert!(count > 10, "{name}: {count}");
    }
}

#[test]
fn an_attacker_breaks_no_rule() {
    let totals = without_violation(SEEDS, |seed| super::run_seed(seed, Attacker::Always));
    // Other storms cover these.
    let others = [
        "forged SDR control",
        "forged agents' messages",
        "control messages refused",
        "forged XP packets",
        "forged XP feedback",
    ];
    let is_other = |name: &str| others.contains(&name) || name.starts_with("sealed ");
    let rc_and_uc = totals.coverage.attack.iter().filter(|(name, _)| !is_other(name));
    for (name, count) in rc_and_uc {
        assert!(count > 10, "{name}: {count}");
    }
}

/// A log to look at afterwards.
#[derive(Clone, Default)]
struct SharedLog(Rc<RefCell<Vec<u8>>>);

impl Write for SharedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in [1, 2, 3, 1_000_003] {
        let first = run_seed(seed);
        let log = SharedLog::default();
        let again =
            run_seed_traced(seed, Attacker::Drawn, Box::new(log.clone())).expect("memory takes it");
        assert_eq!(first.trace_hash, again.trace_hash, "seed {seed}");
        assert_eq!(first.coverage, again.coverage);
        assert_eq!(first.virtual_time, again.virtual_time);
        let lines = log.0.borrow().iter().filter(|byte| **byte == b'\n').count();
        assert!(lines as u64 > first.packets);
    }
    assert_ne!(run_seed(1).trace_hash, run_seed(2).trace_hash);
}

#[test]
fn totals_do_not_depend_on_the_number_of_threads() {
    let one = run_many(10..20, 1, run_seed, |_, _| true);
    let three = run_many(10..20, 3, run_seed, |_, _| true);
    assert_eq!(one.totals.trace_hash, three.totals.trace_hash);
    assert_eq!(one.totals.coverage, three.totals.coverage);
}

#[test]
fn a_run_can_be_stopped() {
    let outcome = run_many(0..1_000, 1, run_seed, |_, _| false);
    assert_eq!(outcome.totals.seeds, 1);
}

#[test]
fn scenarios_are_drawn_from_their_seed_alone() {
    for seed in 0..50 {
        let (a, b) = (Scenario::draw(seed, Attacker::Drawn), Scenario::draw(seed, Attacker::Drawn));
        assert_eq!(format!("{a:?}"), format!("{b:?}"));
        assert!((2..=4).contains(&a.hosts.len()));
        for end in a.conns.iter().flat_map(|conn| &conn.ends) {
            assert!(end.ops.last().is_none_or(|op| op.signaled), "the last one must tell");
            assert!(end.ops.iter().all(|op| !op.inline || op.len <= end.max_inline));
        }
    }
}

#[test]
fn draws_are_the_same_on_every_machine() {
    let mut rng = SimRng::new(42, 7);
    assert_eq!(
        [rng.bits(), rng.below(1_000), rng.range(5, 9)],
        [2_370_525_664_269_707_216, 326, 8]
    );
}
