//! The test rig: frames pass between engines through a function that may change them at will.

use core::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};

use bowline_nic::{
    Access, Buffer, Completion, Connect, CqId, FrameMeta, IpId, MrKey, Mtu, Nic, NicConfig,
    OutPacket, QpInit, QpType, RecvWr, Region, Remote, SendOp, SendWr, Sge, Shim, ShimOut,
    ShimPeer, Time, TransportDescriptor, TxBatch, TxCaps, WcStatus,
};
use bowline_wire::{ICRC_LEN, Opcode, OpcodeSet, PacketView, Psn, Qpn};

use crate::{FecConfig, FecCounters, FecShim, Pool};

pub(super) const MEMORY: usize = 1 << 20;

/// Packets as a transport sent and as the other saw them, without their ICRC.
pub(super) type Tape = Arc<Mutex<Vec<Vec<u8>>>>;

/// Keeps a record of what passes above the shim.
struct Recorder {
    inner: FecShim,
    sent: Tape,
    seen: Tape,
}

impl Shim for Recorder {
    fn max_out(&self) -> usize {
        self.inner.max_out()
    }

    fn started(&mut self, now: Time, peer: &ShimPeer) {
        self.inner.started(now, peer);
    }

    fn stopped(&mut self) {
        self.inner.stopped();
    }

    fn run_len(&self) -> u32 {
        self.inner.run_len()
    }

    fn passed(&mut self, now: Time, out: &mut ShimOut<'_>) -> u32 {
        let run = out.run();
        for packet in run.packets() {
            if run.header(packet)[0] == Opcode::RC_REPAIR.0 {
                // One of the shim's own late packets.
                continue;
            }
            let mut bytes = run.header(packet).to_vec();
            bytes.extend_from_slice(run.payload(packet));
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            self.sent.lock().unwrap().push(bytes);
        }
        self.inner.passed(now, out)
    }

    fn outgoing(&mut self, now: Time, packet: OutPacket<'_>, out: &mut ShimOut<'_>) {
        self.inner.outgoing(now, packet, out);
    }

    fn opcodes(&self, transport: &TransportDescriptor) -> OpcodeSet {
        self.inner.opcodes(transport)
    }

    fn ignores(&mut self, packet: &PacketView<'_>) -> bool {
        self.inner.ignores(packet)
    }

    fn follows(&mut self, packet: &PacketView<'_>) -> bool {
        let follows = self.inner.follows(packet);
        if follows {
            self.seen.lock().unwrap().push(without_icrc(packet));
        }
        follows
    }

    fn incoming(
        &mut self,
        now: Time,
        packet: &PacketView<'_>,
        up: &mut dyn FnMut(&PacketView<'_>),
    ) -> bool {
        let seen = &self.seen;
        self.inner.incoming(now, packet, &mut |packet| {
            seen.lock().unwrap().push(without_icrc(packet));
            up(packet);
        })
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.inner.poll_timeout()
    }

    fn handle_timeout(
        &mut self,
        now: Time,
        out: &mut ShimOut<'_>,
        up: &mut dyn FnMut(&PacketView<'_>),
    ) {
        let seen = &self.seen;
        self.inner.handle_timeout(now, out, &mut |packet| {
            seen.lock().unwrap().push(without_icrc(packet));
            up(packet);
        });
    }
}

fn without_icrc(packet: &PacketView<'_>) -> Vec<u8> {
    let bytes = packet.as_bytes();
    bytes[..bytes.len() - ICRC_LEN].to_vec()
}

pub(super) struct End {
    pub(super) nic: Nic,
    pub(super) qpn: Qpn,
    pub(super) cq: CqId,
    pub(super) key: MrKey,
    pub(super) memory: Arc<Buffer>,
    pub(super) pool: Pool,
    pub(super) counters: Arc<FecCounters>,
    pub(super) sent: Tape,
    pub(super) seen: Tape,
    pub(super) addr: IpAddr,
}

pub(super) struct Rig {
    pub(super) ends: [End; 2],
    pub(super) now: Time,
    batch: TxBatch,
}

/// How long a flight of frames takes.
const FLIGHT_NS: u64 = 50_000;

impl Rig {
    pub(super) fn new(qp_type: QpType, mtu: Mtu, configs: [Option<FecConfig>; 2]) -> Rig {
        Rig::chained(qp_type, mtu, configs, || None, || None)
    }

    /// With a shim inside of FEC's, and one outside.
    pub(super) fn chained(
        qp_type: QpType,
        mtu: Mtu,
        configs: [Option<FecConfig>; 2],
        inside: impl Fn() -> Option<Box<dyn Shim>>,
        outside: impl Fn() -> Option<Box<dyn Shim>>,
    ) -> Rig {
        let ends = [0, 1].map(|i| End::new(i as u8 + 1, qp_type, configs[i], inside(), outside()));
        let caps = TxCaps { max_segments: 16, max_burst_bytes: 65_000 };
        let mut rig = Rig { ends, now: Time::from_millis(1), batch: TxBatch::new(caps, 64) };
        for i in 0..2 {
            let (peer, dst) = (rig.ends[1 - i].qpn, rig.ends[1 - i].addr);
            rig.ends[i].connect(rig.now, mtu, peer, dst);
        }
        rig
    }

    /// Two ends that have found each other.
    pub(super) fn acquainted(qp_type: QpType, mtu: Mtu, config: FecConfig) -> Rig {
        let mut rig = Rig::new(qp_type, mtu, [Some(config); 2]);
        rig.run(|_, _| true);
        assert_eq!(rig.ends[0].counters.snapshot().peers_found, 1);
        assert_eq!(rig.ends[1].counters.snapshot().peers_found, 1);
        rig
    }

    /// All that an end has to send now.
    pub(super) fn flight(&mut self, from: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        loop {
            self.batch.clear();
            self.ends[from].nic.poll_transmit(self.now, &mut self.batch);
            if self.batch.is_empty() {
                return frames;
            }
            for burst in self.batch.bursts() {
                for (id, packet) in self.batch.packets(burst).iter().enumerate() {
                    let mut bytes = vec![id as u8];
                    bytes.extend_from_slice(self.batch.bytes(packet));
                    frames.push(bytes);
                }
            }
        }
    }

    /// Brings a frame (its IP identification, then its bytes) to an end.
    pub(super) fn deliver(&mut self, to: usize, frame: &[u8]) {
        let meta = FrameMeta {
            src: self.ends[1 - to].addr,
            dst: self.ends[to].addr,
            src_port: bowline_wire::ROCE_UDP_PORT,
            tos: 0,
            ttl: 64,
            ip_id: IpId::Known(frame[0].into()),
        };
        self.ends[to].nic.handle_frame(self.now, &meta, &frame[1..]);
    }

    /// Runs until nothing moves; `arrives` says, frame by frame, whether it does.
    pub(super) fn run(&mut self, mut arrives: impl FnMut(usize, &PacketView<'_>) -> bool) {
        self.run_flights(|from, frames| {
            let mut through = frames.to_vec();
            through.retain(|frame| arrives(from, &PacketView::parse(&frame[1..]).unwrap()));
            through
        });
    }

    /// Runs until nothing moves; `wire` turns each flight into what arrives of it.
    pub(super) fn run_flights(&mut self, mut wire: impl FnMut(usize, &[Vec<u8>]) -> Vec<Vec<u8>>) {
        for _ in 0..20_000 {
            let mut moved = false;
            for from in 0..2 {
                let frames = self.flight(from);
                if frames.is_empty() {
                    continue;
                }
                moved = true;
                self.now = self.now.plus_nanos(FLIGHT_NS);
                for frame in wire(from, &frames) {
                    self.deliver(1 - from, &frame);
                }
            }
            if moved {
                continue;
            }
            let next = self.ends.iter().filter_map(|end| end.nic.poll_timeout()).min();
            let Some(at) = next else { return };
            self.now = self.now.max(at);
            for end in &mut self.ends {
                end.nic.handle_timeout(self.now);
            }
        }
        panic!("the engines never come to rest");
    }

    pub(super) fn post(&mut self, from: usize, id: u64, op: SendOp, offset: usize, len: usize) {
        let sge = [Sge::new(self.ends[from].key, offset as u64, len as u32)];
        let wr = SendWr::new(id, op, &sge);
        self.ends[from].nic.post_send(self.now, self.ends[from].qpn, &wr).unwrap();
    }

    pub(super) fn remote(&self, at: usize, offset: usize) -> Remote {
        Remote { addr: offset as u64, rkey: self.ends[at].key.0 }
    }

    pub(super) fn statuses(&mut self, of: usize) -> Vec<(u64, WcStatus)> {
        let mut all = Vec::new();
        let mut polled = [Completion::default(); 16];
        loop {
            let end = &mut self.ends[of];
            let count = end.nic.poll_cq(end.cq, &mut polled).unwrap();
            all.extend(polled[..count].iter().map(|c| (c.wr_id, c.status)));
            if count < polled.len() {
                return all;
            }
        }
    }
}

impl End {
    fn new(
        index: u8,
        qp_type: QpType,
        config: Option<FecConfig>,
        inside: Option<Box<dyn Shim>>,
        outside: Option<Box<dyn Shim>>,
    ) -> End {
        let addr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, index));
        let mut nic = Nic::new(NicConfig::new(addr, [index; 32])).unwrap();
        let pd = nic.alloc_pd().unwrap();
        let cq = nic.create_cq(4096).unwrap();
        let memory = Buffer::new(MEMORY);
        let bytes: Vec<u8> =
            (0..MEMORY as u32).map(|i| (i.wrapping_mul(0x9e37_79b1) >> 24) as u8 ^ index).collect();
        memory.write_at(0, &bytes);
        let key = nic.register(pd, Region::owned(memory.clone()), 0, Access::all()).unwrap();
        let qpn =
            nic.create_qp(&QpInit { max_send_wr: 256, ..QpInit::new(qp_type, pd, cq) }).unwrap();
        let (pool, counters) = (Pool::default(), Arc::<FecCounters>::default());
        let (sent, seen) = (Tape::default(), Tape::default());
        let recorder = config.map(|config| {
            let inner = FecShim::new(config, pool.clone(), counters.clone());
            Box::new(Recorder { inner, sent: sent.clone(), seen: seen.clone() }) as Box<dyn Shim>
        });
        for shim in [inside, recorder, outside].into_iter().flatten() {
            nic.add_shim(qpn, shim).unwrap();
        }
        End { nic, qpn, cq, key, memory, pool, counters, sent, seen, addr }
    }

    fn connect(&mut self, now: Time, mtu: Mtu, dest: Qpn, dst: IpAddr) {
        // PSNs wrap soon.
        let psn = Psn::new(0xff_fff0);
        let connect = Connect {
            path_mtu: mtu,
            rq_psn: psn,
            sq_psn: psn,
            max_dest_rd_atomic: 4,
            max_rd_atomic: 4,
            min_rnr_timer: 1,
            ..Connect::new(dst, dest)
        };
        self.nic.connect(now, self.qpn, &connect).unwrap();
        self.post_receives(64);
    }

    /// Posts receives, all into the upper half of the memory.
    pub(super) fn post_receives(&mut self, count: u64) {
        for id in 0..count {
            let sge = [Sge::new(self.key, (MEMORY / 2) as u64, (MEMORY / 2) as u32)];
            let wr = RecvWr::new(1_000 + id, &sge);
            self.nic.post_recv(self.qpn, &wr).unwrap();
        }
    }
}
