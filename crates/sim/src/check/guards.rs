//! Nothing outside a region ever changes: canaries around every registered range.

use core::ops::Range;

use bowline_nic::Buffer;

use super::pattern;

/// Guard zones of one buffer, filled with the bytes of a seed.
#[derive(Debug)]
pub struct Guards {
    seed: u64,
    zones: Vec<Range<usize>>,
}

impl Guards {
    /// Guards that `seed` fills.
    pub fn new(seed: u64) -> Guards {
        Guards { seed, zones: Vec::new() }
    }

    /// Fills a range that must never be written.
    pub fn add(&mut self, buffer: &Buffer, zone: Range<usize>) {
        let mut bytes = vec![0; zone.len()];
        pattern::fill_from(self.seed, zone.start, &mut bytes);
        buffer.write_at(zone.start, &bytes);
        self.zones.push(zone);
    }

    /// Whether all guards are unchanged.
    ///
    /// # Errors
    /// The first byte that changed.
    pub fn check(&self, buffer: &Buffer) -> Result<(), String> {
        for zone in &self.zones {
            let mut expected = vec![0; zone.len()];
            pattern::fill_from(self.seed, zone.start, &mut expected);
            let actual = buffer.to_vec(zone.start, zone.len());
            if let Some(difference) = pattern::first_difference(&expected, &actual) {
                return Err(format!("guard zone at {zone:?} was written: {difference}"));
            }
        }
        Ok(())
    }
}
