//! How an agent behaves.

use core::fmt;
use core::str::FromStr;

use bowline_nic::Carry;

/// Which of the trilemma's corners is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// The opaque receiver: transport state moves along, and everything is carried out exactly
    /// once.
    #[default]
    Exact,
    /// Exactly-once: requests that are not acknowledged start anew, as the paper has it.
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

/// A word that names no mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no mode of failover: write exact or shift")]
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

/// How an agent behaves. Times are in nanoseconds.
#[derive(Clone, Debug)]
pub struct Config {
    /// What becomes of requests that are not done.
    pub mode: Mode,
    /// Q_Key of its datagrams: who does not know it is not heard.
    pub qkey: u32,
    /// Between two repetitions of a message that is not answered; later ones wait longer, up to
    /// sixteen times this.
    pub repeat_ns: u64,
    /// How long to wait for the peer before a connection fails.
    pub give_up_ns: u64,
    /// Between two probes of a default rail that is not in use.
    pub probe_ns: u64,
    /// How long probes must have been answered before a connection comes back.
    pub good_for_ns: u64,
    /// The same for a rail that keeps failing: each return that does not last doubles it up to
    /// this. One that lasted this long is forgiven.
    pub good_for_max_ns: u64,
    /// How long to drain for a peer before its return is called off ([`Mode::Shift`]).
    pub drain_ns: u64,
    /// The same after it has been called off before: each time twice as long, up to this. A queue
    /// may be longer than its link is fast.
    pub drain_max_ns: u64,
    /// How long a peer that is asked to drain may say nothing before its path counts as dead.
    pub drain_silence_ns: u64,
    /// Moves of a connection without any progress before it fails.
    pub max_idle_moves: u32,
    /// Memory has other keys on the second NIC than on the first, as on verbs devices.
    pub keys_differ: bool,
}

impl Config {
    /// The usual times.
    pub fn new(mode: Mode, qkey: u32) -> Config {
        Config {
            mode,
            // The upper half is the standard's privileged Q_Keys.
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
