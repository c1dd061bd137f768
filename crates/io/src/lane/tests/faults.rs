//! Faults on demand, on lanes over real sockets.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use bowline_nic::Rnic;

use super::*;
use crate::fault::{FaultPort, Faults, LinkState};
use crate::lane::Task;

fn pair(names: [&str; 2]) -> [End; 2] {
    let ends = names.map(|name| End::new(Box::new(FaultPort::new(udp_port())), 14_793, name));
    // A timeout of 268 ms: a second passes before a QP gives up.
    ends[0].connect_with(ends[1].addr, ends[1].qpn, 16);
    ends[1].connect_with(ends[0].addr, ends[0].qpn, 16);
    ends
}

fn faults(end: &End) -> &Faults {
    end.lane.faults().expect("its port has some")
}

fn apply(end: &End, text: &str) {
    faults(end).apply(&text.parse().expect("a right request"));
}

fn dropped(end: &End) -> (u64, u64) {
    let (_, port) = end.lane.counters().expect("the lane lives");
    (port.fault_dropped_in, port.fault_dropped_out)
}

/// Whether nothing completes for a while.
fn stalls(end: &End) -> bool {
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(60) {
        if !end.poll().is_empty() {
            return false;
        }
    }
    true
}

#[test]
fn a_transfer_stalls_while_a_link_is_down_and_goes_on_afterwards() {
    let [a, b] = pair(["t-down-a", "t-down-b"]);
    a.write(&b, 0, LEN);
    assert!(all_succeeded(&a.poll_for(1)));
    assert_eq!(dropped(&a), (0, 0));
    for (end, other) in [(&a, &b), (&b, &a)] {
        apply(end, "down");
        assert_eq!((end.lane.link(), other.lane.link()), (LinkState::Down, LinkState::Up));
        a.write(&b, 1, LEN);
        assert!(stalls(&a));
        apply(end, "up");
        assert_eq!(end.lane.link(), LinkState::Up);
        assert!(all_succeeded(&a.poll_for(1)));
    }
    assert!(dropped(&a).1 > 0, "{:?}", dropped(&a));
    assert!(dropped(&b).0 > 0, "{:?}", dropped(&b));
}

#[test]
fn black_holes_leave_the_link_up_and_end_in_a_timeout() {
    for (who, direction) in [(0, "out"), (0, "in"), (1, "in"), (1, "out")] {
        let ends =
            pair([&format!("t-hole-a{who}{direction}"), &format!("t-hole-b{who}{direction}")]);
        let [a, b] = &ends;
        apply(&ends[who], &format!("blackhole={direction}"));
        assert_eq!(ends[who].lane.link(), LinkState::Up);
        a.write(b, 1, 1000);
        assert!(stalls(a));
        // What a sends reaches b, except where the black hole swallows it.
        let arrived = b.lane.counters().expect("the lane lives").0.rx_packets > 0;
        assert_eq!(arrived, matches!((who, direction), (0, "in") | (1, "out")));
        if (who, direction) == (1, "out") {
            assert_eq!(a.sleep_for(1)[0].status, WcStatus::RetryExcErr);
        }
    }
}

#[test]
fn loss_is_as_frequent_as_asked_for_both_ways_and_is_survived() {
    let [a, b] = pair(["t-loss-a", "t-loss-b"]);
    apply(&a, "loss=2%,seed=5");
    assert_eq!(a.lane.link(), LinkState::Up);
    a.buffer.fill(0, LEN, 0x3c);
    for i in 0..40 {
        a.write(&b, i, LEN / 8);
        assert!(all_succeeded(&a.poll_for(1)));
    }
    assert_eq!(b.buffer.to_vec(LEN / 8 - 8, 8), [0x3c; 8]);
    let (_, port) = a.lane.counters().expect("the lane lives");
    let share = port.fault_dropped_out as f64 / (port.tx_packets + port.fault_dropped_out) as f64;
    assert!((0.01..0.04).contains(&share), "{share}: {port:?}");
    assert_eq!(b.lane.counters().expect("the lane lives").0.drop_icrc, 0);
    apply(&a, "clear");
    let before = dropped(&a);
    a.write(&b, 99, LEN);
    assert!(all_succeeded(&a.poll_for(1)));
    assert_eq!(dropped(&a), before);
}

#[test]
fn a_link_flaps_until_its_time_is_over() {
    let [a, b] = pair(["t-flap-a", "t-flap-b"]);
    apply(&a, "flap=40ms for 300ms");
    let (start, mut turns, mut last) = (Instant::now(), 0, LinkState::Up);
    a.write(&b, 1, LEN);
    while start.elapsed() < Duration::from_millis(320) {
        let link = a.lane.link();
        turns += u32::from(link != last);
        last = link;
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(last, LinkState::Up);
    assert!((4..=8).contains(&turns), "{turns}");
    assert!(faults(&a).list().is_empty());
    assert!(all_succeeded(&a.sleep_for(1)));
}

/// Notes when it first sees the link in another state.
struct Watcher {
    faults: Faults,
    seen: LinkState,
    changes: Arc<AtomicU64>,
}

impl Task for Watcher {
    fn run(&mut self, _nic: &mut dyn Rnic, _now: Time) {
        let link = self.faults.link();
        if link != self.seen {
            self.seen = link;
            self.changes.fetch_add(1, Ordering::Release);
        }
    }

    fn deadline(&self) -> Option<Time> {
        None
    }
}

#[test]
fn a_task_of_a_sleeping_lane_sees_changes_at_once_and_those_by_the_clock_too() {
    let [a, _b] = pair(["t-watch-a", "t-watch-b"]);
    let changes = Arc::new(AtomicU64::new(0));
    let watcher =
        Watcher { faults: faults(&a).clone(), seen: LinkState::Up, changes: Arc::clone(&changes) };
    a.lane.add_task(Arc::new(Mutex::new(watcher))).expect("the lane lives");
    let wait_for = |count| {
        let start = Instant::now();
        while changes.load(Ordering::Acquire) < count {
            assert!(start.elapsed() < PATIENCE, "{count} changes");
            std::thread::yield_now();
        }
    };
    std::thread::sleep(Duration::from_millis(20));
    apply(&a, "down");
    wait_for(1);
    apply(&a, "up");
    wait_for(2);
    apply(&a, "down for 20ms");
    wait_for(4);
    apply(&a, "flap=5ms for 52ms");
    wait_for(10);
}
