//! The faults that can be requested, and their text form.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use bowline_link::{Faults, LinkProfile, Loss, ParseLinkError, units};

/// A shorter period would cost more system calls than there is traffic.
const MIN_FLAP: Duration = Duration::from_millis(1);

/// Something to do to a device's link.
///
/// As text: `down`, `up`, `flap=200ms`, `loss=1%`, `loss=ge(0.01,0.2),seed=7`, `blackhole=in`,
/// `blackhole=out`, `clear`. [`LinkProfile`] describes the syntax of loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FaultAction {
    /// Nothing goes in or out, and the device sees the link down, like an unplugged cable.
    Down,
    /// Ends [`Down`](FaultAction::Down) and [`Flap`](FaultAction::Flap).
    Up,
    /// Down for this long, up for as long, and so on.
    Flap(Duration),
    /// Packets are lost silently in both directions.
    Loss {
        /// The loss model.
        loss: Loss,
        /// Seed of the random draws.
        seed: u64,
    },
    /// All packets in this direction are lost silently.
    Blackhole(Direction),
    /// Ends all faults.
    Clear,
}

/// Which way packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Towards this device.
    In,
    /// Away from it.
    Out,
}

/// An action, and how long it is to last.
///
/// As text: the action, optionally followed by `for` and a duration: `down for 5s`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FaultRequest {
    /// What to do.
    pub action: FaultAction,
    /// When to undo it; `None` lasts until another request ends it.
    pub lasts: Option<Duration>,
}

/// Why a text is not a valid fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseFaultError(String);

impl FromStr for FaultAction {
    type Err = ParseFaultError;

    fn from_str(text: &str) -> Result<FaultAction, ParseFaultError> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        match (name, value) {
            ("down", None) => Ok(FaultAction::Down),
            ("up", None) => Ok(FaultAction::Up),
            ("clear", None) => Ok(FaultAction::Clear),
            ("flap", Some(period)) => match units::parse_duration(period) {
                Ok(period) if period >= MIN_FLAP => Ok(FaultAction::Flap(period)),
                Ok(_) => Err(ParseFaultError("the link flaps every 1ms at most".to_owned())),
                Err(why) => Err(ParseFaultError(why)),
            },
            ("loss", Some(_)) => parse_loss(text),
            ("blackhole", Some("in")) => Ok(FaultAction::Blackhole(Direction::In)),
            ("blackhole", Some("out")) => Ok(FaultAction::Blackhole(Direction::Out)),
            _ => Err(ParseFaultError(format!(
                "`{text}` is no fault: write down, up, flap=200ms, loss=1%, blackhole=in, \
                 blackhole=out or clear"
            ))),
        }
    }
}

/// Parses loss, written as in a link profile; besides loss only the seed is allowed.
fn parse_loss(text: &str) -> Result<FaultAction, ParseFaultError> {
    let profile: LinkProfile = text.parse().map_err(|e: ParseLinkError| ParseFaultError(e.why))?;
    let (loss, seed) = (profile.faults.loss, profile.seed);
    let faults = Faults { loss, ..Faults::default() };
    if profile != (LinkProfile { faults, seed, ..LinkProfile::default() }) {
        let why = format!("`{text}`: of a link's profile a fault has only loss and seed");
        return Err(ParseFaultError(why));
    }
    Ok(FaultAction::Loss { loss, seed })
}

impl fmt::Display for FaultAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FaultAction::Down => f.write_str("down"),
            FaultAction::Up => f.write_str("up"),
            FaultAction::Flap(period) => write!(f, "flap={period:?}"),
            FaultAction::Loss { loss, seed: 0 } => write!(f, "loss={loss}"),
            FaultAction::Loss { loss, seed } => write!(f, "loss={loss},seed={seed}"),
            FaultAction::Blackhole(Direction::In) => f.write_str("blackhole=in"),
            FaultAction::Blackhole(Direction::Out) => f.write_str("blackhole=out"),
            FaultAction::Clear => f.write_str("clear"),
        }
    }
}

impl FromStr for FaultRequest {
    type Err = ParseFaultError;

    fn from_str(text: &str) -> Result<FaultRequest, ParseFaultError> {
        let (action, lasts) = match text.split_once(" for ") {
            Some((action, lasts)) => {
                let lasts = units::parse_duration(lasts.trim()).map_err(ParseFaultError)?;
                (action, Some(lasts))
            }
            None => (text, None),
        };
        let action = action.trim().parse()?;
        if lasts.is_some() && matches!(action, FaultAction::Up | FaultAction::Clear) {
            let why = format!("`{action}` ends faults, and that is for good: leave the time out");
            return Err(ParseFaultError(why));
        }
        Ok(FaultRequest { action, lasts })
    }
}

impl fmt::Display for FaultRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.lasts {
            Some(lasts) => write!(f, "{} for {lasts:?}", self.action),
            None => self.action.fmt(f),
        }
    }
}
