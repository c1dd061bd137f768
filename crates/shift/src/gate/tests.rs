//! Only one thread is inside at a time, however it entered, and no thread is forgotten.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread;

use super::*;

const OBJECT: usize = 0x1000;
const MARK: usize = 0x2000;

fn gate() -> Gate {
    let gate = Gate::new();
    gate.lock().open(OBJECT);
    gate
}

#[test]
fn the_data_path_enters_the_gate_of_its_object_alone() {
    let gate = gate();
    assert!(!gate.enter(OBJECT + 8, MARK), "another object");
    assert!(gate.enter(OBJECT, MARK));
    assert_eq!(gate.mark(), MARK);
    assert!(!gate.enter(OBJECT, MARK), "somebody is inside");
    gate.leave();
    gate.lock().set_slow(true);
    assert!(!gate.enter(OBJECT, MARK), "it is slow");
    gate.lock().set_slow(false);
    assert!(gate.enter(OBJECT, MARK));
    gate.leave();
    gate.lock().retire();
    assert!(!gate.enter(OBJECT, MARK), "its object is destroyed");
}

/// Threads that enter, threads that lock, and one that makes the gate slow now and then. They share
/// a counter that is incremented non-atomically.
#[test]
fn nobody_is_inside_beside_another() {
    const TURNS: u64 = 20_000;
    let shared = Arc::new((gate(), AtomicU64::new(0)));
    let threads: Vec<_> = (0..4_u64)
        .map(|which| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (gate, count) = &*shared;
                let add = || count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                for turn in 0..TURNS {
                    if which < 2 && gate.enter(OBJECT, MARK) {
                        add();
                        gate.leave();
                        continue;
                    }
                    let inside = gate.lock();
                    add();
                    if which == 3 {
                        inside.set_slow(turn % 64 < 8);
                    }
                    drop(inside);
                    gate.give_way();
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let (gate, count) = &*shared;
    assert_eq!(count.load(Ordering::Relaxed), 4 * TURNS);
    gate.lock().set_slow(false);
    assert!(gate.enter(OBJECT, MARK), "the data path is not kept out for ever");
}

/// The complete state of a gate and of three threads, for a search through all interleavings.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct World {
    word: u8,
    free: u8,
    waiters: u8,
    slow: bool,
    /// The position of each thread, the value it has read, and how many turns it has left.
    threads: [(u8, u8, u8); 3],
}

const FREE: u8 = 0;
const FREE_SLOW: u8 = 1;
const TAKEN: u8 = 2;

/// The next step of a data-path thread: 0 outside, 1 inside, 2 `free` is read. If it cannot enter,
/// it continues like a thread that locks.
fn data_step(world: &mut World, who: usize) {
    let (at, read, turns) = world.threads[who];
    world.threads[who] = match at {
        0 if world.word == FREE => {
            world.word = TAKEN;
            (1, 0, turns)
        }
        0 => (10, 0, turns),
        1 => (2, world.free, turns),
        2 => {
            world.word = read;
            (0, 0, turns - 1)
        }
        _ => return lock_step(world, who),
    };
}

/// The next step of a thread that locks: 10 looks, 11 exchanges, 12 and 13 wait, 14 is inside, 15
/// and 16 leave.
fn lock_step(world: &mut World, who: usize) {
    let (at, read, turns) = world.threads[who];
    let exchange = |world: &mut World, else_at| {
        if world.word == read && read != TAKEN {
            world.word = TAKEN;
            14
        } else {
            else_at
        }
    };
    world.threads[who] = match at {
        10 => (11, world.word, turns),
        11 => match exchange(world, 12) {
            12 => {
                world.waiters += 1;
                (12, 0, turns)
            }
            inside => (inside, 0, turns),
        },
        12 => (13, world.word, turns),
        13 => match exchange(world, 17) {
            14 => {
                world.waiters -= 1;
                (14, 0, turns)
            }
            other => (other, 0, turns),
        },
        17 => {
            world.free = FREE_SLOW;
            (12, 0, turns)
        }
        14 => {
            // The third thread alternately makes the gate slow and fast.
            if who == 2 {
                world.slow = turns % 2 == 0;
            }
            (15, u8::from(world.slow || world.waiters != 0), turns)
        }
        15 => {
            world.free = read;
            (16, read, turns)
        }
        16 => {
            world.word = read;
            (if who == 2 { 10 } else { 0 }, 0, turns - 1)
        }
        _ => unreachable!("{at}"),
    };
}

#[test]
fn in_no_order_of_steps_two_are_inside_or_it_stays_shut() {
    let begin = World {
        word: FREE,
        free: FREE,
        waiters: 0,
        slow: false,
        threads: [(0, 0, 2), (0, 0, 2), (10, 0, 2)],
    };
    let mut seen = std::collections::HashSet::from([begin]);
    let mut open = vec![begin];
    let mut ended = 0;
    while let Some(world) = open.pop() {
        let inside = world.threads.iter().filter(|(at, ..)| matches!(at, 1 | 2 | 14 | 15 | 16));
        assert!(inside.count() <= 1);
        if world.threads.iter().all(|(.., turns)| *turns == 0) {
            ended += 1;
            assert!(!world.slow && world.word == FREE, "kept shut: {} {}", world.word, world.free);
        }
        for who in 0..3 {
            if world.threads[who].2 > 0 {
                let mut next = world;
                if who == 2 {
                    lock_step(&mut next, who)
                } else {
                    data_step(&mut next, who)
                }
                if seen.insert(next) {
                    open.push(next);
                }
            }
        }
    }
    assert!(ended > 0 && seen.len() > 1000, "{ended} of {}", seen.len());
}
