//! What an attacker who reads every sealed packet makes of them. None of it may have any effect.

use bowline_wire::{ICRC_LEN, Qpn, SealedHeader};

use crate::attack::Forgery;
use crate::packet::Packet;
use crate::rng::SimRng;
use crate::world::World;

/// How far a counter is changed, at most.
const FAR: u64 = 5_000;

/// Manipulates an overheard packet; `pairs` are queue pairs that are each other's peers.
pub(crate) fn tamper(
    rng: &mut SimRng,
    world: &World,
    pairs: &[[Qpn; 2]],
) -> Option<(Forgery, Packet)> {
    let (kind, heard) = (rng.pick(&Forgery::ON_PATH), world.overheard());
    let index = rng.below(heard.max(1) as u64) as usize;
    let mut packet = world.overheard_packet(index)?.clone();
    match kind {
        Forgery::Flipped => flip(rng, &mut packet),
        Forgery::Truncated => {
            let len = rng.below(packet.bytes.len() as u64) as usize;
            packet.bytes.truncate(len);
        }
        Forgery::Reflected => reflect(&mut packet, pairs)?,
        Forgery::Redirected => {
            let other = rng.pick(pairs)[rng.below(2) as usize];
            if other == header_of(&packet)?.dest_qpn {
                return None;
            }
            set_header(&mut packet, |header| header.dest_qpn = other)?;
        }
        Forgery::Renumbered => renumber(rng, &mut packet)?,
        _ => {}
    }
    Some((kind, packet))
}

/// Flips one or a few bits, except in the ICRC field, which is not checked.
fn flip(rng: &mut SimRng, packet: &mut Packet) {
    let covered = (packet.bytes.len() - ICRC_LEN) as u64;
    let at = rng.below(covered) as usize;
    packet.bytes[at] ^= 1 << rng.below(8);
    let other = rng.below(covered) as usize;
    // Flipping the same bit twice would restore the packet.
    if other != at && rng.percent(30) {
        packet.bytes[other] ^= 0x81;
    }
}

/// Returns it: to the queue pair whose peer it was for.
fn reflect(packet: &mut Packet, pairs: &[[Qpn; 2]]) -> Option<()> {
    let to = header_of(packet)?.dest_qpn;
    let pair = pairs.iter().find(|pair| pair.contains(&to))?;
    let sender = if pair[0] == to { pair[1] } else { pair[0] };
    std::mem::swap(&mut packet.src, &mut packet.dst);
    set_header(packet, |header| header.dest_qpn = sender)
}

fn renumber(rng: &mut SimRng, packet: &mut Packet) -> Option<()> {
    let (is_epoch, by) = (rng.percent(40), rng.range(1, FAR));
    set_header(packet, |header| {
        if is_epoch {
            header.epoch = header.epoch.wrapping_add(1 + (by % 255) as u8);
        } else {
            header.counter = header.counter.wrapping_add(by) & SealedHeader::MAX_COUNTER;
        }
    })
}

fn header_of(packet: &Packet) -> Option<SealedHeader> {
    packet.bytes.first_chunk().and_then(SealedHeader::parse)
}

fn set_header(packet: &mut Packet, change: impl FnOnce(&mut SealedHeader)) -> Option<()> {
    let mut header = header_of(packet)?;
    change(&mut header);
    header.emit(packet.bytes.first_chunk_mut()?);
    Some(())
}
