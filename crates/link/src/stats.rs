//! Statistics of a link.

/// Statistics of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Packets transmitted, copies not counted.
    pub carried: u64,
    /// Bytes transmitted.
    pub carried_bytes: u64,
    /// Dropped: the queue was full.
    pub queue_drops: u64,
    /// Dropped: lost, or the link was down.
    pub lost: u64,
    /// Delivered twice.
    pub duplicated: u64,
    /// Delayed, and overtaken by others.
    pub reordered: u64,
    /// Changed on the way.
    pub corrupted: u64,
    /// Marked: congestion experienced.
    pub marked: u64,
    /// Most bytes ever queued.
    pub queue_peak_bytes: u64,
}

impl LinkStats {
    /// Adds another link's.
    pub fn merge(&mut self, other: &LinkStats) {
        self.carried += other.carried;
        self.carried_bytes += other.carried_bytes;
        self.queue_drops += other.queue_drops;
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.corrupted += other.corrupted;
        self.marked += other.marked;
        self.queue_peak_bytes = self.queue_peak_bytes.max(other.queue_peak_bytes);
    }
}
