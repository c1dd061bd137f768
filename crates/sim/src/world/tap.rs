//! What an on-path attacker overhears: copies of sealed packets as they leave their engines.

use std::collections::VecDeque;

use bowline_wire::Opcode;

use super::World;
use crate::packet::Packet;

/// The first packets, which are old by the time they are used.
const FIRST: usize = 64;
/// The latest packets.
const RECENT: usize = 192;

/// Packets that were overheard.
#[derive(Default)]
pub(super) struct Tap {
    first: Vec<Packet>,
    recent: VecDeque<Packet>,
}

impl Tap {
    pub(super) fn hear(&mut self, packet: &Packet) {
        if packet.bytes.first() != Some(&Opcode::SEALED.0) {
            return;
        }
        if self.first.len() < FIRST {
            return self.first.push(packet.clone());
        }
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(packet.clone());
    }
}

impl World {
    /// Keeps copies of sealed packets from now on.
    pub fn overhear(&mut self) {
        self.tap = Some(Tap::default());
    }

    /// How many copies there are.
    pub fn overheard(&self) -> usize {
        self.tap.as_ref().map_or(0, |tap| tap.first.len() + tap.recent.len())
    }

    /// One of the copies; they change as packets are sent.
    pub fn overheard_packet(&self, index: usize) -> Option<&Packet> {
        let tap = self.tap.as_ref()?;
        tap.first.get(index).or_else(|| tap.recent.get(index.checked_sub(tap.first.len())?))
    }
}
