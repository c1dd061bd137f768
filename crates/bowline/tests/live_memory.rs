//! Memory that its owner writes while the device sends it: payload may be torn, packets may not.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bowline::{Mr, QpType};
use common::{End, pair, poll_one};

const READS: usize = 4000;

/// Counts up in the first `words` words of a region until dropped.
struct Owner {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Owner {
    fn of(mr: &Mr, words: usize) -> Owner {
        let stop = Arc::new(AtomicBool::new(false));
        let (buffer, stopped) = (Arc::clone(mr.buffer()), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut count = 0;
            while !stopped.load(Ordering::Relaxed) {
                count += 1;
                for word in 0..words {
                    buffer.store_u64(word * 8, count);
                }
            }
        });
        Owner { stop, thread: Some(thread) }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Reads so many bytes of a region that counts up, again and again; retransmits nothing.
fn read_live(a: &End, b: &End, len: usize) {
    let _owner = Owner::of(&b.mr, len.div_ceil(8));
    let mut last = 0;
    for _ in 0..READS {
        a.qp.read(1, &a.mr, 0..len, b.remote()).unwrap();
        poll_one(&a.cq);
        let count = a.mr.load_u64(0);
        assert!(count >= last, "a counter goes up: {count} after {last}");
        last = count;
    }
    let dropped = a.device.counters().unwrap().drop_icrc;
    assert_eq!(dropped, 0, "{len} bytes: packets whose checksum is not theirs");
}

#[test]
fn a_peer_reads_a_counter_that_its_owner_increments() {
    let (a, b) = pair(QpType::Rc);
    read_live(&a, &b, 24);
}

#[test]
fn a_peer_reads_a_message_with_a_tail_that_its_owner_writes() {
    let (a, b) = pair(QpType::Rc);
    read_live(&a, &b, 1003);
}
