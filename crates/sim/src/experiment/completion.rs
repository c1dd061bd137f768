//! Completion time of one reliable message over a long lossy cable.

use bowline_nic::{Access, AddressVector, Buffer, Region, Time};
use bowline_sdr::{
    ReliableConfig, ReliableEvent, ReliableQp, ReliableStats, SdrConfig, Source, WriteOptions,
};

use super::two_hosts;
use crate::net::{Faults, LinkConfig, Loss};
use crate::rng::Prob;
use crate::world::{App, NicId, World};

/// What is measured.
#[derive(Clone, Debug)]
pub struct CompletionConfig {
    /// Seed of the losses.
    pub seed: u64,
    /// The cable; its delay is half the round trip.
    pub cable: LinkConfig,
    /// Probability that a packet is lost, in either direction, control messages included.
    pub packet_loss: f64,
    /// Bytes of the message.
    pub bytes: u64,
    /// The connection.
    pub reliable: ReliableConfig,
    /// Index of the message's scheme.
    pub scheme: usize,
}

/// What came out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompletionTime {
    /// From the write until the sender knows that all of it has arrived.
    pub time_ns: u64,
    /// What the sender has done.
    pub sender: ReliableStats,
    /// What the receiver has done.
    pub receiver: ReliableStats,
}

impl CompletionConfig {
    /// A message over a cable of that rate and round trip, paced to the rate.
    pub fn new(bytes: u64, bits_per_sec: u64, rtt_ns: u64) -> CompletionConfig {
        let cable = LinkConfig {
            bandwidth_bps: bits_per_sec,
            delay_ns: rtt_ns / 2,
            queue_bytes: 256 << 20,
            ecn: None,
        };
        let sdr = SdrConfig { rate_bps: Some(bits_per_sec), ..SdrConfig::default() };
        let reliable = ReliableConfig { sdr, max_write: bytes, ..ReliableConfig::default() };
        CompletionConfig { seed: 0, cable, packet_loss: 0.0, bytes, reliable, scheme: 0 }
    }

    /// Loses chunks with this probability, by losing their packets.
    pub fn set_chunk_loss(&mut self, chunk_loss: f64) {
        let packets = self.reliable.sdr.chunk_bytes / self.reliable.sdr.mtu.bytes();
        self.packet_loss = 1.0 - (1.0 - chunk_loss).powf(1.0 / f64::from(packets));
    }

    /// What a message takes at least: its time on the wire and a round trip.
    pub fn ideal_ns(&self) -> f64 {
        let wire_ns = self.bytes as f64 * 8e9 / self.cable.bandwidth_bps as f64;
        wire_ns + 2.0 * self.cable.delay_ns as f64
    }
}

/// Writes one message whose receive is posted already; `None` if the write failed.
pub fn completion(config: &CompletionConfig) -> Option<CompletionTime> {
    let mut world = two_hosts(config.seed, config.cable);
    let mut app = Transfer::connect(&mut world, config);
    // The path is known and the receive posted before losses begin.
    let start = Time::from_nanos(config.cable.delay_ns * 8);
    world.run_until(&mut app, start);
    let faults = Faults { loss: Loss::Iid(Prob::new(config.packet_loss)), ..Faults::default() };
    for cable in world.network().cables() {
        world.network_mut().link_mut(cable).set_faults(faults);
    }
    app.write(&mut world, config);
    world.run_until(&mut app, Time::from_nanos(u64::MAX / 2));
    let time_ns = app.written?.nanos_since(start);
    let [sender, receiver] = app.ends.each_ref().map(|end| end.qp.stats());
    Some(CompletionTime { time_ns, sender, receiver })
}

const SENDER: NicId = NicId(0);
const RECEIVER: NicId = NicId(1);

struct End {
    qp: ReliableQp,
    buffer: Source,
    /// What had happened when the end was last driven: it is not, unless there is news.
    seen: (u64, u64, u64, u64),
    wakes: u64,
    armed: Time,
}

/// One message from one end to the other.
struct Transfer {
    ends: [End; 2],
    /// When the sender knew that all had arrived.
    written: Option<Time>,
    failed: bool,
}

impl Transfer {
    fn connect(world: &mut World, config: &CompletionConfig) -> Transfer {
        let mut ends = [SENDER, RECEIVER].map(|nic| {
            let nic = world.nic_mut(nic);
            let pd = nic.alloc_pd().expect("within the limits");
            let region = Region::owned(Buffer::new(config.bytes as usize));
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            let key = nic.register(pd, region, 0, access).expect("within the limits");
            let qp = ReliableQp::new(nic, pd, &config.reliable).expect("legal parameters");
            let buffer = Source { key, addr: 0 };
            End { qp, buffer, seen: (u64::MAX, 0, 0, 0), wakes: 0, armed: Time::NEVER }
        });
        let infos = ends.each_ref().map(|end| end.qp.info());
        for (i, end) in ends.iter_mut().enumerate() {
            let av = AddressVector::new(world.nic(NicId(1 - i)).config().addr);
            let now = world.now();
            let connected = end.qp.connect(world.nic_mut(NicId(i)), now, av, &infos[1 - i]);
            connected.expect("both ends are alike");
        }
        let (now, receiver) = (world.now(), &mut ends[1]);
        let posted = receiver.qp.recv(world.nic_mut(RECEIVER), now, receiver.buffer, config.bytes);
        posted.expect("there is room for one");
        Transfer { ends, written: None, failed: false }
    }

    fn write(&mut self, world: &mut World, config: &CompletionConfig) {
        let (now, sender) = (world.now(), &mut self.ends[0]);
        let options = WriteOptions { scheme: config.scheme, imm: None };
        let nic = world.nic_mut(SENDER);
        let written = sender.qp.write(nic, now, sender.buffer, config.bytes, options);
        self.failed = written.is_err();
        sender.wakes += 1;
    }
}

impl App for Transfer {
    fn on_timer(&mut self, _world: &mut World, token: u64) {
        let end = &mut self.ends[token as usize];
        end.wakes += 1;
        end.armed = Time::NEVER;
    }

    fn on_activity(&mut self, world: &mut World, nic: NicId) -> bool {
        let end = &mut self.ends[nic.0];
        let stats = world.stats();
        let seen = (stats.delivered, stats.timeouts, stats.sent, end.wakes);
        if std::mem::replace(&mut end.seen, seen) == seen {
            return false;
        }
        let now = world.now();
        end.qp.drive(world.nic_mut(nic), now);
        while let Some(event) = end.qp.poll_event() {
            match event {
                ReliableEvent::Written { result: Ok(()), .. } => self.written = Some(now),
                ReliableEvent::Received { result: Ok(()), .. } => {}
                _ => self.failed = true,
            }
        }
        if let Some(at) = end.qp.poll_timeout()
            && at < end.armed
        {
            end.armed = at;
            world.wake_at(at, nic.0 as u64);
        }
        true
    }

    fn is_finished(&self, _world: &World) -> bool {
        self.failed || self.written.is_some()
    }
}
