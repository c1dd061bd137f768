//! Repairs over XP that have been requested of one rank.

use std::collections::VecDeque;

/// Requests, oldest first. The sender answers them in order, each with one message over the XP
/// queue pair for repairs, so the n-th receive there is for the n-th request.
#[derive(Debug, Default)]
pub(in crate::engine) struct Bulk {
    /// Number of the first request in `requests`.
    first: u64,
    /// The message that each request is for; `None` if the receive of its repair has ended.
    requests: VecDeque<Option<u64>>,
    /// Number of receives.
    slots: u16,
}

impl Bulk {
    pub(in crate::engine) fn new(slots: u16) -> Bulk {
        Bulk { slots, ..Bulk::default() }
    }

    /// Adds a request for a message; `false` if there is no receive for its repair.
    pub(in crate::engine) fn request(&mut self, number: u64) -> bool {
        let has_room = self.requests.len() < usize::from(self.slots);
        if has_room {
            self.requests.push_back(Some(number));
        }
        has_room
    }

    /// The receive that the repair of a message arrives in.
    pub(in crate::engine) fn slot_for(&self, number: u64) -> Option<u16> {
        let index = self.requests.iter().position(|of| *of == Some(number))?;
        Some(((self.first + index as u64) % u64::from(self.slots)) as u16)
    }

    /// A receive has ended. Returns the message whose repair it was for, if there was a request.
    pub(in crate::engine) fn end(&mut self, slot: u16) -> Option<u64> {
        let slots = u64::from(self.slots);
        let slot = Some(u64::from(slot)).filter(|slot| *slot < slots)?;
        let index = (slot + slots - self.first % slots) % slots;
        self.requests.get_mut(index as usize)?.take()
    }

    /// The next receive to post: receives are numbered in the order in which they are posted.
    pub(in crate::engine) fn advance(&mut self) -> Option<u16> {
        self.requests.front().filter(|of| of.is_none())?;
        self.requests.pop_front();
        self.first += 1;
        Some(((self.first - 1) % u64::from(self.slots)) as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receives_are_posted_in_the_order_of_the_requests() {
        let mut bulk = Bulk::new(2);
        assert_eq!((bulk.end(0), bulk.end(2)), (None, None), "nothing was requested");
        assert!(bulk.request(7) && bulk.request(5));
        assert!(!bulk.request(8), "both receives are in use");
        assert_eq!(
            (bulk.slot_for(7), bulk.slot_for(5), bulk.slot_for(8)),
            (Some(0), Some(1), None)
        );
        assert_eq!(bulk.end(1), Some(5));
        assert_eq!((bulk.end(1), bulk.advance()), (None, None), "the first one is still open");
        assert_eq!(bulk.end(0), Some(7));
        assert_eq!([bulk.advance(), bulk.advance(), bulk.advance()], [Some(0), Some(1), None]);
        assert!(bulk.request(9));
        assert_eq!(bulk.slot_for(9), Some(0));
    }
}
