//! Configuration of an agent.

use core::fmt;
use core::str::FromStr;

use bowline_nic::Carry;

/// Which of the three properties of the paper's trilemma is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// Gives up the opaque receiver: transport state moves along, and everything is executed
    /// exactly once.
    #[default]
    Exact,
    /// Gives up exactly-once execution: unacknowledged requests start over, as in the paper.
    Shift,
}

impl Mode {
    pub(crate) fn carry(self) -> Carry {
        match self {
            Mode::Exact => Carry::Transport,
            Mode::Shift => Carry::Requests,
        }
    }
}

/// An unknown mode name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown failover mode {0:?}: use exact or shift")]
pub struct UnknownMode(String);

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Mode, UnknownMode> {
        match text {
            "exact" => Ok(Mode::Exact),
            "shift" => Ok(Mode::Shift),
            _ => Err(UnknownMode(text.to_owned())),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Exact => "exact",
            Mode::Shift => "shift",
        })
    }
}

/// Configuration of an agent. Times are in nanoseconds.
#[derive(Clone, Debug)]
pub struct Config {
    /// What happens to outstanding requests.
    pub mode: Mode,
    /// Q_Key of its datagrams. Datagrams without it are dropped.
    pub qkey: u32,
    /// Interval between repetitions of an unanswered message. It grows up to sixteen times this
    /// value.
    pub repeat_ns: u64,
    /// How long to wait for the peer before a connection fails.
    pub give_up_ns: u64,
    /// Interval between probes of a default rail that is not in use.
    pub probe_ns: u64,
    /// How long probes must have been answered before a connection returns.
    pub good_for_ns: u64,
    /// Upper limit of that time for a rail that keeps failing: each return that does not last
    /// doubles it. A return that lasts this long resets it.
    pub good_for_max_ns: u64,
    /// How long to drain for a peer before its return is called off ([`Mode::Shift`]).
    pub drain_ns: u64,
    /// Upper limit of that time: each return that was called off doubles it. A queue may take
    /// longer to drain than the first limit allows.
    pub drain_max_ns: u64,
    /// How long a peer that is asked to drain may be silent before its path counts as dead.
    pub drain_silence_ns: u64,
    /// Maximum number of moves of a connection without any progress before it fails.
    pub max_idle_moves: u32,
    /// Memory has different keys on the second NIC than on the first, as on verbs devices.
    pub keys_differ: bool,
}

impl Config {
    /// The default times.
    pub fn new(mode: Mode, qkey: u32) -> Config {
        Config {
            mode,
            // Q_Keys in the upper half are privileged by the standard.
            qkey: qkey & !(1 << 31),
            repeat_ns: 2_000_000,
            give_up_ns: 2_000_000_000,
            probe_ns: 50_000_000,
            good_for_ns: 150_000_000,
            good_for_max_ns: 10_000_000_000,
            drain_ns: 100_000_000,
            drain_max_ns: 4_000_000_000,
            drain_silence_ns: 400_000_000,
            max_idle_moves: 8,
            keys_differ: false,
        }
    }
}
