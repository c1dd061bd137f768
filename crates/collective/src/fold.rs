//! Folding: combining several buffers into one by a reduction.

use std::ops::Range;

use bowline_codes::reduce::{self, DataType, ReduceOp};

/// Bytes of the destination that are saved at a time when it is also a term, while the terms before
/// it are combined.
const TILE_BYTES: usize = 4096;

/// `dst = t0 op t1 op …`, from left to right. A term that is `None` stands for the current content
/// of `dst`.
pub fn fold(op: ReduceOp, dtype: DataType, dst: &mut [u8], terms: &[Option<&[u8]>]) {
    match *terms {
        [] | [None] => {}
        [Some(src)] => dst.copy_from_slice(src),
        [Some(a), Some(b)] => reduce::reduce_into(op, dtype, dst, a, b),
        // All operations are commutative, bit for bit.
        [None, Some(src)] | [Some(src), None] => reduce::reduce(op, dtype, dst, src),
        _ => fold_many(op, dtype, dst, terms),
    }
}

/// A term of a fold that may be incomplete.
#[derive(Clone, Copy, Debug)]
pub struct Contribution<'a> {
    /// Its bytes; `None` stands for the current content of the destination.
    pub bytes: Option<&'a [u8]>,
    /// Missing ranges, in order. Each covers whole elements.
    pub missing: &'a [Range<u32>],
}

/// Like [`fold()`], but terms may be incomplete. Where a term is missing, the others are combined;
/// where all are missing, the destination keeps its content. With `finish`, this fold ends the
/// reduction, and each term has the contributions of this many ranks: an average is divided by how
/// many are present.
pub fn fold_partial(
    op: ReduceOp,
    dtype: DataType,
    dst: &mut [u8],
    terms: &[Contribution<'_>],
    finish: Option<u64>,
) {
    let mut cuts: Vec<usize> = terms
        .iter()
        .flat_map(|t| t.missing)
        .flat_map(|r| [r.start, r.end])
        .map(|n| n as usize)
        .collect();
    cuts.extend([0, dst.len()]);
    cuts.retain(|cut| *cut <= dst.len());
    cuts.sort_unstable();
    cuts.dedup();
    for piece in cuts.windows(2).map(|pair| pair[0]..pair[1]) {
        let lacks = |term: &&Contribution<'_>| {
            term.missing.iter().any(|r| (r.start..r.end).contains(&(piece.start as u32)))
        };
        let there = terms.iter().filter(|term| !lacks(term));
        let there: Vec<_> = there.map(|t| t.bytes.map(|bytes| &bytes[piece.clone()])).collect();
        if there.is_empty() {
            continue;
        }
        let dst = &mut dst[piece];
        fold(op, dtype, dst, &there);
        if let Some(ranks) = finish {
            reduce::finish(op, dtype, dst, there.len() as u64 * ranks);
        }
    }
}

/// Works tile by tile, so that each tile is read and written while it is in the cache.
fn fold_many(op: ReduceOp, dtype: DataType, dst: &mut [u8], terms: &[Option<&[u8]>]) {
    let mut kept = [0; TILE_BYTES];
    let mut at = 0;
    for tile in dst.chunks_mut(TILE_BYTES) {
        let kept = &mut kept[..tile.len()];
        kept.copy_from_slice(tile);
        let kept = &*kept;
        let of_tile = terms.iter().map(|term| match term {
            Some(src) => &src[at..at + tile.len()],
            None => kept,
        });
        let tiles: Vec<_> = of_tile.collect();
        reduce::reduce_many(op, dtype, tile, &tiles);
        at += tile.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_ne_bytes()).collect()
    }

    #[test]
    #[allow(clippy::single_range_in_vec_init, reason = "lists of ranges")]
    fn an_average_is_over_what_is_there() {
        let sources = [bytes(&[1.0; 6]), bytes(&[3.0; 6]), bytes(&[8.0; 6])];
        let missing: [&[Range<u32>]; 3] = [&[], &[4..12], &[8..16, 20..24]];
        let terms: Vec<_> = sources
            .iter()
            .zip(missing)
            .map(|(bytes, missing)| Contribution { bytes: Some(bytes), missing })
            .collect();
        let mut dst = bytes(&[0.0; 6]);
        fold_partial(ReduceOp::Average, DataType::F32, &mut dst, &terms, Some(1));
        assert_eq!(dst, bytes(&[4.0, 4.5, 1.0, 2.0, 4.0, 2.0]));
        fold_partial(ReduceOp::Average, DataType::F32, &mut dst, &terms, Some(2));
        assert_eq!(dst, bytes(&[2.0, 2.25, 0.5, 1.0, 2.0, 1.0]), "of two ranks each");
    }

    #[test]
    #[allow(clippy::single_range_in_vec_init, reason = "lists of ranges")]
    fn a_copy_of_what_is_missing_leaves_what_was_there() {
        let source = bytes(&[1.0, 2.0, 3.0]);
        let mut dst = bytes(&[7.0, 8.0, 9.0]);
        let term = Contribution { bytes: Some(&source), missing: &[4..8] };
        fold_partial(ReduceOp::Sum, DataType::F32, &mut dst, &[term], None);
        assert_eq!(dst, bytes(&[1.0, 8.0, 3.0]));
        // The destination counts as a complete term, whatever is missing from the others.
        let own = Contribution { bytes: None, missing: &[] };
        fold_partial(ReduceOp::Sum, DataType::F32, &mut dst, &[term, own], None);
        assert_eq!(dst, bytes(&[2.0, 8.0, 6.0]));
    }

    #[test]
    fn the_destination_keeps_its_place_among_the_terms() {
        // Additions in another order round differently.
        let inputs: Vec<Vec<u8>> = (0..5u32)
            .map(|rank| {
                let value = |i: u32| 10f32.powi((rank * 3 + i % 7) as i32 - 6) * (i as f32 + 0.1);
                bytes(&(0..3000).map(value).collect::<Vec<_>>())
            })
            .collect();
        let all: Vec<_> = inputs.iter().map(|input| Some(&input[..])).collect();
        let mut expected = vec![0; inputs[0].len()];
        fold(ReduceOp::Sum, DataType::F32, &mut expected, &all);
        for place in 0..inputs.len() {
            let mut terms = all.clone();
            terms[place] = None;
            let mut dst = inputs[place].clone();
            fold(ReduceOp::Sum, DataType::F32, &mut dst, &terms);
            assert_eq!(dst, expected, "own term at {place}");
        }
        for (a, b) in [(0, 4), (4, 0)] {
            let mut expected = vec![0; inputs[0].len()];
            fold(ReduceOp::Sum, DataType::F32, &mut expected, &[all[a], all[b]]);
            let mut dst = inputs[a].clone();
            fold(ReduceOp::Sum, DataType::F32, &mut dst, &[None, all[b]]);
            assert_eq!(dst, expected);
        }
    }
}
