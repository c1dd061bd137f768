//! Frames handled together have the same effect as one by one, whatever happened to them on the
//! way.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use bowline_fec::{Fec, FecConfig, FecMode};
use bowline_nic::{
    Access, Buffer, Completion, Connect, CqId, FrameMeta, IpId, MrKey, Mtu, Nic, NicConfig, QpInit,
    QpType, RecvWr, Region, Remote, SendOp, SendWr, Sge, Time, TxBatch, TxCaps,
};
use bowline_wire::{Psn, Qpn};
use proptest::prelude::*;

const MEMORY: usize = 256 << 10;
const MTU: usize = 256;
const RECEIVES: u64 = 64;

/// Without IPv4 identifications only the PSNs distinguish the frames of a message.
#[derive(Clone, Copy, Debug)]
enum Ip {
    V4,
    V6,
}

impl Ip {
    fn addr(self, i: u8) -> IpAddr {
        match self {
            Ip::V4 => Ipv4Addr::new(10, 0, 0, i).into(),
            Ip::V6 => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, i.into()).into(),
        }
    }

    fn meta(self, from: u8, to: u8, marked: bool) -> FrameMeta {
        FrameMeta {
            src: self.addr(from),
            dst: self.addr(to),
            src_port: 4791,
            tos: if marked { 3 } else { 0 },
            ttl: 64,
            ip_id: match self {
                Ip::V4 => IpId::Guess(0),
                Ip::V6 => IpId::Known(0),
            },
        }
    }
}

struct End {
    nic: Nic,
    qpn: Qpn,
    cq: CqId,
    key: MrKey,
    memory: Arc<Buffer>,
}

impl End {
    /// Two ends with the same number are identical.
    fn new(i: u8, ip: Ip, qp_type: QpType, fec: FecMode) -> End {
        let mut nic = Nic::new(NicConfig::new(ip.addr(i), [i; 32])).unwrap();
        if fec != FecMode::Off {
            Fec::new(FecConfig::new(fec)).install(&mut nic);
        }
        let pd = nic.alloc_pd().unwrap();
        let cq = nic.create_cq(4096).unwrap();
        let mut init = QpInit::new(qp_type, pd, cq);
        init.max_recv_wr = RECEIVES as u32;
        let qpn = nic.create_qp(&init).unwrap();
        let memory = Buffer::new(MEMORY);
        let region = Region::owned(Arc::clone(&memory));
        let key = nic.register(pd, region, 0, Access::all()).unwrap();
        End { nic, qpn, cq, key, memory }
    }

    fn connect(&mut self, peer: IpAddr, dest: Qpn) {
        // PSNs come around while the test goes on.
        let psn = Psn::new(0x00ff_ff80);
        let connect = Connect {
            path_mtu: Mtu::B256,
            rq_psn: psn,
            sq_psn: psn,
            max_dest_rd_atomic: 4,
            max_rd_atomic: 4,
            min_rnr_timer: 1,
            timeout: 8,
            ..Connect::new(peer, dest)
        };
        self.nic.connect(Time::ZERO, self.qpn, &connect).unwrap();
    }

    fn completions(&mut self) -> Vec<Completion> {
        let mut all = Vec::new();
        let mut some = [Completion::default(); 32];
        loop {
            let count = self.nic.poll_cq(self.cq, &mut some).unwrap();
            if count == 0 {
                return all;
            }
            all.extend_from_slice(&some[..count]);
        }
    }

    fn memory(&self) -> Vec<u8> {
        let mut bytes = vec![0; MEMORY];
        self.memory.read_at(0, &mut bytes);
        bytes
    }
}

/// A datagram: its frames, their length, and whether a switch marked it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Datagram {
    frames: Vec<Vec<u8>>,
    frame_len: usize,
    marked: bool,
}

/// All that an end has to send.
fn transmit(end: &mut End, now: Time) -> Vec<Datagram> {
    let mut batch = TxBatch::new(TxCaps { max_segments: 64, max_burst_bytes: 65_000 }, 128);
    let mut all = Vec::new();
    loop {
        batch.clear();
        end.nic.poll_transmit(now, &mut batch);
        if batch.is_empty() {
            return all;
        }
        all.extend(batch.bursts().iter().map(|burst| Datagram {
            frames: batch.packets(burst).iter().map(|p| batch.bytes(p).to_vec()).collect(),
            frame_len: burst.segment_len as usize,
            marked: false,
        }));
    }
}

fn together(nic: &mut Nic, now: Time, meta: FrameMeta, datagram: &Datagram) {
    nic.handle_frames(now, &meta, &datagram.frames.concat(), datagram.frame_len);
}

fn one_by_one(nic: &mut Nic, now: Time, mut meta: FrameMeta, datagram: &Datagram) {
    for frame in datagram.frames.concat().chunks(datagram.frame_len) {
        nic.handle_frame(now, &meta, frame);
        meta.ip_id.skip(1);
    }
}

/// What happens to a datagram on its way.
#[derive(Clone, Debug)]
enum Fate {
    Arrives,
    Lost,
    /// Some of its frames do not arrive.
    Holes(u64),
    /// One bit of one frame is wrong.
    Corrupt(prop::sample::Index, prop::sample::Index, u8),
    Twice,
    Marked,
    Swapped(prop::sample::Index, prop::sample::Index),
    /// Its frames are split at the wrong length.
    Misread(usize),
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        6 => Just(Fate::Arrives),
        1 => Just(Fate::Lost),
        1 => any::<u64>().prop_map(Fate::Holes),
        2 => (any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..8u8)
            .prop_map(|(frame, byte, bit)| Fate::Corrupt(frame, byte, bit)),
        1 => Just(Fate::Twice),
        1 => Just(Fate::Marked),
        1 => (any::<prop::sample::Index>(), any::<prop::sample::Index>())
            .prop_map(|(a, b)| Fate::Swapped(a, b)),
        1 => (1..600usize).prop_map(Fate::Misread),
    ]
}

fn befall(fate: &Fate, mut datagram: Datagram) -> Vec<Datagram> {
    let count = datagram.frames.len();
    match fate {
        Fate::Arrives => {}
        Fate::Lost => return Vec::new(),
        Fate::Holes(kept) => {
            let mut at = 0;
            datagram.frames.retain(|_| {
                at += 1;
                kept >> (at % 64) & 1 == 1
            });
        }
        Fate::Corrupt(frame, byte, bit) => {
            let frame = &mut datagram.frames[frame.index(count)];
            let at = byte.index(frame.len());
            frame[at] ^= 1 << bit;
        }
        Fate::Twice => return vec![datagram.clone(), datagram],
        Fate::Marked => datagram.marked = true,
        Fate::Swapped(a, b) => {
            // Only the last may be shorter, and stays where it is.
            if count > 2 {
                datagram.frames.swap(a.index(count - 1), b.index(count - 1));
            }
        }
        Fate::Misread(frame_len) => datagram.frame_len = *frame_len,
    }
    vec![datagram]
}

/// A message: a WRITE or a SEND, and how long.
type Message = (bool, usize);

fn play(ip: Ip, qp_type: QpType, fec: FecMode, messages: &[Message], fates: &[Fate]) {
    let mut sender = End::new(1, ip, qp_type, fec);
    let mut receivers = [(); 2].map(|()| End::new(2, ip, qp_type, fec));
    sender.connect(ip.addr(2), receivers[0].qpn);
    let pattern: Vec<u8> = (0..MEMORY).map(|i| (i * 7 + i / 251) as u8).collect();
    sender.memory.write_at(0, &pattern);
    for receiver in &mut receivers {
        receiver.connect(ip.addr(1), sender.qpn);
        for wr_id in 0..RECEIVES {
            let sges = [Sge::new(receiver.key, 0, MEMORY as u32)];
            receiver.nic.post_recv(receiver.qpn, &RecvWr::new(wr_id, &sges)).unwrap();
        }
    }
    let mut now = Time::from_millis(1);
    let (mut to_post, mut fates) = (messages.iter().enumerate(), fates.iter());
    for round in 0..100 {
        // Shims find each other with the first message.
        if round % 8 == 0
            && let Some((i, (is_write, len))) = to_post.next()
        {
            let sges = [Sge::new(sender.key, 0, *len as u32)];
            let remote = Remote { addr: 0, rkey: receivers[0].key.0 };
            let op = if *is_write { SendOp::Write(remote) } else { SendOp::Send };
            sender.nic.post_send(now, sender.qpn, &SendWr::new(i as u64, op, &sges)).unwrap();
        }
        for datagram in transmit(&mut sender, now) {
            // After the listed fates everything goes well.
            let fate = if round < 8 { None } else { fates.next() };
            for datagram in befall(fate.unwrap_or(&Fate::Arrives), datagram) {
                let meta = ip.meta(1, 2, datagram.marked);
                together(&mut receivers[0].nic, now, meta, &datagram);
                one_by_one(&mut receivers[1].nic, now, meta, &datagram);
            }
        }
        let [answers, same] = receivers.each_mut().map(|end| transmit(end, now));
        assert_eq!(answers, same, "answers");
        for answer in &answers {
            together(&mut sender.nic, now, ip.meta(2, 1, false), answer);
        }
        now = now.plus_nanos(300_000);
        sender.nic.handle_timeout(now);
        for receiver in &mut receivers {
            receiver.nic.handle_timeout(now);
        }
    }
    let [done, same] = receivers.each_mut().map(End::completions);
    assert_eq!(format!("{done:?}"), format!("{same:?}"), "completions");
    let [counters, same] = receivers.each_ref().map(|end| format!("{:?}", end.nic.counters()));
    assert_eq!(counters, same, "counters");
    let [memory, same] = receivers.each_ref().map(End::memory);
    assert!(memory == same, "memory");
    if qp_type == QpType::Rc {
        assert_eq!(sender.completions().len(), messages.len(), "all went well in the end");
        let longest = messages.iter().map(|(_, len)| *len).max().unwrap_or(0);
        assert!(memory[..longest] == pattern[..longest], "what was sent has arrived");
    }
}

fn messages() -> impl Strategy<Value = Vec<Message>> {
    prop::collection::vec((any::<bool>(), 1..100 * MTU), 2..7)
}

fn ip() -> impl Strategy<Value = Ip> {
    prop::sample::select(vec![Ip::V4, Ip::V6])
}

fn fates() -> impl Strategy<Value = Vec<Fate>> {
    prop::collection::vec(fate(), 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn rc(ip in ip(), messages in messages(), fates in fates()) {
        play(ip, QpType::Rc, FecMode::Off, &messages, &fates);
    }

    #[test]
    fn rc_with_fec(
        ip in ip(),
        messages in messages(),
        fates in fates(),
        code in prop::sample::select(vec!["8,1", "32,1", "16,4"]),
    ) {
        play(ip, QpType::Rc, code.parse().unwrap(), &messages, &fates);
    }

    #[test]
    fn uc(ip in ip(), messages in messages(), fates in fates()) {
        play(ip, QpType::Uc, FecMode::Off, &messages, &fates);
    }

    #[test]
    fn uc_with_fec(ip in ip(), messages in messages(), fates in fates()) {
        play(ip, QpType::Uc, "8,1".parse().unwrap(), &messages, &fates);
    }
}
