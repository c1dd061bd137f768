//! What agents do: move a connection, and return it (`docs/failover.md`).

use crate::network::{Packet, Position};
use crate::scope::{Break, EndId, Event, Mode, Rail, Scope};
use crate::world::{Cause, End, Fence, Phase, World};

impl World {
    pub(crate) fn deliver(&mut self, scope: &Scope, packet: Packet) {
        let (Packet::Request { to, .. }
        | Packet::Ack { to, .. }
        | Packet::Move { to, .. }
        | Packet::Moved { to, .. }
        | Packet::Return { to, .. }
        | Packet::Busy { to, .. }) = packet;
        if self.ends[to].has_failed() {
            return;
        }
        match packet {
            Packet::Request { rail, psn, number, part, .. } => {
                if rail == self.ends[to].listens {
                    self.request(scope, to, psn, number.into(), part);
                }
            }
            Packet::Ack { rail, psn, .. } => {
                if rail == self.ends[to].at.rail {
                    self.acknowledged(scope, to, psn);
                }
            }
            Packet::Move { at, .. } => self.moved(scope, to, at, true),
            Packet::Moved { at, .. } => self.moved(scope, to, at, false),
            Packet::Return { epoch, attempt, .. } => self.asked(scope, to, epoch, attempt),
            Packet::Busy { epoch, attempt, .. } => {
                let end = &mut self.ends[to];
                let current = end.at.epoch == epoch && end.attempt == attempt;
                if current && end.fence == Fence::Asking {
                    end.fence = Fence::Open;
                }
            }
        }
    }

    /// Begins the next epoch.
    pub(crate) fn begin(&mut self, scope: &Scope, id: EndId, rail: Rail) {
        let epoch = self.ends[id].at.epoch + 1;
        if self.move_to(scope, id, epoch, rail) {
            self.ends[id].phase = Phase::Waiting;
            self.network.send(Packet::Move { to: 1 - id, at: self.ends[id].at });
        }
    }

    /// Holds the connection and takes it to another epoch and rail, with its sends withheld.
    /// Returns whether it survives that.
    fn move_to(&mut self, scope: &Scope, id: EndId, epoch: u8, rail: Rail) -> bool {
        let end = &mut self.ends[id];
        let checked = scope.mode == Mode::Shift && !scope.is_broken(Break::AtomicsUnchecked);
        if checked && end.requester.has_atomic_in_flight(scope.requests[id]) {
            end.phase = Phase::Failed(Cause::AtomicInFlight);
            self.note(scope, Event::AtomicFailed);
            return false;
        }
        let by_epoch = epoch % 4 * scope.quarter;
        let psn = match scope.broken {
            _ if !scope.mode.starts_anew() => 0,
            Some(Break::SamePsns) => 0,
            Some(Break::PsnsByEpoch | Break::NotWithheld) => by_epoch,
            _ => scope.advance(end.responder.expected, scope.quarter),
        };
        end.at = Position { epoch, rail, received: end.memory.received, psn };
        end.fence = Fence::Open;
        if !scope.is_broken(Break::NotHeld) {
            end.listen(scope);
        }
        if scope.is_broken(Break::NotWithheld) {
            end.requester.start_anew(by_epoch);
        } else {
            end.requester.go_back();
        }
        true
    }

    /// The peer's position is known: releases the sends.
    fn settle(&mut self, scope: &Scope, id: EndId, peer: Position) {
        let end = &mut self.ends[id];
        end.phase = Phase::Settled;
        if scope.is_broken(Break::NotHeld) {
            end.listen(scope);
        }
        if !scope.mode.starts_anew() || scope.is_broken(Break::NotWithheld) {
            return;
        }
        end.requester.start_anew(peer.psn);
        let reads_too = scope.is_broken(Break::ReadsMarked);
        if scope.mode == Mode::Shift
            && end.requester.mark(scope.requests[id], peer.received, reads_too)
        {
            self.note(scope, Event::Counted);
        }
    }

    /// The peer reports its position, and may ask for that of this end.
    fn moved(&mut self, scope: &Scope, id: EndId, peer: Position, wants_answer: bool) {
        let at = self.ends[id].at;
        let waiting = self.ends[id].phase == Phase::Waiting;
        let old = peer.epoch < at.epoch && wants_answer;
        let tie = peer.epoch == at.epoch && peer.rail != at.rail;
        let tie_kept = scope.is_broken(Break::TieKept);
        let follows = peer.epoch > at.epoch
            || (tie && waiting && id != scope.higher && !tie_kept)
            || (old && scope.is_broken(Break::OldAdopted));
        if follows {
            if !self.move_to(scope, id, peer.epoch, peer.rail) {
                return;
            }
            self.settle(scope, id, peer);
        } else if waiting && peer.epoch == at.epoch && (!tie || tie_kept) {
            self.settle(scope, id, peer);
        } else if scope.is_broken(Break::AnsweredOnce) {
            return;
        }
        for (happened, event) in [
            (old, Event::OldMove),
            (tie && follows, Event::TieBroken),
            (waiting && wants_answer && peer.epoch == at.epoch && !tie, Event::BothBegan),
        ] {
            if happened {
                self.note(scope, event);
            }
        }
        // Answer again, because the first answer may have been lost. A peer that is behind follows
        // the answer.
        let at = self.ends[id].at;
        let disputed = peer.epoch == at.epoch && peer.rail != at.rail;
        if wants_answer && !disputed {
            self.network.send(Packet::Moved { to: 1 - id, at });
        }
    }

    pub(crate) fn ask(&mut self, id: EndId) {
        let end = &self.ends[id];
        let packet = Packet::Return { to: 1 - id, epoch: end.at.epoch, attempt: end.attempt };
        self.network.send(packet);
    }

    /// The peer has drained and wants to return.
    fn asked(&mut self, scope: &Scope, id: EndId, epoch: u8, attempt: u8) {
        let end = &mut self.ends[id];
        if end.at.epoch != epoch || end.phase != Phase::Settled {
            return;
        }
        let over = if scope.is_broken(Break::LateReturnTaken) {
            attempt == end.attempt
        } else {
            attempt <= end.attempt
        };
        if over {
            self.say_busy(scope, id, attempt);
        } else if end.fence == Fence::Open {
            end.fence = Fence::Asked { attempt };
        }
    }

    /// The end could not drain: the return is called off.
    pub(crate) fn refuse(&mut self, scope: &Scope, id: EndId) {
        let Fence::Asked { attempt } = self.ends[id].fence else {
            return;
        };
        self.note(scope, Event::Refused);
        let end = &mut self.ends[id];
        end.fence = Fence::Open;
        end.attempt = attempt;
        self.say_busy(scope, id, attempt);
    }

    fn say_busy(&mut self, scope: &Scope, id: EndId, attempt: u8) {
        if !scope.is_broken(Break::RefusalUnsaid) {
            let epoch = self.ends[id].at.epoch;
            self.network.send(Packet::Busy { to: 1 - id, epoch, attempt });
        }
    }
}

impl End {
    /// Accepts requests only on its home rail.
    fn listen(&mut self, scope: &Scope) {
        self.listens = self.at.rail;
        if scope.mode.starts_anew() {
            self.responder.start_anew(self.at.psn);
        } else if scope.is_broken(Break::RecordLost) {
            self.responder.forget();
        }
        let half_lost = match scope.mode {
            // The receive that it had taken is returned: the whole message is sent again.
            Mode::Shift | Mode::OpaqueRetry => !scope.is_broken(Break::HalfKept),
            Mode::Exact => scope.is_broken(Break::HalfLost),
        };
        self.responder.half &= !half_lost;
    }
}
