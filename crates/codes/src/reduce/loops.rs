//! The loops, compiled for each kind of vector.
//!
//! They are plain Rust over single elements, which the compiler turns into the instructions of the
//! CPU that a job runs on; so they cannot differ from each other. Only conversions of binary16 need
//! explicit instructions; for bfloat16 the compiler's own code is as fast or faster.

use super::element::{Bf16, Element, F16};
use super::{DataType, ReduceOp};
use crate::simd::{Job, Lanes};

/// Calls a function that is generic in an operation, an element and its size with those of an
/// operation and a data type, and another one for binary16.
macro_rules! with_types {
    ($op:expr, $dtype:expr, $function:ident, $f16:ident, $arguments:tt) => {
        match $op {
            ReduceOp::Sum | ReduceOp::Average => {
                with_types!(@ Add, $dtype, $function, $f16, $arguments)
            }
            ReduceOp::Product => with_types!(@ Multiply, $dtype, $function, $f16, $arguments),
            ReduceOp::Min => with_types!(@ Min, $dtype, $function, $f16, $arguments),
            ReduceOp::Max => with_types!(@ Max, $dtype, $function, $f16, $arguments),
        }
    };
    (@ $op:ty, $dtype:expr, $function:ident, $f16:ident, $arguments:tt) => {
        match $dtype {
            DataType::F32 => $function::<$op, f32, 4> $arguments,
            DataType::F64 => $function::<$op, f64, 8> $arguments,
            DataType::F16 => $f16::<V, $op> $arguments,
            DataType::Bf16 => $function::<$op, Bf16, 2> $arguments,
            DataType::I8 => $function::<$op, i8, 1> $arguments,
            DataType::U8 => $function::<$op, u8, 1> $arguments,
            DataType::I32 => $function::<$op, i32, 4> $arguments,
            DataType::U32 => $function::<$op, u32, 4> $arguments,
            DataType::I64 => $function::<$op, i64, 8> $arguments,
            DataType::U64 => $function::<$op, u64, 8> $arguments,
        }
    };
}

/// `acc = acc op src`, of one length.
pub(super) struct Combine<'a> {
    pub(super) op: ReduceOp,
    pub(super) dtype: DataType,
    pub(super) acc: &'a mut [u8],
    pub(super) src: &'a [u8],
}

impl Job for Combine<'_> {
    #[inline(always)]
    fn run<V: Lanes>(self) {
        with_types!(self.op, self.dtype, combine, combine_f16, (self.acc, self.src));
    }
}

/// `dst = a op b`, of one length.
pub(super) struct CombineInto<'a> {
    pub(super) op: ReduceOp,
    pub(super) dtype: DataType,
    pub(super) dst: &'a mut [u8],
    pub(super) a: &'a [u8],
    pub(super) b: &'a [u8],
}

impl Job for CombineInto<'_> {
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let Self { op, dtype, dst, a, b } = self;
        with_types!(op, dtype, combine_into, combine_into_f16, (dst, a, b));
    }
}

/// `buf = buf / n`, where `n` is not 0.
pub(super) struct Divide<'a> {
    pub(super) dtype: DataType,
    pub(super) buf: &'a mut [u8],
    pub(super) n: u64,
}

impl Job for Divide<'_> {
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let Self { dtype, buf, n } = self;
        match dtype {
            DataType::F32 => divide::<f32, 4>(buf, n),
            DataType::F64 => divide::<f64, 8>(buf, n),
            DataType::F16 => divide_f16::<V>(buf, n),
            DataType::Bf16 => divide::<Bf16, 2>(buf, n),
            DataType::I8 => divide::<i8, 1>(buf, n),
            DataType::U8 => divide::<u8, 1>(buf, n),
            DataType::I32 => divide::<i32, 4>(buf, n),
            DataType::U32 => divide::<u32, 4>(buf, n),
            DataType::I64 => divide::<i64, 8>(buf, n),
            DataType::U64 => divide::<u64, 8>(buf, n),
        }
    }
}

/// How two elements become one.
trait Op {
    fn apply<E: Element<N>, const N: usize>(a: E, b: E) -> E;
}

macro_rules! ops {
    ($($name:ident: $method:ident)*) => {$(
        struct $name;

        impl Op for $name {
            #[inline(always)]
            fn apply<E: Element<N>, const N: usize>(a: E, b: E) -> E {
                a.$method(b)
            }
        }
    )*};
}
ops! { Add: add Multiply: multiply Min: min Max: max }

#[inline(always)]
fn combine<O: Op, E: Element<N>, const N: usize>(acc: &mut [u8], src: &[u8]) {
    for (acc, src) in acc.as_chunks_mut::<N>().0.iter_mut().zip(src.as_chunks::<N>().0) {
        *acc = O::apply(E::read(*acc), E::read(*src)).write();
    }
}

#[inline(always)]
fn combine_into<O: Op, E: Element<N>, const N: usize>(dst: &mut [u8], a: &[u8], b: &[u8]) {
    let sources = a.as_chunks::<N>().0.iter().zip(b.as_chunks::<N>().0);
    for (dst, (a, b)) in dst.as_chunks_mut::<N>().0.iter_mut().zip(sources) {
        *dst = O::apply(E::read(*a), E::read(*b)).write();
    }
}

#[inline(always)]
fn divide<E: Element<N>, const N: usize>(buf: &mut [u8], n: u64) {
    for element in buf.as_chunks_mut::<N>().0 {
        *element = E::read(*element).divide(n).write();
    }
}

/// Elements of binary16 that are converted at a time.
const BLOCK: usize = 16;
/// Their bytes.
const BLOCK_BYTES: usize = 2 * BLOCK;

#[inline(always)]
fn combine_f16<V: Lanes, O: Op>(acc: &mut [u8], src: &[u8]) {
    let (blocks, rest) = acc.as_chunks_mut::<BLOCK_BYTES>();
    let (src_blocks, src_rest) = src.as_chunks::<BLOCK_BYTES>();
    for (acc, src) in blocks.iter_mut().zip(src_blocks) {
        *acc = combine_block::<V, O>(acc, src);
    }
    combine::<O, F16, 2>(rest, src_rest);
}

#[inline(always)]
fn combine_into_f16<V: Lanes, O: Op>(dst: &mut [u8], a: &[u8], b: &[u8]) {
    let (blocks, rest) = dst.as_chunks_mut::<BLOCK_BYTES>();
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<BLOCK_BYTES>(), b.as_chunks::<BLOCK_BYTES>());
    for (dst, (a, b)) in blocks.iter_mut().zip(a.iter().zip(b)) {
        *dst = combine_block::<V, O>(a, b);
    }
    combine_into::<O, F16, 2>(rest, a_rest, b_rest);
}

#[inline(always)]
fn divide_f16<V: Lanes>(buf: &mut [u8], n: u64) {
    let (blocks, rest) = buf.as_chunks_mut::<BLOCK_BYTES>();
    for block in blocks {
        *block = narrow::<V>(&widen::<V>(block).map(|x| x.divide(n)));
    }
    divide::<F16, 2>(rest, n);
}

#[inline(always)]
fn combine_block<V: Lanes, O: Op>(
    a: &[u8; BLOCK_BYTES],
    b: &[u8; BLOCK_BYTES],
) -> [u8; BLOCK_BYTES] {
    let (mut a, b) = (widen::<V>(a), widen::<V>(b));
    for (a, b) in a.iter_mut().zip(b) {
        *a = O::apply::<f32, 4>(*a, b);
    }
    narrow::<V>(&a)
}

#[inline(always)]
#[allow(unsafe_code)]
fn widen<V: Lanes>(bytes: &[u8; BLOCK_BYTES]) -> [f32; BLOCK] {
    let mut wide = [0.0f32; BLOCK];
    for at in (0..BLOCK).step_by(V::LANES) {
        // SAFETY: a job runs on a CPU that has its vectors, the number of whose lanes divides
        // `BLOCK`, so that those from `at` on are within both arrays.
        unsafe {
            let lanes = V::load_f16(bytes.as_ptr().add(2 * at));
            lanes.store_f32::<false>(wide.as_mut_ptr().add(at).cast());
        }
    }
    wide
}

#[inline(always)]
#[allow(unsafe_code)]
fn narrow<V: Lanes>(wide: &[f32; BLOCK]) -> [u8; BLOCK_BYTES] {
    let mut bytes = [0; BLOCK_BYTES];
    for at in (0..BLOCK).step_by(V::LANES) {
        // SAFETY: as in `widen`.
        unsafe {
            let lanes = V::load_f32(wide.as_ptr().add(at).cast());
            lanes.store_f16::<false>(bytes.as_mut_ptr().add(2 * at));
        }
    }
    bytes
}
