//! Moving a connection: one end begins, the other follows, and then both send.

use bowline_nic::{Carry, ControlError, Resume, Time};

use crate::agent::{Agent, ConnectionId};
use crate::connection::{Connection, Handover, Phase};
use crate::message::{Kind, Message};
use crate::rail::{Rail, Rails, on};
use crate::report::{Cause, Outcome, Report};

/// The interval between repetitions doubles up to this many times.
const MAX_BACKOFF: u32 = 4;

/// Why a connection was not moved.
enum Stuck {
    /// An atomic is in flight.
    Atomic,
    /// It cannot move: it has failed, or no longer exists.
    Immovable,
}

impl Connection {
    /// Checks that the connection has not failed by itself. If it has, it stays where it is.
    fn check_alive(&self, rails: &mut dyn Rails) -> Result<(), Stuck> {
        let qpn = self.qpn();
        match on(rails, self.home, |nic, _| nic.is_connected(qpn)) {
            Some(true) => Ok(()),
            _ => Err(Stuck::Immovable),
        }
    }

    /// Moves the connection, with its sends withheld. Returns the number of its outstanding
    /// requests.
    fn relocate(&mut self, rails: &mut dyn Rails, to: Rail, carry: Carry) -> Result<u64, Stuck> {
        let from = self.qpn();
        let body = on(rails, self.home, |nic, now| {
            // Nothing may be executed between counting and leaving.
            nic.hold_qp(from)?;
            nic.detach_qp(now, from, carry)
        });
        let Some(Ok(body)) = body else { return Err(Stuck::Immovable) };
        let in_flight = carry == Carry::Requests && body.has_atomic_in_flight();
        let requests = body.outstanding();
        let resume = Resume { received: body.received(), psn: body.expected_psn() };
        let progress = body.progress();
        let to = if in_flight { self.home } else { to };
        let qpn = self.qpns[to.index()];
        let mut unattached = Some(body);
        let attached = on(rails, to, |nic, now| match unattached.take() {
            Some(body) => nic.attach_qp(now, qpn, body).map_err(|(error, body)| {
                unattached = Some(body);
                error
            }),
            None => Err(ControlError::NotFound { what: "connection" }),
        });
        if let (false, Some(body)) = (matches!(attached, Some(Ok(()))), unattached) {
            // It fits where it came from.
            let mut body = Some(body);
            on(rails, self.home, |nic, now| {
                body.take().map(|body| nic.attach_qp(now, from, body).is_ok())
            });
            return Err(Stuck::Immovable);
        }
        if in_flight {
            return Err(Stuck::Atomic);
        }
        self.home = to;
        (self.refusals, self.rests_until) = (0, None);
        self.resume = resume;
        self.idle_moves = if progress == self.progress { self.idle_moves + 1 } else { 0 };
        self.progress = progress;
        Ok(requests)
    }

    /// Moves a connection to the default rail without asking the peer. Returns whether it was on
    /// the backup rail.
    pub(crate) fn bring_home(&mut self, rails: &mut dyn Rails) -> bool {
        let away = self.home == Rail::Backup;
        away && self.relocate(rails, Rail::Default, Carry::Transport).is_ok()
    }
}

impl Agent {
    /// Begins the next epoch of a connection whose home rail is dead, or which returns.
    pub(crate) fn begin_move(
        &mut self,
        now: Time,
        rails: &mut dyn Rails,
        id: ConnectionId,
        cause: Cause,
        detect_ns: Option<u64>,
    ) {
        let Some(connection) = self.connections.get(&id) else { return };
        let from = connection.home;
        if connection.peer.is_none() {
            let why = self.failed(now, connection, cause, detect_ns, Outcome::NoBackup);
            return self.fail(rails, id, why);
        }
        // If our own port on the other rail is down, there is no point in moving there.
        let to = if self.ports_down[from.other().index()] { from } else { from.other() };
        let epoch = connection.epoch.wrapping_add(1);
        let Some(requests) = self.relocate(now, rails, id, to, cause, detect_ns) else { return };
        self.counters.begun += 1;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        self.counters.overtaken += u64::from(matches!(connection.phase, Phase::Waiting(_)));
        connection.epoch = epoch;
        connection.phase = Phase::Waiting(Handover {
            since: now,
            from,
            cause,
            detect_ns,
            requests,
            repeat_at: now,
            said: 0,
        });
        self.wait_on(now, rails, id);
    }

    /// Moves a connection, or fails it if it cannot move.
    fn relocate(
        &mut self,
        now: Time,
        rails: &mut dyn Rails,
        id: ConnectionId,
        to: Rail,
        cause: Cause,
        detect_ns: Option<u64>,
    ) -> Option<u64> {
        let (carry, max_idle) = (self.config.mode.carry(), self.config.max_idle_moves);
        let connection = self.connections.get_mut(&id)?;
        let outcome = match connection
            .check_alive(rails)
            .and_then(|()| connection.relocate(rails, to, carry))
        {
            Ok(requests) => {
                self.moves += 1;
                if requests == 0 || connection.idle_moves <= max_idle {
                    return Some(requests);
                }
                Outcome::NoProgress
            }
            Err(Stuck::Atomic) => Outcome::AtomicInFlight,
            Err(Stuck::Immovable) => {
                // It has failed by itself, and the program knows.
                connection.phase = Phase::Failed;
                return None;
            }
        };
        let why = self.failed(now, self.connections.get(&id)?, cause, detect_ns, outcome);
        self.fail(rails, id, why);
        None
    }

    /// Repeats `Move`, over both rails in turn, or gives up.
    pub(crate) fn wait_on(&mut self, now: Time, rails: &mut dyn Rails, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Phase::Waiting(handover) = &mut connection.phase else { return };
        if now.nanos_since(handover.since) >= self.config.give_up_ns {
            let (cause, detect_ns) = (handover.cause, handover.detect_ns);
            let Some(connection) = self.connections.get(&id) else { return };
            let why = self.failed(now, connection, cause, detect_ns, Outcome::NoAnswer);
            return self.fail(rails, id, why);
        }
        let rail = if handover.said % 2 == 0 { connection.home } else { connection.home.other() };
        handover.repeat_at =
            now.plus_nanos(self.config.repeat_ns << (handover.said / 2).min(MAX_BACKOFF));
        handover.said += 1;
        self.say(rails, rail, id, Kind::Move, 0);
    }

    /// The peer has moved, or begins to.
    pub(crate) fn heard_move(
        &mut self,
        now: Time,
        rails: &mut dyn Rails,
        rail: Rail,
        id: ConnectionId,
        message: &Message,
    ) {
        let Some(connection) = self.connections.get(&id) else { return };
        let ahead = message.epoch.wrapping_sub(connection.epoch).cast_signed();
        let wants_answer = message.kind == Kind::Move;
        let waiting = matches!(connection.phase, Phase::Waiting(_));
        let follows = ahead > 0
            || (ahead == 0
                && message.rail != connection.home
                && waiting
                && !self.outranks_peer(connection));
        if follows {
            self.counters.followed += 1;
            self.counters.overtaken += u64::from(waiting);
            self.follow(now, rails, id, message);
        } else if ahead == 0 && message.rail == connection.home && waiting {
            self.counters.crossed += u64::from(wants_answer);
            self.settle(now, rails, id, message);
        }
        // Answer an older epoch with the current one, which the peer then follows. Answer the
        // current epoch again, because the first answer may have been lost.
        let Some(connection) = self.connections.get(&id) else { return };
        let disputed = connection.epoch == message.epoch && connection.home != message.rail;
        if wants_answer && !disputed && connection.phase != Phase::Failed {
            self.say(rails, rail, id, Kind::Moved, 0);
        }
    }

    /// Follows the peer to its rail.
    fn follow(&mut self, now: Time, rails: &mut dyn Rails, id: ConnectionId, message: &Message) {
        let Some(connection) = self.connections.get(&id) else { return };
        let from = connection.home;
        // This supersedes a move in progress, but that move's cause and start are the right ones to
        // report.
        let (since, detect_ns, own_cause) = match connection.phase {
            Phase::Waiting(handover) => (handover.since, handover.detect_ns, Some(handover.cause)),
            _ => (now, None, None),
        };
        let cause = own_cause.unwrap_or(if message.ports_down[from.index()] {
            Cause::PeerPort
        } else if message.rail == Rail::Default && from == Rail::Backup {
            Cause::Return
        } else {
            Cause::Path
        });
        let moved = self.relocate(now, rails, id, message.rail, cause, detect_ns);
        let Some(requests) = moved else { return };
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.epoch = message.epoch;
        let (repeat_at, said) = (now, 0);
        connection.phase =
            Phase::Waiting(Handover { since, from, cause, detect_ns, requests, repeat_at, said });
        self.settle(now, rails, id, message);
    }

    /// Both ends are on the same rail: releases the sends.
    fn settle(&mut self, now: Time, rails: &mut dyn Rails, id: ConnectionId, message: &Message) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Phase::Waiting(handover) = connection.phase else { return };
        let resume = (self.config.mode.carry() == Carry::Requests).then_some(message.resume);
        let (qpn, home) = (connection.qpn(), connection.home);
        on(rails, home, |nic, _| nic.release_sends(qpn, resume));
        connection.phase = Phase::Settled;
        let cause = match handover.cause {
            Cause::Path if message.ports_down[handover.from.index()] => Cause::PeerPort,
            cause => cause,
        };
        let report = Report {
            at: now,
            qpn: connection.qpns[0],
            epoch: connection.epoch,
            from: handover.from,
            to: home,
            cause,
            detect_ns: handover.detect_ns,
            outcome: Outcome::Moved {
                handover_ns: now.nanos_since(handover.since),
                requests: handover.requests,
            },
        };
        self.report(report);
        self.note_move(now, id, cause);
    }

    /// Whether this end prevails when both disagree, and is the one that returns. It is decided by
    /// address and number, which both ends know.
    pub(crate) fn outranks_peer(&self, connection: &Connection) -> bool {
        let Some(peer) = &connection.peer else { return false };
        let ours = (self.controls[0].addr.to_canonical(), connection.qpns[0].get());
        ours > (peer.addrs[0].to_canonical(), peer.qpns[0].get())
    }

    fn failed(
        &self,
        now: Time,
        connection: &Connection,
        cause: Cause,
        detect_ns: Option<u64>,
        outcome: Outcome,
    ) -> Report {
        let (qpn, epoch) = (connection.qpns[0], connection.epoch);
        Report {
            at: now,
            qpn,
            epoch,
            from: connection.home,
            to: connection.home,
            cause,
            detect_ns,
            outcome,
        }
    }
}
