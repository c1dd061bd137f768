//! Waiting for completions: asleep in a thread, asleep in a task, and in several at once.

mod common;

use std::time::{Duration, Instant};

use bowline::{Completion, Error, QpType};
use common::{PATIENCE, pair};

#[test]
fn nothing_to_wait_for_ends_in_time() {
    let (a, _b) = pair(QpType::Rc);
    let start = Instant::now();
    let mut out = [Completion::default(); 4];
    assert_eq!(a.cq.wait(&mut out, Duration::from_millis(50)).unwrap(), 0);
    assert!(matches!(a.cq.next(Duration::from_millis(50)), Err(Error::Timeout(_))));
    let elapsed = start.elapsed();
    assert!(elapsed >= Duration::from_millis(100) && elapsed < PATIENCE, "{elapsed:?}");
}

#[test]
fn a_sleeper_wakes_for_every_message() {
    let (a, b) = pair(QpType::Rc);
    let receiver = std::thread::spawn(move || {
        for _ in 0..500 {
            b.qp.recv(0, &b.mr, 0..8).unwrap();
            b.qp.send_inline(0, b"ready").unwrap();
            // The completions of our send and of the receive, in either order.
            b.cq.next(PATIENCE).unwrap();
            b.cq.next(PATIENCE).unwrap();
        }
    });
    for _ in 0..8 {
        a.qp.recv(0, &a.mr, 0..8).unwrap();
    }
    for _ in 0..500 {
        // One receive and one send complete in each round.
        a.cq.next(PATIENCE).unwrap();
        a.qp.recv(0, &a.mr, 0..8).unwrap();
        a.qp.send_inline(1, b"message").unwrap();
        a.cq.next(PATIENCE).unwrap();
    }
    receiver.join().unwrap();
}

#[test]
fn several_sleepers_share_a_queue() {
    let (a, b) = pair(QpType::Rc);
    const EACH: u64 = 200;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..EACH {
                    b.cq.next(PATIENCE).unwrap();
                }
            });
        }
        let mut sent = 0;
        let mut received_posted = 0;
        while sent < 4 * EACH {
            while received_posted < (sent + 32).min(4 * EACH) {
                b.qp.recv(0, &b.mr, 0..8).unwrap();
                received_posted += 1;
            }
            for _ in 0..32.min(4 * EACH - sent) {
                a.qp.send_inline(0, b"x").unwrap();
                sent += 1;
            }
            for _ in 0..32.min(sent) {
                if a.cq.wait(&mut [Completion::default()], Duration::ZERO).unwrap() == 0 {
                    a.cq.next(PATIENCE).unwrap();
                }
            }
        }
    });
}

#[cfg(feature = "tokio")]
#[test]
fn tasks_wait_without_blocking_each_other() {
    use bowline::AsyncCq;

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (a, b) = pair(QpType::Rc);
    let all = async {
        let (a_cq, b_cq) = (AsyncCq::new(a.cq.clone()), AsyncCq::new(b.cq.clone()));
        let (mut a_cq, mut b_cq) = (a_cq.unwrap(), b_cq.unwrap());
        // Both tasks share the one thread: if either blocked it, neither would go on.
        let pinger = async {
            for _ in 0..200 {
                a.qp.recv(0, &a.mr, 0..8).unwrap();
                a.qp.send_inline(1, b"ping").unwrap();
                a_cq.next().await.unwrap();
                a_cq.next().await.unwrap();
            }
        };
        let ponger = async {
            for _ in 0..200 {
                b.qp.recv(0, &b.mr, 0..8).unwrap();
                while b_cq.next().await.unwrap().opcode != bowline::WcOpcode::Recv {}
                b.qp.send_inline(1, b"pong").unwrap();
            }
        };
        tokio::join!(pinger, ponger)
    };
    runtime.block_on(async { tokio::time::timeout(PATIENCE, all).await }).unwrap();
}
