//! Small integers in every type: their reductions are exact, in any order.

use bowline_collective::{DataType, ReduceOp};

/// The bytes of a small integer.
pub(crate) fn encode(dtype: DataType, value: i64) -> Vec<u8> {
    match dtype {
        DataType::F32 => (value as f32).to_ne_bytes().to_vec(),
        DataType::F64 => (value as f64).to_ne_bytes().to_vec(),
        DataType::F16 => f16_bits(value).to_ne_bytes().to_vec(),
        DataType::Bf16 => (((value as f32).to_bits() >> 16) as u16).to_ne_bytes().to_vec(),
        DataType::I8 => (value as i8).to_ne_bytes().to_vec(),
        DataType::U8 => (value as u8).to_ne_bytes().to_vec(),
        DataType::I32 => (value as i32).to_ne_bytes().to_vec(),
        DataType::U32 => (value as u32).to_ne_bytes().to_vec(),
        DataType::I64 => value.to_ne_bytes().to_vec(),
        DataType::U64 => (value as u64).to_ne_bytes().to_vec(),
    }
}

fn f16_bits(value: i64) -> u16 {
    let sign = u16::from(value < 0) << 15;
    let size = value.unsigned_abs() as u16;
    if size == 0 {
        return sign;
    }
    let exponent = size.ilog2() as u16;
    assert!(exponent <= 10, "{value} is not exact");
    sign | (exponent + 15) << 10 | (size - (1 << exponent)) << (10 - exponent)
}

/// The value of an element of a rank's input.
pub(crate) fn value(op: ReduceOp, ranks: u32, rank: u32, index: usize) -> i64 {
    let mixed = (u64::from(rank) * 31 + index as u64 * 7 + 3).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let draw = (mixed >> 40) as i64;
    match op {
        ReduceOp::Sum => draw % 8,
        // Few twos among the ones, so that no type overflows.
        ReduceOp::Product => 1 + i64::from((rank as usize + index).is_multiple_of(5)),
        ReduceOp::Min | ReduceOp::Max => draw % 100,
        // Divisible by the number of ranks, whatever the sum. Only a few ranks contribute, so that
        // no type overflows.
        ReduceOp::Average => draw % 2 * i64::from(ranks) * i64::from(rank < 4),
    }
}

/// The reduction of one element over all ranks.
pub(crate) fn reduced(op: ReduceOp, ranks: u32, index: usize) -> i64 {
    let values = (0..ranks).map(|rank| value(op, ranks, rank, index));
    match op {
        ReduceOp::Sum => values.sum(),
        ReduceOp::Product => values.product(),
        ReduceOp::Min => values.min().unwrap(),
        ReduceOp::Max => values.max().unwrap(),
        ReduceOp::Average => values.sum::<i64>() / i64::from(ranks),
    }
}

pub(crate) fn bytes(dtype: DataType, values: impl Iterator<Item = i64>) -> Vec<u8> {
    values.flat_map(|value| encode(dtype, value)).collect()
}
