//! Rate control of a connection: one controller for all its QPs, which share a path.
//!
//! The controller lives here, and hears the peer's reports. The QPs follow it: each reads its rate
//! from a shared word, and stops while as much is in flight as the controller allows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use bowline_nic::rate::{Report, ReportMeter};
use bowline_nic::{
    ControlledConnection, ControllerFactory, Feedback, RateController, Rnic, Sent, Time,
};
use bowline_wire::Qpn;

/// Stamps per round trip.
const STAMPS_PER_RTT: u64 = 8;
/// Shortest and longest interval between stamps, and the one used before a round trip is known.
const MIN_STAMP_NS: u64 = 200_000;
const MAX_STAMP_NS: u64 = 500_000_000;
const FIRST_STAMP_NS: u64 = 1_000_000;
/// Stamps without an answer after which they come half as often.
const PATIENCE: u32 = 2 * STAMPS_PER_RTT as u32;
/// A peer that reports nothing for this long, or for this many round trips, has lost everything in
/// flight: TCP's minimum timeout. It doubles each further time.
const SILENCE_NS: u64 = 200_000_000;
const SILENCE_RTTS: u64 = 4;
const MAX_SILENCE_DOUBLINGS: u32 = 6;
/// What may be in flight to a silent peer.
const SILENT_WINDOW_BYTES: u64 = 64 << 10;
/// BTH and ICRC, which a controller does not count as payload.
const HEADER_BYTES: u64 = 16;

/// State that the QPs of a connection share. All are on one NIC, and so in one thread.
#[derive(Debug, Default)]
struct Shared {
    /// Bits per second for each QP; 0 for no limit.
    rate_bps: AtomicU64,
    /// Bytes that may be sent before the next report.
    room: AtomicI64,
    sent_bytes: AtomicU64,
    cnps: AtomicU64,
    wants_ecn: AtomicBool,
}

/// A QP's controller, which follows the connection's.
#[derive(Debug)]
struct Follower(Arc<Shared>);

impl RateController for Follower {
    fn pacing_rate_bps(&mut self, _now: Time) -> Option<u64> {
        if self.0.room.load(Ordering::Relaxed) <= 0 {
            return Some(0);
        }
        Some(self.0.rate_bps.load(Ordering::Relaxed)).filter(|bps| *bps > 0)
    }

    fn wants_ecn(&self) -> bool {
        self.0.wants_ecn.load(Ordering::Relaxed)
    }

    fn on_sent(&mut self, _now: Time, sent: &Sent) {
        let bytes = i64::try_from(sent.bytes).unwrap_or(i64::MAX);
        self.0.room.fetch_sub(bytes, Ordering::Relaxed);
        self.0.sent_bytes.fetch_add(sent.bytes, Ordering::Relaxed);
    }

    fn on_cnp(&mut self, _now: Time) {
        self.0.cnps.fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Followers(Arc<Shared>);

impl ControllerFactory for Followers {
    fn build(&self, _now: Time, _connection: &ControlledConnection) -> Box<dyn RateController> {
        Box::new(Follower(Arc::clone(&self.0)))
    }
}

/// A connection's controller, and its inputs.
#[derive(Debug)]
pub(crate) struct Congestion {
    controller: Box<dyn RateController>,
    meter: ReportMeter,
    shared: Arc<Shared>,
    qpns: Vec<Qpn>,
    channels: u64,
    /// Upper bound of the rate, whatever the controller says.
    max_rate_bps: Option<u64>,
    rtt_ns: Option<u64>,
    /// When the next stamp is due, while something is in flight.
    stamp_at: Option<Time>,
    unanswered: u32,
    silence: Silence,
    told_cnps: u64,
    was_limited: bool,
}

/// How long the peer has not reported on what is in flight.
#[derive(Clone, Copy, Debug)]
struct Silence {
    since: Time,
    /// How many times everything in flight has been written off since.
    written_off: u32,
}

impl Silence {
    fn from(since: Time) -> Silence {
        Silence { since, written_off: 0 }
    }

    /// Whether it has timed out; then the next timeout starts.
    fn is_over(&mut self, now: Time, rtt_ns: Option<u64>) -> bool {
        let limit_ns = rtt_ns.map_or(0, |rtt| rtt.saturating_mul(SILENCE_RTTS)).max(SILENCE_NS);
        let limit_ns = limit_ns << self.written_off.min(MAX_SILENCE_DOUBLINGS);
        let is_over = now.nanos_since(self.since) >= limit_ns;
        if is_over {
            *self = Silence { since: now, written_off: self.written_off + 1 };
        }
        is_over
    }
}

impl Congestion {
    /// Puts a controller from `factory` in charge of QPs, of which `channels` send at a time.
    pub(crate) fn new(
        nic: &mut dyn Rnic,
        now: Time,
        factory: &dyn ControllerFactory,
        connection: &ControlledConnection,
        qpns: Vec<Qpn>,
        channels: u32,
        max_rate_bps: Option<u64>,
    ) -> Result<Congestion, bowline_nic::ControlError> {
        let controller = factory.build(now, connection);
        let shared = Arc::new(Shared::default());
        shared.wants_ecn.store(controller.wants_ecn(), Ordering::Relaxed);
        let mut congestion = Congestion {
            controller,
            meter: ReportMeter::new(connection.mtu.bytes()),
            shared: Arc::clone(&shared),
            qpns,
            channels: channels.into(),
            max_rate_bps,
            rtt_ns: None,
            stamp_at: None,
            unanswered: 0,
            silence: Silence::from(now),
            told_cnps: 0,
            was_limited: true,
        };
        congestion.follow(nic, now);
        for qpn in &congestion.qpns {
            let followers = Arc::new(Followers(Arc::clone(&shared)));
            nic.set_rate_controller(now, *qpn, Some(followers))?;
        }
        Ok(congestion)
    }

    /// Packets that the QPs have sent, and their total bytes.
    fn sent(&self, nic: &dyn Rnic) -> (u64, u64) {
        let counters = self.qpns.iter().filter_map(|qpn| nic.qp_counters(*qpn));
        counters.fold((0, 0), |sum, c| (sum.0 + c.tx_packets, sum.1 + c.tx_bytes))
    }

    /// Accounts for what was sent. `idle` if nothing is waiting to be sent.
    pub(crate) fn drive(&mut self, nic: &mut dyn Rnic, now: Time, idle: bool) {
        let bytes = self.shared.sent_bytes.swap(0, Ordering::Relaxed);
        let (packets, total) = self.sent(nic);
        if bytes > 0 || idle != self.was_limited {
            let mean = total / packets.max(1);
            self.meter.set_packet_bytes(mean.saturating_sub(HEADER_BYTES).max(1));
            let in_flight_bytes = Some(self.meter.in_flight_bytes(packets));
            self.controller.on_sent(now, &Sent { bytes, in_flight_bytes, app_limited: idle });
            self.was_limited = idle;
        }
        let cnps = self.shared.cnps.load(Ordering::Relaxed);
        for _ in self.told_cnps..cnps {
            self.controller.on_cnp(now);
        }
        self.told_cnps = cnps;
        self.write_off_after_silence(now, packets);
        self.follow(nic, now);
        let in_flight = self.meter.in_flight_bytes(packets) > 0;
        self.stamp_at = match self.stamp_at {
            None if in_flight => Some(now),
            at => at.filter(|_| in_flight),
        };
    }

    /// Without this a peer that is gone would block the QPs for ever, and with them the memory of
    /// finished messages.
    fn write_off_after_silence(&mut self, now: Time, packets: u64) {
        if self.meter.in_flight_bytes(packets) == 0 {
            self.silence.since = now;
        } else if self.silence.is_over(now, self.rtt_ns) {
            self.meter.write_off(packets);
        }
    }

    /// Applies the controller's current decision to the QPs, and resumes them if they were stopped.
    fn follow(&mut self, nic: &mut dyn Rnic, now: Time) {
        let rate = self.rate_bps(now).map(|bps| bps / self.channels);
        let mut window = self.controller.window_bytes().unwrap_or(u64::MAX / 4);
        if self.silence.written_off > 0 {
            window = window.min(SILENT_WINDOW_BYTES);
        }
        let in_flight = self.meter.in_flight_bytes(self.sent(nic).0);
        let room = if rate == Some(0) { 0 } else { window.saturating_sub(in_flight) };
        let room = i64::try_from(room).unwrap_or(i64::MAX);
        self.shared.rate_bps.store(rate.unwrap_or(0), Ordering::Relaxed);
        let was_held = self.shared.room.swap(room, Ordering::Relaxed) <= 0;
        if was_held && room > 0 {
            for qpn in &self.qpns {
                // It fails only for a destroyed QP.
                let _ = nic.rate_feedback(now, *qpn, &Feedback::Credit(0));
            }
        }
    }

    /// The current sending rate.
    pub(crate) fn rate_bps(&mut self, now: Time) -> Option<u64> {
        let rate = self.controller.pacing_rate_bps(now);
        match (rate, self.max_rate_bps) {
            (Some(rate), Some(max)) => Some(rate.min(max)),
            (rate, max) => rate.or(max),
        }
    }

    /// When the next stamp is to be sent.
    pub(crate) fn stamp_at(&self) -> Option<Time> {
        self.stamp_at
    }

    /// A stamp is sent now.
    pub(crate) fn on_stamp(&mut self, nic: &dyn Rnic, now: Time) {
        self.meter.on_stamp(now, self.sent(nic).0);
        self.unanswered += 1;
        let interval = match self.rtt_ns {
            Some(rtt_ns) => (rtt_ns / STAMPS_PER_RTT).max(MIN_STAMP_NS),
            None => FIRST_STAMP_NS,
        };
        let patience = (self.unanswered / PATIENCE).min(10);
        self.stamp_at = Some(now.plus_nanos((interval << patience).min(MAX_STAMP_NS)));
    }

    /// The peer has reported.
    pub(crate) fn on_report(&mut self, nic: &mut dyn Rnic, now: Time, report: &Report) {
        let sent = self.sent(nic).0;
        let Some(heard) = self.meter.on_report(now, sent, report) else { return };
        self.unanswered = 0;
        self.silence = Silence::from(now);
        if let Some(rtt) = heard.acked.rtt_ns {
            self.rtt_ns = Some(self.rtt_ns.map_or(rtt, |s| s - s / 8 + rtt / 8));
        }
        if let Some(lost) = &heard.lost {
            self.controller.on_lost(now, lost);
        }
        self.controller.on_acked(now, &heard.acked);
        self.follow(nic, now);
    }
}
