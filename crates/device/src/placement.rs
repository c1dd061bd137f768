//! Chooses a lane for each queue pair.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Spreads queue pairs evenly over lanes.
#[derive(Debug)]
pub(crate) struct Placement {
    /// Number of queue pairs on each lane.
    per_lane: Mutex<Box<[u32]>>,
}

impl Placement {
    pub(crate) fn new(lanes: usize) -> Placement {
        Placement { per_lane: Mutex::new(vec![0; lanes].into_boxed_slice()) }
    }

    /// Chooses a lane and counts one more queue pair on it: the lane of the caller's hint, modulo
    /// the number of lanes, or the one with the fewest queue pairs.
    pub(crate) fn take(&self, hint: Option<usize>) -> usize {
        let mut per_lane = self.lock();
        let lane = match hint {
            Some(hint) => hint % per_lane.len(),
            None => (0..per_lane.len()).min_by_key(|&lane| per_lane[lane]).unwrap_or(0),
        };
        per_lane[lane] += 1;
        lane
    }

    /// Records that a queue pair of a lane is gone.
    pub(crate) fn release(&self, lane: usize) {
        let mut per_lane = self.lock();
        per_lane[lane] = per_lane[lane].saturating_sub(1);
    }

    fn lock(&self) -> MutexGuard<'_, Box<[u32]>> {
        self.per_lane.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_get_equal_shares_and_hints_are_followed() {
        let placement = Placement::new(3);
        let taken: Vec<usize> = (0..6).map(|_| placement.take(None)).collect();
        assert_eq!(taken, [0, 1, 2, 0, 1, 2]);
        placement.release(1);
        placement.release(1);
        assert_eq!((placement.take(None), placement.take(None)), (1, 1));
        assert_eq!(placement.take(Some(5)), 2);
    }
}
