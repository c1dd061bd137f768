//! Records what happened, for logs, counters and reports.

use bowline_failover::{Cause, Mode, Outcome, Rail, Report};

/// Maximum number of events kept; the counters continue.
const MAX_KEPT: usize = 4096;

/// What happened to the connections of two rails.
#[derive(Clone, Debug)]
pub struct Account {
    /// How connections move.
    pub mode: Mode,
    /// Current number of connections.
    pub connections: usize,
    /// Connections whose peer's backup is known, so that they can move.
    pub ready: usize,
    /// Connections on the backup rail.
    pub away: usize,
    /// Moves to the backup, and back.
    pub moves: [u64; 2],
    /// Connections that failed nevertheless.
    pub failed: u64,
    /// Requests that were outstanding when their connection moved, and moved with it.
    pub requests: u64,
    /// Events in order, counted from the start; truncated if there are many.
    pub timeline: Vec<Report>,
}

/// Counts what happens to connections, and keeps a timeline.
#[derive(Default)]
pub struct Tally {
    moves: [u64; 2],
    failed: u64,
    requests: u64,
    timeline: Vec<Report>,
}

impl Tally {
    /// Records an event.
    pub fn enter(&mut self, report: Report) {
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

    /// The whole account. `(connections, ready)` and `away` are the current counts.
    pub fn account(
        &self,
        mode: Mode,
        (connections, ready): (usize, usize),
        away: usize,
    ) -> Account {
        let Tally { moves, failed, requests, .. } = *self;
        let timeline = self.timeline.clone();
        Account { mode, connections, ready, away, moves, failed, requests, timeline }
    }
}

/// Describes reports as text, with one line for all reports that have the same cause and outcome.
/// When a port fails, all of its connections move at once.
pub fn describe(reports: &[Report]) -> Vec<String> {
    let alike = |a: &Report, b: &Report| {
        a.cause == b.cause
            && a.to == b.to
            && std::mem::discriminant(&a.outcome) == std::mem::discriminant(&b.outcome)
    };
    let mut groups: Vec<Vec<&Report>> = Vec::new();
    for report in reports {
        match groups.iter_mut().find(|group| alike(group[0], report)) {
            Some(group) => group.push(report),
            None => groups.push(vec![report]),
        }
    }
    groups.iter().map(|group| describe_alike(group)).collect()
}

fn describe_alike(reports: &[&Report]) -> String {
    let Report { qpn, cause, to, outcome, .. } = reports[0];
    let who = match reports.len() {
        1 => format!("QP {qpn}"),
        count => format!("{count} QPs"),
    };
    let longest = reports.iter().filter_map(|report| report.detect_ns).max();
    let silence = longest.map_or_else(String::new, |ns| {
        format!(" after {} ms without a response", milliseconds(ns))
    });
    let cause = cause.text();
    let moved = |report: &&Report| match report.outcome {
        Outcome::Moved { handover_ns, requests } => (handover_ns, requests),
        _ => (0, 0),
    };
    match outcome {
        Outcome::Moved { .. } => {
            let to = rail_name(*to);
            let slowest = reports.iter().map(|report| moved(report).0).max().unwrap_or(0);
            let requests: u64 = reports.iter().map(|report| moved(report).1).sum();
            format!(
                "failover: {who} moved to the {to} NIC in {} ms with {requests} requests ({cause}{silence})",
                milliseconds(slowest)
            )
        }
        failed => format!("failover: {who} failed: {} ({cause}{silence})", why(*failed)),
    }
}

/// Why a connection failed.
fn why(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Moved { .. } => "it did not",
        Outcome::NoAnswer => "its peer answers on neither NIC",
        Outcome::AtomicInFlight => "an atomic was in flight, which must not be repeated",
        Outcome::NoBackup => {
            "its peer's backup is unknown; check that both hosts reach the store, and that \
             failover is on at the peer"
        }
        Outcome::NoProgress => "it moved back and forth without progress",
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
    /// The account as one JSON object.
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

/// One event of the timeline. Names are fixed words, so nothing needs quoting.
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

#[cfg(test)]
mod tests {
    use bowline_nic::Time;
    use bowline_wire::Qpn;

    use super::*;

    fn report(qpn: u32, outcome: Outcome) -> Report {
        Report {
            at: Time::from_nanos(5_000_000),
            qpn: Qpn::new(qpn),
            epoch: 1,
            from: Rail::Default,
            to: Rail::Backup,
            cause: Cause::Path,
            detect_ns: Some(16_000_000),
            outcome,
        }
    }

    #[test]
    fn connections_that_move_together_are_one_line() {
        let moved = |handover_ns| Outcome::Moved { handover_ns, requests: 2 };
        let lines = describe(&[
            report(1, moved(1_000_000)),
            report(2, Outcome::NoAnswer),
            report(3, moved(3_000_000)),
        ]);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].contains("2 QPs moved to the backup NIC in 3.00 ms with 4 requests"));
        assert!(lines[1].contains("QP 0x2 failed"), "{lines:?}");
    }

    #[test]
    fn the_account_is_json_and_counts() {
        let mut tally = Tally::default();
        tally.enter(report(1, Outcome::Moved { handover_ns: 7, requests: 3 }));
        tally.enter(report(2, Outcome::NoBackup));
        let account = tally.account(Mode::Shift, (2, 1), 1);
        assert_eq!((account.moves, account.failed, account.requests), ([1, 0], 1, 3));
        let json: serde_json::Value = serde_json::from_str(&account.to_json()).unwrap();
        assert_eq!(json["mode"], "shift");
        assert_eq!(json["timeline"][0]["handover_ns"], 7);
        assert_eq!(json["timeline"][1]["outcome"], "no-backup");
    }
}
