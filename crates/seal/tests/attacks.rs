//! Attacks on sealed queue pairs of two engines. Each test fails if the defence it names is
//! removed.

use core::net::IpAddr;
use std::sync::Arc;

use bowline_nic::{
    Access, Buffer, Completion, Connect, CqId, FrameMeta, IpId, MrKey, Nic, NicConfig, OpenPackets,
    PacketSeal, QpAttr, QpInit, QpState, QpType, Region, Remote, SendFlags, SendOp, SendWr, Sge,
    Time, TxBatch, TxCaps, Unopened, WcStatus,
};
use bowline_seal::{NonceLog, Role, SealConfig, SessionSecret, Suite, seal};
use bowline_wire::{Bth, FlowKey, Opcode, Psn, Qpn, ROCE_UDP_PORT, Reth, SealedHeader, icrc_of};

/// More packets than a WRITE that is divided has.
const MEMORY: usize = 160 << 10;
/// What the victim's memory holds before anything is written.
const UNTOUCHED: u8 = 0x5a;

/// An engine with a queue pair and a region.
struct End {
    nic: Nic,
    addr: IpAddr,
    qpn: Qpn,
    cq: CqId,
    key: MrKey,
    memory: Arc<Buffer>,
}

impl End {
    fn new(last: u8, qp_type: QpType) -> End {
        let addr = IpAddr::from([10, 0, 0, last]);
        let mut nic = Nic::new(NicConfig::new(addr, [last; 32])).unwrap();
        let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_cq(64).unwrap());
        let memory = Buffer::new(MEMORY);
        memory.write_at(0, &[UNTOUCHED; MEMORY]);
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let key = nic.register(pd, Region::owned(memory.clone()), 0, rights).unwrap();
        let qpn = nic.create_qp(&QpInit::new(qp_type, pd, cq)).unwrap();
        End { nic, addr, qpn, cq, key, memory }
    }

    fn connect(&mut self, peer: &End) {
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let connect = Connect { access, ..Connect::new(peer.addr, peer.qpn) };
        self.nic.connect(Time::ZERO, self.qpn, &connect).unwrap();
    }

    fn write(&mut self, now: Time, len: u32, to: &End) {
        let sges = [Sge::new(self.key, 0, len)];
        let remote = Remote { addr: 0, rkey: to.key.0 };
        let wr = SendWr::new(1, SendOp::Write(remote), &sges);
        let wr = SendWr { flags: SendFlags::SIGNALED, ..wr };
        self.nic.post_send(now, self.qpn, &wr).unwrap();
    }

    /// What it has to send, in datagrams of one packet.
    fn frames(&mut self, now: Time) -> Vec<Vec<u8>> {
        let mut batch = TxBatch::new(TxCaps::SINGLE, 64);
        let mut frames = Vec::new();
        loop {
            batch.clear();
            self.nic.poll_transmit(now, &mut batch);
            if batch.is_empty() {
                return frames;
            }
            for burst in batch.bursts() {
                frames.extend(batch.packets(burst).iter().map(|p| batch.bytes(p).to_vec()));
            }
        }
    }

    fn meta(&self, from: IpAddr) -> FrameMeta {
        let (src, dst, src_port) = (from, self.addr, ROCE_UDP_PORT);
        FrameMeta { src, dst, src_port, tos: 0, ttl: 64, ip_id: IpId::Known(0) }
    }

    fn take(&mut self, now: Time, from: IpAddr, frame: &[u8]) {
        let meta = self.meta(from);
        self.nic.handle_frame(now, &meta, frame);
    }

    fn completed(&mut self) -> Option<WcStatus> {
        let mut polled = [Completion::default()];
        (self.nic.poll_cq(self.cq, &mut polled).unwrap() == 1).then_some(polled[0].status)
    }

    fn is_untouched(&self) -> bool {
        self.memory.to_vec(0, MEMORY).iter().all(|byte| *byte == UNTOUCHED)
    }
}

fn secret(byte: u8) -> SessionSecret {
    SessionSecret::from_bytes([byte; 32])
}

fn config() -> SealConfig {
    SealConfig::new(Suite::Aegis128X4)
}

fn ends_of(qp_type: QpType) -> [End; 2] {
    let ends = [End::new(1, qp_type), End::new(2, qp_type)];
    ends[0].memory.write_at(0, &[0xc3; MEMORY]);
    ends
}

fn seal_end(end: &mut End, secret: &SessionSecret, role: Role, config: &SealConfig) {
    end.nic.seal_qp(end.qpn, seal(secret, 0, role, config, Time::ZERO)).unwrap();
}

fn join([mut a, mut b]: [End; 2]) -> [End; 2] {
    a.connect(&b);
    b.connect(&a);
    [a, b]
}

fn sealed_by(config: &SealConfig, qp_type: QpType) -> [End; 2] {
    let mut ends = ends_of(qp_type);
    seal_end(&mut ends[0], &secret(1), Role::Initiator, config);
    seal_end(&mut ends[1], &secret(1), Role::Responder, config);
    join(ends)
}

fn sealed() -> [End; 2] {
    sealed_by(&config(), QpType::Rc)
}

/// A WRITE in one packet that is not sealed, with a valid PSN, key and ICRC.
fn plain_write(from: &End, to: &End, opcode: Opcode, psn: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; Bth::LEN];
    Bth::new(opcode, to.qpn, Psn::new(psn)).emit(bytes.first_chunk_mut().unwrap());
    if opcode.info().unwrap().ext.reth.is_some() {
        let mut reth = [0; Reth::LEN];
        Reth { va: 0, rkey: to.key.0, len: payload.len() as u32 }.emit(&mut reth);
        bytes.extend_from_slice(&reth);
    }
    bytes.extend_from_slice(payload);
    let (src_port, dst_port) = (ROCE_UDP_PORT, ROCE_UDP_PORT);
    let flow = FlowKey { src: from.addr, dst: to.addr, src_port, dst_port };
    let icrc = icrc_of(&flow, 0, &bytes);
    bytes.extend_from_slice(&icrc.to_le_bytes());
    bytes
}

/// Exchanges frames until both ends are silent; returns all frames.
fn talk(a: &mut End, b: &mut End, now: Time) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let (there, back) = (a.frames(now), b.frames(now));
        if there.is_empty() && back.is_empty() {
            return all;
        }
        there.iter().for_each(|frame| b.take(now, a.addr, frame));
        back.iter().for_each(|frame| a.take(now, b.addr, frame));
        all.extend(there.into_iter().chain(back));
    }
}

#[test]
fn every_transport_works_sealed_and_nothing_of_it_can_be_read() {
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Xp] {
        let [mut a, mut b] = sealed_by(&config(), qp_type);
        let text = b"nobody else may read this text, which is in the clear otherwise";
        a.memory.write_at(0, text);
        a.write(Time::ZERO, 10_000, &b);
        let frames = talk(&mut a, &mut b, Time::ZERO);
        assert_eq!(a.completed(), Some(WcStatus::Success), "{qp_type:?}");
        assert_eq!(b.memory.to_vec(0, text.len()), text, "{qp_type:?}");
        let rkey = b.key.0.to_be_bytes();
        for frame in &frames {
            assert!(!frame.windows(8).any(|part| text.windows(8).any(|t| t == part)));
            assert!(!frame.windows(4).any(|part| part == rkey));
            assert_eq!(frame[0], Opcode::SEALED.0);
        }
    }
}

#[test]
fn packets_of_a_run_have_one_length() {
    let [mut a, b] = sealed();
    a.write(Time::ZERO, MEMORY as u32, &b);
    let mut batch = TxBatch::new(TxCaps { max_segments: 64, max_burst_bytes: 65_000 }, 64);
    a.nic.poll_transmit(Time::ZERO, &mut batch);
    let longest = batch.bursts().iter().map(|burst| burst.packet_count()).max();
    assert!(longest >= Some(10), "{longest:?}");
}

#[test]
fn a_stolen_rkey_is_worth_nothing_without_the_key() {
    for is_sealed in [false, true] {
        let [a, mut b] = if is_sealed { sealed() } else { join(ends_of(QpType::Rc)) };
        let forged = plain_write(&a, &b, Opcode::RC_WRITE_ONLY, 0, &[0xee; 64]);
        b.take(Time::ZERO, a.addr, &forged);
        assert_eq!(b.is_untouched(), is_sealed);
        assert_eq!(b.nic.counters().drop_unsealed, u64::from(is_sealed));
    }
}

#[test]
fn a_train_of_unsealed_packets_does_not_pass_by() {
    for is_sealed in [false, true] {
        let [a, mut b] = if is_sealed { sealed() } else { join(ends_of(QpType::Rc)) };
        let payload = [0xee; 1024];
        let first = plain_write(&a, &b, Opcode::RC_WRITE_FIRST, 0, &payload);
        let middles = (1..9).map(|psn| plain_write(&a, &b, Opcode::RC_WRITE_MIDDLE, psn, &payload));
        let middles: Vec<u8> = middles.flatten().collect();
        b.take(Time::ZERO, a.addr, &first);
        let meta = b.meta(a.addr);
        b.nic.handle_frames(Time::ZERO, &meta, &middles, middles.len() / 8);
        assert!(b.is_untouched() || !is_sealed);
        let unsealed = b.nic.counters().drop_unsealed;
        assert_eq!(unsealed, if is_sealed { 9 } else { 0 });
    }
}

#[test]
fn nothing_that_was_changed_reaches_memory_not_even_in_part() {
    let [mut a, mut b] = sealed();
    a.write(Time::ZERO, 1024, &b);
    let frames = a.frames(Time::ZERO);
    // The last byte of the tag: everything else decrypts to what was sent.
    for frame in &frames {
        let mut changed = frame.clone();
        let at = changed.len() - 5;
        changed[at] ^= 1;
        b.take(Time::ZERO, a.addr, &changed);
        b.take(Time::ZERO, a.addr, &frame[..frame.len() - 4]);
    }
    assert!(b.is_untouched());
    assert!(b.frames(Time::ZERO).is_empty(), "nobody is answered");
    assert_eq!(b.nic.counters().drop_forged, 2 * frames.len() as u64);
    for frame in &frames {
        b.take(Time::ZERO, a.addr, frame);
    }
    assert_eq!(b.memory.to_vec(0, 1024), [0xc3; 1024]);
}

#[test]
fn frames_that_came_together_are_opened_one_by_one() {
    let [mut a, mut b] = sealed();
    a.write(Time::ZERO, MEMORY as u32, &b);
    let mut frames = a.frames(Time::ZERO);
    let first = frames.remove(0);
    b.take(Time::ZERO, a.addr, &first);
    frames.retain(|frame| frame.len() == frames_len(&first));
    assert!(frames.len() > 40, "{}", frames.len());
    let damaged = 20;
    let mut together = frames.concat();
    together[damaged * frames[0].len() + 100] ^= 1;
    let meta = b.meta(a.addr);
    b.nic.handle_frames(Time::ZERO, &meta, &together, frames[0].len());
    assert_eq!(b.nic.counters().drop_forged, 1);
    // What follows it is out of order.
    let intact = 1024 * (1 + damaged);
    assert_eq!(b.memory.to_vec(0, intact), vec![0xc3; intact]);
    assert_eq!(b.memory.to_vec(intact, 1024), [UNTOUCHED; 1024]);
    assert_eq!(b.nic.counters().rx_packets, 1 + frames.len() as u64);
    assert_eq!(b.nic.counters().rx_bytes, (first.len() + together.len()) as u64);
    talk(&mut a, &mut b, Time::from_millis(500));
    a.nic.handle_timeout(Time::from_millis(500));
    talk(&mut a, &mut b, Time::from_millis(500));
    assert_eq!(a.completed(), Some(WcStatus::Success));
    assert_eq!(b.memory.to_vec(0, MEMORY), vec![0xc3; MEMORY]);
}

/// The length of a sealed packet from the middle of the message that `first` begins.
fn frames_len(first: &[u8]) -> usize {
    first.len() - Reth::LEN
}

/// Accepts everything: a peer may put anything into its own packets.
struct Gullible;

impl OpenPackets for Gullible {
    fn open(&mut self, _now: Time, packet: &[u8], out: &mut [u8]) -> Result<(), Unopened> {
        out.copy_from_slice(&packet[SealedHeader::LEN..][..out.len()]);
        Ok(())
    }
}

#[test]
fn a_packet_is_for_the_queue_pair_whose_key_opened_it_whatever_it_says() {
    let [a, mut b] = ends_of(QpType::Rc);
    let pd = b.nic.alloc_pd().unwrap();
    let other = b.nic.create_qp(&QpInit::new(QpType::Rc, pd, b.cq)).unwrap();
    for qpn in [b.qpn, other] {
        let sealer = seal(&secret(1), 0, Role::Responder, &config(), Time::ZERO).sealer;
        b.nic.seal_qp(qpn, PacketSeal { sealer, opener: Box::new(Gullible) }).unwrap();
        let connect = Connect { access: Access::REMOTE_WRITE, ..Connect::new(a.addr, a.qpn) };
        b.nic.connect(Time::ZERO, qpn, &connect).unwrap();
    }
    let enclose = |outer: Qpn, packet: &[u8]| {
        let mut frame = vec![0; SealedHeader::LEN];
        let header = SealedHeader { dest_qpn: outer, epoch: 0, counter: 0 };
        header.emit(frame.first_chunk_mut().unwrap());
        frame.extend_from_slice(&packet[..packet.len() - 4]);
        frame.extend_from_slice(&[0; 20]);
        frame
    };
    let payload = [0xee; 1024];
    let mut first = plain_write(&a, &b, Opcode::RC_WRITE_FIRST, 0, &payload);
    // The message is longer than its first packet.
    first[Bth::LEN + 12..Bth::LEN + Reth::LEN].copy_from_slice(&(MEMORY as u32).to_be_bytes());
    b.take(Time::ZERO, a.addr, &enclose(b.qpn, &first));
    let written = b.memory.to_vec(0, 1024);
    assert_eq!(written, payload, "the region of the first queue pair can be written to");
    let middles = (1..9).map(|psn| plain_write(&a, &b, Opcode::RC_WRITE_MIDDLE, psn, &payload));
    let together: Vec<u8> = middles.flat_map(|packet| enclose(other, &packet)).collect();
    let meta = b.meta(a.addr);
    b.nic.handle_frames(Time::ZERO, &meta, &together, together.len() / 8);
    assert_eq!(b.memory.to_vec(1024, 8 * 1024), vec![UNTOUCHED; 8 * 1024]);
}

#[test]
fn a_replayed_acknowledgement_or_request_is_refused() {
    let [mut a, mut b] = sealed();
    a.write(Time::ZERO, 64, &b);
    let request = a.frames(Time::ZERO).remove(0);
    b.take(Time::ZERO, a.addr, &request);
    let answer = b.frames(Time::ZERO).remove(0);
    a.take(Time::ZERO, b.addr, &answer);
    for _ in 0..3 {
        b.take(Time::ZERO, a.addr, &request);
        a.take(Time::ZERO, b.addr, &answer);
    }
    assert_eq!(b.nic.counters().drop_replayed, 3);
    assert_eq!(a.nic.counters().drop_replayed, 3);
    assert!(b.frames(Time::ZERO).is_empty(), "a repeated request is not answered");
}

#[test]
fn a_reflected_packet_is_refused() {
    let [mut a, mut b] = sealed();
    a.write(Time::ZERO, 64, &b);
    let mut request = a.frames(Time::ZERO).remove(0);
    let header = SealedHeader::parse(request.first_chunk().unwrap()).unwrap();
    SealedHeader { dest_qpn: a.qpn, ..header }.emit(request.first_chunk_mut().unwrap());
    a.take(Time::ZERO, b.addr, &request);
    assert_eq!(a.nic.counters().drop_forged, 1);
    assert!(b.frames(Time::ZERO).is_empty());
}

#[test]
fn a_wrong_key_opens_nothing() {
    let mut ends = ends_of(QpType::Rc);
    seal_end(&mut ends[0], &secret(1), Role::Initiator, &config());
    seal_end(&mut ends[1], &secret(2), Role::Responder, &config());
    let [mut a, mut b] = join(ends);
    a.write(Time::ZERO, 64, &b);
    talk(&mut a, &mut b, Time::ZERO);
    assert!(b.is_untouched());
    assert_eq!(b.nic.counters().drop_forged, 1);
}

#[test]
fn an_unsealed_queue_pair_takes_no_sealed_packet() {
    let mut ends = ends_of(QpType::Rc);
    seal_end(&mut ends[0], &secret(1), Role::Initiator, &config());
    let [mut a, mut b] = join(ends);
    a.write(Time::ZERO, 64, &b);
    talk(&mut a, &mut b, Time::ZERO);
    assert!(b.is_untouched());
    assert_eq!(b.nic.counters().drop_state, 1);
}

#[test]
fn a_flood_of_guesses_leaves_the_connection_as_it_was() {
    let [mut a, mut b] = sealed();
    let mut random = 1_u64;
    let mut draw = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) as u8
    };
    for guess in 0..20_000_u64 {
        let mut frame = vec![0; 16 + 12 + 100 + 16 + 4];
        frame.iter_mut().for_each(|byte| *byte = draw());
        let (epoch, counter) = (draw() % 20, guess % 5_000);
        let header = SealedHeader { dest_qpn: b.qpn, epoch, counter };
        header.emit(frame.first_chunk_mut().unwrap());
        b.take(Time::ZERO, a.addr, &frame);
    }
    let counters = b.nic.counters();
    assert_eq!(counters.drop_forged + counters.drop_epoch, 20_000);
    assert!(b.is_untouched() && b.frames(Time::ZERO).is_empty());
    a.write(Time::ZERO, 64, &b);
    talk(&mut a, &mut b, Time::ZERO);
    assert_eq!(a.completed(), Some(WcStatus::Success));
}

#[test]
fn what_is_sent_again_has_another_nonce() {
    let log = Arc::new(NonceLog::default());
    let config = SealConfig { recorder: Some(log.clone()), ..config() };
    let [mut a, mut b] = sealed_by(&config, QpType::Rc);
    a.write(Time::ZERO, 20_000, &b);
    let lost = a.frames(Time::ZERO);
    let later = Time::from_millis(500);
    a.nic.handle_timeout(later);
    talk(&mut a, &mut b, later);
    assert_eq!(a.completed(), Some(WcStatus::Success));
    assert!(a.nic.counters().retransmitted_packets >= lost.len() as u64);
    let (nonces, keys, repeated) = log.counts();
    assert!(nonces >= 2 * lost.len() as u64);
    assert_eq!((keys, repeated), (2, 0));
}

#[test]
fn a_queue_pair_is_sealed_before_it_is_connected_and_until_it_is_reset() {
    let [mut a, _b] = sealed();
    let late = seal(&secret(1), 1, Role::Initiator, &config(), Time::ZERO);
    assert!(a.nic.seal_qp(a.qpn, late).is_err());
    assert!(a.nic.is_sealed(a.qpn));
    let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
    a.nic.modify_qp(Time::ZERO, a.qpn, &reset).unwrap();
    assert!(!a.nic.is_sealed(a.qpn));
}
