//! What happened to connections.

use bowline_failover::{Cause, Counters, Outcome, Rail, Report};

/// What a failover storm exercised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FailoverCoverage {
    /// Moves to the backup rail, seen by either end.
    pub moves: u64,
    /// Moves to where an end was already, because the other end was not.
    pub stays: u64,
    /// Moves to the default rail because the backup failed.
    pub flights_home: u64,
    /// Moves to the default rail because it worked again.
    pub returns: u64,
    /// Moves with unfinished requests.
    pub with_requests: u64,
    /// Moves because of the local port.
    pub local_ports: u64,
    /// Moves because of the peer's port.
    pub peer_ports: u64,
    /// Moves that both ends started at once.
    pub crossed: u64,
    /// Moves superseded by another one.
    pub overtaken: u64,
    /// Returns that the peer cancelled.
    pub refused: u64,
    /// Failed: no answer.
    pub no_answer: u64,
    /// Failed: an atomic was in flight.
    pub atomics_in_flight: u64,
    /// Failed: no entry.
    pub no_backup: u64,
    /// Failed: no progress.
    pub no_progress: u64,
    /// Ends that were reset while away.
    pub removed_away: u64,
    /// Ports that went down or up, as their hosts saw it.
    pub port_changes: u64,
    /// Agents that were not called for a while.
    pub naps: u64,
    /// Agents' datagrams without a connection's token.
    pub strangers: u64,
}

impl FailoverCoverage {
    pub(crate) fn count(&mut self, report: &Report) {
        match report.outcome {
            Outcome::Moved { requests, .. } => {
                self.with_requests += u64::from(requests > 0);
                match (report.from == report.to, report.to, report.cause) {
                    (true, _, _) => self.stays += 1,
                    (_, Rail::Backup, _) => self.moves += 1,
                    (_, Rail::Default, Cause::Return) => self.returns += 1,
                    (_, Rail::Default, _) => self.flights_home += 1,
                }
                self.local_ports += u64::from(report.cause == Cause::LocalPort);
                self.peer_ports += u64::from(report.cause == Cause::PeerPort);
            }
            Outcome::NoAnswer => self.no_answer += 1,
            Outcome::AtomicInFlight => self.atomics_in_flight += 1,
            Outcome::NoBackup => self.no_backup += 1,
            Outcome::NoProgress => self.no_progress += 1,
        }
    }

    pub(crate) fn add_agent(&mut self, counters: &Counters) {
        self.crossed += counters.crossed;
        self.overtaken += counters.overtaken;
        self.refused += counters.refused;
        self.strangers += counters.strangers;
    }

    /// Names and numbers.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("moves to the backup", self.moves),
            ("moves that stay", self.stays),
            ("backup failed too", self.flights_home),
            ("returns", self.returns),
            ("moves with requests", self.with_requests),
            ("own port down", self.local_ports),
            ("peer's port down", self.peer_ports),
            ("begun by both ends at once", self.crossed),
            ("overtaken by another", self.overtaken),
            ("returns refused", self.refused),
            ("failed: no answer", self.no_answer),
            ("failed: atomic in flight", self.atomics_in_flight),
            ("failed: no backup", self.no_backup),
            ("failed: no progress", self.no_progress),
            ("reset while away", self.removed_away),
            ("port changes", self.port_changes),
            ("agents asleep", self.naps),
            ("datagrams without a token", self.strangers),
        ]
        .into_iter()
    }

    /// Adds another's.
    pub fn merge(&mut self, other: &FailoverCoverage) {
        self.moves += other.moves;
        self.stays += other.stays;
        self.flights_home += other.flights_home;
        self.returns += other.returns;
        self.with_requests += other.with_requests;
        self.local_ports += other.local_ports;
        self.peer_ports += other.peer_ports;
        self.crossed += other.crossed;
        self.overtaken += other.overtaken;
        self.refused += other.refused;
        self.no_answer += other.no_answer;
        self.atomics_in_flight += other.atomics_in_flight;
        self.no_backup += other.no_backup;
        self.no_progress += other.no_progress;
        self.removed_away += other.removed_away;
        self.port_changes += other.port_changes;
        self.naps += other.naps;
        self.strangers += other.strangers;
    }
}
