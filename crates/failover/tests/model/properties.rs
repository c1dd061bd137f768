//! What must hold in every state, and what must be reached in some.

use stateright::Property;

use crate::healing::{heal, is_finished};
use crate::scope::{Rail, Scope};
use crate::world::{Cause, End, Phase, World};

pub(crate) const ONCE: &str = "a request is carried out at most once";
pub(crate) const EARNED: &str = "what has succeeded was carried out";
pub(crate) const ORDER: &str = "data comes before its notification";
pub(crate) const RECEIVES: &str = "a message lies in its own receive";
pub(crate) const FRESH: &str = "memory that the program reuses is not overwritten";
pub(crate) const AGREED: &str = "ends that have settled agree";
pub(crate) const CAUSE: &str = "a connection fails for a fault only";
pub(crate) const FINISHED: &str = "with one good rail everything gets done";
pub(crate) const SEEN: &str = "the watched event happens";

pub(crate) fn of(scope: &Scope) -> Vec<Property<Scope>> {
    if scope.watch.is_some() {
        return vec![Property::sometimes(SEEN, |_: &Scope, world: &World| world.seen)];
    }
    vec![
        Property::always(ONCE, once),
        Property::always(EARNED, earned),
        Property::always(ORDER, |_: &Scope, world: &World| {
            world.ends.iter().all(|end| !end.memory.inverted)
        }),
        Property::always(RECEIVES, |_: &Scope, world: &World| {
            world.ends.iter().all(|end| !end.memory.misplaced)
        }),
        Property::always(FRESH, |_: &Scope, world: &World| {
            world.ends.iter().all(|end| !end.memory.overwritten)
        }),
        Property::always(AGREED, agreed),
        Property::always(CAUSE, cause),
        Property::always(FINISHED, finished),
    ]
}

fn once(scope: &Scope, world: &World) -> bool {
    (0..2).all(|id| {
        let memory = &world.ends[1 - id].memory;
        scope.requests[id]
            .iter()
            .enumerate()
            .all(|(number, &kind)| memory.runs(number) <= 1 || !scope.mode.promises_once(kind))
    })
}

/// Success means that the request was executed and, if it has a response, that the response has
/// arrived: the peer's count never completes such a request.
fn earned(scope: &Scope, world: &World) -> bool {
    (0..2).all(|id| {
        let (requester, memory) = (&world.ends[id].requester, &world.ends[1 - id].memory);
        (0..requester.done).all(|number| {
            let kind = scope.requests[id][usize::from(number)];
            let response_made_up = kind.wants_response() && requester.is_counted(number);
            memory.runs(number.into()) > 0 && !response_made_up
        })
    })
}

fn agreed(_: &Scope, world: &World) -> bool {
    let [a, b] = &world.ends;
    let both = a.phase == Phase::Settled && b.phase == Phase::Settled;
    !both || (a.at.epoch, a.at.rail) == (b.at.epoch, b.at.rail)
}

fn cause(scope: &Scope, world: &World) -> bool {
    let failed = |end: &End| end.phase == Phase::Failed(Cause::AtomicInFlight);
    world.faults_left < scope.faults || !world.ends.iter().any(failed)
}

fn finished(scope: &Scope, world: &World) -> bool {
    let goods: [&[Rail]; 3] = [&[0], &[1], &[0, 1]];
    goods.into_iter().all(|good| {
        let healed = heal(scope, world, good);
        is_finished(scope, &healed) && once(scope, &healed) && earned(scope, &healed)
    })
}
