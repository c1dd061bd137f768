//! Queue pair numbers.

use core::fmt;

/// A queue pair number: 24 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qpn(u32);

impl Qpn {
    /// Queue pair 1 of every port, for management datagrams (the general services interface).
    pub const GSI: Self = Self(1);
    /// The destination of every multicast datagram.
    pub const MULTICAST: Self = Self(0x00ff_ffff);

    /// The low 24 bits of `value`.
    #[inline]
    pub const fn new(value: u32) -> Self {
        Self(value & 0x00ff_ffff)
    }

    /// The number, below 2^24.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The top byte, which implementations may use to sort queue pairs into classes.
    #[inline]
    pub const fn prefix(self) -> u8 {
        (self.0 >> 16) as u8
    }

    /// The two bytes below the prefix.
    #[inline]
    pub const fn low16(self) -> u16 {
        self.0 as u16
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::LowerHex for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}
