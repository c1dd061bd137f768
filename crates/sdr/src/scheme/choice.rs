//! Letting the connection choose a scheme, message by message.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use bowline_nic::Time;

use super::Scheme;
use crate::reliable::{Shape, WriteId};

/// Inputs of a choice: the message, and what the connection knows about its path.
#[derive(Debug)]
pub struct ChoiceCx<'a> {
    /// The message's chunks and groups.
    pub shape: &'a Shape,
    /// The connection's schemes.
    pub schemes: &'a [Arc<dyn Scheme>],
    /// What is known about the path.
    pub path: KnownPath,
}

/// What a connection knows about its path when a message begins.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KnownPath {
    /// Smoothed round trip, once one was measured.
    pub rtt_ns: Option<u64>,
    /// The rate that was set for the connection, or the one at which packets have landed.
    pub bandwidth_bps: Option<f64>,
    /// Probability that a packet is lost, from the repairs that earlier messages needed.
    pub packet_loss: f64,
}

/// Chooses a scheme for each message of a connection.
pub trait Chooser: Send {
    /// The scheme for a message that is about to begin.
    fn choose(&mut self, cx: &ChoiceCx<'_>) -> Choice;
}

/// The chosen scheme for a message, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Its index among the connection's; one that names no other scheme means the chooser's own.
    pub scheme: usize,
    /// The reason.
    pub why: Why,
    /// Expected duration with each of the connection's schemes, in seconds, where known.
    pub expected_s: Vec<Option<f64>>,
}

/// Why a scheme was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Round trip or bandwidth are not known yet, or there is no estimate for such a link.
    Unknown,
    /// The best one, for the first message of this size.
    First,
    /// It was in use, and nothing is much better.
    Kept,
    /// It is better than the one in use, by enough to change.
    Better,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Why::Unknown => "nothing to go by",
            Why::First => "first of its size",
            Why::Kept => "kept",
            Why::Better => "better than before",
        })
    }
}

/// A recorded choice. Consecutive messages with the same outcome share one.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// When it was first made.
    pub at: Time,
    /// The message for which it was made.
    pub id: WriteId,
    /// Messages with the same outcome.
    pub messages: u64,
    /// Bytes of the first of them.
    pub bytes: u64,
    /// What was known about the path then.
    pub path: KnownPath,
    /// What was chosen then, and why.
    pub choice: Choice,
}

/// The latest decisions of a connection.
#[derive(Debug, Default)]
pub(crate) struct DecisionLog {
    entries: VecDeque<Decision>,
}

/// Decisions that are kept.
const MAX_DECISIONS: usize = 256;

impl DecisionLog {
    pub(crate) fn add(&mut self, decision: Decision) {
        if let Some(last) = self.entries.back_mut()
            && (decision.choice.why == Why::Kept || decision.choice.why == last.choice.why)
            && decision.choice.scheme == last.choice.scheme
            && decision.bytes == last.bytes
        {
            last.messages += decision.messages;
            return;
        }
        if self.entries.len() == MAX_DECISIONS {
            self.entries.pop_front();
        }
        self.entries.push_back(decision);
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &Decision> {
        self.entries.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(id: u64, scheme: usize, why: Why) -> Decision {
        Decision {
            at: Time::ZERO,
            id: WriteId(id),
            messages: 1,
            bytes: 1,
            path: KnownPath::default(),
            choice: Choice { scheme, why, expected_s: Vec::new() },
        }
    }

    #[test]
    fn what_came_out_alike_is_one_entry_and_the_oldest_are_forgotten() {
        let mut log = DecisionLog::default();
        log.add(decision(0, 1, Why::First));
        log.add(decision(1, 1, Why::Kept));
        log.add(decision(2, 2, Why::Better));
        let counts: Vec<_> = log.entries().map(|d| (d.choice.scheme, d.messages)).collect();
        assert_eq!(counts, [(1, 2), (2, 1)]);
        for id in 0..2 * MAX_DECISIONS as u64 {
            log.add(decision(id, (id % 2) as usize, Why::Better));
        }
        assert_eq!(log.entries().count(), MAX_DECISIONS);
    }
}
