//! What has happened, for logs, counters and reports.

use bowline_failover::{Cause, Mode, Outcome, Rail, Report};

/// Events kept; the counters go on.
const MAX_KEPT: usize = 4096;

/// What has happened to the connections of two rails.
#[derive(Clone, Debug)]
pub struct Account {
    /// How connections are moved.
    pub mode: Mode,
    /// Connections there are now.
    pub connections: usize,
    /// Those of them whose peer's backup is known, so that they can move.
    pub ready: usize,
    /// Those on the backup rail.
    pub away: usize,
    /// Moves to the backup, and back.
    pub moves: [u64; 2],
    /// Connections that failed all the same.
    pub failed: u64,
    /// Requests that were not done when their connection moved, and went along.
    pub requests: u64,
    /// What happened, in order, counted from the start; not all of it if it is a lot.
    pub timeline: Vec<Report>,
}

#[derive(Default)]
pub(crate) struct Books {
    moves: [u64; 2],
    failed: u64,
    requests: u64,
    timeline: Vec<Report>,
}

impl Books {
    pub(crate) fn enter(&mut self, report: Report) {
        match report.outcome {
            Outcome::Moved { requests, .. } => {
                self.moves[usize::from(report.to == Rail::Default)] += 1;
                self.requests += requests;
            }
            _ => self.failed += 1,
        }
        if self.timeline.len() < MAX_KEPT {
            self.timeline.push(report);
        }
    }

    pub(crate) fn account(
        &self,
        mode: Mode,
        (connections, ready): (usize, usize),
        away: usize,
    ) -> Account {
        let Books { moves, failed, requests, .. } = *self;
        let timeline = self.timeline.clone();
        Account { mode, connections, ready, away, moves, failed, requests, timeline }
    }
}

/// A report for people.
pub(crate) fn describe(report: &Report) -> String {
    let Report { qpn, cause, to, .. } = report;
    let to = rail_name(*to);
    let cause = cause.text();
    let silence = report
        .detect_ns
        .map_or_else(String::new, |ns| format!(" after {} ms without an answer", milliseconds(ns)));
    match report.outcome {
        Outcome::Moved { handover_ns, requests } => format!(
            "failover: QP {qpn} moved to the {to} NIC in {} ms with {requests} requests ({cause}{silence})",
            milliseconds(handover_ns)
        ),
        failed => format!("failover: QP {qpn} failed: {} ({cause}{silence})", why(failed)),
    }
}

/// Why a connection failed.
fn why(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Moved { .. } => "it did not",
        Outcome::NoAnswer => "its peer answers on neither NIC",
        Outcome::AtomicInFlight => "an atomic was in flight, which must not be repeated",
        Outcome::NoBackup => {
            "nothing is known of a backup of its peer's; is the store reachable \
                              from both hosts, and failover on there too?"
        }
        Outcome::NoProgress => "it moved back and forth without getting anything done",
    }
}

fn rail_name(rail: Rail) -> &'static str {
    match rail {
        Rail::Default => "first",
        Rail::Backup => "backup",
    }
}

fn milliseconds(ns: u64) -> String {
    format!("{:.2}", ns as f64 / 1e6)
}

impl Account {
    /// As one JSON object.
    pub fn to_json(&self) -> String {
        let timeline: Vec<String> = self.timeline.iter().map(event_json).collect();
        format!(
            "{{\"mode\":\"{}\",\"connections\":{},\"ready\":{},\"away\":{},\"to_backup\":{},\"back\":{},\"failed\":{},\"requests\":{},\
             \"timeline\":[{}]}}",
            self.mode,
            self.connections,
            self.ready,
            self.away,
            self.moves[0],
            self.moves[1],
            self.failed,
            self.requests,
            timeline.join(",")
        )
    }
}

/// A part of the timeline: names are fixed words, so that nothing needs quoting.
fn event_json(report: &Report) -> String {
    let number = |n: Option<u64>| n.map_or("null".to_owned(), |n| n.to_string());
    let (outcome, handover, requests) = match report.outcome {
        Outcome::Moved { handover_ns, requests } => ("moved", Some(handover_ns), Some(requests)),
        failed => (outcome_word(failed), None, None),
    };
    format!(
        "{{\"at_ns\":{},\"qpn\":{},\"epoch\":{},\"rail\":\"{}\",\"cause\":\"{}\",\"outcome\":\"{outcome}\",\
         \"detect_ns\":{},\"handover_ns\":{},\"requests\":{}}}",
        report.at.as_nanos(),
        report.qpn.get(),
        report.epoch,
        rail_name(report.to),
        cause_word(report.cause),
        number(report.detect_ns),
        number(handover),
        number(requests),
    )
}

fn cause_word(cause: Cause) -> &'static str {
    match cause {
        Cause::LocalPort => "local-port",
        Cause::PeerPort => "peer-port",
        Cause::Path => "path",
        Cause::Return => "return",
    }
}

fn outcome_word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Moved { .. } => "moved",
        Outcome::NoAnswer => "no-answer",
        Outcome::AtomicInFlight => "atomic-in-flight",
        Outcome::NoBackup => "no-backup",
        Outcome::NoProgress => "no-progress",
    }
}
