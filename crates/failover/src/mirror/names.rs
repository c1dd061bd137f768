//! Events of engines, about the objects that the program knows.

use std::collections::HashMap;

use bowline_nic::{CqId, Event, SrqId};

use super::{Cq, Layout, Place, Srq};

/// Which object of an engine is which of the program's. The program knows an object by what the
/// first engine calls it.
#[derive(Debug, Default)]
pub struct Names {
    cqs: HashMap<(usize, CqId), CqId>,
    srqs: HashMap<(usize, SrqId), SrqId>,
}

impl Names {
    /// Takes note of a completion queue.
    pub fn add_cq(&mut self, cq: &Cq) {
        let name = cq.ids()[0];
        self.cqs.extend(cq.ids().iter().enumerate().map(|(at, id)| ((at, *id), name)));
    }

    /// Forgets a completion queue.
    pub fn remove_cq(&mut self, cq: &Cq) {
        for key in cq.ids().iter().copied().enumerate() {
            self.cqs.remove(&key);
        }
    }

    /// Takes note of a shared receive queue.
    pub fn add_srq(&mut self, srq: &Srq) {
        let name = srq.ids()[0];
        self.srqs.extend(srq.ids().iter().enumerate().map(|(at, id)| ((at, *id), name)));
    }

    /// Forgets a shared receive queue.
    pub fn remove_srq(&mut self, srq: &Srq) {
        for key in srq.ids().iter().copied().enumerate() {
            self.srqs.remove(&key);
        }
    }

    /// An engine's event as the program is to hear of it; `None` for one that is not the program's.
    /// Queue pairs keep their numbers when they move.
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
