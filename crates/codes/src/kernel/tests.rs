//! Every kernel compared with the schoolbook method.

use proptest::prelude::*;

use super::*;
use crate::gf;

/// One byte of the product of the columns from `first` on, term by term.
fn schoolbook(matrix: &Matrix, first: usize, sources: &[&[u8]], row: usize, at: usize) -> u8 {
    (first..)
        .zip(sources)
        .fold(0, |sum, (j, s)| sum ^ gf::mul(matrix.at(row, j), s.get(at).copied().unwrap_or(0)))
}

/// Chunks of random bytes at odd addresses, most of them of one length.
fn chunks(max_count: usize) -> impl Strategy<Value = Vec<(usize, Vec<u8>)>> {
    (0..700usize).prop_flat_map(move |len| {
        let len = prop_oneof![6 => Just(len), 1 => 0..=len];
        let chunk = (0..64usize, len).prop_flat_map(|(skew, len)| {
            (Just(skew), prop::collection::vec(any::<u8>(), skew + len))
        });
        prop::collection::vec(chunk, 1..=max_count)
    })
}

fn slices(chunks: &[(usize, Vec<u8>)]) -> Vec<&[u8]> {
    chunks.iter().map(|(skew, bytes)| &bytes[*skew..]).collect()
}

fn slices_mut(chunks: &mut [(usize, Vec<u8>)]) -> Vec<&mut [u8]> {
    chunks.iter_mut().map(|(skew, bytes)| &mut bytes[*skew..]).collect()
}

/// Elements for a matrix; sometimes the first row is all ones, which the kernels treat apart.
fn element(seed: u64, ones: bool) -> impl Fn(usize, usize) -> u8 {
    move |row, column| {
        let mixed = (seed ^ (row * 256 + column) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        if ones && row == 0 { 1 } else { (mixed >> 56) as u8 }
    }
}

proptest! {
    #[test]
    fn products(sources in chunks(9), outs in chunks(19), seed: u64, ones: bool) {
        let sources = slices(&sources);
        let matrix = Matrix::from_fn(outs.len(), sources.len(), element(seed, ones));
        for kernel in Kernel::supported() {
            let mut outs = outs.clone();
            kernel.multiply(&matrix, &sources, &mut slices_mut(&mut outs));
            for (row, out) in slices(&outs).into_iter().enumerate() {
                for (at, byte) in out.iter().enumerate() {
                    prop_assert_eq!(*byte, schoolbook(&matrix, 0, &sources, row, at), "{:?}", kernel);
                }
            }
        }
    }

    #[test]
    fn sums_of_products(
        sources in chunks(5),
        skews in prop::collection::vec((0..64usize, 0..100usize), 1..=19),
        seed: u64,
        ones: bool,
    ) {
        let sources = slices(&sources);
        let longest = sources.iter().map(|source| source.len()).max().unwrap_or(0);
        let matrix = Matrix::from_fn(skews.len(), 7, element(seed, ones));
        for kernel in Kernel::supported() {
            for first in 0..=7 - sources.len() {
                let mut outs: Vec<(usize, Vec<u8>)> = skews
                    .iter()
                    .map(|(skew, more)| (*skew, vec![0x5a; skew + longest + more]))
                    .collect();
                kernel.multiply_add(&matrix, first, &sources, &mut slices_mut(&mut outs));
                for (row, out) in slices(&outs).into_iter().enumerate() {
                    for (at, byte) in out.iter().enumerate() {
                        let want = 0x5a ^ schoolbook(&matrix, first, &sources, row, at);
                        prop_assert_eq!(*byte, want, "{:?}", kernel);
                    }
                }
            }
        }
    }

    #[test]
    fn sums(sources in chunks(20), out in chunks(1)) {
        let sources = slices(&sources);
        for kernel in Kernel::supported() {
            let mut out = out.clone();
            kernel.sum(&sources, &mut out[0].1);
            for (at, byte) in out[0].1.iter().enumerate() {
                let want = sources.iter().fold(0, |y, s| y ^ s.get(at).copied().unwrap_or(0));
                prop_assert_eq!(*byte, want, "{:?}", kernel);
            }
        }
    }

    #[test]
    fn xor_into_the_shorter(
        dst in prop::collection::vec(any::<u8>(), 0..1500),
        src in prop::collection::vec(any::<u8>(), 0..1500),
        skew in 0..64usize,
    ) {
        let skew = skew.min(dst.len());
        for kernel in Kernel::supported() {
            let mut got = dst.clone();
            kernel.xor_into(&mut got[skew..], &src);
            let want: Vec<u8> = dst
                .iter()
                .enumerate()
                .map(|(i, y)| i.checked_sub(skew).and_then(|i| src.get(i)).map_or(*y, |x| x ^ y))
                .collect();
            prop_assert_eq!(&got, &want, "{:?}", kernel);
        }
    }
}

#[test]
fn xor_of_several_is_that_of_each() {
    let bytes: Vec<u8> =
        (0..8192u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let [a, b, c, d] = [0, 1, 1030, 3000].map(|at| &bytes[at..]);
    for kernel in Kernel::supported() {
        for len in [0, 1, 63, 255, 256, 1024, 1500, 4096] {
            let mut got = bytes[4000..][..len].to_vec();
            let mut want = got.clone();
            kernel.xor_all_into(&mut got, [a, b, c, d].map(|source| &source[..len]));
            for source in [a, b, c, d] {
                want.iter_mut().zip(source).for_each(|(y, x)| *y ^= x);
            }
            assert_eq!(got, want, "{kernel:?}, {len} bytes");
        }
    }
}

#[test]
fn runs_and_segments() {
    let holds = [true, true, false, true];
    assert_eq!(next_run(0, 4, |i| holds[i]), Some(0..2));
    assert_eq!(next_run(2, 4, |i| holds[i]), Some(3..4));
    assert_eq!(next_run(4, 4, |i| holds[i]), None);
    assert_eq!(segment_end([5, 9, 7].into_iter(), 5, 100), 7);
    assert_eq!(segment_end([5].into_iter(), 5, 100), 100);
}
