extern crate std;

use std::mem::MaybeUninit;
use std::vec::Vec;

use super::poly::{BACKWARD, FORWARD, mul};
use super::{AFTER_PREFIX, Icrc, icrc_replace, table};

const ONE: u32 = 1 << 31;

/// Schoolbook multiplication: one bit of `a` at a time.
fn mul_bitwise(a: u32, b: u32) -> u32 {
    let (mut product, mut shifted) = (0, b);
    for bit in (0..32).rev() {
        if a >> bit & 1 == 1 {
            product ^= shifted;
        }
        shifted = if shifted & 1 == 1 { (shifted >> 1) ^ table::POLY } else { shifted >> 1 };
    }
    product
}

/// Pseudo-random numbers, the same every time.
fn words() -> impl Iterator<Item = u32> {
    (1..).map(|i: u32| i.wrapping_mul(0x9e37_79b9).rotate_left(i % 32))
}

#[test]
fn the_register_behind_eight_ones_is_the_constant() {
    assert_eq!(table::update(!0, &[0xff; 8]), AFTER_PREFIX);
    assert_eq!(Icrc(!0).update(b"123456789").finish(), 0xcbf4_3926);
}

#[test]
fn multiplication_is_that_of_school() {
    for (a, b) in words().zip(words().skip(1000)).take(2000) {
        assert_eq!(mul(a, b), mul_bitwise(a, b));
    }
    assert_eq!(mul(ONE, 0x1234_5678), 0x1234_5678);
}

#[test]
fn powers_move_a_register_past_zero_bytes() {
    let (start, mut reg) = (0x1234_5678, 0x1234_5678);
    for n in 0..70_000 {
        if n < 1000 || n % 251 == 0 || n > 65_500 {
            assert_eq!(FORWARD.apply(start, n), reg, "{n}");
            assert_eq!(BACKWARD.apply(reg, n), start, "{n}");
        }
        reg = table::step(reg, 0);
    }
}

#[test]
fn exponents_of_any_size_add_up() {
    let reg = 0xdead_beef;
    for shift in 15..usize::BITS {
        let n = 1_usize << shift;
        let half = FORWARD.apply(FORWARD.apply(reg, n / 2), n / 2);
        assert_eq!(FORWARD.apply(reg, n), half, "2^{shift}");
        assert_eq!(BACKWARD.apply(half, n), reg, "2^{shift}");
    }
    assert_eq!(BACKWARD.apply(FORWARD.apply(reg, usize::MAX), usize::MAX), reg);
}

#[test]
fn every_length_gives_the_same_by_blocks_and_by_bytes() {
    let bytes: Vec<u8> = words().map(|word| word as u8).take(1400).collect();
    // Miri would take minutes for all of them.
    let step = if cfg!(miri) { 97 } else { 1 };
    for len in (0..bytes.len()).step_by(step) {
        let by_byte = bytes[..len].iter().fold(AFTER_PREFIX, |reg, &byte| table::step(reg, byte));
        assert_eq!(Icrc::START.update(&bytes[..len]).0, by_byte, "{len}");
        assert_eq!(table::update(AFTER_PREFIX, &bytes[..len]), by_byte, "{len}");
        let mut room = [MaybeUninit::new(0); 1500];
        let copying = Icrc::START.update_copying(bytes[..len].into(), &mut room[3..]);
        assert_eq!(copying.0, by_byte, "{len}");
        #[allow(unsafe_code)]
        // SAFETY: all of it was written when it was made.
        let copy: Vec<u8> = room.iter().map(|byte| unsafe { byte.assume_init() }).collect();
        assert!(copy[..3] == [0; 3] && copy[3..3 + len] == bytes[..len], "{len}");
        assert!(copy[3 + len..].iter().all(|byte| *byte == 0), "{len}");
    }
}

#[test]
fn replacing_nothing_changes_nothing() {
    assert_eq!(icrc_replace(0xabcd, b"same", b"same", 1 << 20), 0xabcd);
    assert_eq!(icrc_replace(0xabcd, b"", b"", 0), 0xabcd);
}

#[test]
fn deltas_are_those_of_summing_again() {
    use crate::{FlowKey, HeaderDeltas, Psn};
    use core::net::{IpAddr, Ipv4Addr};
    let host = |i| IpAddr::V4(Ipv4Addr::new(10, 0, 0, i));
    let flow = FlowKey { src: host(1), dst: host(2), src_port: 4791, dst_port: 4791 };
    let known = (0..64).filter_map(|len| Some((len, HeaderDeltas::behind(len)?)));
    let known: Vec<_> = known.collect();
    assert_eq!(known.iter().map(|(len, _)| *len).collect::<Vec<_>>(), [0, 4, 16, 20, 32, 36]);
    for word in words().take(500) {
        let (id, psn) = ((word >> 8) as u16, Psn::new(word));
        let mut bth = [0x5a; 12];
        bth[9..].fill(0);
        let base = Icrc::of_headers(&flow, 4112, 0).bth(&bth);
        bth[9..].copy_from_slice(&psn.get().to_be_bytes()[1..]);
        let again = Icrc::of_headers(&flow, 4112, id).bth(&bth);
        assert_eq!(base.with_deltas_behind_bth(id, psn), again);
        for (ext_len, deltas) in &known {
            let ext = [word as u8; 64];
            let ext = &ext[..*ext_len];
            assert_eq!(base.update(ext).with_deltas(deltas, id, psn), again.update(ext));
        }
    }
}
