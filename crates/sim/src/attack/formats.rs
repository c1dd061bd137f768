//! Datagrams of protocols above the NIC: correct in format, but without the secrets.

use bowline_wire::Qpn;

use crate::rng::SimRng;

/// Bytes of either half of SDR's token.
const HALF_TOKEN: usize = 8;
const CONTROL_VERSION: u8 = 2;
const AGENT_MAGIC: [u8; 2] = [0xb0, 0xf1];
const AGENT_VERSION: u8 = 1;
/// Kinds of messages between failover agents.
const AGENT_KINDS: u64 = 6;

/// A number that would do harm if it were trusted, or a small one that may be right.
fn lie(rng: &mut SimRng) -> u64 {
    match rng.below(4) {
        0 => rng.below(4),
        1 => rng.below(64),
        2 => u64::MAX - rng.below(2),
        _ => rng.bits(),
    }
}

/// A message of SDR's control channel (`sdr/src/control.rs`), with a guess for its token.
pub(crate) fn control_message(rng: &mut SimRng) -> Vec<u8> {
    let kind = rng.pick(&[0, 1, 2, 2, 2]);
    let mut bytes = vec![CONTROL_VERSION, kind, 0, 0, 0, 0, 0, 0];
    let token = if rng.percent(20) { [0; 2 * HALF_TOKEN] } else { [rng.bits() as u8; 16] };
    bytes.extend(&token[..HALF_TOKEN]);
    // Stamp, echo and how long it was held; landed, posted and retired.
    for _ in 0..6 {
        bytes.extend(lie(rng).to_be_bytes());
    }
    if kind == 2 {
        reliable_message(rng, &mut bytes);
    }
    bytes.extend(&token[HALF_TOKEN..]);
    bytes
}

/// A message of the reliable layer on the control channel (`sdr/src/reliable/wire.rs`).
fn reliable_message(rng: &mut SimRng, out: &mut Vec<u8>) {
    let kind = rng.below(6) as u8;
    let words = match kind {
        0 | 3 => 3,
        _ => 1,
    };
    out.push(kind);
    for _ in 0..words {
        out.extend(lie(rng).to_be_bytes());
    }
    let rest = match kind {
        0 => 6,
        // A scheme's acknowledgements, or its requests.
        1 | 2 => rng.below(700),
        _ => 0,
    };
    out.extend((0..rest).map(|_| if rng.percent(50) { 0xff } else { rng.bits() as u8 }));
}

/// A message between failover agents (`failover/src/message.rs`), with a guess for its token.
pub(crate) fn agent_message(rng: &mut SimRng, to: Qpn) -> Vec<u8> {
    let mut bytes = AGENT_MAGIC.to_vec();
    bytes.extend([AGENT_VERSION, rng.below(AGENT_KINDS) as u8]);
    bytes.extend(to.get().to_be_bytes());
    let token = if rng.percent(20) { 0 } else { u128::from(rng.bits()) << 64 };
    bytes.extend(token.to_be_bytes());
    // Epoch and number: the first ones are easy to guess.
    for _ in 0..2 {
        bytes.extend((lie(rng) as u32).to_be_bytes());
    }
    bytes.extend([rng.below(2) as u8, rng.below(4) as u8, 0, 0]);
    bytes.extend((rng.below(1 << 24) as u32).to_be_bytes());
    bytes.extend(lie(rng).to_be_bytes());
    bytes
}
