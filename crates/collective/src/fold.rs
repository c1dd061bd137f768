//! Folding bytes.

use bowline_codes::reduce::{self, DataType, ReduceOp};

/// What is kept of a destination that is a term as well, while the terms before it are combined.
const TILE_BYTES: usize = 4096;

/// `dst = t0 op t1 op …`, from left to right. A term that is `None` is what is in `dst`.
pub fn fold(op: ReduceOp, dtype: DataType, dst: &mut [u8], terms: &[Option<&[u8]>]) {
    match *terms {
        [] | [None] => {}
        [Some(src)] => dst.copy_from_slice(src),
        [Some(a), Some(b)] => reduce::reduce_into(op, dtype, dst, a, b),
        // All operations give the same bits for both orders.
        [None, Some(src)] | [Some(src), None] => reduce::reduce(op, dtype, dst, src),
        _ => fold_many(op, dtype, dst, terms),
    }
}

/// Tile by tile: each is read and written while it is in the cache.
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
    fn the_destination_keeps_its_place_among_the_terms() {
        // In another order these round differently.
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
