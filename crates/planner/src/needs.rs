//! What a scheme requires of the other end of a link, and how Bowline runs it.

use std::fmt::Write;

use bowline_plan::Scheme;
use serde::Serialize;

/// What must be at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Peer {
    /// Any NIC that speaks RoCEv2.
    AnyRoce,
    /// Bowline with FEC enabled. The ends negotiate; without FEC at the other end it is plain
    /// go-back-N.
    BowlineFec,
    /// Bowline, and a program that uses its reliable queue pairs.
    BowlineReliable,
}

impl Peer {
    /// The requirement of a scheme.
    pub fn of(scheme: &Scheme) -> Peer {
        match scheme {
            // RC; and UC, where nothing is retransmitted.
            Scheme::GoBackN | Scheme::BestEffort => Peer::AnyRoce,
            Scheme::Lowar { .. } => Peer::BowlineFec,
            Scheme::SelectiveRepeat { .. } | Scheme::Erasure(_) => Peer::BowlineReliable,
        }
    }

    /// As a sentence.
    pub fn text(self) -> &'static str {
        match self {
            Peer::AnyRoce => "any RoCEv2 NIC",
            Peer::BowlineFec => {
                "Bowline with FEC on; the ends agree on it when they connect, and programs stay as they are"
            }
            Peer::BowlineReliable => {
                "Bowline, and a program that writes through its reliable queue pairs"
            }
        }
    }
}

/// How to run a scheme.
pub(crate) fn command(scheme: &Scheme) -> String {
    match scheme {
        Scheme::GoBackN | Scheme::BestEffort => "`bowline run -- PROGRAM`, or a NIC".to_owned(),
        Scheme::Lowar { r, c } => format!("`bowline run --fec {r},{c} -- PROGRAM` at both ends"),
        other => {
            format!("`bowline send --scheme {}`, or `ReliableQp` of the Rust crate", other.name())
        }
    }
}

/// The requirements of all these schemes, one line for those that require the same.
pub(crate) fn lines(schemes: &[Scheme]) -> Vec<String> {
    let mut groups: Vec<(Peer, String)> = Vec::new();
    for scheme in schemes {
        let peer = Peer::of(scheme);
        match groups.iter_mut().find(|(other, _)| *other == peer) {
            // Writing to a String cannot fail.
            Some((_, names)) => drop(write!(names, ", {}", scheme.name())),
            None => groups.push((peer, scheme.name().to_owned())),
        }
    }
    groups.into_iter().map(|(peer, names)| format!("{names}: {}", peer.text())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_that_need_the_same_share_a_line() {
        let lines = lines(&Scheme::all());
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[0].starts_with("gbn, best-effort: any RoCEv2"), "{lines:?}");
        assert!(lines.iter().any(|l| l.starts_with("lowar: Bowline with FEC")), "{lines:?}");
    }
}
