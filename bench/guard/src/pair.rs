//! One connection between two engines in memory. What is counted happens in functions of its own,
//! whose names are given to callgrind: the steps of a WRITE are `post_side`, `send_side`,
//! `receive_side`, `answer_side`, `answered_side` and `poll_side`.

use core::net::IpAddr;

use bowline_fec::{Fec, FecConfig, FecMode};
use bowline_nic::{
    Access, Buffer, Completion, Connect, CqId, FrameMeta, IpId, MrKey, Mtu, Nic, NicConfig, QpInit,
    QpType, Region, Remote, SendOp, SendWr, Sge, Time, TxBatch, TxCaps,
};
use bowline_wire::Qpn;

/// The counted steps, in their order. They are called for nothing else.
mod counted {
    use std::hint::black_box;

    use bowline_nic::{Completion, CqId, FrameMeta, Nic, SendWr, Time, TxBatch};
    use bowline_wire::Qpn;

    /// The application posts.
    #[inline(never)]
    pub(super) fn post_side(nic: &mut Nic, now: Time, qpn: Qpn, wr: &SendWr<'_>) {
        black_box(nic).post_send(now, qpn, wr).expect("the queue has room");
    }

    /// The requester sends data.
    #[inline(never)]
    pub(super) fn send_side(nic: &mut Nic, now: Time, batch: &mut TxBatch) {
        black_box(nic).poll_transmit(now, batch);
    }

    /// The responder takes a burst of data.
    #[inline(never)]
    pub(super) fn receive_side(
        nic: &mut Nic,
        now: Time,
        meta: &FrameMeta,
        burst: &[u8],
        frame_len: usize,
    ) {
        black_box(nic).handle_frames(now, meta, burst, frame_len);
    }

    /// The responder sends its answers.
    #[inline(never)]
    pub(super) fn answer_side(nic: &mut Nic, now: Time, batch: &mut TxBatch) {
        black_box(nic).poll_transmit(now, batch);
        // Without this it would be the same code as `send_side`, and one of them.
        black_box("an answer");
    }

    /// The requester takes answers.
    #[inline(never)]
    pub(super) fn answered_side(
        nic: &mut Nic,
        now: Time,
        meta: &FrameMeta,
        burst: &[u8],
        frame_len: usize,
    ) {
        black_box(nic).handle_frames(now, meta, burst, frame_len);
        black_box("answered");
    }

    /// The application polls.
    #[inline(never)]
    pub(super) fn poll_side(nic: &mut Nic, cq: CqId, done: &mut [Completion]) -> usize {
        black_box(nic).poll_cq(cq, done).expect("the queue exists")
    }
}

/// How an engine is asked for packets, and how it is given a burst of them.
type Transmit = fn(&mut Nic, Time, &mut TxBatch);
type Take = fn(&mut Nic, Time, &FrameMeta, &[u8], usize);

const ACCESS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);

struct End {
    nic: Nic,
    qpn: Qpn,
    cq: CqId,
    key: MrKey,
    /// Of what arrives here.
    meta: FrameMeta,
}

impl End {
    fn new(qp_type: QpType, index: u8, memory_bytes: usize, fec: Option<FecMode>) -> End {
        let addr = |i: u8| IpAddr::from([10, 0, 0, i]);
        let mut config = NicConfig::new(addr(index), [index; 32]);
        config.window_bytes = 64 << 20;
        let mut nic = Nic::new(config).expect("legal limits");
        if let Some(mode) = fec {
            Fec::new(FecConfig::new(mode)).install(&mut nic);
        }
        let pd = nic.alloc_pd().expect("within the limits");
        let cq = nic.create_cq(64).expect("within the limits");
        let region = Region::owned(Buffer::new(memory_bytes));
        let key = nic.register(pd, region, 0, ACCESS).expect("within the limits");
        let qpn = nic.create_qp(&QpInit::new(qp_type, pd, cq)).expect("within the limits");
        let meta = FrameMeta {
            src: addr(3 - index),
            dst: addr(index),
            src_port: 4791,
            tos: 0,
            ttl: 64,
            ip_id: IpId::Guess(0),
        };
        End { nic, qpn, cq, key, meta }
    }

    fn connect(&mut self, peer: Qpn, mtu: Mtu) {
        let connect = Connect {
            path_mtu: mtu,
            min_rnr_timer: 1,
            timeout: 18,
            ..Connect::new(self.meta.src, peer)
        };
        self.nic.connect(Time::ZERO, self.qpn, &connect).expect("legal transitions");
    }
}

/// Two ends that are connected, and lose nothing.
pub struct Pair {
    requester: End,
    responder: End,
    now: Time,
    batch: TxBatch,
}

impl Pair {
    /// An RC connection with so much memory at both ends, and FEC under it.
    pub fn new(mtu: Mtu, memory_bytes: usize, fec: Option<FecMode>) -> Pair {
        Pair::of(QpType::Rc, mtu, memory_bytes, fec)
    }

    /// A connection of any connected type.
    pub fn of(qp_type: QpType, mtu: Mtu, memory_bytes: usize, fec: Option<FecMode>) -> Pair {
        let [mut requester, mut responder] =
            [1, 2].map(|index| End::new(qp_type, index, memory_bytes, fec));
        requester.connect(responder.qpn, mtu);
        responder.connect(requester.qpn, mtu);
        let caps = TxCaps { max_segments: 64, max_burst_bytes: 65_000 };
        let batch = TxBatch::new(caps, 256);
        Pair { requester, responder, now: Time::from_millis(1), batch }
    }

    /// Writes so many bytes and waits for the completion, by the counted steps.
    pub fn write(&mut self, bytes: usize) {
        let Pair { requester, responder, now, batch } = self;
        // What timers hold from the message before is over, and not counted.
        *now = now.plus_nanos(100_000_000);
        requester.nic.handle_timeout(*now);
        responder.nic.handle_timeout(*now);
        settle(requester, responder, *now, batch);
        let sges = [Sge::new(requester.key, 0, u32::try_from(bytes).expect("a legal message"))];
        let op = SendOp::Write(Remote { addr: 0, rkey: responder.key.0 });
        let wr = SendWr::new(0, op, &sges);
        counted::post_side(&mut requester.nic, *now, requester.qpn, &wr);
        let (send, receive) = (counted::send_side, counted::receive_side);
        pump(requester, responder, *now, batch, send, receive);
        let (send, receive) = (counted::answer_side, counted::answered_side);
        pump(responder, requester, *now, batch, send, receive);
        settle(requester, responder, *now, batch);
        let mut done = [Completion::default(); 4];
        let polled = counted::poll_side(&mut requester.nic, requester.cq, &mut done);
        assert_eq!(polled, 1, "the message is complete");
    }
}

/// Moves packets in both directions until there are none.
fn settle(a: &mut End, b: &mut End, now: Time, batch: &mut TxBatch) {
    let (send, take): (Transmit, Take) = (Nic::poll_transmit, Nic::handle_frames);
    while pump(a, b, now, batch, send, take) + pump(b, a, now, batch, send, take) > 0 {}
}

/// Moves everything that an end has to send to the other: all of it leaves, then all of it arrives.
fn pump(
    from: &mut End,
    to: &mut End,
    now: Time,
    batch: &mut TxBatch,
    transmit: Transmit,
    take: Take,
) -> usize {
    // Each with the length of its packets.
    let mut bursts: Vec<(Vec<u8>, usize)> = Vec::new();
    loop {
        batch.clear();
        transmit(&mut from.nic, now, batch);
        if batch.is_empty() {
            break;
        }
        let of = |burst| batch.burst_bytes(burst).to_vec();
        bursts.extend(batch.bursts().iter().map(|b| (of(b), b.segment_len as usize)));
    }
    for (burst, frame_len) in &bursts {
        take(&mut to.nic, now, &to.meta, burst, *frame_len);
    }
    bursts.len()
}
