//! Attacks on one direction of a connection. Each test fails if the defence it names is removed.

use std::sync::Arc;

use bowline_nic::{PacketSeal, Time, Unopened};
use bowline_wire::{Bth, Opcode, Psn, Qpn, SEALED_TAG_LEN, SealedHeader};

use super::*;

const NOW: Time = Time::from_nanos(1_000);
const PAYLOAD: usize = 100;

fn secret(byte: u8) -> SessionSecret {
    SessionSecret::from_bytes([byte; 32])
}

fn end(role: Role, config: &SealConfig) -> PacketSeal {
    seal(&secret(7), 3, role, config, NOW)
}

/// Both ends of a connection.
fn ends(config: &SealConfig) -> (PacketSeal, PacketSeal) {
    (end(Role::Initiator, config), end(Role::Responder, config))
}

fn config() -> SealConfig {
    SealConfig::new(Suite::Aegis128X4)
}

/// A packet with room for header and tag, for the queue pair 5.
fn packet(psn: u32) -> Vec<u8> {
    let mut bytes = vec![0; SealedHeader::LEN];
    let mut bth = [0; Bth::LEN];
    Bth::new(Opcode::RC_WRITE_MIDDLE, Qpn::new(5), Psn::new(psn)).emit(&mut bth);
    bytes.extend_from_slice(&bth);
    bytes.extend((0..PAYLOAD).map(|i| i as u8 ^ psn as u8));
    bytes.extend_from_slice(&[0; SEALED_TAG_LEN]);
    bytes
}

fn body(packet: &[u8]) -> &[u8] {
    &packet[SealedHeader::LEN..packet.len() - SEALED_TAG_LEN]
}

fn sealed(by: &mut PacketSeal, psn: u32) -> Vec<u8> {
    let mut bytes = packet(psn);
    by.sealer.seal(&mut bytes);
    bytes
}

fn open_at(by: &mut PacketSeal, now: Time, packet: &[u8]) -> Result<Vec<u8>, Unopened> {
    let mut out = vec![0; packet.len().saturating_sub(OVERHEAD)];
    by.opener.open(now, packet, &mut out).map(|()| out)
}

fn open(by: &mut PacketSeal, packet: &[u8]) -> Result<Vec<u8>, Unopened> {
    open_at(by, NOW, packet)
}

fn header(packet: &[u8]) -> SealedHeader {
    SealedHeader::parse(packet.first_chunk().unwrap()).unwrap()
}

#[test]
fn what_is_sealed_opens_and_is_not_readable() {
    for suite in Suite::ALL {
        let (mut a, mut b) = ends(&SealConfig::new(suite));
        for psn in 0..3 {
            let bytes = sealed(&mut a, psn);
            let plain = packet(psn);
            assert_eq!(header(&bytes).dest_qpn, Qpn::new(5));
            assert_eq!(header(&bytes).counter, u64::from(psn));
            let payload = &body(&plain)[Bth::LEN..];
            assert!(!bytes.windows(8).any(|part| payload.windows(8).any(|p| p == part)));
            assert_eq!(open(&mut b, &bytes).as_deref(), Ok(body(&plain)));
        }
    }
}

/// The first tag of each suite, so that no release changes keys, nonces or format by accident.
#[test]
fn packets_are_sealed_as_in_every_release() {
    let tag = |suite| {
        let bytes = sealed(&mut ends(&SealConfig::new(suite)).0, 1);
        u128::from_be_bytes(*bytes.last_chunk().unwrap())
    };
    assert_eq!(tag(Suite::Aegis128X4), 0xe51c10c0_0ad83ce6_e5c13ddc_b03aba19);
    assert_eq!(tag(Suite::Aegis128X2), 0xb76c5cf9_9309612a_de90b0ff_c897189d);
    assert_eq!(tag(Suite::Aegis256X4), 0xb819d15b_6055f5d0_2366a6b4_15bbe14e);
    assert_eq!(tag(Suite::Aegis256X2), 0x3c690b6d_643fcbdc_c5079a8e_921b8fb9);
    assert_eq!(tag(Suite::Aes256Gcm), 0xbcae7c58_6ccb79eb_8b637e10_5cae74c6);
    assert_eq!(tag(Suite::ChaCha20Poly1305), 0x14b5a157_92400ab6_8192ac01_f47c67b2);
}

#[test]
fn a_bit_that_is_flipped_anywhere_is_found() {
    for suite in Suite::ALL {
        let (mut a, mut b) = ends(&SealConfig::new(suite));
        let bytes = sealed(&mut a, 1);
        for at in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[at / 8] ^= 1 << (at % 8);
            assert!(open(&mut b, &flipped).is_err(), "{suite:?}, bit {at}");
        }
        assert!(open(&mut b, &bytes).is_ok());
    }
}

#[test]
fn a_truncated_packet_is_refused_whatever_is_left() {
    for suite in Suite::ALL {
        let (mut a, mut b) = ends(&SealConfig::new(suite));
        let bytes = sealed(&mut a, 1);
        for len in 0..bytes.len() {
            assert!(open(&mut b, &bytes[..len]).is_err(), "{suite:?}, {len} bytes");
            assert!(open(&mut b, &bytes[len + 1..]).is_err(), "{suite:?}, without {len} bytes");
        }
        assert!(open(&mut b, &[&bytes[..], &[0]].concat()).is_err());
        assert!(open(&mut b, &bytes).is_ok());
    }
}

#[test]
fn a_replayed_packet_is_refused() {
    let (mut a, mut b) = ends(&config());
    let early = sealed(&mut a, 0);
    let late = sealed(&mut a, 1);
    assert!(open(&mut b, &late).is_ok());
    assert!(open(&mut b, &early).is_ok(), "overtaken is not replayed");
    assert_eq!(open(&mut b, &late), Err(Unopened::Replayed));
    assert_eq!(open(&mut b, &early), Err(Unopened::Replayed));
    // So is one that is too old to tell.
    let missed = sealed(&mut a, 2);
    for psn in 0..window::WINDOW as u32 {
        let bytes = sealed(&mut a, psn);
        assert!(open(&mut b, &bytes).is_ok());
    }
    assert_eq!(open(&mut b, &missed), Err(Unopened::Replayed));
}

#[test]
fn a_reflected_packet_is_refused() {
    let (mut a, mut b) = ends(&config());
    let bytes = sealed(&mut a, 0);
    assert_eq!(open(&mut a, &bytes), Err(Unopened::Forged));
    assert!(open(&mut b, &bytes).is_ok());
}

#[test]
fn forged_packets_do_not_move_the_window() {
    let (mut a, mut b) = ends(&config());
    let mut forged = sealed(&mut a, 0);
    let claimed = SealedHeader { counter: 1 << 40, ..header(&forged) };
    claimed.emit(forged.first_chunk_mut().unwrap());
    for _ in 0..1_000 {
        assert_eq!(open(&mut b, &forged), Err(Unopened::Forged));
    }
    let true_one = sealed(&mut a, 1);
    assert!(open(&mut b, &true_one).is_ok());
}

#[test]
fn other_keys_open_nothing() {
    let (mut a, _) = ends(&config());
    let bytes = sealed(&mut a, 0);
    let suites =
        [Suite::Aegis128X2, Suite::Aes256Gcm, Suite::ChaCha20Poly1305].map(SealConfig::new);
    let others = [
        seal(&secret(8), 3, Role::Responder, &config(), NOW),
        seal(&secret(7), 4, Role::Responder, &config(), NOW),
        seal(&secret(7), 3, Role::Initiator, &config(), NOW),
        seal(&secret(7), 3, Role::Responder, &suites[0], NOW),
        seal(&secret(7), 3, Role::Responder, &suites[1], NOW),
        seal(&secret(7), 3, Role::Responder, &suites[2], NOW),
    ];
    for mut other in others {
        assert_eq!(open(&mut other, &bytes), Err(Unopened::Forged));
    }
}

#[test]
fn sessions_from_a_shared_key_differ_by_either_nonce() {
    let key = [1; 32];
    let of = |a, b| SessionSecret::from_pre_shared(&key, &[a; 32], &[b; 32]);
    assert_eq!(of(1, 2), of(1, 2));
    assert_ne!(of(1, 2), of(2, 1));
    assert_ne!(of(1, 2), of(1, 3));
    assert_ne!(of(1, 2), SessionSecret::from_pre_shared(&[2; 32], &[1; 32], &[2; 32]));
}

/// Keys that change after so many packets.
fn rolling(packets: u64) -> SealConfig {
    let rollover = Rollover { packets, keep_ns: 1_000, ..Rollover::default() };
    SealConfig { rollover, ..config() }
}

#[test]
fn keys_roll_over_by_packets_bytes_and_age_without_a_pause() {
    let by_bytes = Rollover { bytes: 3 * packet(0).len() as u64, ..Rollover::default() };
    let by_age = Rollover { age_ns: 3, ..Rollover::default() };
    for rollover in [rolling(3).rollover, by_bytes, by_age] {
        let (mut a, mut b) = ends(&SealConfig { rollover, ..config() });
        for n in 0..1_000_u64 {
            let now = NOW.plus_nanos(n);
            a.sealer.set_time(now);
            let bytes = sealed(&mut a, n as u32);
            assert_eq!(u64::from(header(&bytes).epoch), n / 3 % 256);
            assert!(open_at(&mut b, now, &bytes).is_ok(), "packet {n} of {rollover:?}");
        }
    }
}

#[test]
fn packets_of_the_epoch_before_are_taken_for_a_while_and_older_ones_never() {
    let (mut a, mut b) = ends(&rolling(2));
    let all: Vec<Vec<u8>> = (0..8).map(|psn| sealed(&mut a, psn)).collect();
    let (at, later) = (NOW, NOW.plus_nanos(1_001));
    assert!(open_at(&mut b, at, &all[0]).is_ok());
    assert!(open_at(&mut b, at, &all[2]).is_ok());
    assert!(open_at(&mut b, at, &all[1]).is_ok(), "overtaken by the next epoch");
    assert!(open_at(&mut b, at, &all[4]).is_ok());
    assert!(open_at(&mut b, at, &all[6]).is_ok());
    assert_eq!(open_at(&mut b, at, &all[3]), Err(Unopened::Epoch), "two epochs old");
    assert_eq!(open_at(&mut b, later, &all[5]), Err(Unopened::Epoch), "out of its time");
    assert!(open_at(&mut b, later, &all[7]).is_ok());
}

#[test]
fn a_receiver_finds_a_sender_that_has_gone_some_epochs_on() {
    let (mut a, mut b) = ends(&rolling(1));
    let all: Vec<Vec<u8>> = (0..40).map(|psn| sealed(&mut a, psn)).collect();
    assert_eq!(open(&mut b, &all[17]), Err(Unopened::Epoch));
    assert!(open(&mut b, &all[16]).is_ok());
    assert!(open(&mut b, &all[15]).is_ok(), "the epoch just before");
    assert_eq!(open(&mut b, &all[14]), Err(Unopened::Epoch));
    assert!(open(&mut b, &all[32]).is_ok());
}

#[test]
fn a_flood_that_names_epochs_ahead_changes_nothing() {
    let (mut a, mut b) = ends(&rolling(4));
    let first = sealed(&mut a, 0);
    for epoch in 0..=u8::MAX {
        for counter in [0, 1, 5_000, SealedHeader::MAX_COUNTER] {
            let mut guess = first.clone();
            guess[20] ^= 1;
            let claimed = SealedHeader { epoch, counter, ..header(&first) };
            claimed.emit(guess.first_chunk_mut().unwrap());
            assert!(open(&mut b, &guess).is_err());
        }
    }
    assert!(open(&mut b, &first).is_ok());
    for psn in 1..200 {
        let bytes = sealed(&mut a, psn);
        assert!(open(&mut b, &bytes).is_ok(), "packet {psn}");
    }
}

#[test]
fn no_nonce_is_used_twice_and_epochs_have_keys_of_their_own() {
    let log = Arc::new(NonceLog::default());
    let config = SealConfig { recorder: Some(log.clone()), ..rolling(10) };
    let (mut a, mut b) = ends(&config);
    for psn in 0..100 {
        sealed(&mut a, psn % 7);
        sealed(&mut b, psn % 7);
    }
    assert_eq!(log.counts(), (200, 20, 0));
    // The log itself can tell.
    let mut again = end(Role::Initiator, &config);
    sealed(&mut again, 0);
    assert_eq!(log.counts(), (200, 20, 1));
}
