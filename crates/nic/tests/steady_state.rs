//! The cost of a running NIC: nothing per packet, and little per QP.

use core::net::{IpAddr, Ipv4Addr};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use bowline_nic::{
    Access, Buffer, Completion, Connect, CqId, FrameMeta, IpId, MrKey, Nic, NicConfig, QpInit,
    QpType, RecvWr, Region, Remote, SendOp, SendWr, Sge, Time, TxBatch, TxCaps,
};
use bowline_wire::Qpn;

struct Counting;

// Counted per thread: the test runner allocates freely on other threads.
thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static LIVE_BYTES: Cell<i64> = const { Cell::new(0) };
    static PACKETS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: passes every call on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        LIVE_BYTES.set(LIVE_BYTES.get() + layout.size() as i64);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE_BYTES.set(LIVE_BYTES.get() - layout.size() as i64);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn addr(i: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, i))
}

struct Host {
    nic: Nic,
    cq: CqId,
    qpn: Qpn,
    key: MrKey,
    addr: IpAddr,
}

fn host(i: u8, qp_type: QpType) -> Host {
    let mut nic = Nic::new(NicConfig::new(addr(i), [i; 32])).unwrap();
    let pd = nic.alloc_pd().unwrap();
    let cq = nic.create_cq(256).unwrap();
    let qpn = nic.create_qp(&QpInit::new(qp_type, pd, cq)).unwrap();
    let region = Region::owned(Buffer::new(1 << 20));
    let key = nic.register(pd, region, 0, Access::all()).unwrap();
    Host { nic, cq, qpn, key, addr: addr(i) }
}

/// Moves everything that is ready from one host to the other without allocating.
fn exchange(
    from: &mut Host,
    to: &mut Host,
    now: Time,
    batch: &mut TxBatch,
    bytes: &mut Vec<u8>,
) -> u64 {
    let mut packets = 0;
    loop {
        batch.clear();
        from.nic.poll_transmit(now, batch);
        if batch.is_empty() {
            return packets;
        }
        for burst in batch.bursts() {
            for (id, packet) in batch.packets(burst).iter().enumerate() {
                bytes.clear();
                bytes.extend_from_slice(batch.bytes(packet));
                let meta = FrameMeta {
                    src: from.addr,
                    dst: to.addr,
                    src_port: 4791,
                    tos: 0,
                    ttl: 64,
                    ip_id: IpId::Guess(id as u16),
                };
                // Every 97th packet is lost, so that recovery is covered too.
                packets += 1;
                PACKETS.set(PACKETS.get() + 1);
                if !PACKETS.get().is_multiple_of(97) {
                    to.nic.handle_frame(now, &meta, bytes);
                }
            }
        }
    }
}

fn round(
    a: &mut Host,
    b: &mut Host,
    now: &mut Time,
    batch: &mut TxBatch,
    bytes: &mut Vec<u8>,
    qp_type: QpType,
) -> u64 {
    let local = [Sge::new(a.key, 0, 20_000)];
    let recv = [Sge::new(b.key, 500_000, 20_000)];
    let word = [Sge::new(a.key, 100_000, 8)];
    let remote = Remote { addr: 4096, rkey: b.key.0 };
    b.nic.post_recv(b.qpn, &RecvWr::new(1, &recv)).ok();
    b.nic.post_recv(b.qpn, &RecvWr::new(2, &recv)).ok();
    let mut ops = [None; 5];
    ops[0] = Some(SendWr::new(1, SendOp::Write(remote), &local));
    ops[1] = Some(SendWr::new(2, SendOp::Send, &local));
    ops[2] = Some(SendWr::new(3, SendOp::WriteImm(remote, 9), &local));
    if qp_type == QpType::Rc {
        ops[3] = Some(SendWr::new(4, SendOp::Read(remote), &local));
        ops[4] = Some(SendWr::new(5, SendOp::FetchAdd { remote, add: 1 }, &word));
    }
    for wr in ops.iter().flatten() {
        a.nic.post_send(*now, a.qpn, wr).ok();
    }
    let mut packets = 0;
    for _ in 0..200 {
        let moved = exchange(a, b, *now, batch, bytes) + exchange(b, a, *now, batch, bytes);
        packets += moved;
        if moved == 0 {
            let Some(at) = [a.nic.poll_timeout(), b.nic.poll_timeout()].into_iter().flatten().min()
            else {
                break;
            };
            *now = (*now).max(at);
            a.nic.handle_timeout(*now);
            b.nic.handle_timeout(*now);
        }
    }
    let mut completions = [Completion::default(); 16];
    for host in [a, b] {
        while host.nic.poll_cq(host.cq, &mut completions).unwrap() > 0 {}
        while host.nic.poll_event().is_some() {}
    }
    packets
}

#[test]
fn no_allocation_per_packet_in_steady_state() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let (mut a, mut b) = (host(1, qp_type), host(2, qp_type));
        a.nic.connect(Time::ZERO, a.qpn, &Connect::new(b.addr, b.qpn)).unwrap();
        b.nic.connect(Time::ZERO, b.qpn, &Connect::new(a.addr, a.qpn)).unwrap();
        let caps = TxCaps { max_segments: 16, max_burst_bytes: 65_507 };
        let mut batch = TxBatch::new(caps, 64);
        let mut bytes = Vec::with_capacity(9_000);
        let mut now = Time::ZERO;
        for _ in 0..50 {
            round(&mut a, &mut b, &mut now, &mut batch, &mut bytes, qp_type);
        }
        let before = ALLOCATIONS.get();
        let mut packets = 0;
        for _ in 0..500 {
            packets += round(&mut a, &mut b, &mut now, &mut batch, &mut bytes, qp_type);
        }
        let allocations = ALLOCATIONS.get() - before;
        assert!(packets > 20_000, "{qp_type:?} moved only {packets} packets");
        assert_eq!(allocations, 0, "{qp_type:?}: {allocations} allocations for {packets} packets");
        if qp_type == QpType::Rc {
            assert!(a.nic.counters().retransmitted_packets > 100, "losses were recovered from");
        }
    }
}

#[test]
fn ten_thousand_connected_qps_fit_in_200_megabytes() {
    let before = LIVE_BYTES.get();
    let mut nic = Nic::new(NicConfig::new(addr(1), [1; 32])).unwrap();
    let pd = nic.alloc_pd().unwrap();
    let cq = nic.create_cq(1 << 16).unwrap();
    let mut init = QpInit::new(QpType::Rc, pd, cq);
    (init.max_send_wr, init.max_recv_wr) = (128, 128);
    (init.max_send_sge, init.max_recv_sge) = (2, 2);
    for i in 0..10_000u32 {
        let qpn = nic.create_qp(&init).unwrap();
        let peer = addr((i % 200) as u8 + 2);
        nic.connect(Time::ZERO, qpn, &Connect::new(peer, Qpn::new(i + 2))).unwrap();
    }
    let bytes = LIVE_BYTES.get() - before;
    println!("{} bytes a QP", bytes / 10_000);
    assert!(bytes < 200_000_000, "{bytes} bytes for 10,000 QPs with queues of 128");
}
