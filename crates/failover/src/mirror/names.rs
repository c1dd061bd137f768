//! Translates events of engines to the objects that the program knows.

use std::collections::HashMap;

use bowline_nic::{CqId, Event, SrqId};

use super::{Cq, Layout, Place, Srq};

/// Maps the objects of engines to those of the program. The program knows an object by its
/// identifier on the first engine.
#[derive(Debug, Default)]
pub struct Names {
    cqs: HashMap<(usize, CqId), CqId>,
    srqs: HashMap<(usize, SrqId), SrqId>,
}

impl Names {
    /// Adds a completion queue.
    pub fn add_cq(&mut self, cq: &Cq) {
        let name = cq.ids()[0];
        self.cqs.extend(cq.ids().iter().enumerate().map(|(at, id)| ((at, *id), name)));
    }

    /// Removes a completion queue.
    pub fn remove_cq(&mut self, cq: &Cq) {
        for key in cq.ids().iter().copied().enumerate() {
            self.cqs.remove(&key);
        }
    }

    /// Adds a shared receive queue.
    pub fn add_srq(&mut self, srq: &Srq) {
        let name = srq.ids()[0];
        self.srqs.extend(srq.ids().iter().enumerate().map(|(at, id)| ((at, *id), name)));
    }

    /// Removes a shared receive queue.
    pub fn remove_srq(&mut self, srq: &Srq) {
        for key in srq.ids().iter().copied().enumerate() {
            self.srqs.remove(&key);
        }
    }

    /// Translates an engine's event for the program; `None` if it is not for the program. Queue
    /// pairs keep their numbers when they move.
    pub fn translate(&self, layout: Layout, at: Place, event: Event) -> Option<Event> {
        let at = layout.index(at);
        match event {
            Event::CqOverflow(cq) => self.cqs.get(&(at, cq)).copied().map(Event::CqOverflow),
            Event::SrqLimit(srq) => self.srqs.get(&(at, srq)).copied().map(Event::SrqLimit),
            Event::CqNotify(_) | Event::PathFailed(_) => None,
            about_qp => Some(about_qp),
        }
    }
}
