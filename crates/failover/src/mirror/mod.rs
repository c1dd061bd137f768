//! Objects of a device that has several engines.
//!
//! A device has one or many engines: lanes, each with its own core, and possibly a second engine
//! behind each lane on the backup rail. A program sees one device. Each object that it creates has
//! a counterpart on every engine, so that a queue pair on any of them finds its domain, its memory
//! and its queues:
//!
//! * **Domains, completion queues, shared receive queues** are created everywhere or nowhere
//!   ([`Pd`], [`Cq`], [`Srq`]).
//! * **Memory** is registered everywhere under one key ([`register`]), so that a request names the
//!   same memory whichever engine executes it.
//! * **Memory windows** are allocated on every lane under one key, and bound on the lane of their
//!   queue pair ([`alloc_window`]).
//! * **A queue pair** lives on one lane. A reliable one may have a spare on the backup rail, and
//!   calls follow it when it moves ([`Qp`]).
//!
//! Nothing here reads a clock or takes its own lock on the data path: [`Engines`] lends the
//! engines. The product lends lanes, the simulator lends its virtual NICs, and both run this code.

mod cq;
mod names;
mod pd;
mod qp;
mod region;
mod srq;
mod users;
mod window;

#[cfg(test)]
mod tests;

use bowline_nic::{ControlError, Nic, Time};

pub use cq::{Cq, Turn};
pub use names::Names;
pub use pd::Pd;
pub use qp::{Qp, QpParts};
pub use region::{deregister, register, set_access};
pub use srq::{Extended, Srq};
pub use window::{alloc_window, dealloc_window};

use crate::rail::Rail;

/// Maximum number of lanes of a device: completion queues keep one bit for each.
pub const MAX_LANES: usize = 64;

/// One engine of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Which NIC.
    pub rail: Rail,
    /// Which of its lanes.
    pub lane: usize,
}

impl Place {
    /// A lane of the NIC that the program chose.
    pub const fn lane(lane: usize) -> Place {
        Place { rail: Rail::Default, lane }
    }
}

/// Which engines a device has: the same number of lanes on each of its rails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Number of lanes of each rail, from 1 to [`MAX_LANES`].
    pub lanes: usize,
    /// Whether there is a backup rail.
    pub backed: bool,
}

impl Layout {
    /// Every engine: the lanes of the default rail, then those of the backup.
    pub fn places(self) -> impl Iterator<Item = Place> {
        let rails = if self.backed { &Rail::ALL[..] } else { &Rail::ALL[..1] };
        rails.iter().flat_map(move |&rail| (0..self.lanes).map(move |lane| Place { rail, lane }))
    }

    /// The position of an engine among [`Layout::places`].
    #[inline]
    pub fn index(self, at: Place) -> usize {
        at.rail.index() * self.lanes + at.lane
    }
}

/// Lends the engines of a device, each for the duration of a call.
pub trait Engines {
    /// Why an engine cannot be called any more.
    type Error;

    /// Which engines there are. This never changes.
    fn layout(&self) -> Layout;

    /// Calls an engine.
    fn with<R>(&self, at: Place, f: impl FnOnce(&mut Nic, Time) -> R) -> Result<R, Self::Error>;

    /// Calls an engine to post work. The work may be sent together with what is posted next.
    fn post<R>(&self, at: Place, f: impl FnOnce(&mut Nic, Time) -> R) -> Result<R, Self::Error> {
        self.with(at, f)
    }

    /// Drives an engine, then calls it.
    fn poll<R>(&self, at: Place, f: impl FnOnce(&mut Nic, Time) -> R) -> Result<R, Self::Error> {
        self.with(at, f)
    }

    /// Like [`Engines::poll`], but `None` if another thread has the engine.
    fn try_poll<R>(
        &self,
        at: Place,
        f: impl FnOnce(&mut Nic, Time) -> R,
    ) -> Result<Option<R>, Self::Error> {
        self.poll(at, f).map(Some)
    }

    /// Calls an engine for what it has completed, without driving it or making it send anything.
    fn collect<R>(&self, at: Place, f: impl FnOnce(&mut Nic, Time) -> R) -> Result<R, Self::Error> {
        self.with(at, f)
    }

    /// Waits until no connection is between two engines.
    fn wait_for_moves(&self) {}
}

/// Why something could not be done on all engines of a device.
#[derive(Debug, thiserror::Error)]
pub enum MirrorError<E> {
    /// An engine has ended.
    #[error(transparent)]
    Engine(E),
    /// An engine refused.
    #[error(transparent)]
    Control(#[from] ControlError),
}

/// Creates an object on every engine or, on an error, on none. `make` gets the engine and its
/// position.
fn everywhere<E: Engines, T>(
    engines: &E,
    make: impl Fn(&mut Nic, usize) -> Result<T, ControlError>,
    undo: impl Fn(&mut Nic, &T),
) -> Result<Box<[T]>, MirrorError<E::Error>> {
    let layout = engines.layout();
    let mut made = Vec::with_capacity(layout.places().count());
    for at in layout.places() {
        let one = match engines.with(at, |nic, _| make(nic, layout.index(at))) {
            Ok(result) => result.map_err(MirrorError::Control),
            Err(error) => Err(MirrorError::Engine(error)),
        };
        match one {
            Ok(object) => made.push(object),
            Err(error) => {
                for (at, object) in layout.places().zip(&made) {
                    // An engine that has ended has nothing to undo.
                    let _ = engines.with(at, |nic, _| undo(nic, object));
                }
                return Err(error);
            }
        }
    }
    Ok(made.into_boxed_slice())
}

/// Destroys an object on every engine. Tries all of them, and returns the first error.
fn end_everywhere<E: Engines, T: Copy>(
    engines: &E,
    ids: &[T],
    end: impl Fn(&mut Nic, T) -> Result<(), ControlError>,
) -> Result<(), MirrorError<E::Error>> {
    let mut result = Ok(());
    for (at, id) in engines.layout().places().zip(ids) {
        let one = match engines.with(at, |nic, _| end(nic, *id)) {
            Ok(done) => done.map_err(MirrorError::Control),
            Err(error) => Err(MirrorError::Engine(error)),
        };
        result = result.and(one);
    }
    result
}
