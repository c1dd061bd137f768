//! Shared by the tests: hosts with two NICs on loopback, whose links fail on demand.

#![allow(dead_code, unreachable_pub, reason = "every test uses a part of it")]

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bowline_device::{
    BackupSpec, Cq, Device, DeviceSpec, LaneCount, Log, Mode, Mr, Pd, Qp, QpRequest, Rail, Srq,
};
use bowline_io::{EventChannel, Lane, LaneError};
use bowline_nic::{
    Access, Buffer, Completion, Connect, ControlError, MrKey, Payload, PostError, QpType, RecvWr,
    Remote, SendOp, SendWr, Sge,
};
use bowline_wire::{Psn, Qpn};

/// Nothing in the tests takes longer, however busy the machine is.
pub const PATIENCE: Duration = Duration::from_secs(30);
pub const LEN: usize = 1 << 20;
const UDP_PORT: u16 = 14_795;
pub const TOKEN: u64 = 77;

/// A loopback address that no other test uses.
pub fn fresh_addr() -> IpAddr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let pid = std::process::id();
    IpAddr::from([127, 100 + (pid / 250 % 100) as u8, (pid % 250) as u8 + 1, n as u8])
}

/// A separate store for each test.
pub struct TestStore(pub PathBuf);

impl TestStore {
    pub fn new() -> TestStore {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("bowline-device-{}-{n}", std::process::id());
        TestStore(std::env::temp_dir().join(name))
    }

    pub fn url(&self) -> String {
        format!("file://{}", self.0.display())
    }
}

impl Drop for TestStore {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A host: a device with a backup, a domain, a completion queue and memory.
pub struct Host {
    pub device: Arc<Device>,
    pub addr: IpAddr,
    pub pd: Arc<Pd>,
    pub cq: Arc<Cq>,
    pub channel: Arc<EventChannel<u64>>,
    pub memory: Arc<Buffer>,
    pub key: MrKey,
}

/// A connection of a host.
pub struct Conn {
    pub qpn: Qpn,
    pub qp: Qp,
    pub peer_key: u32,
}

impl Host {
    pub fn new(mode: Mode, store: &TestStore) -> Host {
        Host::with_lanes(mode, store, 1)
    }

    pub fn with_lanes(mode: Mode, store: &TestStore, lanes: usize) -> Host {
        let (addr, backup) = (fresh_addr(), fresh_addr());
        let mut spec = DeviceSpec::new("t", addr);
        spec.udp.udp_port = UDP_PORT;
        spec.lanes = lanes.to_string().parse::<LaneCount>().expect("a number");
        spec.backup = Some(BackupSpec {
            addr: backup,
            mode,
            store_url: Some(store.url()),
            job: "test".into(),
        });
        spec.log = Log::new(move |_, message| eprintln!("{addr}: {message}"));
        let device = spec.open().expect("loopback can be bound");
        Host::on(device)
    }

    /// A host around an open device.
    pub fn on(device: Arc<Device>) -> Host {
        let pd = Arc::new(Pd::create(&device).unwrap());
        let channel = Arc::new(EventChannel::new(1 << 16).unwrap());
        let cq = Cq::create(&device, 4096, Some((Arc::clone(&channel), TOKEN))).unwrap();
        let memory = Buffer::new(LEN);
        let access = Access::all() - Access::REMOTE_INVALIDATE;
        // SAFETY: the host keeps the buffer, and drops its device first.
        let mr =
            unsafe { Mr::register_foreign(&pd, memory.addr() as *mut u8, LEN, 0, access).unwrap() };
        let key = mr.key();
        let (addr, cq) = (device.addr(), Arc::new(cq));
        Host { device, addr, pd, cq, channel, memory, key }
    }

    pub fn qp(&self, srq: Option<&Arc<Srq>>) -> Conn {
        let qp = Qp::create(QpRequest {
            qp_type: QpType::Rc,
            pd: Arc::clone(&self.pd),
            send_cq: Arc::clone(&self.cq),
            recv_cq: Arc::clone(&self.cq),
            srq: srq.map(Arc::clone),
            max_send_wr: 256,
            max_recv_wr: 256,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            signal_all: false,
            xrcd: None,
            lane: None,
        });
        let qp = qp.unwrap();
        Conn { qpn: qp.qpn(), qp, peer_key: 0 }
    }

    pub fn srq(&self, max_wr: u32) -> Arc<Srq> {
        Arc::new(Srq::create(&self.pd, max_wr, 1).unwrap())
    }

    /// Whether any connection is on the backup rail.
    pub fn is_split(&self) -> bool {
        self.account().away > 0
    }

    pub fn account(&self) -> bowline_device::Account {
        self.device.failover_account().expect("it has a backup")
    }

    /// Connects with timers that soon give up a path: 2 ms, four times.
    pub fn connect(&self, conn: &mut Conn, peer: &Host, peer_qpn: Qpn) {
        self.connect_within(conn, peer, peer_qpn, 9);
    }

    /// Connects with a timer of 4.096 µs * 2^`timeout`.
    pub fn connect_within(&self, conn: &mut Conn, peer: &Host, peer_qpn: Qpn, timeout: u8) {
        conn.peer_key = peer.key.0;
        let connect = Connect {
            rq_psn: Psn::new(1),
            sq_psn: Psn::new(1),
            min_rnr_timer: 1,
            timeout,
            retry_count: 3,
            ..Connect::new(peer.addr, peer_qpn)
        };
        for attr in connect.steps(QpType::Rc) {
            conn.qp.modify(&attr).unwrap().unwrap();
        }
    }

    pub fn post(
        &self,
        conn: &Conn,
        wr_id: u64,
        op: SendOp,
        at: usize,
        len: usize,
    ) -> Result<(), PostError> {
        let sges = [Sge { addr: at as u64, len: len as u32, lkey: self.key.0 }];
        let wr = SendWr { payload: Payload::Sges(&sges), ..SendWr::new(wr_id, op, &[]) };
        conn.qp
            .post(|nic, now, qpn| away(nic.post_send(now, qpn, &wr)))
            .unwrap()
            .expect("the connection is somewhere")
    }

    pub fn post_recv(&self, conn: &Conn, wr_id: u64, at: usize, len: usize) {
        let sges = [Sge { addr: at as u64, len: len as u32, lkey: self.key.0 }];
        let wr = RecvWr::new(wr_id, &sges);
        conn.qp
            .post(|nic, _, qpn| away(nic.post_recv(qpn, &wr)))
            .unwrap()
            .expect("the connection is somewhere")
            .unwrap();
    }

    pub fn post_srq(&self, srq: &Srq, wr_id: u64, at: usize, len: usize) {
        let sges = [Sge { addr: at as u64, len: len as u32, lkey: self.key.0 }];
        let wr = RecvWr::new(wr_id, &sges);
        srq.post(&wr).unwrap();
    }

    pub fn poll(&self) -> Vec<Completion> {
        let mut out = [Completion::default(); 32];
        let mut filled = 0;
        let count = self.cq.poll::<PollError>(out.len(), |nic, _, cq, room| {
            let got = nic.poll_cq(cq, &mut out[filled..filled + room]).map_err(PollError::Cq)?;
            filled += got;
            Ok(got)
        });
        let count = count.unwrap();
        out[..count].to_vec()
    }

    /// Waits for `count` completions.
    pub fn poll_for(&self, count: usize) -> Vec<Completion> {
        let mut all = Vec::new();
        until(&format!("{count} completions"), || {
            all.extend(self.poll());
            all.len() >= count
        });
        all
    }

    pub fn fault(&self, rail: Rail, what: &str) {
        let request = what.parse().expect("it is a fault");
        let lanes = match rail {
            Rail::Default => self.device.lanes(),
            Rail::Backup => self.device.backup_lanes(),
        };
        let faults = lanes.iter().map(|lane: &Arc<Lane>| lane.faults().expect("it has faults"));
        faults.for_each(|faults| faults.apply(&request));
    }

    pub fn fill(&self, pattern: impl Fn(usize) -> u8) {
        for at in 0..LEN {
            self.memory.fill(at, 1, pattern(at));
        }
    }

    /// Waits until the peers of all connections are known.
    pub fn ready(&self, connections: usize) {
        until("backups", || self.account().ready >= connections);
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // This must precede the release of the memory.
        self.device.shut_down();
    }
}

#[derive(Debug)]
enum PollError {
    #[expect(dead_code, reason = "printed")]
    Lane(LaneError),
    #[expect(dead_code, reason = "printed")]
    Cq(ControlError),
}

impl From<LaneError> for PollError {
    fn from(error: LaneError) -> PollError {
        PollError::Lane(error)
    }
}

/// Converts a result to what [`Qp::post`] expects.
pub fn away(result: Result<(), PostError>) -> Option<Result<(), PostError>> {
    if result == Err(PostError::Away) { None } else { Some(result) }
}

pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "{what} did not come");
        std::thread::yield_now();
    }
}

/// Two hosts with a connection that has a backup.
pub fn pair(mode: Mode, store: &TestStore) -> [(Host, Conn); 2] {
    pair_with_lanes(mode, store, 1)
}

pub fn pair_with_lanes(mode: Mode, store: &TestStore, lanes: usize) -> [(Host, Conn); 2] {
    let [a, b] = [0, 1].map(|_| Host::with_lanes(mode, store, lanes));
    let (mut ca, mut cb) = (a.qp(None), b.qp(None));
    a.connect(&mut ca, &b, cb.qpn);
    b.connect(&mut cb, &a, ca.qpn);
    a.ready(1);
    b.ready(1);
    [(a, ca), (b, cb)]
}

pub fn write(conn: &Conn, at: usize) -> SendOp {
    SendOp::Write(Remote { addr: at as u64, rkey: conn.peer_key })
}

pub fn write_imm(conn: &Conn, at: usize, imm: u32) -> SendOp {
    SendOp::WriteImm(Remote { addr: at as u64, rkey: conn.peer_key }, imm)
}
