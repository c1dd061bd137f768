//! The rules that the module's documentation states.

use proptest::prelude::*;

use super::element::{Bf16, Element, F16};
use super::*;

/// Calls a function that is generic in an element and its size with those of a data type.
macro_rules! with_element {
    ($dtype:expr, $function:ident $arguments:tt) => {
        match $dtype {
            DataType::F32 => $function::<f32, 4> $arguments,
            DataType::F64 => $function::<f64, 8> $arguments,
            DataType::F16 => $function::<F16, 2> $arguments,
            DataType::Bf16 => $function::<Bf16, 2> $arguments,
            DataType::I8 => $function::<i8, 1> $arguments,
            DataType::U8 => $function::<u8, 1> $arguments,
            DataType::I32 => $function::<i32, 4> $arguments,
            DataType::U32 => $function::<u32, 4> $arguments,
            DataType::I64 => $function::<i64, 8> $arguments,
            DataType::U64 => $function::<u64, 8> $arguments,
        }
    };
}

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

/// Bytes that are often special: zeros, infinities, NaNs, subnormals, and numbers near each other.
fn tensor() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        any::<u64>(),
        Just(0u64),
        Just(0x8000_0000_8000_0000),
        Just(0x7f80_0000_7c00_fc00),
        Just(0x7fc0_1234_ffc0_0001),
        Just(0x7ff0_0000_0000_0001),
        Just(0xfff0_0000_0000_0000),
        Just(0x0000_0001_8001_0001),
        (0x3f80u64..0x4100, 0x3f80u64..0x4100).prop_map(|(a, b)| a << 48 | b << 32 | a << 16 | b),
    ];
    proptest::collection::vec(word, 0..90)
        .prop_map(|words| words.into_iter().flat_map(u64::to_ne_bytes).collect())
}

/// A copy at an odd address.
fn skewed(bytes: &[u8], skew: usize) -> Vec<u8> {
    [&vec![0; skew], bytes].concat()
}

proptest! {
    /// Every set of instructions against arithmetic element by element.
    #[test]
    fn the_same_bits_with_all_vectors(
        op in proptest::sample::select(ReduceOp::ALL.to_vec()),
        dtype in proptest::sample::select(DataType::ALL.to_vec()),
        a in tensor(), b in tensor(), c in tensor(), n in 1..20u64, skew in 0..9usize,
    ) {
        let len = a.len().min(b.len()).min(c.len()) / 8 * 8;
        // Ends that are no whole block.
        let len = len.saturating_sub(dtype.size() * (skew % 3));
        let (a, b, c) = (&a[..len], &b[..len], &c[..len]);
        let mut pair = vec![0; len];
        for (at, out) in pair.chunks_mut(dtype.size()).enumerate() {
            let at = at * dtype.size()..(at + 1) * dtype.size();
            out.copy_from_slice(&single(op, dtype, &a[at.clone()], &b[at]));
        }
        let mut mean = pair.clone();
        mean.chunks_mut(dtype.size()).for_each(|x| divide_single(dtype, x, n));
        let mut three = pair.clone();
        Vectors::supported().last().unwrap().reduce(op, dtype, &mut three, c);
        for vectors in Vectors::supported() {
            let mut acc = skewed(a, skew);
            vectors.reduce(op, dtype, &mut acc[skew..], b);
            prop_assert_eq!(&acc[skew..], &pair, "{:?}, in place", vectors);
            let (mut dst, src) = (vec![1; len], skewed(b, skew));
            vectors.reduce_into(op, dtype, &mut dst, a, &src[skew..]);
            prop_assert_eq!(&dst, &pair, "{:?}, out of place", vectors);
            vectors.reduce_many(op, dtype, &mut dst, &[a, &src[skew..], c]);
            prop_assert_eq!(&dst, &three, "{:?}, many", vectors);
            vectors.divide(dtype, &mut acc[skew..], n);
            prop_assert_eq!(&acc[skew..], &mean, "{:?}, mean", vectors);
        }
    }
}

/// One element by the scalar rules.
fn single(op: ReduceOp, dtype: DataType, a: &[u8], b: &[u8]) -> Vec<u8> {
    fn apply<E: Element<N>, const N: usize>(op: ReduceOp, a: &[u8], b: &[u8]) -> Vec<u8> {
        let (a, b) = (E::read(a.try_into().unwrap()), E::read(b.try_into().unwrap()));
        let result = match op {
            ReduceOp::Sum | ReduceOp::Average => a.add(b),
            ReduceOp::Product => a.multiply(b),
            ReduceOp::Min => a.min(b),
            ReduceOp::Max => a.max(b),
        };
        result.write().to_vec()
    }
    with_element!(dtype, apply(op, a, b))
}

fn divide_single(dtype: DataType, x: &mut [u8], n: u64) {
    fn apply<E: Element<N>, const N: usize>(x: &[u8], n: u64) -> Vec<u8> {
        let quotient = E::read(x.try_into().unwrap()).divide(n).write().to_vec();
        // A division by 1 is none.
        if n == 1 { x.to_vec() } else { quotient }
    }
    let quotient = with_element!(dtype, apply(x, n));
    x.copy_from_slice(&quotient);
}
