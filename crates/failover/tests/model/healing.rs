//! Liveness: whatever has happened, once one rail works for long enough, everything completes.
//!
//! From a state, everything in flight is lost, no further fault occurs, and timers run in a fixed
//! order. If both ends then finish, nothing in the state can block them. Checking this in every
//! reachable state is stronger than checking that runs end well: no run can have reached a dead
//! end.

use crate::network::{Network, Packet};
use crate::scope::{Break, DEFAULT, EndId, Rail, Scope};
use crate::world::{Cause, End, Fence, Phase, World};

/// More than any state needs: to settle, to find the home rail dead, to settle on the other rail,
/// to send.
const MAX_ROUNDS: usize = 12;

/// Continues with only the `good` rails until everything has completed, or nothing helps.
pub(crate) fn heal(scope: &Scope, world: &World, good: &[Rail]) -> World {
    let mut world = World { ends: world.ends.clone(), network: Network::default(), ..*world };
    for _ in 0..MAX_ROUNDS {
        if is_finished(scope, &world) {
            break;
        }
        let before = [progress(&world.ends[0]), progress(&world.ends[1])];
        for id in 0..2 {
            timers(scope, &mut world, id);
        }
        exchange(scope, &mut world, good);
        for (id, before) in before.into_iter().enumerate() {
            if before == progress(&world.ends[id]) {
                stuck(scope, &mut world, id, good);
            }
        }
    }
    world
}

/// Whether each end has completed all its requests, or has failed.
pub(crate) fn is_finished(scope: &Scope, world: &World) -> bool {
    let done = |id: EndId| usize::from(world.ends[id].requester.done) == scope.requests[id].len();
    let [a, b] = &world.ends;
    if a.has_failed() || b.has_failed() {
        return (a.has_failed() || done(0)) && (b.has_failed() || done(1));
    }
    let same_place = (a.at.epoch, a.at.rail) == (b.at.epoch, b.at.rail);
    let settled = |end: &End| end.phase == Phase::Settled && end.fence == Fence::Open;
    done(0) && done(1) && same_place && settled(a) && settled(b)
}

fn progress(end: &End) -> (u8, u8, Phase, Fence) {
    (end.at.epoch, end.requester.done, end.phase, end.fence)
}

/// Repeats what may have been lost.
fn timers(scope: &Scope, world: &mut World, id: EndId) {
    let end = &mut world.ends[id];
    match end.phase {
        Phase::Failed(_) => return,
        Phase::Waiting => {
            let at = end.at;
            world.network.send(Packet::Move { to: 1 - id, at });
        }
        Phase::Settled => {
            end.requester.go_back();
            while world.can_transmit(scope, id) {
                world.transmit(scope, id);
            }
        }
    }
    if world.can_begin_return(scope, id) {
        world.begin(scope, id, DEFAULT);
    } else if world.can_ask(scope, id) {
        world.ask(id);
    }
}

/// Delivers everything on good rails, and everything that follows from it.
fn exchange(scope: &Scope, world: &mut World, good: &[Rail]) {
    loop {
        let packets = world.network.drain();
        if packets.is_empty() {
            return;
        }
        for packet in packets {
            let rail = match packet {
                Packet::Move { at, .. } if scope.is_broken(Break::OneRailOnly) => Some(at.rail),
                _ => packet.rail(),
            };
            if rail.is_none_or(|rail| good.contains(&rail)) {
                world.deliver(scope, packet);
            }
        }
    }
}

/// The last round made no progress. Retries run out only if the home rail does not work or the peer
/// is gone: an end that needs them in any other case was left waiting for nothing.
fn stuck(scope: &Scope, world: &mut World, id: EndId, good: &[Rail]) {
    let peer_failed = world.ends[1 - id].has_failed();
    let end = &mut world.ends[id];
    let has_work = usize::from(end.requester.done) < scope.requests[id].len();
    let unanswered = has_work || end.fence == Fence::Asking;
    match end.phase {
        Phase::Waiting if peer_failed => end.phase = Phase::Failed(Cause::NoAnswer),
        Phase::Settled if matches!(end.fence, Fence::Asked { .. }) => world.refuse(scope, id),
        Phase::Settled if unanswered && (peer_failed || !good.contains(&end.at.rail)) => {
            let other = 1 - end.at.rail;
            world.begin(scope, id, other);
        }
        _ => {}
    }
}
