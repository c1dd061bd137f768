//! A reliable connection over one cable on virtual time, with messages one after the other.

use bowline_link::{Faults, LinkConfig, Loss, Prob};
use bowline_nic::{Access, AddressVector, Buffer, Region, Time};
use bowline_sdr::{
    Decision, ReliableConfig, ReliableEvent, ReliableQp, ReliableStats, SdrError, Source,
    WriteOptions,
};

use super::two_hosts;
use crate::world::{App, NicId, World};

const SENDER: NicId = NicId(0);
const RECEIVER: NicId = NicId(1);

/// A connection from one host to another.
pub struct Session {
    world: World,
    ends: Ends,
    rtt_ns: u64,
    losses: Losses,
}

/// Loss while a message is in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Losses {
    /// Probability that a packet is lost on the way to the receiver.
    pub forward: f64,
    /// Probability that a packet is lost in the other direction: acknowledgements and the like.
    pub back: f64,
}

impl Losses {
    /// The same in both directions.
    pub fn both(packet_loss: f64) -> Losses {
        Losses { forward: packet_loss, back: packet_loss }
    }
}

impl Session {
    /// Connects; measures the round trip, and posts receives for messages to come.
    ///
    /// # Panics
    /// If the parameters are refused.
    pub fn connect(seed: u64, cable: LinkConfig, reliable: &ReliableConfig) -> Session {
        let mut world = two_hosts(seed, cable);
        let ends = Ends::connect(&mut world, reliable);
        let losses = Losses::default();
        let mut session = Session { world, ends, rtt_ns: 2 * cable.delay_ns, losses };
        session.rest(4);
        session
    }

    /// From now on, packets of messages are lost. Between messages none are.
    pub fn set_losses(&mut self, losses: Losses) {
        self.losses = losses;
    }

    /// Writes a message and waits until the sender knows that all of it has arrived: returns how
    /// long that took, or `None` if the write failed.
    pub fn write(&mut self, bytes: u64, scheme: usize) -> Option<u64> {
        // The receive is posted and the sender knows of it, so that only the message is timed.
        self.rest(1);
        self.set_faults(self.losses);
        let start = self.world.now();
        self.ends.write(&mut self.world, bytes, scheme);
        self.world.run_until(&mut self.ends, Time::from_nanos(u64::MAX / 2));
        self.set_faults(Losses::default());
        Some(self.ends.written.take()?.nanos_since(start))
    }

    /// Waits some round trips.
    fn rest(&mut self, round_trips: u64) {
        let until = self.world.now().plus_nanos(self.rtt_ns * round_trips + 1);
        self.world.run_until(&mut self.ends, until);
    }

    fn set_faults(&mut self, losses: Losses) {
        let cables = self.world.network().cables();
        for (cable, loss) in cables.into_iter().zip([losses.forward, losses.back]) {
            let faults = Faults { loss: Loss::Iid(Prob::new(loss)), ..Faults::default() };
            self.world.network_mut().link_mut(cable).set_faults(faults);
        }
    }

    /// The sender's statistics.
    pub fn sender(&self) -> ReliableStats {
        self.ends.both[0].qp.stats()
    }

    /// The receiver's statistics.
    pub fn receiver(&self) -> ReliableStats {
        self.ends.both[1].qp.stats()
    }

    /// Which schemes the sender has chosen, where it may choose.
    pub fn decisions(&self) -> impl Iterator<Item = &Decision> {
        self.ends.both[0].qp.decisions()
    }
}

struct End {
    qp: ReliableQp,
    buffer: Source,
    /// The state when the end was last driven: it is driven again only if that changes.
    seen: (u64, u64, u64, u64),
    wakes: u64,
    armed: Time,
}

struct Ends {
    both: [End; 2],
    capacity: u64,
    /// Receives to be posted when there is space.
    owed: u32,
    writing: bool,
    /// When the sender knew that everything had arrived.
    written: Option<Time>,
    failed: bool,
}

/// Receives that are kept posted, if there is space for so many.
const RECEIVES: u32 = 4;

impl Ends {
    fn connect(world: &mut World, config: &ReliableConfig) -> Ends {
        let mut both = [SENDER, RECEIVER].map(|nic| {
            let nic = world.nic_mut(nic);
            let pd = nic.alloc_pd().expect("within the limits");
            let region = Region::owned(Buffer::new(config.max_write as usize));
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            let key = nic.register(pd, region, 0, access).expect("within the limits");
            let qp = ReliableQp::new(nic, pd, config).expect("legal parameters");
            let buffer = Source { key, addr: 0 };
            End { qp, buffer, seen: (u64::MAX, 0, 0, 0), wakes: 0, armed: Time::NEVER }
        });
        let infos = both.each_ref().map(|end| end.qp.info());
        for (i, end) in both.iter_mut().enumerate() {
            let av = AddressVector::new(world.nic(NicId(1 - i)).config().addr);
            let now = world.now();
            let connected = end.qp.connect(world.nic_mut(NicId(i)), now, av, &infos[1 - i]);
            connected.expect("both ends are alike");
        }
        let owed = RECEIVES.min(config.max_outstanding());
        let (capacity, failed) = (config.max_write, false);
        let mut ends = Ends { both, capacity, owed, writing: false, written: None, failed };
        ends.post(world);
        ends
    }

    fn post(&mut self, world: &mut World) {
        let now = world.now();
        while self.owed > 0 {
            let End { qp, buffer, .. } = &mut self.both[1];
            match qp.recv(world.nic_mut(RECEIVER), now, *buffer, self.capacity) {
                Ok(_) => self.owed -= 1,
                // Numbers are quarantined for a moment before they are reused.
                Err(SdrError::Quarantined) => return,
                Err(_) => {
                    self.failed = true;
                    return;
                }
            }
        }
    }

    fn write(&mut self, world: &mut World, bytes: u64, scheme: usize) {
        let (now, sender) = (world.now(), &mut self.both[0]);
        let options = WriteOptions { scheme, imm: None };
        let nic = world.nic_mut(SENDER);
        self.failed |= sender.qp.write(nic, now, sender.buffer, bytes, options).is_err();
        self.writing = true;
        sender.wakes += 1;
    }
}

impl App for Ends {
    fn on_timer(&mut self, _world: &mut World, token: u64) {
        let end = &mut self.both[token as usize];
        end.wakes += 1;
        end.armed = Time::NEVER;
    }

    fn on_activity(&mut self, world: &mut World, nic: NicId) -> bool {
        let end = &mut self.both[nic.0];
        let stats = world.stats();
        let seen = (stats.delivered, stats.timeouts, stats.sent, end.wakes);
        if std::mem::replace(&mut end.seen, seen) == seen {
            return false;
        }
        let now = world.now();
        end.qp.drive(world.nic_mut(nic), now);
        while let Some(event) = end.qp.poll_event() {
            match event {
                ReliableEvent::Written { result: Ok(()), .. } => {
                    self.written = Some(now);
                    self.writing = false;
                }
                ReliableEvent::Received { result: Ok(()), .. } => self.owed += 1,
                _ => self.failed = true,
            }
        }
        if nic == RECEIVER {
            self.post(world);
        }
        let end = &mut self.both[nic.0];
        if let Some(at) = end.qp.poll_timeout()
            && at < end.armed
        {
            end.armed = at;
            world.wake_at(at, nic.0 as u64);
        }
        true
    }

    fn is_finished(&self, _world: &World) -> bool {
        self.failed || (self.written.is_some() && !self.writing)
    }
}
