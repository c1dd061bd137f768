//! Points in time: integer nanoseconds since an epoch that the driver chose.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};
use core::time::Duration;

/// A point in time, in nanoseconds since an epoch chosen by the driver of the engine.
///
/// Engines never read a clock: time is an argument, and it must not go backwards between calls.
/// The same code therefore runs on the monotonic clock and on the simulator's virtual one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// The epoch.
    pub const ZERO: Time = Time(0);
    /// Later than every time an engine will see.
    pub const NEVER: Time = Time(u64::MAX);

    /// The time `nanos` after the epoch.
    #[inline]
    pub const fn from_nanos(nanos: u64) -> Self {
        Time(nanos)
    }

    /// The time `micros` after the epoch.
    pub const fn from_micros(micros: u64) -> Self {
        Time(micros * 1_000)
    }

    /// The time `millis` after the epoch.
    pub const fn from_millis(millis: u64) -> Self {
        Time(millis * 1_000_000)
    }

    /// Nanoseconds since the epoch.
    #[inline]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Seconds since the epoch, for people to read.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The time `nanos` later, stopping at [`Time::NEVER`].
    #[inline]
    pub const fn plus_nanos(self, nanos: u64) -> Self {
        Time(self.0.saturating_add(nanos))
    }

    /// Nanoseconds from `earlier` to here, or 0 if `earlier` is in fact later.
    #[inline]
    pub const fn nanos_since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, rhs: Duration) -> Time {
        self.plus_nanos(u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl AddAssign<Duration> for Time {
    fn add_assign(&mut self, rhs: Duration) {
        *self = *self + rhs;
    }
}

impl Sub for Time {
    type Output = Duration;
    fn sub(self, rhs: Time) -> Duration {
        Duration::from_nanos(self.nanos_since(rhs))
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Time::NEVER {
            return f.write_str("never");
        }
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
