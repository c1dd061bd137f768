//! What the tests share: hosts with two NICs on loopback, whose links fail on demand.

#![allow(dead_code, unreachable_pub, reason = "every test uses a part of it")]

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bowline_io::{Channel, FaultPort, Lane, LaneConfig, Port, UdpConfig, UdpPort};
use bowline_nic::{
    Access, Buffer, Completion, Connect, CqId, MrKey, Nic, NicConfig, Payload, PdId, PostError,
    QpInit, QpType, RecvWr, Region, Remote, SendFlags, SendOp, SendWr, Sge, SrqId,
};
use bowline_rails::{Connection, CqMirror, Log, Mode, Options, Rail, Rails, SrqMirror};
use bowline_wire::{Psn, Qpn};

/// Nothing in the tests takes longer, on however busy a machine.
pub const PATIENCE: Duration = Duration::from_secs(30);
pub const LEN: usize = 1 << 20;
const UDP_PORT: u16 = 14_795;
pub const TOKEN: u64 = 77;

/// A loopback address that no other test uses.
fn fresh_addr() -> IpAddr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let pid = std::process::id();
    IpAddr::from([127, 100 + (pid / 250 % 100) as u8, (pid % 250) as u8 + 1, n as u8])
}

/// A store of a test's own.
pub struct TestStore(pub PathBuf);

impl TestStore {
    pub fn new() -> TestStore {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("bowline-rails-{}-{n}", std::process::id());
        TestStore(std::env::temp_dir().join(name))
    }

    fn url(&self) -> String {
        format!("file://{}", self.0.display())
    }
}

impl Drop for TestStore {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A host: two NICs as one, a domain, a completion queue and memory.
pub struct Host {
    pub rails: Arc<Rails>,
    pub addr: IpAddr,
    pub pd: PdId,
    pub cq_id: CqId,
    pub cq: Arc<CqMirror>,
    pub channel: Arc<Channel<u64>>,
    pub memory: Arc<Buffer>,
    pub key: MrKey,
    pub said: Arc<Mutex<Vec<String>>>,
}

/// A connection of a host's.
pub struct Conn {
    pub qpn: Qpn,
    pub connection: Connection,
    pub peer_addr: u64,
    pub peer_key: u32,
}

fn lane(name: &str) -> Arc<Lane> {
    let mut config = UdpConfig::new(fresh_addr());
    config.udp_port = UDP_PORT;
    let port = FaultPort::new(UdpPort::open(&config).expect("loopback can be bound"));
    let caps = port.caps();
    let seed = seed_of(name, caps.addr);
    let mut nic = NicConfig::new(caps.addr, seed);
    nic.udp_port = UDP_PORT;
    nic.peer_udp_port = UDP_PORT;
    let nic = Nic::new(nic).expect("the configuration is right");
    let config = LaneConfig { name: name.into(), ..LaneConfig::default() };
    Lane::start(nic, Box::new(port), config).expect("a thread can be had")
}

/// A seed that differs from lane to lane.
fn seed_of(name: &str, addr: IpAddr) -> [u8; 32] {
    let mut seed = [7; 32];
    for (i, byte) in format!("{name}{addr}").bytes().enumerate() {
        seed[i % 32] ^= byte.rotate_left(i as u32 / 32);
    }
    seed
}

impl Host {
    pub fn new(mode: Mode, store: &TestStore) -> Host {
        Host::with_depth(mode, store, 4096)
    }

    pub fn with_depth(mode: Mode, store: &TestStore, depth: u32) -> Host {
        let lanes = [lane("t-first"), lane("t-backup")];
        let addr = lanes[0].port_caps().addr;
        let said: Arc<Mutex<Vec<String>>> = Arc::default();
        let sink = Arc::clone(&said);
        let log = Log::new(move |_, message| {
            eprintln!("{addr}: {message}");
            sink.lock().unwrap().push(message.to_owned());
        });
        let options = Options {
            mode,
            store_url: store.url(),
            job: "test".into(),
            seed: seed_of("seed", addr),
            log,
        };
        let rails = Rails::start(lanes, options).expect("all is right");
        let first = rails.lane(Rail::Default);
        let pd = first.with(|nic, _| nic.alloc_pd()).unwrap().unwrap();
        rails.shadow_pd(pd).unwrap();
        let cq_id = first.with(|nic, _| nic.create_cq(depth)).unwrap().unwrap();
        let channel = Arc::new(Channel::new(1 << 16).unwrap());
        first.notify_cq(cq_id, Arc::clone(&channel), TOKEN).unwrap();
        let cq = rails.shadow_cq(cq_id, depth, Some((Arc::clone(&channel), TOKEN))).unwrap();
        let memory = Buffer::new(LEN);
        let region = || Some(Region::owned(Arc::clone(&memory)));
        let access = Access::all() - Access::REMOTE_INVALIDATE;
        let key = rails.register(pd, region, 0, access).unwrap();
        Host { rails: Arc::new(rails), addr, pd, cq_id, cq, channel, memory, key, said }
    }

    pub fn qp(&self, srq: Option<SrqId>) -> Conn {
        let mut init = QpInit::new(QpType::Rc, self.pd, self.cq_id);
        init.max_send_wr = 256;
        init.max_recv_wr = 256;
        init.srq = srq;
        let first = self.rails.lane(Rail::Default);
        let qpn = first.with(|nic, _| nic.create_qp(&init)).unwrap().unwrap();
        let connection = self.rails.shadow_qp(qpn, &init).unwrap();
        Conn { qpn, connection, peer_addr: 0, peer_key: 0 }
    }

    pub fn srq(&self, max_wr: u32) -> (SrqId, Arc<SrqMirror>) {
        let first = self.rails.lane(Rail::Default);
        let id = first.with(|nic, _| nic.create_srq(self.pd, max_wr, 1)).unwrap().unwrap();
        (id, self.rails.shadow_srq(id, self.pd, max_wr, 1).unwrap())
    }

    pub fn connect(&self, conn: &mut Conn, peer: &Host, peer_qpn: Qpn) {
        conn.peer_key = peer.key.0;
        let connect = Connect {
            rq_psn: Psn::new(1),
            sq_psn: Psn::new(1),
            min_rnr_timer: 1,
            timeout: 9,
            retry_count: 3,
            ..Connect::new(peer.addr, peer_qpn)
        };
        for attr in connect.steps(QpType::Rc) {
            self.rails
                .control(&conn.connection, |nic, now, qpn| nic.modify_qp(now, qpn, &attr))
                .unwrap()
                .unwrap();
        }
        self.rails.connected(&conn.connection, peer.addr, peer_qpn);
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
        let wr = SendWr {
            wr_id,
            op,
            payload: Payload::Sges(&sges),
            flags: SendFlags::SIGNALED,
            ud: None,
        };
        self.rails
            .post(&conn.connection, |nic, now, qpn| away(nic.post_send(now, qpn, &wr)))
            .unwrap()
            .expect("the connection is somewhere")
    }

    pub fn post_recv(&self, conn: &Conn, wr_id: u64, at: usize, len: usize) {
        let sges = [Sge { addr: at as u64, len: len as u32, lkey: self.key.0 }];
        let wr = RecvWr { wr_id, sges: &sges };
        self.rails
            .post(&conn.connection, |nic, _, qpn| away(nic.post_recv(qpn, &wr)))
            .unwrap()
            .expect("the connection is somewhere")
            .unwrap();
    }

    pub fn post_srq(&self, srq: &SrqMirror, wr_id: u64, at: usize, len: usize) {
        let sges = [Sge { addr: at as u64, len: len as u32, lkey: self.key.0 }];
        let wr = RecvWr { wr_id, sges: &sges };
        srq.post(&self.rails, |nic, srq| nic.post_srq_recv(srq, &wr)).unwrap().unwrap();
    }

    pub fn poll(&self) -> Vec<Completion> {
        let mut out = [Completion::default(); 32];
        let mut filled = 0;
        let count = self
            .cq
            .poll::<bowline_rails::RailsError>(&self.rails, out.len(), |nic, _, cq, room| {
                let got = nic.poll_cq(cq, &mut out[filled..filled + room])?;
                filled += got;
                Ok(got)
            })
            .unwrap();
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
        let faults = self.rails.lane(rail).faults().expect("the port has faults");
        faults.apply(&what.parse().expect("it is a fault"));
    }

    pub fn fill(&self, pattern: impl Fn(usize) -> u8) {
        for at in 0..LEN {
            self.memory.fill(at, 1, pattern(at));
        }
    }

    /// Waits until the peers of all connections are known.
    pub fn ready(&self, connections: usize) {
        until("backups", || self.rails.account().ready >= connections);
    }
}

/// What [`Rails::post`] is to get.
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
    let [a, b] = [0, 1].map(|_| Host::new(mode, store));
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
