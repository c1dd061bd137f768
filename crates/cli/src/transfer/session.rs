//! An end's NIC, its queue pair, and the memory for segments.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use bowline::{
    Access, Channel, Device, Mr, Mtu, Pd, RateControl, ReliableConfig, ReliableInfo, ReliableQp,
    SdrError,
};

use super::Failure;
use super::args::NicOptions;
use super::control::Event;
use super::digest::BLOCK_BYTES;
use super::message::Offer;
use crate::nic_name::NicName;
use crate::output;

/// Segments in flight at each end: enough for the longest paths at several Gbit/s.
pub(super) const SLOTS: usize = 8;
/// How long a thread that waits for messages may take to notice that it should stop.
const TICK: Duration = Duration::from_millis(5);
/// How long a receiver of a group may be silent: longer than the control connection allows.
const GROUP_TIMEOUT: Duration = Duration::from_secs(90);
/// The unit of retransmission: the bytes that are sent again when one of their packets is lost. At
/// a loss of 1 in 1,000, retransmitting 64 packets would take 6 % of the link, and 4 packets take
/// 0.4 %. With long packets, hosts are faster than links, and fewer packets would cost the ends
/// more than they save.
fn chunk_bytes(mtu: Mtu) -> u32 {
    let packets = if mtu.bytes() > 1024 { 16 } else { 4 };
    packets * mtu.bytes()
}

/// Moves segments.
pub(super) struct Session {
    pub(super) qp: ReliableQp,
    pub(super) mr: Mr,
    slot_bytes: usize,
}

/// What both ends have agreed on before they connect.
#[derive(Clone, Copy, Debug)]
pub(super) struct Agreed<'a> {
    /// The path MTU of the peer's NIC.
    pub(super) mtu_bytes: u32,
    /// Number of lanes that both ends use.
    pub(super) lanes: u16,
    pub(super) scheme: &'a str,
    /// The longest segment, which determines how much memory is registered.
    pub(super) segment_bytes: u32,
}

/// How fast the user allows an end to send.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Speed {
    /// Send at this rate.
    pub(super) rate_bps: Option<u64>,
    /// Send as fast as the path allows, but no faster than this.
    pub(super) max_rate_bps: Option<u64>,
}

/// A NIC without a queue pair.
pub(super) struct Nic {
    device: Device,
    pd: Pd,
}

impl Nic {
    /// Opens a NIC.
    pub(super) fn open(
        name: &NicName,
        options: &NicOptions,
        cc: Option<&RateControl>,
    ) -> Result<Nic, Failure> {
        let via = options.via.unwrap_or_else(|| name.usual_via());
        let builder = name.builder().via(via).lanes(options.lanes);
        let mut builder = builder.notice(output::notice).detail(output::detail);
        if let Some(profile) = &options.link {
            builder = builder.link(profile.clone());
        }
        if let Some(cc) = cc {
            builder = builder.congestion_control(cc.clone());
        }
        let device = builder.open()?;
        let pd = device.alloc_pd()?;
        Ok(Nic { device, pd })
    }

    /// The NIC's path MTU in bytes.
    pub(super) fn mtu_bytes(&self) -> u32 {
        self.device.mtu().bytes()
    }

    /// The NIC's number of lanes. A verbs device has none and counts as one.
    pub(super) fn lanes(&self) -> u16 {
        self.device.lanes().max(1) as u16
    }

    /// Creates a queue pair and connects it to the peer's.
    pub(super) fn connect(
        &self,
        channel: &mut Channel,
        agreed: Agreed<'_>,
        speed: Speed,
    ) -> Result<Session, Failure> {
        let session = self.make(agreed, speed)?;
        // The sender's list tells the receiver that the sender is ready, and the response tells the
        // sender that both are.
        session.qp.join_over(channel)?;
        Ok(session)
    }

    /// Creates a queue pair that is not connected yet.
    pub(super) fn make(&self, agreed: Agreed<'_>, speed: Speed) -> Result<Session, Failure> {
        let lanes = agreed.lanes;
        if !(1..=self.lanes()).contains(&lanes) {
            let why = format!("the peer asks for {lanes} lanes, and this end has {}", self.lanes());
            return Err(why.into());
        }
        let (config, mr, slot_bytes) = self.prepare(agreed, speed)?;
        let qp = ReliableQp::spread(&self.pd, &config, lanes.into())?;
        Ok(Session { qp, mr, slot_bytes })
    }

    /// The information that the peer needs to connect to a queue pair of this NIC.
    pub(super) fn offer(&self, session: &Session) -> Result<Offer, Failure> {
        Ok(Offer { addr: self.device.addr(), info: session.qp.info()?.to_bytes() })
    }

    /// Creates a queue pair and connects it to those of all receivers of a group.
    pub(super) fn connect_group(
        &self,
        channels: &mut [Channel],
        agreed: Agreed<'_>,
        speed: Speed,
    ) -> Result<Session, Failure> {
        let (mut config, mr, slot_bytes) = self.prepare(agreed, speed)?;
        // The control connection detects a dead receiver first, which costs no segment.
        config.timeout_ns = GROUP_TIMEOUT.as_nanos() as u64;
        let qp = ReliableQp::for_group(&self.pd, &config, channels.len())?;
        qp.join_group_over(channels)?;
        Ok(Session { qp, mr, slot_bytes })
    }

    /// The configuration of a queue pair, the memory of the slots, and the bytes of each slot.
    fn prepare(
        &self,
        agreed: Agreed<'_>,
        speed: Speed,
    ) -> Result<(ReliableConfig, Mr, usize), Failure> {
        let Agreed { mtu_bytes, scheme, segment_bytes, .. } = agreed;
        let mtu = Mtu::from_bytes(mtu_bytes.min(self.mtu_bytes()));
        let mtu = mtu.ok_or_else(|| {
            format!(
                "invalid MTU of the peer: {mtu_bytes} bytes; valid are 256, 512, 1024, 2048 and \
                 4096"
            )
        })?;
        let mut config = ReliableConfig { max_write: BLOCK_BYTES, ..ReliableConfig::default() };
        config.sdr.mtu = mtu;
        config.sdr.chunk_bytes = chunk_bytes(mtu);
        config.sdr.rate_bps = speed.rate_bps;
        config.sdr.max_rate_bps = speed.max_rate_bps;
        if !config.schemes[config.scheme(scheme).map_err(bowline::Error::from)?].uses_parity() {
            // Messages without room for parity need fewer slots, and no memory for parity.
            config.m = 0;
        }
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let slot_bytes = (segment_bytes as usize).clamp(1, BLOCK_BYTES as usize);
        let mr = self.pd.register(SLOTS * slot_bytes, access)?;
        Ok((config, mr, slot_bytes))
    }
}

impl Session {
    /// Connects to the queue pair that the peer offers. Returns `false` if only one of the two is
    /// on a verbs device: the other must then change its transport first.
    pub(super) fn join(&self, channel: &Channel, offer: &Offer) -> Result<bool, Failure> {
        let peer = ReliableInfo::from_bytes(&offer.info)?;
        if peer.transport() != self.qp.info()?.transport() {
            return Ok(false);
        }
        self.qp.join(channel, offer.addr, &peer)?;
        Ok(true)
    }

    /// The memory of a slot.
    pub(super) fn slot(&self, slot: usize) -> Range<usize> {
        slot * self.slot_bytes..(slot + 1) * self.slot_bytes
    }

    /// Packets that have landed, without duplicates.
    pub(super) fn landed(&self) -> Result<u64, Failure> {
        let landing = self.qp.stats()?.landing;
        Ok(landing.packets - landing.duplicates - landing.late)
    }

    /// Posts a slot for a future segment. Returns `None` while the next message number still
    /// belongs to an earlier segment that others have overtaken.
    pub(super) fn post(&self, slot: usize) -> Result<Option<bowline::RecvId>, Failure> {
        loop {
            match self.qp.recv(&self.mr, self.slot(slot)) {
                // After many short segments in a row, numbers are quarantined for a moment before
                // they are reused.
                Err(bowline::Error::Sdr(SdrError::Quarantined)) => thread::sleep(TICK),
                Err(bowline::Error::Sdr(SdrError::Full { .. })) => return Ok(None),
                posted => return Ok(Some(posted?)),
            }
        }
    }

    /// Forwards the queue pair's completions as events, until told to stop.
    pub(super) fn watch<P>(&self, events: &Sender<Event<P>>, stop: &AtomicBool) {
        while !stop.load(Ordering::Acquire) {
            let event = match self.qp.wait(TICK) {
                Ok(None) => continue,
                Ok(Some(event)) => Ok(event),
                Err(e) => Err(e),
            };
            let is_last = event.is_err();
            if events.send(Event::Queue(event)).is_err() || is_last {
                return;
            }
        }
    }
}

/// Gives the threads that move packets priority over this one, which computes a lot. The link is
/// idle while a packet waits for its thread to be scheduled.
pub(super) fn yield_to_packets() {
    // Without this the transfer is slower, but still correct.
    let _ = rustix::process::setpriority_process(None, 10);
}

/// Number of threads that read or write files during the transfer.
pub(super) fn workers() -> usize {
    thread::available_parallelism().map_or(2, usize::from).clamp(2, 4)
}
