//! Connections that lose their NIC while they are busy, over real sockets.

mod support;

use std::time::{Duration, Instant};

use bowline_device::{Mode, Rail};
use bowline_nic::{Event, Remote, SendOp, WcStatus};
use support::*;

/// Faults of a link, and the repair of each.
const FAULTS: [(&str, &str); 2] = [("down", "up"), ("blackhole=in", "clear")];

/// Sends numbered WRITEs with immediate data from `a` to `b`. A fault occurs after a third of them,
/// and is repaired after two thirds. Returns when all have arrived in order and the connections are
/// back on the default rail.
fn stream(mode: Mode, victim: usize, (fault, repair): (&str, &str)) {
    const COUNT: u32 = 600;
    const SIZE: usize = 1500;
    let store = TestStore::new();
    let ends = pair(mode, &store);
    let [(a, ca), (b, cb)] = &ends;
    a.fill(|at| (at * 7 + at / 256) as u8);
    let victim = &ends[victim].0;
    for i in 0..64 {
        b.post_recv(cb, i, 0, 0);
    }
    let (mut posted, mut done, mut seen) = (0, 0, 0);
    let start = Instant::now();
    while done < COUNT || seen < COUNT {
        assert!(start.elapsed() < PATIENCE, "{done} done, {seen} seen of {COUNT}");
        if posted < COUNT && posted - done < 32 {
            let at = posted as usize * SIZE % (LEN - SIZE);
            a.post(ca, posted.into(), write_imm(ca, at, posted), at, SIZE).unwrap();
            posted += 1;
            if posted == COUNT / 3 {
                victim.fault(Rail::Default, fault);
            }
            if posted == COUNT * 2 / 3 {
                victim.fault(Rail::Default, repair);
            }
        }
        for c in a.poll() {
            assert_eq!((c.status, c.wr_id), (WcStatus::Success, done.into()));
            done += 1;
        }
        for c in b.poll() {
            assert_eq!((c.status, c.imm), (WcStatus::Success, Some(seen)), "an immediate in order");
            seen += 1;
            b.post_recv(cb, 0, 0, 0);
        }
    }
    let used = LEN / SIZE * SIZE;
    assert_eq!(a.memory.to_vec(0, used.min(600 * SIZE)), b.memory.to_vec(0, used.min(600 * SIZE)));
    for host in [a, b] {
        // The report of the move back is written when the peer has answered.
        until("the way home", || {
            let [away, back] = host.account().moves;
            !host.is_split() && away >= 1 && away == back
        });
        assert_eq!(host.account().failed, 0);
    }
}

#[test]
fn a_stream_survives_its_initiator() {
    for mode in [Mode::Exact, Mode::Shift] {
        for fault in FAULTS {
            stream(mode, 0, fault);
        }
    }
}

#[test]
fn a_stream_survives_its_responder() {
    for mode in [Mode::Exact, Mode::Shift] {
        for fault in FAULTS {
            stream(mode, 1, fault);
        }
    }
}

#[test]
fn both_ends_fail_at_once() {
    for mode in [Mode::Exact, Mode::Shift] {
        let store = TestStore::new();
        let [(a, ca), (b, cb)] = pair(mode, &store);
        for i in 0..16 {
            a.post_recv(&ca, i, 0, 64);
            b.post_recv(&cb, i, 64, 64);
        }
        a.fault(Rail::Default, "down");
        b.fault(Rail::Default, "down");
        for i in 0..16 {
            a.post(&ca, 100 + i, SendOp::SendImm(i as u32), 0, 64).unwrap();
            b.post(&cb, 100 + i, SendOp::SendImm(i as u32), 0, 64).unwrap();
        }
        for host in [&a, &b] {
            let all = host.poll_for(32);
            assert!(all.iter().all(|c| c.status == WcStatus::Success), "{all:?}");
            let imms: Vec<u32> = all.iter().filter_map(|c| c.imm).collect();
            assert_eq!(imms, (0..16).collect::<Vec<u32>>());
        }
        assert!(a.is_split() && b.is_split());
    }
}

#[test]
fn reads_go_on() {
    for mode in [Mode::Exact, Mode::Shift] {
        let store = TestStore::new();
        let [(a, ca), (b, _)] = pair(mode, &store);
        b.fill(|at| (at * 13 + at / 999) as u8);
        let read = SendOp::Read(Remote { addr: 0, rkey: ca.peer_key });
        a.post(&ca, 1, read, 0, LEN).unwrap();
        b.fault(Rail::Default, "blackhole=out");
        assert_eq!(a.poll_for(1)[0].status, WcStatus::Success);
        assert_eq!(a.memory.to_vec(0, LEN), b.memory.to_vec(0, LEN));
        a.post(&ca, 2, read, 0, LEN).unwrap();
        assert_eq!(a.poll_for(1)[0].status, WcStatus::Success);
    }
}

#[test]
fn atomics_are_carried_out_once_if_exact() {
    let store = TestStore::new();
    let [(a, ca), (b, _)] = pair(Mode::Exact, &store);
    let add = SendOp::FetchAdd { remote: Remote { addr: 0, rkey: ca.peer_key }, add: 1 };
    let (mut posted, mut done) = (0, 0);
    while done < 400 {
        if posted < 400 && posted - done < 8 {
            a.post(&ca, posted, add, 8, 8).unwrap();
            posted += 1;
            match posted {
                100 => b.fault(Rail::Default, "blackhole=out"),
                200 => b.fault(Rail::Default, "clear"),
                _ => {}
            }
        }
        for c in a.poll() {
            assert_eq!(c.status, WcStatus::Success);
            done += 1;
        }
    }
    assert_eq!(b.memory.load_u64(0), 400);
}

#[test]
fn an_atomic_in_flight_fails_the_connection_if_not_exact() {
    let store = TestStore::new();
    let [(a, ca), (b, _)] = pair(Mode::Shift, &store);
    b.fault(Rail::Default, "blackhole=out");
    let add = SendOp::FetchAdd { remote: Remote { addr: 0, rkey: ca.peer_key }, add: 1 };
    a.post(&ca, 1, add, 8, 8).unwrap();
    a.post(&ca, 2, write(&ca, 64), 64, 8).unwrap();
    let all = a.poll_for(2);
    assert_eq!(all[0].status, WcStatus::RetryExcErr, "{all:?}");
    assert_eq!(all[1].status, WcStatus::WrFlushErr, "{all:?}");
}

#[test]
fn with_both_nics_dead_it_fails_as_without_failover() {
    for mode in [Mode::Exact, Mode::Shift] {
        let store = TestStore::new();
        let [(a, ca), (b, _)] = pair(mode, &store);
        b.fault(Rail::Default, "blackhole=in");
        b.fault(Rail::Backup, "blackhole=in");
        for i in 0..4 {
            a.post(&ca, i, write(&ca, 0), 0, 64).unwrap();
        }
        let all = a.poll_for(4);
        assert_eq!(all[0].status, WcStatus::RetryExcErr);
        assert!(all[1..].iter().all(|c| c.status == WcStatus::WrFlushErr), "{all:?}");
        assert_eq!(a.account().failed, 1);
    }
}

#[test]
fn a_store_that_is_removed_takes_nothing_along() {
    let store = TestStore::new();
    let [(a, ca), (b, _)] = pair(Mode::Exact, &store);
    std::fs::remove_dir_all(&store.0).unwrap();
    b.fault(Rail::Default, "down");
    a.post(&ca, 1, write(&ca, 0), 0, LEN).unwrap();
    assert_eq!(a.poll_for(1)[0].status, WcStatus::Success);
    assert!(a.is_split());
}

#[test]
fn without_the_peer_s_entry_it_fails_as_without_failover() {
    let (ours, theirs) = (TestStore::new(), TestStore::new());
    let (a, b) = (Host::new(Mode::Exact, &ours), Host::new(Mode::Exact, &theirs));
    let (mut ca, mut cb) = (a.qp(None), b.qp(None));
    a.connect(&mut ca, &b, cb.qpn);
    b.connect(&mut cb, &a, ca.qpn);
    b.fault(Rail::Default, "down");
    a.post(&ca, 1, write(&ca, 0), 0, 64).unwrap();
    assert_eq!(a.poll_for(1)[0].status, WcStatus::RetryExcErr);
}

#[test]
fn a_sleeper_is_woken_wherever_its_completions_come() {
    for mode in [Mode::Exact, Mode::Shift] {
        let store = TestStore::new();
        let [(a, ca), (b, cb)] = pair(mode, &store);
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                let mut next = 0;
                for i in 0..200 {
                    b.post_recv(&cb, i, 0, 64);
                }
                while next < 200 {
                    b.cq.arm(false).unwrap();
                    let mut got = b.poll();
                    if got.is_empty() {
                        let token = b.channel.wait(Some(PATIENCE)).unwrap();
                        assert_eq!(token, Some(TOKEN), "after {next}");
                        got = b.poll();
                    }
                    for c in got {
                        assert_eq!((c.status, c.imm), (WcStatus::Success, Some(next)));
                        next += 1;
                    }
                }
            });
            for i in 0..200_u32 {
                a.post(&ca, i.into(), SendOp::SendImm(i), 64, 64).unwrap();
                assert_eq!(a.poll_for(1)[0].status, WcStatus::Success);
                match i {
                    50 => a.fault(Rail::Default, "blackhole=out"),
                    120 => a.fault(Rail::Default, "clear"),
                    _ if i > 120 => std::thread::sleep(Duration::from_millis(5)),
                    _ => {}
                }
            }
            sleeper.join().unwrap();
        });
        assert!(a.account().moves[0] >= 1);
    }
}

#[test]
fn a_shared_receive_queue_serves_both_rails() {
    for mode in [Mode::Exact, Mode::Shift] {
        let store = TestStore::new();
        let b = Host::new(mode, &store);
        let srq = b.srq(256);
        // Two senders, one of which loses its NIC.
        let senders: Vec<_> = (0..2)
            .map(|_| {
                let a = Host::new(mode, &store);
                let (mut ca, mut cb) = (a.qp(None), b.qp(Some(&srq)));
                a.connect(&mut ca, &b, cb.qpn);
                b.connect(&mut cb, &a, ca.qpn);
                (a, ca, cb)
            })
            .collect();
        b.ready(2);
        senders.iter().for_each(|(a, ..)| a.ready(1));
        for i in 0..64 {
            b.post_srq(&srq, i, 0, 64);
        }
        const EACH: u32 = 300;
        let (mut posted, mut done, mut seen) = ([0; 2], [0; 2], [0; 2]);
        let start = Instant::now();
        while seen != [EACH; 2] || done != [EACH; 2] {
            assert!(start.elapsed() < PATIENCE, "{done:?} done, {seen:?} seen");
            for (i, (a, ca, _)) in senders.iter().enumerate() {
                if posted[i] < EACH && posted[i] - done[i] < 8 {
                    a.post(ca, posted[i].into(), SendOp::SendImm(posted[i]), 64, 64).unwrap();
                    posted[i] += 1;
                    match (i, posted[i]) {
                        (0, 100) => a.fault(Rail::Default, "down"),
                        (0, 200) => a.fault(Rail::Default, "up"),
                        _ => {}
                    }
                }
                for c in a.poll() {
                    assert_eq!(c.status, WcStatus::Success);
                    done[i] += 1;
                }
            }
            for c in b.poll() {
                let i = senders.iter().position(|(_, _, cb)| cb.qpn == c.qpn).unwrap();
                assert_eq!((c.status, c.imm), (WcStatus::Success, Some(seen[i])));
                seen[i] += 1;
                b.post_srq(&srq, 0, 0, 64);
            }
        }
        until("the way home", || !b.is_split());
    }
}

#[test]
fn a_limit_counts_where_the_receives_are() {
    let store = TestStore::new();
    let [a, b] = [0, 1].map(|_| Host::new(Mode::Exact, &store));
    let srq = b.srq(64);
    let (mut ca, mut cb) = (a.qp(None), b.qp(Some(&srq)));
    a.connect(&mut ca, &b, cb.qpn);
    b.connect(&mut cb, &a, ca.qpn);
    a.ready(1);
    b.ready(1);
    for i in 0..32 {
        b.post_srq(&srq, i, 0, 64);
    }
    srq.set_limit(10).unwrap();
    assert!(srq.set_limit(65).is_err(), "more than the queue can have");
    b.fault(Rail::Default, "down");
    until("the move", || a.is_split() && b.is_split());
    let send = |count: u32| {
        for i in 0..count {
            a.post(&ca, i.into(), SendOp::Send, 0, 64).unwrap();
            assert_eq!(a.poll_for(1)[0].status, WcStatus::Success);
        }
    };
    let events = b.device.events();
    send(22);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(events.try_next(), Ok(None), "ten are left");
    send(1);
    let event = events.wait(Some(PATIENCE)).unwrap();
    assert_eq!(event, Some(Event::SrqLimit(srq.id())), "under the name that the program knows");
    b.fault(Rail::Default, "up");
    until("the way home", || !b.is_split());
}
