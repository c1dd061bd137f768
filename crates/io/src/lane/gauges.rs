//! A lane's current values, as opposed to its counters.

use super::{Lane, LaneError};

/// Queue pairs and round trips, of one lane or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Queue pairs.
    pub qps: u32,
    /// The shortest and the longest smoothed round trip, of connections that measure it.
    pub round_trips_ns: Option<(u64, u64)>,
}

impl Gauges {
    /// Adds those of another lane.
    pub fn merge(&mut self, other: &Gauges) {
        self.qps += other.qps;
        if let Some((shortest, longest)) = other.round_trips_ns {
            self.add_round_trip(shortest);
            self.add_round_trip(longest);
        }
    }

    fn add_round_trip(&mut self, ns: u64) {
        let (shortest, longest) = self.round_trips_ns.unwrap_or((ns, ns));
        self.round_trips_ns = Some((shortest.min(ns), longest.max(ns)));
    }
}

impl Lane {
    /// The lane's current values.
    pub fn gauges(&self) -> Result<Gauges, LaneError> {
        let engine = self.shared.lock()?;
        let mut gauges = Gauges { qps: engine.nic.qp_count(), ..Gauges::default() };
        let round_trips = engine.nic.round_trips_ns().chain(engine.tasks.round_trips_ns());
        round_trips.for_each(|ns| gauges.add_round_trip(ns));
        Ok(gauges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_together_have_all_queue_pairs_and_the_widest_range() {
        let mut all = Gauges { qps: 2, round_trips_ns: None };
        all.merge(&Gauges { qps: 1, round_trips_ns: Some((5, 9)) });
        all.merge(&Gauges { qps: 4, round_trips_ns: Some((7, 30)) });
        assert_eq!(all, Gauges { qps: 7, round_trips_ns: Some((5, 30)) });
    }
}
