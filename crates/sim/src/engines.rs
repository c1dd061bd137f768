//! A device of the simulated world: its engines, lent to the objects that the product runs as well.

use core::convert::Infallible;
use std::cell::RefCell;

use bowline_failover::mirror::{Engines, Layout, MirrorError, Place};
use bowline_nic::{Nic, Time};

use crate::world::{NicId, World};

/// The engines of one device: a NIC and, perhaps, its backup.
pub(crate) struct DeviceEngines<'a> {
    world: RefCell<&'a mut World>,
    first: NicId,
    backup: Option<NicId>,
}

impl<'a> DeviceEngines<'a> {
    pub(crate) fn new(world: &'a mut World, first: NicId, backup: Option<NicId>) -> Self {
        DeviceEngines { world: RefCell::new(world), first, backup }
    }

    fn nic(&self, at: Place) -> NicId {
        let [first, backup] = [self.first, self.backup.unwrap_or(self.first)];
        [first, backup][at.rail.index()]
    }
}

impl Engines for DeviceEngines<'_> {
    type Error = Infallible;

    fn layout(&self) -> Layout {
        Layout { lanes: 1, backed: self.backup.is_some() }
    }

    fn with<R>(&self, at: Place, f: impl FnOnce(&mut Nic, Time) -> R) -> Result<R, Infallible> {
        let mut world = self.world.borrow_mut();
        let now = world.now();
        Ok(f(world.nic_mut(self.nic(at)), now))
    }

    /// Polling makes neither packets nor timeouts: the world drives engines by itself.
    fn poll<R>(&self, at: Place, f: impl FnOnce(&mut Nic, Time) -> R) -> Result<R, Infallible> {
        let mut world = self.world.borrow_mut();
        let now = world.now();
        Ok(f(world.poll_nic(self.nic(at)), now))
    }
}

/// What an engine of the simulation refused: it cannot have ended.
pub(crate) fn refusal(error: MirrorError<Infallible>) -> bowline_nic::ControlError {
    match error {
        MirrorError::Control(error) => error,
        MirrorError::Engine(never) => match never {},
    }
}
