//! Memory that its owner writes while it is copied and summed: the sum matches the copy.

extern crate std;

use core::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};
use std::vec::Vec;

use super::{LiveBytes, MIN_BYTES, copy, copy_narrow, table};

type Copy = fn(u32, LiveBytes<'_>, &mut [MaybeUninit<u8>]) -> u32;

/// Every copy routine of this processor, and its minimum length.
fn ways() -> Vec<(&'static str, usize, Copy)> {
    let mut ways: Vec<(&'static str, usize, Copy)> =
        std::vec![("any", 0, copy), ("narrow", 0, copy_narrow)];
    #[cfg(all(target_arch = "x86_64", feature = "std"))]
    if super::x86::is_available() {
        ways.push(("wide", MIN_BYTES, super::copy_wide));
    }
    ways
}

/// Payloads with and without a tail, shorter and longer than vectors need, and a packet's.
const LENGTHS: [usize; 8] = [3, 8, 24, 31, 35, 66, 1023, 4096];
const BYTES: usize = 4096;

/// Long enough for thousands of copies of each kind next to a writer.
const TIME: Duration = Duration::from_millis(60);

#[test]
fn the_sum_is_that_of_the_copy_while_the_source_changes() {
    let source: Vec<AtomicU8> = (0..BYTES).map(|_| AtomicU8::new(0)).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut value = 0_u8;
            while !stop.load(Ordering::Relaxed) {
                for byte in &source {
                    value = value.wrapping_mul(167).wrapping_add(13);
                    byte.store(value, Ordering::Relaxed);
                }
            }
        });
        for (name, min_bytes, way) in ways() {
            for len in LENGTHS.into_iter().filter(|len| *len >= min_bytes) {
                if let Some(round) = first_wrong_sum(way, &source, len) {
                    stop.store(true, Ordering::Relaxed);
                    panic!("{name}, {len} bytes: copy {round} has another's sum");
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

fn first_wrong_sum(way: Copy, source: &[AtomicU8], len: usize) -> Option<usize> {
    #[allow(unsafe_code)]
    // SAFETY: the bytes live long enough. They change meanwhile, as registered memory does.
    let bytes = unsafe { LiveBytes::new(source.as_ptr().cast::<u8>(), len) };
    let end = Instant::now() + TIME;
    let mut round = 0;
    while Instant::now() < end {
        let mut room = [MaybeUninit::new(0_u8); 4096];
        let reg = way(7, bytes, &mut room);
        #[allow(unsafe_code)]
        // SAFETY: all of it was written when it was made.
        let room = room.map(|byte| unsafe { byte.assume_init() });
        if reg != table::update(7, &room[..len]) {
            return Some(round);
        }
        round += 1;
    }
    None
}
