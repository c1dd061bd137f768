//! The transport under a connection, as far as the connection manager sees it: an established end
//! whose peer is gone notices within a bound, though nobody tells it.

use super::end::View;
use super::world::{CmWorld, Step};

/// The longest that a transport takes to notice that its peer is gone.
const BOUND_NS: u64 = 12_000_000_000;

impl CmWorld<'_> {
    /// Schedules an end's check of its peer, sometime within the bound.
    pub(super) fn look_later(&mut self, end: usize) {
        let ns = self.rng.below(BOUND_NS);
        self.after(ns, Step::Look { end });
    }

    /// The queue pair of an end is gone, or in error: the end connected to it will notice.
    pub(super) fn peer_left(&mut self, left: usize) {
        let end = &self.ends[left];
        let others: Vec<usize> = match (end.active, end.attempt) {
            (true, Some(attempt)) => self.attempts[attempt].passives.clone(),
            (false, Some(attempt)) => vec![self.attempts[attempt].active],
            (_, None) => Vec::new(),
        };
        for other in others {
            self.look_later(other);
        }
    }

    /// An end checks its peer: if that is gone, the application must be told at once.
    pub(super) fn look(&mut self, number: usize) {
        let end = &self.ends[number];
        let (host, id) = (end.host, end.id);
        let is_mine = self.hosts[host].ids.get(&id) == Some(&number);
        if !is_mine || end.view != View::Established || !self.has_no_peer(number) {
            return;
        }
        if let Some(View::Over(why)) = self.counterpart(end)
            && !why.may_be_unheard()
        {
            let what = format!("{end:?} is in use, its peer is over: {why:?}");
            return self.sink.report(self.now, "agreement", what);
        }
        self.coverage.half_open += 1;
        self.note(2, || format!("host {host} misses the peer of {id:?}"));
        let now = self.now;
        if let Some(cm) = &mut self.hosts[host].cm
            && let Err(error) = cm.peer_lost(now, id)
        {
            self.sink.report(now, "calls", format!("peer_lost: {error}"));
        }
        self.pump(host);
        if !self.ends[number].is_over() {
            self.sink.report(now, "bound", format!("host {host} is not told of its peer's end"));
        }
    }
}
