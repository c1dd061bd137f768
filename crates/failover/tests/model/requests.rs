//! The data path: requests and their responses.

use crate::network::{Packet, Part};
use crate::scope::{Break, EndId, Event, Kind, Scope};
use crate::transport::Arrival;
use crate::world::{End, Phase, World};

impl World {
    pub(crate) fn transmit(&mut self, scope: &Scope, id: EndId) {
        let requests = scope.requests[id];
        let (rail, requester) = (self.ends[id].at.rail, &mut self.ends[id].requester);
        let number = requester.cursor;
        let first = requester.psn(scope, requests, number);
        let parts: &[Part] = match requester.packets(requests, number) {
            _ if requester.is_counted(number) => &[Part::Empty],
            1 => &[Part::Only],
            _ => &[Part::First, Part::Last],
        };
        requester.cursor += 1;
        requester.started = requester.started.max(requester.cursor);
        for (by, &part) in (0..).zip(parts) {
            let psn = scope.advance(first, by);
            self.network.send(Packet::Request { to: 1 - id, rail, psn, number, part });
        }
    }

    /// A packet of a request arrives.
    pub(crate) fn request(&mut self, scope: &Scope, id: EndId, psn: u8, number: usize, part: Part) {
        let requests = scope.requests[1 - id];
        let kind = requests[number];
        let wants_response = part != Part::Empty && kind.wants_response();
        let end = &mut self.ends[id];
        let newest = match end.responder.judge(scope, psn) {
            Arrival::New => {
                end.responder.expected = scope.advance(psn, 1);
                end.accept(requests, number, part);
                true
            }
            // A NAK also acknowledges everything before it.
            Arrival::Early => true,
            Arrival::Repeated => {
                if kind == Kind::FetchAdd {
                    self.note(scope, Event::Replayed);
                }
                !wants_response
            }
            Arrival::Ghost => {
                self.note(scope, Event::Ghost);
                let answered = kind == Kind::Read && scope.is_broken(Break::GhostReadsAnswered);
                if wants_response && !answered {
                    // It is not on record, so there is nothing to answer.
                    return;
                }
                !wants_response
            }
        };
        let end = &self.ends[id];
        let before = scope.advance(end.responder.expected, 4 * scope.quarter - 1);
        let answer = if newest { before } else { psn };
        self.network.send(Packet::Ack { to: 1 - id, rail: end.listens, psn: answer });
    }

    pub(crate) fn acknowledged(&mut self, scope: &Scope, id: EndId, psn: u8) {
        let end = &mut self.ends[id];
        // A new transport has nothing to be acknowledged until its sends are released.
        let deaf = end.phase == Phase::Waiting && scope.mode.starts_anew();
        if !deaf {
            end.requester.acknowledge(scope, scope.requests[id], psn);
        }
    }
}

impl End {
    /// Takes the expected packet.
    fn accept(&mut self, requests: &[Kind], number: usize, part: Part) {
        let begun = std::mem::replace(&mut self.responder.half, part == Part::First);
        // A message must not end up in the middle of another.
        self.memory.misplaced |= begun != (part == Part::Last);
        if matches!(part, Part::Only | Part::Last) {
            self.memory.carry_out(requests, number);
        }
    }
}
