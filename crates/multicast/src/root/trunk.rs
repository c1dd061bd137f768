//! When a group uses its trunk: the branch that stands for all others.

use bowline_wire::Psn;

/// How often the oldest packet may be retransmitted over the trunk. After that it goes to each
/// member: ordinary switches stop forwarding a multicast address when nobody asks its members
/// whether they are still there.
const MAX_REPEATS: u32 = 1;
/// For how many packets the trunk then stays unused.
const DOUBT_PACKETS: u32 = 4096;

/// Whether a trunk works.
#[derive(Debug, Default)]
pub(super) struct Trunk {
    /// The oldest packet when it was last retransmitted, and how often it was.
    repeated: Option<(Psn, u32)>,
    /// From which packet on the trunk is used again.
    off_until: Option<Psn>,
}

impl Trunk {
    /// The sender has sent a packet. `is_oldest`: it is the first that not all members have, and
    /// was sent before.
    pub(super) fn note(&mut self, psn: Psn, is_oldest: bool) {
        if is_oldest {
            let before = self.repeated.filter(|(oldest, _)| *oldest == psn);
            let repeats = before.map_or(0, |(_, repeats)| repeats) + 1;
            self.repeated = Some((psn, repeats));
            if repeats > MAX_REPEATS {
                self.off_until = Some(psn.add(DOUBT_PACKETS));
            }
        }
        // Far from it in either direction, the number has wrapped.
        let is_over = |until: Psn| !psn.before(until) || until.diff(psn) > DOUBT_PACKETS as i32;
        if self.off_until.is_some_and(is_over) {
            self.off_until = None;
        }
    }

    /// The branches of a packet that `lacking` of the `live` ones lack.
    pub(super) fn branches(&self, trunk: Option<usize>, lacking: u64, live: u64) -> u64 {
        match trunk {
            Some(trunk)
                if lacking == live && lacking.count_ones() > 1 && self.off_until.is_none() =>
            {
                1 << trunk
            }
            _ => lacking,
        }
    }
}
