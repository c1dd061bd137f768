//! The rules that the module's documentation states.

use super::*;

fn bytes<const N: usize, const M: usize>(values: [[u8; M]; N]) -> Vec<u8> {
    values.as_flattened().to_vec()
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

#[test]
fn integers_wrap() {
    let mut acc = bytes([i32::MAX, -7].map(i32::to_ne_bytes));
    let src = bytes([1i32, 3].map(i32::to_ne_bytes));
    reduce(ReduceOp::Sum, DataType::I32, &mut acc, &src);
    assert_eq!(acc, bytes([i32::MIN, -4].map(i32::to_ne_bytes)));
    let mut acc = vec![200u8, 16];
    reduce(ReduceOp::Product, DataType::U8, &mut acc, &[2, 16]);
    assert_eq!(acc, [144, 0]);
}

#[test]
fn minima_know_signs_and_nan() {
    let nan = f32::from_bits(0xffc0_1234);
    let a = f32s(&[-0.0, 0.0, nan, 1.0, 1.0, f32::NEG_INFINITY]);
    let b = f32s(&[0.0, -0.0, 1.0, nan, 2.0, 3.0]);
    let canonical = f32::from_bits(0x7fc0_0000);
    let mut dst = vec![0; a.len()];
    reduce_into(ReduceOp::Min, DataType::F32, &mut dst, &a, &b);
    assert_eq!(dst, f32s(&[-0.0, -0.0, canonical, canonical, 1.0, f32::NEG_INFINITY]));
    reduce_into(ReduceOp::Max, DataType::F32, &mut dst, &a, &b);
    assert_eq!(dst, f32s(&[0.0, 0.0, canonical, canonical, 2.0, 3.0]));
}

#[test]
fn halves_are_rounded_at_each_step() {
    // 2048 + 1 is a tie in f16 and goes to 2048, twice; in f32 it would become 2050.
    let srcs = [2048.0, 1.0, 1.0].map(|v: f32| crate::half::f32_to_f16(v).to_ne_bytes());
    let srcs = srcs.each_ref().map(|s| s.as_slice());
    let mut dst = [0; 2];
    reduce_many(ReduceOp::Sum, DataType::F16, &mut dst, &srcs);
    assert_eq!(crate::half::f16_to_f32(u16::from_ne_bytes(dst)), 2048.0);
}

#[test]
fn quotients_of_integers_go_toward_zero() {
    let mut buf = bytes([-7i64, 7, i64::MIN, i64::MAX].map(i64::to_ne_bytes));
    divide(DataType::I64, &mut buf, 2);
    let halved = [-3, 3, i64::MIN / 2, i64::MAX / 2];
    assert_eq!(buf, bytes(halved.map(i64::to_ne_bytes)));
    let mut buf = bytes([i8::MIN, i8::MAX, -127].map(i8::to_ne_bytes));
    let before = buf.clone();
    divide(DataType::I8, &mut buf, 128);
    assert_eq!(buf, bytes([-1i8, 0, 0].map(i8::to_ne_bytes)));
    buf.copy_from_slice(&before);
    divide(DataType::I8, &mut buf, 129);
    assert_eq!(buf, [0, 0, 0]);
    let mut buf = [0, 255];
    divide(DataType::U8, &mut buf, 256);
    assert_eq!(buf, [0, 0]);
    let mut buf = i64::MIN.to_ne_bytes();
    divide(DataType::I64, &mut buf, 1 << 63);
    assert_eq!(buf, (-1i64).to_ne_bytes());
    let mut buf = u64::MAX.to_ne_bytes();
    divide(DataType::U64, &mut buf, u64::MAX);
    assert_eq!(buf, 1u64.to_ne_bytes());
}

#[test]
fn an_average_goes_by_what_arrived() {
    let mut buf = f32s(&[6.0, 6.0, 6.0, 6.0]);
    divide_ranges(DataType::F32, &mut buf, [(0..1, 2), (2..4, 3)]);
    assert_eq!(buf, f32s(&[3.0, 6.0, 2.0, 2.0]));
}

#[test]
fn finishing_divides_averages_alone() {
    for op in ReduceOp::ALL {
        let mut buf = f32s(&[6.0]);
        finish(op, DataType::F32, &mut buf, 4);
        assert_eq!(buf, f32s(&[if op == ReduceOp::Average { 1.5 } else { 6.0 }]), "{op}");
    }
}

#[test]
#[should_panic(expected = "ends in the middle of an element of bf16")]
fn half_an_element_is_refused() {
    reduce(ReduceOp::Sum, DataType::Bf16, &mut [0; 3], &[0; 3]);
}

#[test]
#[should_panic(expected = "different length")]
fn different_lengths_are_refused() {
    reduce_into(ReduceOp::Sum, DataType::U8, &mut [0; 3], &[0; 3], &[0; 4]);
}
