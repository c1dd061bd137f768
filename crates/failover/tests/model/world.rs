//! Two ends, a network between them, and what can happen next.

use stateright::{Model, Property};

use crate::memory::Memory;
use crate::network::{Network, Packet, Position};
use crate::properties;
use crate::scope::{Break, DEFAULT, EndId, Event, Mode, Rail, Scope};
use crate::transport::{Requester, Responder};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    /// Both directions can send.
    #[default]
    Settled,
    /// Moved, with sends withheld until the peer says where it is.
    Waiting,
    Failed(Cause),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Cause {
    AtomicInFlight,
    NoAnswer,
}

/// How far an end is with returning to the default rail (mode `shift`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Fence {
    #[default]
    Open,
    /// It drains, then asks the peer.
    Asking,
    /// It drains because the peer has asked, then begins.
    Asked { attempt: u8 },
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct End {
    pub(crate) phase: Phase,
    /// Its epoch and home, and the numbers that the peer needs, as they were when it was held.
    pub(crate) at: Position,
    /// The rail on which it accepts requests: its home.
    pub(crate) listens: Rail,
    pub(crate) fence: Fence,
    /// The latest return that it attempted, or refused.
    pub(crate) attempt: u8,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    pub(crate) memory: Memory,
}

impl End {
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.phase, Phase::Failed(_))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) ends: [End; 2],
    pub(crate) network: Network,
    pub(crate) faults_left: u8,
    pub(crate) returns_left: u8,
    /// The event that the scope watches for has happened.
    pub(crate) seen: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// The end sends its next request.
    Transmit(EndId),
    Deliver(Packet),
    /// The end decides that its home is dead, by retries or by its port, and begins an epoch on
    /// this rail.
    Suspect(EndId, Rail),
    /// The end wants to return to the default rail.
    Return(EndId),
    /// The end has drained: it asks the peer to drain.
    Ask(EndId),
    /// The end has drained: it begins the epoch on the default rail.
    Begin(EndId),
    /// The end could not drain in time.
    Refuse(EndId),
    GiveUp(EndId),
}

impl World {
    pub(crate) fn note(&mut self, scope: &Scope, event: Event) {
        self.seen |= scope.watch == Some(event);
    }

    /// Whether an end may send its next request.
    pub(crate) fn can_transmit(&self, scope: &Scope, id: EndId) -> bool {
        let end = &self.ends[id];
        let goes = match end.phase {
            Phase::Settled => true,
            Phase::Waiting => scope.is_broken(Break::NotWithheld),
            Phase::Failed(_) => false,
        };
        let Requester { done, cursor, started, .. } = end.requester;
        let fenced = end.fence != Fence::Open && cursor == started;
        let room = cursor - done < scope.quarter;
        goes && !fenced && room && usize::from(cursor) < scope.requests[id].len()
    }

    pub(crate) fn can_begin_return(&self, scope: &Scope, id: EndId) -> bool {
        let end = &self.ends[id];
        let asked = match end.fence {
            Fence::Open => false,
            Fence::Asking => scope.is_broken(Break::PeerNotDrained),
            Fence::Asked { .. } => true,
        };
        asked && end.requester.is_drained()
    }

    pub(crate) fn can_ask(&self, scope: &Scope, id: EndId) -> bool {
        let end = &self.ends[id];
        let asks = end.fence == Fence::Asking && !scope.is_broken(Break::PeerNotDrained);
        asks && end.requester.is_drained()
    }
}

impl Model for Scope {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let rail = Rail::from(self.away);
        let at = Position { epoch: self.away.into(), rail, ..Position::default() };
        let end = End { at, listens: rail, ..End::default() };
        vec![World {
            ends: [end.clone(), end],
            network: Network::default(),
            faults_left: self.faults,
            returns_left: self.returns,
            seen: false,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        actions.extend(world.network.packets().iter().copied().map(Action::Deliver));
        for (id, end) in world.ends.iter().enumerate().filter(|(_, end)| !end.has_failed()) {
            if world.can_transmit(self, id) {
                actions.push(Action::Transmit(id));
            }
            if world.faults_left > 0 {
                actions.push(Action::Suspect(id, 1 - end.at.rail));
                if self.any_rail {
                    actions.push(Action::Suspect(id, end.at.rail));
                }
            }
            let settled_away = end.phase == Phase::Settled && end.at.rail != DEFAULT;
            let may_return = settled_away && id == self.higher && end.fence == Fence::Open;
            if may_return && world.returns_left > 0 {
                actions.push(Action::Return(id));
            }
            if world.can_ask(self, id) {
                actions.push(Action::Ask(id));
            }
            if world.can_begin_return(self, id) {
                actions.push(Action::Begin(id));
            }
            if matches!(end.fence, Fence::Asked { .. }) {
                actions.push(Action::Refuse(id));
            }
            if self.gives_up && end.phase == Phase::Waiting {
                actions.push(Action::GiveUp(id));
            }
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        match action {
            Action::Transmit(id) => next.transmit(self, id),
            Action::Deliver(packet) => next.deliver(self, packet),
            Action::Suspect(id, rail) => {
                next.faults_left -= 1;
                if world.ends[id].phase == Phase::Waiting {
                    next.note(self, Event::FailedInHandshake);
                }
                next.begin(self, id, rail);
            }
            Action::Return(id) => {
                next.returns_left -= 1;
                if self.mode == Mode::Exact {
                    next.note(self, Event::CameBack);
                    next.begin(self, id, DEFAULT);
                } else {
                    next.ends[id].fence = Fence::Asking;
                    next.ends[id].attempt += 1;
                }
            }
            Action::Ask(id) => next.ask(id),
            Action::Begin(id) => {
                next.note(self, Event::CameBack);
                next.begin(self, id, DEFAULT);
            }
            Action::Refuse(id) => next.refuse(self, id),
            Action::GiveUp(id) => next.ends[id].phase = Phase::Failed(Cause::NoAnswer),
        }
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Scope>> {
        properties::of(self)
    }
}
