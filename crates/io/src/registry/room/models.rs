//! Loom tests over all interleavings of senders and a receiver: a socket is overfilled at most by
//! what several senders decide at once, and the counts are right whenever the receiver has found
//! its socket empty.

use loom::sync::atomic::AtomicU64;
use loom::sync::{Arc, Mutex};
use loom::thread;

use super::counts::Counts;

const COST: u64 = 10;
const LIMIT: u64 = 2 * COST;

/// A receiver's counters, and the contents of its socket as the kernel sees them.
#[derive(Debug)]
struct Socket {
    words: [AtomicU64; 3],
    filled: Mutex<u64>,
}

impl Socket {
    fn new() -> Arc<Socket> {
        let words = [0; 3].map(AtomicU64::new);
        let socket = Arc::new(Socket { words, filled: Mutex::new(0) });
        socket.counts().open(LIMIT);
        socket
    }

    fn counts(&self) -> Counts<'_, AtomicU64> {
        let [sent, taken, limit] = &self.words;
        Counts { sent, taken, limit }
    }

    /// One send; at most `senders` decide at the same time.
    fn send(&self, senders: u64) -> bool {
        let counts = self.counts();
        if !counts.has_room(counts.taken(), COST) {
            return false;
        }
        counts.take(COST);
        let mut filled = self.filled.lock().unwrap();
        *filled += COST;
        assert!(*filled <= LIMIT + senders * COST, "{} in a socket of {LIMIT}", *filled);
        true
    }

    /// One receive round. Returns whether the socket was empty.
    fn receive(&self) -> bool {
        let counts = self.counts();
        let sent = counts.sent();
        let taken = core::mem::take(&mut *self.filled.lock().unwrap());
        if taken == 0 {
            counts.drained(sent);
        } else {
            counts.took(taken);
        }
        taken == 0
    }

    /// At quiescence the receiver finds its socket empty, and no sender waits in vain.
    fn settle(&self) {
        while !self.receive() {}
        let counts = self.counts();
        assert_eq!(counts.sent(), counts.taken());
        assert!(counts.has_room(counts.taken(), LIMIT));
    }
}

#[test]
fn a_sender_and_a_receiver_agree_in_the_end() {
    loom::model(|| {
        let socket = Socket::new();
        let sender = {
            let socket = socket.clone();
            thread::spawn(move || {
                let _ = socket.send(1);
                let _ = socket.send(1);
            })
        };
        socket.receive();
        socket.receive();
        sender.join().unwrap();
        socket.settle();
    });
}

#[test]
fn two_senders_overfill_a_socket_by_what_both_decide_at_once() {
    loom::model(|| {
        let socket = Socket::new();
        let senders = [0, 1].map(|_| {
            let socket = socket.clone();
            thread::spawn(move || {
                let _ = socket.send(2);
                let _ = socket.send(2);
            })
        });
        for sender in senders {
            sender.join().unwrap();
        }
        socket.settle();
    });
}

#[test]
fn what_is_given_back_is_no_room_for_ever() {
    loom::model(|| {
        let socket = Socket::new();
        let sender = {
            let socket = socket.clone();
            thread::spawn(move || {
                let counts = socket.counts();
                if counts.has_room(counts.taken(), COST) {
                    counts.take(COST);
                    counts.give_back(COST);
                }
                socket.send(1);
            })
        };
        socket.receive();
        sender.join().unwrap();
        socket.settle();
    });
}
