//! Records of what is missing from messages that ended in part.

use core::ops::Range;
use std::collections::VecDeque;

use super::layout::Layout;

/// What is missing from a receive or READ that ended in part: see
/// [`Nic::take_loss`](crate::Nic::take_loss).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LossRecord {
    /// The request's `wr_id`.
    pub wr_id: u64,
    /// Bytes of the message; unknown if none of its packets has arrived.
    pub message_len: Option<u32>,
    /// Missing ranges of the message, in order, adjacent ones joined. Empty if the length is
    /// unknown: nothing has arrived then.
    pub missing: Vec<Range<u32>>,
}

impl LossRecord {
    /// A record of the fragments for which `has` returns `false`.
    pub(super) fn new(wr_id: u64, layout: &Layout, has: impl Fn(u32) -> bool) -> LossRecord {
        let mut missing: Vec<Range<u32>> = Vec::new();
        for k in (0..layout.fragments()).filter(|k| !has(*k)) {
            let Ok(()) = layout.try_pieces(k, |offset, _, len| {
                match missing.last_mut() {
                    Some(last) if last.end == offset => last.end += len as u32,
                    _ => missing.push(offset..offset + len as u32),
                }
                Ok::<_, core::convert::Infallible>(())
            });
        }
        if !layout.is_contiguous() {
            missing = joined(missing);
        }
        LossRecord { wr_id, message_len: Some(layout.len), missing }
    }

    /// A record of a message of which nothing has arrived.
    pub(super) fn unseen(wr_id: u64) -> LossRecord {
        LossRecord { wr_id, message_len: None, missing: Vec::new() }
    }
}

/// Sorts ranges that do not overlap, and joins adjacent ones.
fn joined(mut ranges: Vec<Range<u32>>) -> Vec<Range<u32>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u32>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => joined.push(range),
        }
    }
    joined
}

/// The latest records, up to a limit.
#[derive(Debug, Default)]
pub(super) struct LossLog {
    records: VecDeque<LossRecord>,
    most: usize,
}

impl LossLog {
    pub(super) fn new(most: u32) -> LossLog {
        LossLog { records: VecDeque::new(), most: most as usize }
    }

    pub(super) fn is_on(&self) -> bool {
        self.most > 0
    }

    /// Adds a record, dropping the oldest if there are too many.
    pub(super) fn push(&mut self, record: LossRecord) {
        if self.records.len() >= self.most {
            self.records.pop_front();
        }
        self.records.push_back(record);
    }

    pub(super) fn pop(&mut self) -> Option<LossRecord> {
        self.records.pop_front()
    }
}
