//! Runs the checker and reports what it found.

use std::collections::BTreeSet;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model, Path};

use crate::properties::SEEN;
use crate::scope::{Event, Scope};
use crate::world::{Action, World};

/// Every reachable state satisfies every property.
pub(crate) fn holds(scope: Scope) {
    let (states, found) = explore(scope.clone(), HasDiscoveries::AnyFailures);
    if let Some((property, path)) = found.into_iter().next() {
        panic!("{scope:?}\nnot so: {property}\n{}", steps(path));
    }
    assert!(states > 1, "{scope:?} has nothing to look at");
}

/// Some reachable state violates the property: prints the shortest path to it.
pub(crate) fn fails(scope: Scope, property: &'static str) {
    let until = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    let (_, found) = explore(scope.clone(), until.clone());
    let Some((_, mut path)) = found.into_iter().find(|(name, _)| *name == property) else {
        panic!("{scope:?}\nno counterexample to: {property}");
    };
    // The checker stops some time after the first violation, and reports the last one. Search again
    // for the shortest path.
    for depth in 2..path.clone().into_actions().len() + 2 {
        let shallow = scope.clone().checker().target_max_depth(depth).finish_when(until.clone());
        if let Some(shortest) = shallow.spawn_bfs().join().discovery(property) {
            path = shortest;
            break;
        }
    }
    println!("not so: {property}\n{}", steps(path));
}

/// The event happens in some run.
pub(crate) fn reaches(scope: Scope, event: Event) {
    let (_, found) = explore(Scope { watch: Some(event), ..scope }, HasDiscoveries::Any);
    assert!(found.iter().any(|(name, _)| *name == SEEN), "{event:?} is out of reach");
}

type Found = Vec<(&'static str, Path<World, Action>)>;

fn explore(scope: Scope, until: HasDiscoveries) -> (usize, Found) {
    let began = Instant::now();
    let title = format!("{:?} {:?}", scope.mode, scope.requests);
    let checker = scope.checker().finish_when(until).spawn_bfs().join();
    let states = checker.unique_state_count();
    println!("{title}: {states} states in {} ms", began.elapsed().as_millis());
    (states, checker.discoveries().into_iter().collect())
}

fn steps(path: Path<World, Action>) -> String {
    path.into_actions().iter().map(|action| format!("  {action}\n")).collect()
}
