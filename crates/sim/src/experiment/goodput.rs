//! Goodput and completion times of one reliable connection over one lossy cable.

use std::collections::VecDeque;
use std::sync::Arc;

use bowline_fec::{FecConfig, FecCounters, FecMode, FecShim, FecSnapshot, Pool};
use bowline_link::{Faults, LinkConfig, Loss};
use bowline_nic::{
    Access, Buffer, Completion, Connect, CqId, Mtu, QpInit, QpType, Region, Remote, SendOp, SendWr,
    Sge, Time, WcStatus,
};
use bowline_wire::Qpn;

use super::two_hosts;
use crate::net::LinkId;
use crate::world::{App, NicId, World};

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct GoodputConfig {
    /// Seed of the losses.
    pub seed: u64,
    /// The cable; its delay is half the round trip.
    pub cable: LinkConfig,
    /// Losses of the data direction; acknowledgements are not lost.
    pub loss: Loss,
    /// Later changes of the loss: when, counted from the start of the traffic, and to what.
    pub changes: &'static [(Time, Loss)],
    /// FEC at both ends, if any.
    pub fec: Option<FecMode>,
    /// Path MTU.
    pub mtu: Mtu,
    /// Bytes of one WRITE.
    pub message_bytes: u32,
    /// How many WRITEs.
    pub messages: u32,
    /// WRITEs outstanding.
    pub depth: u32,
    /// Window of the QP.
    pub window_bytes: u32,
    /// Code of the retransmission timeout.
    pub timeout: u8,
}

/// What came out.
#[derive(Clone, Debug, PartialEq)]
pub struct Goodput {
    /// Payload bits per second of virtual time.
    pub bits_per_sec: f64,
    /// Virtual time it took.
    pub time: Time,
    /// Data packets sent, retransmissions included.
    pub packets: u64,
    /// Data packets retransmitted.
    pub retransmitted: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Times from post to completion of each WRITE, in order.
    pub completion_ns: Vec<u64>,
    /// When each WRITE completed, counted from the start of the traffic, and the repairs sent by
    /// then.
    pub progress: Vec<(Time, u64)>,
    /// FEC statistics of both ends together.
    pub fec: FecSnapshot,
}

/// Sends WRITEs over a cable and measures; `None` if the connection gave up.
pub fn goodput(config: &GoodputConfig) -> Option<Goodput> {
    let mut world = two_hosts(config.seed, config.cable);
    let data_link = world
        .link_from(world.host_of(SENDER), world.nic(RECEIVER).config().addr)
        .expect("the pair is routed");
    let faults = Faults { loss: config.loss, ..Faults::default() };
    world.network_mut().link_mut(data_link).set_faults(faults);
    let mut writer = Writer::connect(&mut world, config, data_link);
    // As in programs, both ends have connected before there is traffic.
    let start = Time::from_nanos(config.cable.delay_ns * 8);
    world.wake_at(start, START);
    for (index, (at, _)) in config.changes.iter().enumerate() {
        world.wake_at(start.plus_nanos(at.as_nanos()), index as u64);
    }
    world.run_until(&mut writer, Time::from_nanos(u64::MAX / 2));
    let counters = world.nic(SENDER).counters();
    let bytes = f64::from(config.message_bytes) * f64::from(config.messages);
    let time = Time::from_nanos(world.now().nanos_since(start));
    (writer.done == config.messages).then(|| Goodput {
        bits_per_sec: bytes * 8.0 / time.as_secs_f64(),
        time,
        packets: counters.tx_packets,
        retransmitted: counters.retransmitted_packets,
        timeouts: counters.timeouts,
        completion_ns: writer.completion_ns,
        progress: writer.progress,
        fec: writer.fec.snapshot(),
    })
}

/// Token of the timer that starts the traffic; others are indices of changes.
const START: u64 = u64::MAX;

const SENDER: NicId = NicId(0);
const RECEIVER: NicId = NicId(1);

/// Keeps a number of WRITEs outstanding.
struct Writer<'a> {
    config: &'a GoodputConfig,
    qpn: Qpn,
    cq: CqId,
    sge: Sge,
    remote: Remote,
    data_link: LinkId,
    start: Option<Time>,
    posted_at: VecDeque<Time>,
    completion_ns: Vec<u64>,
    progress: Vec<(Time, u64)>,
    fec: Arc<FecCounters>,
    posted: u32,
    done: u32,
    failed: bool,
}

impl<'a> Writer<'a> {
    fn connect(world: &mut World, config: &'a GoodputConfig, data_link: LinkId) -> Writer<'a> {
        let fec = Arc::<FecCounters>::default();
        let made = [SENDER, RECEIVER].map(|nic| {
            let engine = world.nic_mut(nic);
            let pd = engine.alloc_pd().expect("within the limits");
            let cq = engine.create_cq(config.depth).expect("within the limits");
            let region = Region::owned(Buffer::new(config.message_bytes as usize));
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            let key = engine.register(pd, region, 0, access).expect("within the limits");
            let init = QpInit { max_send_wr: config.depth, ..QpInit::new(QpType::Rc, pd, cq) };
            let qpn = engine.create_qp(&init).expect("within the limits");
            if let Some(mode) = config.fec {
                let shim = FecShim::new(FecConfig::new(mode), Pool::default(), fec.clone());
                engine.add_shim(qpn, Box::new(shim)).expect("the QP is new");
            }
            (qpn, cq, key)
        });
        for (nic, peer, qpn, peer_qpn) in
            [(SENDER, RECEIVER, made[0].0, made[1].0), (RECEIVER, SENDER, made[1].0, made[0].0)]
        {
            let dst = world.nic(peer).config().addr;
            bring_up(world, nic, qpn, peer_qpn, dst, config);
        }
        let (_, _, remote_key) = made[1];
        let (qpn, cq, key) = made[0];
        Writer {
            config,
            qpn,
            cq,
            sge: Sge::new(key, 0, config.message_bytes),
            remote: Remote { addr: 0, rkey: remote_key.0 },
            data_link,
            start: None,
            posted_at: VecDeque::new(),
            completion_ns: Vec::new(),
            progress: Vec::new(),
            fec,
            posted: 0,
            done: 0,
            failed: false,
        }
    }

    fn post(&mut self, world: &mut World) -> bool {
        let mut any = false;
        if self.start.is_none() {
            return any;
        }
        while self.posted < self.config.messages && self.posted - self.done < self.config.depth {
            let now = world.now();
            let sges = [self.sge];
            let wr = SendWr::new(self.posted.into(), SendOp::Write(self.remote), &sges);
            if world.nic_mut(SENDER).post_send(now, self.qpn, &wr).is_err() {
                self.failed = true;
                return any;
            }
            self.posted_at.push_back(now);
            self.posted += 1;
            any = true;
        }
        any
    }
}

fn bring_up(
    world: &mut World,
    nic: NicId,
    qpn: Qpn,
    peer: Qpn,
    dst: core::net::IpAddr,
    config: &GoodputConfig,
) {
    let now = world.now();
    let engine = world.nic_mut(nic);
    let connect = Connect {
        path_mtu: config.mtu,
        min_rnr_timer: 1,
        timeout: config.timeout,
        ..Connect::new(dst, peer)
    };
    engine.connect(now, qpn, &connect).expect("legal transitions");
    engine.set_window(qpn, config.window_bytes).expect("the QP exists");
}

impl App for Writer<'_> {
    fn on_timer(&mut self, world: &mut World, token: u64) {
        match self.config.changes.get(token as usize).filter(|_| token != START) {
            Some((_, loss)) => {
                let faults = Faults { loss: *loss, ..Faults::default() };
                world.network_mut().link_mut(self.data_link).set_faults(faults);
            }
            None => self.start = Some(world.now()),
        }
    }

    fn on_activity(&mut self, world: &mut World, nic: NicId) -> bool {
        if nic != SENDER {
            return false;
        }
        let mut polled = [Completion::default(); 16];
        let count = world.poll_nic(SENDER).poll_cq(self.cq, &mut polled).expect("the queue exists");
        for completion in &polled[..count] {
            self.failed |= completion.status != WcStatus::Success;
            self.done += 1;
            let (now, start) = (world.now(), self.start.unwrap_or(Time::ZERO));
            let posted = self.posted_at.pop_front().unwrap_or(now);
            self.completion_ns.push(now.nanos_since(posted));
            let since = Time::from_nanos(now.nanos_since(start));
            self.progress.push((since, self.fec.snapshot().repairs_sent));
        }
        if self.failed {
            return false;
        }
        self.post(world) || count > 0
    }

    fn is_finished(&self, _world: &World) -> bool {
        self.failed || self.done == self.config.messages
    }
}
