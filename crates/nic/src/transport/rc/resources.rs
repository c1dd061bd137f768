//! READs and atomics that a responder has carried out, kept so that duplicates can be answered.

use std::collections::VecDeque;

use bowline_wire::Psn;

/// A READ or atomic, kept in case its response gets lost and is requested again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resource {
    pub(super) psn: Psn,
    pub(super) packets: u32,
    pub(super) kind: ResourceKind,
}

/// Its kind. The flag for having been answered in full at least once, so that what is due now is a
/// repetition, is inside each kind, where it takes no space.
#[derive(Clone, Copy, Debug)]
pub(super) enum ResourceKind {
    Read {
        va: u64,
        rkey: u32,
        len: u32,
        /// Packet that the request, or its latest repetition, asked to start from.
        from: u32,
        /// Next packet to send; `packets` when all are.
        next: u32,
        answered: bool,
    },
    Atomic {
        original: u64,
        due: bool,
        answered: bool,
    },
}

impl Resource {
    pub(super) fn is_due(&self) -> bool {
        match self.kind {
            ResourceKind::Read { next, .. } => next < self.packets,
            ResourceKind::Atomic { due, .. } => due,
        }
    }

    pub(super) fn is_answered(&self) -> bool {
        match self.kind {
            ResourceKind::Read { answered, .. } | ResourceKind::Atomic { answered, .. } => answered,
        }
    }

    fn contains(&self, psn: Psn) -> bool {
        let k = psn.diff(self.psn);
        k >= 0 && (k as u32) < self.packets
    }
}

// A connection keeps as many as its peer may have outstanding.
const _: () = assert!(size_of::<Resource>() == 40);

/// The latest READs and atomics, in PSN order; as many as the peer may have outstanding.
#[derive(Debug, Default)]
pub(super) struct Resources {
    ring: VecDeque<Resource>,
    /// This many at the front have nothing due: a peer may have 128 outstanding, and the ring is
    /// full of answered ones, so the search for the next response must not begin at the front.
    settled: usize,
}

impl Resources {
    pub(super) fn reserve(&mut self, count: usize) {
        self.ring.reserve(count);
    }

    pub(super) fn len(&self) -> usize {
        self.ring.len()
    }

    pub(super) fn oldest(&self) -> Option<&Resource> {
        self.ring.front()
    }

    pub(super) fn newest_mut(&mut self) -> Option<&mut Resource> {
        self.ring.back_mut()
    }

    pub(super) fn push(&mut self, resource: Resource) {
        self.ring.push_back(resource);
    }

    pub(super) fn forget_oldest(&mut self) {
        self.ring.pop_front();
        self.settled = self.settled.saturating_sub(1);
    }

    pub(super) fn forget_newest(&mut self) {
        self.ring.pop_back();
        self.settled = self.settled.min(self.ring.len());
    }

    /// Whether an answer is due.
    #[inline]
    pub(super) fn has_due(&self) -> bool {
        self.settled < self.ring.len() && self.ring.range(self.settled..).any(Resource::is_due)
    }

    /// The oldest with an answer due.
    #[inline]
    pub(super) fn next_due(&mut self) -> Option<&mut Resource> {
        while self.ring.get(self.settled).is_some_and(|resource| !resource.is_due()) {
            self.settled += 1;
        }
        self.ring.get_mut(self.settled)
    }

    /// The one that a duplicate request refers to; its response may become due again.
    pub(super) fn find_again(&mut self, psn: Psn) -> Option<&mut Resource> {
        let at = self.ring.iter().position(|resource| resource.contains(psn))?;
        self.settled = self.settled.min(at);
        self.ring.get_mut(at)
    }

    /// Nothing is due any more.
    pub(super) fn settle(&mut self) {
        for resource in &mut self.ring {
            match &mut resource.kind {
                ResourceKind::Read { next, .. } => *next = resource.packets,
                ResourceKind::Atomic { due, .. } => *due = false,
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.ring.clear();
        self.settled = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn atomic(psn: u32, due: bool) -> Resource {
        let kind = ResourceKind::Atomic { original: 0, due, answered: !due };
        Resource { psn: Psn::new(psn), packets: 1, kind }
    }

    fn answer(resources: &mut Resources) -> Option<u32> {
        let next = resources.next_due()?;
        next.kind = ResourceKind::Atomic { original: 0, due: false, answered: true };
        Some(next.psn.get())
    }

    #[test]
    fn answers_are_due_in_order_whatever_is_asked_for_again_or_forgotten() {
        let mut resources = Resources::default();
        (0..4).for_each(|psn| resources.push(atomic(psn, true)));
        assert_eq!((answer(&mut resources), answer(&mut resources)), (Some(0), Some(1)));
        let again = resources.find_again(Psn::new(0)).unwrap();
        again.kind = ResourceKind::Atomic { original: 0, due: true, answered: true };
        assert!(resources.has_due());
        assert_eq!((answer(&mut resources), answer(&mut resources)), (Some(0), Some(2)));
        resources.forget_oldest();
        resources.push(atomic(4, true));
        assert_eq!((answer(&mut resources), answer(&mut resources)), (Some(3), Some(4)));
        assert_eq!(answer(&mut resources), None);
        assert!(!resources.has_due());
        resources.push(atomic(5, true));
        assert!(resources.has_due());
        resources.forget_newest();
        assert!(!resources.has_due());
        resources.push(atomic(5, true));
        resources.settle();
        assert!(!resources.has_due() && resources.next_due().is_none());
    }
}
