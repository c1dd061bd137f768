//! Opens what a queue pair receives.

use bowline_nic::{OpenPackets, Time, Unopened};
use bowline_wire::{Bth, SEALED_TAG_LEN, SealedHeader};

use crate::config::SealConfig;
use crate::schedule::Schedule;
use crate::suite::PacketKey;
use crate::window::ReplayWindow;

/// Epochs that a sender may be ahead of everything that has arrived. Their keys are derived when a
/// packet first names them, and kept: forged packets trigger this only once.
const MAX_AHEAD: usize = 16;
/// Wrong tags that a key may see: below the limits of both suites (RFC 9001, section 6.6).
const MAX_FORGED: u64 = 1 << 35;

/// Opens the packets of one direction.
pub struct Opener {
    schedule: Schedule,
    current: PacketKey,
    /// The previous key, and how long it is accepted.
    previous: Option<(PacketKey, Time)>,
    /// Keys of later epochs, as far as packets have named them.
    ahead: Vec<PacketKey>,
    window: ReplayWindow,
    /// Wrong tags since the key last changed.
    forged: u64,
    keep_ns: u64,
}

/// The key that a packet names.
#[derive(Clone, Copy)]
enum Named {
    Previous,
    Current,
    Ahead(usize),
}

impl Opener {
    pub(crate) fn new(mut schedule: Schedule, config: &SealConfig) -> Opener {
        let current = schedule.advance();
        Opener {
            schedule,
            current,
            previous: None,
            ahead: Vec::new(),
            window: ReplayWindow::new(),
            forged: 0,
            keep_ns: config.rollover.keep_ns,
        }
    }

    fn named(&mut self, now: Time, epoch: u8) -> Option<Named> {
        match epoch.wrapping_sub(self.current.epoch as u8) {
            0 => Some(Named::Current),
            u8::MAX => {
                // Dropped once it has expired, whether or not packets arrive.
                self.previous.take_if(|(_, until)| now > *until);
                self.previous.is_some().then_some(Named::Previous)
            }
            distance if usize::from(distance) <= MAX_AHEAD => {
                while self.ahead.len() < usize::from(distance) {
                    self.ahead.push(self.schedule.advance());
                }
                Some(Named::Ahead(usize::from(distance) - 1))
            }
            _ => None,
        }
    }

    /// The sender has switched to a later key. The one just before it is kept for a while.
    #[cold]
    fn advance_to(&mut self, now: Time, index: usize) {
        let mut passed = self.ahead.drain(..=index);
        let Some(current) = passed.next_back() else { return };
        let before = passed.next_back();
        drop(passed);
        let last = core::mem::replace(&mut self.current, current);
        let until = now.plus_nanos(self.keep_ns);
        self.previous = Some((before.unwrap_or(last), until));
        self.forged = 0;
    }
}

impl OpenPackets for Opener {
    fn open(&mut self, now: Time, packet: &[u8], out: &mut [u8]) -> Result<(), Unopened> {
        let (aad, sealed) = packet.split_first_chunk().ok_or(Unopened::NotSealed)?;
        let header = SealedHeader::parse(aad).ok_or(Unopened::NotSealed)?;
        let (body, tag) = sealed.split_last_chunk::<SEALED_TAG_LEN>().ok_or(Unopened::NotSealed)?;
        if body.len() < Bth::LEN || body.len() != out.len() {
            return Err(Unopened::NotSealed);
        }
        let named = self.named(now, header.epoch).ok_or(Unopened::Epoch)?;
        if !self.window.is_new(header.counter) {
            return Err(Unopened::Replayed);
        }
        let key = match named {
            Named::Current => &self.current,
            Named::Previous => self.previous.as_ref().map_or(&self.current, |(key, _)| key),
            Named::Ahead(index) => &self.ahead[index],
        };
        let is_right = self.forged < MAX_FORGED && key.open(header.counter, aad, (body, tag), out);
        if !is_right {
            self.forged += 1;
            return Err(Unopened::Forged);
        }
        self.window.take(header.counter);
        if let Named::Ahead(index) = named {
            self.advance_to(now, index);
        }
        Ok(())
    }
}
