//! The loops for any CPU.

use std::ops::Range;

use crate::gf::NIBBLES;
use crate::matrix::Coefs;

pub(super) fn dot(
    coefs: Coefs<'_>,
    sources: &[&[u8]],
    outs: &mut [&mut [u8]],
    at: Range<usize>,
    add: bool,
) {
    for (row, out) in outs.iter_mut().enumerate() {
        let out = &mut out[at.clone()];
        if !add {
            out.fill(0);
        }
        for (column, source) in sources.iter().enumerate() {
            let table = &NIBBLES[usize::from(coefs.bytes[column * coefs.stride + row])];
            for (y, x) in out.iter_mut().zip(&source[at.clone()]) {
                *y ^= table[usize::from(x & 15)] ^ table[16 + usize::from(x >> 4)];
            }
        }
    }
}

pub(super) fn sum(sources: &[&[u8]], out: &mut [u8], at: Range<usize>, add: bool) {
    if !add {
        out[at.clone()].fill(0);
    }
    for source in sources {
        xor_into(&mut out[at.clone()], &source[at.clone()]);
    }
}

/// `dst ^= sum of sources`, all of one length.
pub(super) fn xor_all_into<const N: usize>(dst: &mut [u8], sources: [&[u8]; N]) {
    for source in sources {
        assert_eq!(source.len(), dst.len());
        xor_into(dst, source);
    }
}

/// `dst ^= src`, both of one length. Compilers turn this into vector code.
#[inline]
pub(super) fn xor_into(dst: &mut [u8], src: &[u8]) {
    for (y, x) in dst.iter_mut().zip(src) {
        *y ^= x;
    }
}
