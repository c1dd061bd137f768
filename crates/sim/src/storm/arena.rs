//! Registered memory of an application: zones with guard zones around them, in one buffer.

use std::sync::Arc;

use bowline_failover::mirror::{self, Pd};
use bowline_nic::{Access, Buffer, MrKey, Region, Sge};

use crate::check::bytes::RegionModel;
use crate::check::guards::Guards;
use crate::engines::DeviceEngines;
use crate::rng::SimRng;

/// A registered range and the model of its contents.
pub(super) struct Zone {
    pub(super) buffer: Arc<Buffer>,
    pub(super) base: usize,
    pub(super) len: usize,
    pub(super) iova: u64,
    pub(super) key: MrKey,
    pub(super) model: RegionModel,
}

impl Zone {
    /// A scatter or gather entry.
    pub(super) fn sge(&self, at: usize, len: usize) -> Sge {
        Sge::new(self.key, self.iova + at as u64, len as u32)
    }

    /// The bytes of several pieces, one after the other.
    pub(super) fn gather(&self, pieces: &[(usize, usize)]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(pieces.iter().map(|p| p.1).sum());
        for (at, len) in pieces {
            bytes.extend(self.model.actual(&self.buffer, *at..at + len));
        }
        bytes
    }

    /// The application is done with several pieces.
    pub(super) fn restore(&self, pieces: &[(usize, usize)]) {
        for (at, len) in pieces {
            self.model.restore(&self.buffer, *at..at + len);
        }
    }

    /// Nothing is promised about several pieces any more.
    pub(super) fn loosen(&mut self, pieces: &[(usize, usize)]) {
        for (at, len) in pieces {
            self.model.loosen(*at..at + len);
        }
    }

    /// The word at `at`.
    pub(super) fn word(&self, at: usize) -> u64 {
        self.buffer.load_u64(self.base + at)
    }
}

/// One buffer with zones in it.
pub(super) struct Arena {
    buffer: Arc<Buffer>,
    guards: Guards,
}

/// The plan of a zone: bytes and access rights.
pub(super) type ZonePlan = (usize, Access);

impl Arena {
    /// Allocates and registers zones; returns them in order.
    pub(super) fn new(
        engines: &DeviceEngines<'_>,
        pd: &Pd,
        plans: &[ZonePlan],
        rng: &mut SimRng,
    ) -> (Arena, Vec<Zone>) {
        // Zones start at words, so that atomics can target any of them, and end anywhere.
        let gaps: Vec<usize> = (0..=plans.len()).map(|_| 8 * rng.range(2, 12) as usize).collect();
        let total: usize = plans.iter().map(|(len, _)| len.next_multiple_of(8)).sum::<usize>()
            + gaps.iter().sum::<usize>();
        let buffer = Buffer::new(total);
        let mut guards = Guards::new(rng.bits());
        let mut zones = Vec::with_capacity(plans.len());
        let mut at = 0;
        for ((len, access), gap) in plans.iter().zip(&gaps) {
            let base = (at + gap).next_multiple_of(8);
            guards.add(&buffer, at..base);
            // The addresses given to peers are unrelated to those in memory.
            let iova = (rng.bits() >> 8) & !7;
            let region = || Region::part(buffer.clone(), base, *len);
            let key = mirror::register(engines, pd, region, iova, *access);
            let key = key.expect("within the limits");
            let model = RegionModel::new(&buffer, base, *len, rng.bits());
            let (buffer, len) = (buffer.clone(), *len);
            zones.push(Zone { buffer, base, len, iova, key, model });
            at = base + len;
        }
        guards.add(&buffer, at..total);
        (Arena { buffer, guards }, zones)
    }

    /// Whether nothing outside the zones has changed.
    pub(super) fn check(&self) -> Result<(), String> {
        self.guards.check(&self.buffer)
    }
}
