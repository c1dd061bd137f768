//! The packets of a stream of messages, as their completions come.

use bowline_sdr::ImmLayout;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Packets of a message: 16 MiB at 4 KiB each.
pub(crate) const PACKETS: u32 = 4096;
/// Packets of a stripe: as many as a cache line of the bitmap has bits.
pub(crate) const STRIPE: u32 = 512;
/// How its immediates are split.
pub(crate) const LAYOUT: ImmLayout = ImmLayout::STANDARD;
/// Generations of the messages' IDs.
const GENERATIONS: u64 = 4;
/// Packets of a message that come once more, one in so many.
const DUPLICATE: u32 = 256;
/// Packets that are overtaken, one in so many, and by how many at most.
const OVERTAKEN: u32 = 32;
const OVERTAKEN_BY: usize = 24;
/// Packets that come when their message is over.
const LATE: usize = 16;

/// What comes for one message, in order: immediates of message 0, computed beforehand. Those of
/// another message have its ID in their upper bits.
pub(crate) struct Arrivals {
    imms: Vec<u32>,
}

impl Arrivals {
    /// The packets that lane `lane` of `lanes` sees of a message whose stripes are dealt out.
    pub(crate) fn of_lane(lane: u32, lanes: u32) -> Arrivals {
        let mut rng = ChaCha8Rng::seed_from_u64(u64::from(lane));
        let mut packets = Vec::new();
        for packet in (0..PACKETS).filter(|p| p / STRIPE % lanes == lane) {
            packets.push(packet);
            if rng.random_range(0..DUPLICATE) == 0 {
                packets.push(packet);
            }
        }
        for at in 0..packets.len() {
            if rng.random_range(0..OVERTAKEN) == 0 {
                let end = (at + rng.random_range(1..=OVERTAKEN_BY)).min(packets.len() - 1);
                packets[at..=end].rotate_left(1);
            }
        }
        let imm = |packet: u32| LAYOUT.series(0, packet, 0x0051_cafe).imm(0);
        Arrivals { imms: packets.into_iter().map(imm).collect() }
    }

    /// Immediates, to be placed with [`Message::base`].
    pub(crate) fn imms(&self) -> &[u32] {
        &self.imms
    }

    /// Those that come once more when the message is over.
    pub(crate) fn late(&self) -> &[u32] {
        &self.imms[self.imms.len() - LATE..]
    }
}

/// A message's place.
#[derive(Clone, Copy)]
pub(crate) struct Message {
    pub(crate) id: u32,
    pub(crate) generation: u32,
}

impl Message {
    /// Where message `number` of a stream has its place.
    pub(crate) fn of(number: u64) -> Message {
        let ids = u64::from(LAYOUT.ids());
        Message { id: (number % ids) as u32, generation: (number / ids % GENERATIONS) as u32 }
    }

    /// What its immediates have above those of message 0.
    pub(crate) fn base(self) -> u32 {
        self.id << (32 - LAYOUT.bits()[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_see_every_packet_between_them() {
        let mut seen = vec![0; PACKETS as usize];
        for lane in 0..2 {
            for imm in Arrivals::of_lane(lane, 2).imms() {
                seen[LAYOUT.split(*imm).1 as usize] += 1;
            }
        }
        assert!(seen.iter().all(|n| (1..=3).contains(n)));
        let whole = Arrivals::of_lane(0, 1);
        let in_order = whole.imms().windows(2).filter(|w| w[0] < w[1]).count();
        assert!(in_order < whole.imms().len() - 100, "nothing was overtaken");
    }
}
