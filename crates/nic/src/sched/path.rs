//! Paths to peer engines, and the bytes in flight on each.
//!
//! All QPs of this NIC that talk to one peer engine end in one receive queue there, a socket
//! buffer of a few MiB. They therefore share one window; otherwise a thousand QPs with a window
//! each would overrun the peer a thousandfold, and go-back-N would turn that into a collapse.

use std::collections::{HashMap, VecDeque};

use core::net::IpAddr;

/// Index of a path in its table.
pub(crate) type PathId = u32;

#[derive(Debug)]
struct Path {
    key: (IpAddr, u8),
    in_flight: u64,
    /// QPs that wait for window space, in FIFO order.
    waiters: VecDeque<u32>,
    /// QPs that were woken and have not had their turn yet.
    called: u32,
    users: u32,
}

impl Path {
    /// Wakes the first waiter.
    #[inline]
    fn call(&mut self) -> Option<u32> {
        let next = self.waiters.pop_front();
        self.called += u32::from(next.is_some());
        next
    }
}

/// Paths in use: as many as there are peers of connected QPs.
#[derive(Debug)]
pub(crate) struct PathTable {
    by_key: HashMap<(IpAddr, u8), PathId>,
    slots: Vec<Option<Path>>,
    window: u64,
    /// QPs that may continue, since window space has appeared.
    woken: VecDeque<u32>,
}

impl PathTable {
    pub(crate) fn new(window: u32) -> PathTable {
        let woken = VecDeque::new();
        PathTable { by_key: HashMap::new(), slots: Vec::new(), window: u64::from(window), woken }
    }

    /// The path to the engine at `dst` that owns QPNs with this top byte.
    pub(crate) fn acquire(&mut self, dst: IpAddr, prefix: u8) -> PathId {
        let key = (dst, prefix);
        let id = match self.by_key.get(&key) {
            Some(id) => *id,
            None => {
                let path =
                    Path { key, in_flight: 0, waiters: VecDeque::new(), called: 0, users: 0 };
                let id = match self.slots.iter().position(Option::is_none) {
                    Some(free) => free,
                    None => {
                        self.slots.push(None);
                        self.slots.len() - 1
                    }
                };
                self.slots[id] = Some(path);
                self.by_key.insert(key, id as PathId);
                id as PathId
            }
        };
        if let Some(path) = self.get(id) {
            path.users += 1;
        }
        id
    }

    /// Removes a QP from the path. Its in-flight bytes must have been released.
    pub(crate) fn release(&mut self, id: PathId) {
        let Some(path) = self.get(id) else { return };
        path.users = path.users.saturating_sub(1);
        if path.users == 0 {
            let key = path.key;
            self.by_key.remove(&key);
            self.slots[id as usize] = None;
        }
    }

    /// Bytes that may still be put in flight. An idle path always admits a packet.
    #[inline]
    pub(crate) fn room(&self, id: PathId) -> u64 {
        match self.slots.get(id as usize) {
            Some(Some(path)) => self.window.saturating_sub(path.in_flight),
            _ => 0,
        }
    }

    #[inline]
    pub(crate) fn is_idle(&self, id: PathId) -> bool {
        matches!(self.slots.get(id as usize), Some(Some(path)) if path.in_flight == 0)
    }

    /// Updates a QP's share of the bytes in flight; wakes a waiter if it has shrunk.
    #[inline]
    pub(crate) fn charge(&mut self, id: PathId, before: u64, after: u64) {
        let window = self.window;
        let Some(Some(path)) = self.slots.get_mut(id as usize) else {
            return;
        };
        path.in_flight = (path.in_flight + after).saturating_sub(before);
        if after < before
            && path.in_flight < window
            && let Some(qp) = path.call()
        {
            self.woken.push_back(qp);
        }
    }

    /// Whether QPs other than this one, which may have been `called` itself, are waiting for window
    /// space. Otherwise a QP that happens to find some would take it from those that waited.
    #[inline]
    pub(crate) fn has_line(&self, id: PathId, called: bool) -> bool {
        match self.slots.get(id as usize) {
            Some(Some(path)) => path.called > called.into() || !path.waiters.is_empty(),
            _ => false,
        }
    }

    /// Marks a QP as woken again.
    #[inline]
    pub(crate) fn recalled(&mut self, id: PathId) {
        if let Some(path) = self.get(id) {
            path.called += 1;
        }
    }

    /// A QP that was woken has had its turn.
    #[inline]
    pub(crate) fn served(&mut self, id: PathId) {
        if let Some(path) = self.get(id) {
            path.called = path.called.saturating_sub(1);
        }
    }

    /// Queues a QP for window space. A QP asks once, until it is woken.
    pub(crate) fn wait(&mut self, id: PathId, qp: u32) {
        if let Some(path) = self.get(id) {
            path.waiters.push_back(qp);
        }
    }

    /// Passes window space that a woken QP did not use on to the next waiter.
    #[inline]
    pub(crate) fn wake_next(&mut self, id: PathId) {
        let window = self.window;
        let Some(Some(path)) = self.slots.get_mut(id as usize) else {
            return;
        };
        if path.in_flight < window
            && let Some(qp) = path.call()
        {
            self.woken.push_back(qp);
        }
    }

    /// Removes a QP that leaves the path from the queue; `called` if it was woken and has not had
    /// its turn. Window space that it leaves, or was woken for, goes to the next waiter.
    pub(crate) fn forget(&mut self, id: PathId, qp: u32, called: bool) {
        let before = self.woken.len();
        self.woken.retain(|woken| *woken != qp);
        if called || self.woken.len() < before {
            self.served(id);
        }
        if let Some(path) = self.get(id) {
            path.waiters.retain(|w| *w != qp);
        }
        self.wake_next(id);
    }

    /// The next QP that may continue.
    #[inline]
    pub(crate) fn pop_woken(&mut self) -> Option<u32> {
        self.woken.pop_front()
    }

    fn get(&mut self, id: PathId) -> Option<&mut Path> {
        self.slots.get_mut(id as usize).and_then(Option::as_mut)
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;

    #[test]
    fn one_who_leaves_when_it_is_its_turn_does_not_keep_the_others_waiting() {
        let mut paths = PathTable::new(100);
        let path = paths.acquire(Ipv4Addr::LOCALHOST.into(), 0);
        paths.acquire(Ipv4Addr::LOCALHOST.into(), 0);
        paths.charge(path, 0, 100);
        paths.wait(path, 1);
        paths.wait(path, 2);
        // The first one gives back what it has in flight, which wakes it itself.
        paths.charge(path, 100, 0);
        paths.forget(path, 1, false);
        paths.release(path);
        let woken: Vec<u32> = core::iter::from_fn(|| paths.pop_woken()).collect();
        assert!(woken.contains(&2), "{woken:?}");
    }

    #[test]
    fn there_is_a_line_until_the_last_of_it_has_had_its_turn() {
        let mut paths = PathTable::new(100);
        let path = paths.acquire(Ipv4Addr::LOCALHOST.into(), 0);
        paths.charge(path, 0, 100);
        assert!(!paths.has_line(path, false));
        paths.wait(path, 1);
        paths.wait(path, 2);
        paths.charge(path, 100, 50);
        assert_eq!((paths.pop_woken(), paths.pop_woken()), (Some(1), None));
        paths.served(path);
        paths.wake_next(path);
        assert_eq!(paths.pop_woken(), Some(2));
        assert!(paths.has_line(path, false), "it has been woken, no more");
        assert!(!paths.has_line(path, true), "it is the last");
        paths.forget(path, 2, true);
        assert!(!paths.has_line(path, false));
    }
}
