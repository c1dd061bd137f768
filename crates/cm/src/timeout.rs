//! Times in the encoding of CM messages.

/// A time of 4.096 µs · 2^`exponent`, in five bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CmTimeout(u8);

impl CmTimeout {
    /// The time with this exponent, of which the low five bits count.
    pub const fn new(exponent: u8) -> CmTimeout {
        CmTimeout(exponent & 0x1f)
    }

    /// The exponent, 0 to 31.
    pub const fn exponent(self) -> u8 {
        self.0
    }

    /// The time in nanoseconds.
    pub const fn nanos(self) -> u64 {
        4096 << self.0
    }
}
