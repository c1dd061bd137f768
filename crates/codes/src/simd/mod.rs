//! Vectors of `f32` on each kind of CPU, and dispatch to code compiled for one.
//!
//! A computation over them is a [`Job`], written once and compiled for each kind of vector. It
//! gives the same bits on all of them, since a lane's arithmetic is IEEE 754's everywhere; only NaN
//! bits differ, so results pass through [`Lanes::canonical`].

#![allow(unsafe_code)]

#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::fmt;
use std::sync::OnceLock;

/// A set of vector instructions that this CPU has. Results are the same with all of them.
///
/// Computations use [`Vectors::best`] by default; others are for tests and benches.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Vectors(Kind);

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    #[cfg(target_arch = "x86_64")]
    Avx512(x86::Avx512),
    #[cfg(target_arch = "x86_64")]
    Avx2(x86::Avx2),
    #[cfg(target_arch = "aarch64")]
    Neon,
    Scalar,
}

impl Vectors {
    /// The fastest on this CPU, determined once.
    pub fn best() -> Self {
        static BEST: OnceLock<Vectors> = OnceLock::new();
        *BEST.get_or_init(|| Self::supported().next().unwrap_or(Self(Kind::Scalar)))
    }

    /// All that run on this CPU, fastest first.
    pub fn supported() -> impl Iterator<Item = Self> {
        [
            #[cfg(target_arch = "x86_64")]
            x86::Avx512::detect().map(|cpu| Self(Kind::Avx512(cpu))),
            #[cfg(target_arch = "x86_64")]
            x86::Avx2::detect().map(|cpu| Self(Kind::Avx2(cpu))),
            #[cfg(target_arch = "aarch64")]
            Some(Self(Kind::Neon)),
            Some(Self(Kind::Scalar)),
        ]
        .into_iter()
        .flatten()
    }

    /// `avx512`, `avx2`, `neon` or `scalar`.
    pub fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512(_) => "avx512",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2(_) => "avx2",
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => "neon",
            Kind::Scalar => "scalar",
        }
    }

    /// Runs a job with these instructions.
    #[inline]
    pub(crate) fn run<J: Job>(self, job: J) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512(cpu) => cpu.run(job),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2(cpu) => cpu.run(job),
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => job.run::<neon::Neon>(),
            Kind::Scalar => job.run::<scalar::Scalar>(),
        }
    }
}

impl fmt::Debug for Vectors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A computation that is compiled for each kind of vector.
pub(crate) trait Job {
    /// Computes. It is inlined into a function that is compiled for the CPU's instructions, so
    /// everything it calls must be inlined too.
    ///
    /// [`Vectors::run`] is the only caller, with vectors that this CPU has.
    fn run<V: Lanes>(self);
}

/// A vector of `f32`.
///
/// # Safety of loads
/// A value of this type is proof that the CPU has its instructions, which its creator guarantees.
/// Only streaming stores need alignment: that of the vector as stored.
pub(crate) trait Lanes: Copy {
    /// Number of lanes.
    const LANES: usize;
    /// As many 32-bit words.
    type Words: Copy;

    /// # Safety
    /// The CPU has the vectors, and all lanes are readable.
    unsafe fn load_f32(from: *const u8) -> Self;
    /// # Safety
    /// As of `load_f32`.
    unsafe fn load_bf16(from: *const u8) -> Self;
    /// # Safety
    /// As of `load_f32`.
    unsafe fn load_f16(from: *const u8) -> Self;

    /// # Safety
    /// All lanes are writable, and with `STREAM` the address is aligned.
    unsafe fn store_f32<const STREAM: bool>(self, to: *mut u8);
    /// Rounds to nearest, ties to even.
    ///
    /// # Safety
    /// As of `store_f32`.
    unsafe fn store_bf16<const STREAM: bool>(self, to: *mut u8);
    /// Rounds to nearest, ties to even.
    ///
    /// # Safety
    /// As of `store_f32`.
    unsafe fn store_f16<const STREAM: bool>(self, to: *mut u8);

    /// # Safety
    /// The CPU has the vectors.
    unsafe fn words(from: &[u32]) -> Self::Words;
    /// Flips the sign of lanes whose word has a one at `bit`.
    fn flip(self, words: Self::Words, bit: u32) -> Self;

    fn add(self, other: Self) -> Self;
    fn subtract(self, other: Self) -> Self;
    fn scale(self, by: f32) -> Self;
    /// Replaces NaN lanes by the canonical NaN.
    fn canonical(self) -> Self;

    /// Makes streaming stores visible before later stores.
    fn fence();
}

/// How elements that are computed with as `f32` are stored.
pub(crate) trait Format {
    /// Bytes of an element.
    const SIZE: usize;

    /// # Safety
    /// As of [`Lanes::load_f32`].
    unsafe fn load<V: Lanes>(from: *const u8) -> V;
    /// # Safety
    /// As of [`Lanes::store_f32`].
    unsafe fn store<V: Lanes, const STREAM: bool>(lanes: V, to: *mut u8);
}

/// Binary32.
pub(crate) struct F32;
/// bfloat16.
pub(crate) struct Bf16;
/// Binary16.
pub(crate) struct F16;

macro_rules! format {
    ($($name:ident: $size:literal $load:ident $store:ident)*) => {$(
        impl Format for $name {
            const SIZE: usize = $size;

            #[inline(always)]
            unsafe fn load<V: Lanes>(from: *const u8) -> V {
                // SAFETY: the caller's promise.
                unsafe { V::$load(from) }
            }

            #[inline(always)]
            unsafe fn store<V: Lanes, const STREAM: bool>(lanes: V, to: *mut u8) {
                // SAFETY: the caller's promise.
                unsafe { lanes.$store::<STREAM>(to) }
            }
        }
    )*};
}
format! {
    F32: 4 load_f32 store_f32
    Bf16: 2 load_bf16 store_bf16
    F16: 2 load_f16 store_f16
}
