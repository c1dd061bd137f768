//! The parameters of a code, and how it is chosen.

use core::fmt;
use core::str::FromStr;

use crate::control::AutoConfig;

/// Most packets in a block.
pub const MAX_BLOCK: u8 = 128;
/// Most lanes of a block, which is the longest loss burst that can be repaired.
pub const MAX_LANES: u8 = 16;

/// A code, LoWAR(r, c): `r` packets per block, interleaved over `c` lanes with one repair packet
/// each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Params {
    r: u8,
    c: u8,
}

/// Why two numbers are not a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParamsError {
    /// Out of range.
    #[error("FEC({r}, {c}): r must be 1 to {MAX_BLOCK}, and c 1 to {MAX_LANES} and at most r")]
    Range {
        /// Packets a block.
        r: u64,
        /// Lanes.
        c: u64,
    },
    /// Not two numbers.
    #[error("expected `r,c` (such as 32,1), `auto` or `off`")]
    Syntax,
}

impl Params {
    /// LoWAR(r, c), if there is such a code.
    pub const fn new(r: u8, c: u8) -> Result<Params, ParamsError> {
        if r == 0 || r > MAX_BLOCK || c == 0 || c > MAX_LANES || c > r {
            return Err(ParamsError::Range { r: r as u64, c: c as u64 });
        }
        Ok(Params { r, c })
    }

    /// Packets a block.
    #[inline]
    pub const fn r(self) -> u8 {
        self.r
    }

    /// Lanes, and repair packets of a whole block.
    #[inline]
    pub const fn c(self) -> u8 {
        self.c
    }

    /// Repair packets as a fraction of data packets, in long messages.
    pub fn overhead(self) -> f64 {
        f64::from(self.c) / f64::from(self.r)
    }
}

impl fmt::Display for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.r, self.c)
    }
}

/// How a connection's code is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub enum FecMode {
    /// No repairs are sent. The peer's are used.
    #[default]
    Off,
    /// Always this code.
    Fixed(Params),
    /// Chosen from the peer's reports.
    Auto(AutoConfig),
}

impl FromStr for FecMode {
    type Err = ParamsError;

    /// `r,c`, `auto` or `off`.
    fn from_str(text: &str) -> Result<FecMode, ParamsError> {
        match text.trim() {
            "off" => return Ok(FecMode::Off),
            "auto" => return Ok(FecMode::Auto(AutoConfig::default())),
            _ => {}
        }
        let (r, c) = text.split_once(',').ok_or(ParamsError::Syntax)?;
        let number = |text: &str| text.trim().parse::<u64>().map_err(|_| ParamsError::Syntax);
        let (r, c) = (number(r)?, number(c)?);
        let small = |n: u64| u8::try_from(n).map_err(|_| ParamsError::Range { r, c });
        Params::new(small(r)?, small(c)?).map(FecMode::Fixed)
    }
}

impl fmt::Display for FecMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FecMode::Off => f.write_str("off"),
            FecMode::Fixed(params) => params.fmt(f),
            FecMode::Auto(_) => f.write_str("auto"),
        }
    }
}

/// How a shim behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FecConfig {
    /// Which code it sends.
    pub mode: FecMode,
    /// Sends repairs without having detected the peer's shim. Only for peers that are known to
    /// accept opcode 0x1F: it may harm others.
    pub forced: bool,
    /// How long packets after a gap wait when nothing more arrives. Long enough for a sleeping
    /// host's burst to come through, short compared with the round trips that it saves.
    pub hold_ns: u64,
    /// Greetings sent to a peer that does not answer.
    pub hello_tries: u8,
    /// Time between the first and the second greeting; each further interval is four times as long.
    pub hello_ns: u64,
    /// Time between reports while packets arrive.
    pub report_ns: u64,
}

impl FecConfig {
    /// The defaults, with this choice of code.
    pub fn new(mode: FecMode) -> FecConfig {
        FecConfig {
            mode,
            forced: false,
            hold_ns: 10_000_000,
            hello_tries: 6,
            hello_ns: 5_000_000,
            report_ns: 50_000_000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_read_as_people_write_them() {
        assert_eq!("off".parse(), Ok(FecMode::Off));
        assert_eq!("32,1".parse(), Ok(FecMode::Fixed(Params { r: 32, c: 1 })));
        assert_eq!(" 64 , 8 ".parse(), Ok(FecMode::Fixed(Params { r: 64, c: 8 })));
        assert_eq!("auto".parse(), Ok(FecMode::Auto(AutoConfig::default())));
        for wrong in ["", "32", "32,", "a,b", "32;1"] {
            assert_eq!(wrong.parse::<FecMode>(), Err(ParamsError::Syntax), "{wrong}");
        }
        for range in ["0,0", "4,5", "129,1", "64,17", "1000,1"] {
            assert!(matches!(range.parse::<FecMode>(), Err(ParamsError::Range { .. })), "{range}");
        }
    }
}
