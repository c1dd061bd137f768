//! Packet sequence numbers.

use core::fmt;

/// A packet sequence number: 24 bits, modulo 2^24.
///
/// There is no `Ord`: modular numbers have no total order. [`Psn::diff`] returns the distance of
/// two numbers, assuming that they are less than half of the sequence space apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    const MASK: u32 = 0x00ff_ffff;

    /// The low 24 bits of `value`.
    #[inline]
    pub const fn new(value: u32) -> Self {
        Self(value & Self::MASK)
    }

    /// The number, below 2^24.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number that follows.
    #[inline]
    pub const fn next(self) -> Self {
        self.add(1)
    }

    /// The number `n` further on.
    #[inline]
    // `Add` could not be `const`, and `psn + 1` hides the wrap.
    #[allow(clippy::should_implement_trait)]
    pub const fn add(self, n: u32) -> Self {
        Self::new(self.0.wrapping_add(n))
    }

    /// The number `n` before.
    #[inline]
    #[allow(clippy::should_implement_trait)]
    pub const fn sub(self, n: u32) -> Self {
        Self::new(self.0.wrapping_sub(n))
    }

    /// The signed distance `self - other`, in -2^23..2^23.
    ///
    /// Two numbers half of the sequence space apart are at -2^23 from each other, both ways.
    #[inline]
    pub const fn diff(self, other: Self) -> i32 {
        // With the 24 bits at the top of the word, the shift back extends their sign.
        (self.0.wrapping_sub(other.0) << 8) as i32 >> 8
    }

    /// Whether `self` comes before `other`.
    #[inline]
    pub const fn before(self, other: Self) -> bool {
        self.diff(other) < 0
    }

    /// Whether `self` comes after `other`.
    #[inline]
    pub const fn after(self, other: Self) -> bool {
        self.diff(other) > 0
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::LowerHex for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}
