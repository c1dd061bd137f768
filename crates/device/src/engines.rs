//! The lanes of a device, lent to its objects.

use std::sync::{Arc, OnceLock};

use bowline_failover::mirror::{Engines, Layout, Place};
use bowline_failover::{Rail, Supervisor};
use bowline_io::{Lane, LaneError};
use bowline_nic::{Nic, Time};

/// All lanes: first those of the default rail, then those of the backup.
pub(crate) struct LaneEngines {
    lanes: Box<[Arc<Lane>]>,
    layout: Layout,
    /// Waits until no connection is moving between two lanes.
    moves: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl LaneEngines {
    pub(crate) fn new(lanes: Vec<Arc<Lane>>, layout: Layout) -> LaneEngines {
        debug_assert_eq!(lanes.len(), layout.places().count());
        LaneEngines { lanes: lanes.into_boxed_slice(), layout, moves: OnceLock::new() }
    }

    /// Sets how to wait for moves, once something moves connections.
    pub(crate) fn wait_for_moves_by(&self, wait: impl Fn() + Send + Sync + 'static) {
        // A device has only one failover.
        let _ = self.moves.set(Box::new(wait));
    }

    #[inline]
    pub(crate) fn lane(&self, at: Place) -> &Arc<Lane> {
        &self.lanes[self.layout.index(at)]
    }

    /// The lanes of a rail; empty if there is no backup.
    pub(crate) fn rail(&self, rail: Rail) -> &[Arc<Lane>] {
        let start = rail.index() * self.layout.lanes;
        self.lanes.get(start..start + self.layout.lanes).unwrap_or_default()
    }

    pub(crate) fn all(&self) -> &[Arc<Lane>] {
        &self.lanes
    }

    /// A supervisor of all connections between the two rails.
    pub(crate) fn supervisor(
        &self,
        config: impl FnMut() -> bowline_failover::Config,
    ) -> Result<Supervisor, bowline_nic::ControlError> {
        Supervisor::new(self, config)
    }
}

impl Engines for LaneEngines {
    type Error = LaneError;

    #[inline]
    fn layout(&self) -> Layout {
        self.layout
    }

    #[inline]
    fn with<R>(&self, at: Place, f: impl FnOnce(&mut Nic, Time) -> R) -> Result<R, LaneError> {
        self.lane(at).with(f)
    }

    #[inline]
    fn post<R>(&self, at: Place, f: impl FnOnce(&mut Nic, Time) -> R) -> Result<R, LaneError> {
        self.lane(at).post(f)
    }

    #[inline]
    fn poll<R>(&self, at: Place, f: impl FnOnce(&mut Nic, Time) -> R) -> Result<R, LaneError> {
        self.lane(at).poll(f)
    }

    fn try_poll<R>(
        &self,
        at: Place,
        f: impl FnOnce(&mut Nic, Time) -> R,
    ) -> Result<Option<R>, LaneError> {
        self.lane(at).try_poll(f)
    }

    fn collect<R>(&self, at: Place, f: impl FnOnce(&mut Nic, Time) -> R) -> Result<R, LaneError> {
        self.lane(at).collect(f)
    }

    fn wait_for_moves(&self) {
        if let Some(wait) = self.moves.get() {
            wait();
        }
    }
}
