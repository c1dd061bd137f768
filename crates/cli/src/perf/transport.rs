//! The transport of a test's queue pairs.

use bowline::QpType;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::args::Test;

/// Transport of the QPs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Transport {
    /// Reliable connection
    #[default]
    Rc,
    /// Unreliable connection
    Uc,
    /// Unreliable datagram: SENDs of up to one MTU
    Ud,
    /// OptiNIC's express path: best effort with deadlines
    Xp,
}

impl Transport {
    /// The QPs' type.
    pub(crate) fn qp_type(self) -> QpType {
        match self {
            Transport::Rc => QpType::Rc,
            Transport::Uc => QpType::Uc,
            Transport::Ud => QpType::Ud,
            Transport::Xp => QpType::Xp,
        }
    }

    /// Whether a sender learns what has arrived.
    pub(crate) fn is_reliable(self) -> bool {
        self.qp_type().descriptor().reliable
    }

    /// Whether a message is one packet with its own address.
    pub(crate) fn is_datagram(self) -> bool {
        !self.qp_type().descriptor().connected
    }

    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        self.qp_type().descriptor().name
    }

    /// Rejects a test that does not work over this transport.
    pub(crate) fn check(self, test: Test) -> Result<(), String> {
        let can = match test {
            Test::SendBw | Test::SendLat => true,
            Test::WriteBw | Test::WriteLat => self != Transport::Ud,
            Test::AtomicLat => self == Transport::Rc,
            Test::ReadBw | Test::ReadLat => matches!(self, Transport::Rc | Transport::Xp),
        };
        let (test, name) = (test.name(), self.name());
        can.then_some(()).ok_or(format!(
            "{test} does not work over {name}: remove --transport, e.g. `bowline perf {test}`"
        ))
    }
}
