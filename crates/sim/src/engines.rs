//! A device of the simulated world: its engines, lent to the same objects that the product uses.

use core::convert::Infallible;
use std::cell::RefCell;
use std::rc::Rc;

use bowline_failover::mirror::{Engines, Layout, MirrorError, Place};
use bowline_nic::{Nic, Time};

use crate::world::{NicId, World};

/// Which NICs are the engines of a device: a lane each, on one rail or two.
#[derive(Debug)]
pub(crate) struct DeviceNics {
    /// By rail; the backup's list is empty if there is no backup.
    rails: [Vec<NicId>; 2],
}

impl DeviceNics {
    /// Both rails must have the same number of lanes, if there is a backup.
    pub(crate) fn new(lanes: Vec<NicId>, backup: Vec<NicId>) -> DeviceNics {
        assert!(backup.is_empty() || backup.len() == lanes.len(), "lanes pair up");
        DeviceNics { rails: [lanes, backup] }
    }

    pub(crate) fn layout(&self) -> Layout {
        Layout { lanes: self.rails[0].len(), backed: !self.rails[1].is_empty() }
    }

    /// The engine at a place.
    pub(crate) fn at(&self, at: Place) -> NicId {
        self.rails[at.rail.index()][at.lane]
    }

    /// The place of an engine of the device.
    pub(crate) fn place_of(&self, nic: NicId) -> Option<Place> {
        self.layout().places().find(|at| self.at(*at) == nic)
    }
}

/// The engines of one device, for the duration of a call.
pub(crate) struct DeviceEngines<'a> {
    world: RefCell<&'a mut World>,
    nics: Rc<DeviceNics>,
}

impl<'a> DeviceEngines<'a> {
    pub(crate) fn new(world: &'a mut World, nics: &Rc<DeviceNics>) -> Self {
        DeviceEngines { world: RefCell::new(world), nics: Rc::clone(nics) }
    }
}

impl Engines for DeviceEngines<'_> {
    type Error = Infallible;

    fn layout(&self) -> Layout {
        self.nics.layout()
    }

    fn with<R>(&self, at: Place, f: impl FnOnce(&mut Nic, Time) -> R) -> Result<R, Infallible> {
        let mut world = self.world.borrow_mut();
        let now = world.now();
        Ok(f(world.nic_mut(self.nics.at(at)), now))
    }

    /// Polling produces neither packets nor timeouts: the world drives the engines itself.
    fn poll<R>(&self, at: Place, f: impl FnOnce(&mut Nic, Time) -> R) -> Result<R, Infallible> {
        let mut world = self.world.borrow_mut();
        let now = world.now();
        Ok(f(world.poll_nic(self.nics.at(at)), now))
    }
}

/// The engine's error: a simulated engine never ends.
pub(crate) fn refusal(error: MirrorError<Infallible>) -> bowline_nic::ControlError {
    match error {
        MirrorError::Control(error) => error,
        MirrorError::Engine(never) => match never {},
    }
}
