//! Seals what a queue pair sends.

use std::sync::Arc;

use bowline_nic::{SealPackets, Time};
use bowline_wire::{Bth, BthView, SEALED_TAG_LEN, SealedHeader};

use crate::config::{Rollover, SealConfig};
use crate::recorder::NonceRecorder;
use crate::schedule::Schedule;
use crate::suite::PacketKey;

/// Seals the packets of one direction. Neither `Clone` nor rewindable: its counter increases with
/// every packet, retransmissions included, and never goes back.
pub struct Sealer {
    schedule: Schedule,
    key: PacketKey,
    next_counter: u64,
    rollover: Rollover,
    /// Packets sealed with the current key.
    packets: u64,
    bytes: u64,
    since: Time,
    now: Time,
    recorder: Option<Arc<dyn NonceRecorder>>,
}

impl Sealer {
    pub(crate) fn new(mut schedule: Schedule, config: &SealConfig, now: Time) -> Sealer {
        let key = schedule.advance();
        Sealer {
            schedule,
            key,
            next_counter: 0,
            rollover: config.rollover,
            packets: 0,
            bytes: 0,
            since: now,
            now,
            recorder: config.recorder.clone(),
        }
    }

    /// Whether the key must be replaced.
    #[inline]
    fn is_spent(&self) -> bool {
        self.packets >= self.rollover.packets
            || self.bytes >= self.rollover.bytes
            || self.now.nanos_since(self.since) >= self.rollover.age_ns
    }

    #[cold]
    fn roll_over(&mut self) {
        self.key = self.schedule.advance();
        (self.packets, self.bytes, self.since) = (0, 0, self.now);
    }

    #[cold]
    fn record(&self, counter: u64) {
        if let Some(recorder) = &self.recorder {
            recorder.record(self.key.name(), self.key.nonce(counter));
        }
    }
}

impl SealPackets for Sealer {
    fn set_time(&mut self, now: Time) {
        self.now = now;
    }

    fn seal(&mut self, packet: &mut [u8]) {
        if self.is_spent() {
            self.roll_over();
        }
        let counter = self.next_counter;
        self.next_counter += 1;
        self.packets += 1;
        self.bytes += packet.len() as u64;
        if self.recorder.is_some() {
            self.record(counter);
        }
        let Some((header, body, tag)) = split_mut(packet) else { return packet.fill(0) };
        let Some(bth) = body.first_chunk::<{ Bth::LEN }>() else { return packet.fill(0) };
        let dest_qpn = BthView::of(bth).dest_qpn();
        SealedHeader { dest_qpn, epoch: self.key.epoch as u8, counter }.emit(header);
        match self.key.seal(counter, header, body) {
            Some(made) => *tag = made,
            // Nothing leaves in cleartext.
            None => packet.fill(0),
        }
    }
}

type PartsMut<'a> = (&'a mut [u8; SealedHeader::LEN], &'a mut [u8], &'a mut [u8; SEALED_TAG_LEN]);

fn split_mut(packet: &mut [u8]) -> Option<PartsMut<'_>> {
    let (header, rest) = packet.split_first_chunk_mut()?;
    let (body, tag) = rest.split_last_chunk_mut()?;
    Some((header, body, tag))
}
