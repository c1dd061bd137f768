//! Swift, a controller that keeps the round trip at a target: Kumar et al., "Swift: Delay is Simple
//! and Effective for Congestion Control in the Datacenter", SIGCOMM 2020, section 3. Names are the
//! paper's.

use super::{Acked, ControlledConnection, ControllerFactory, Lost, RateController, Sent};
use crate::time::Time;

/// Swift's constants.
#[derive(Clone, Debug, PartialEq)]
pub struct SwiftParams {
    /// The minimum target, shared by all flows of a network whose paths are shorter.
    pub base_target_ns: u64,
    /// On longer paths, what the target allows on top of the shortest round trip.
    pub base_delay_ns: u64,
    /// Round trips between two drains.
    pub drain_every: u32,
    /// The most that flow scaling adds to the target, for the smallest windows.
    pub max_scaling_ns: u64,
    /// Smallest window, in packets, to which flow scaling applies.
    pub min_scaled_packets: f64,
    /// Largest window, in packets, to which flow scaling applies.
    pub max_scaled_packets: f64,
    /// Packets by which the window grows in a round trip.
    pub additive: f64,
    /// How strongly the window shrinks when the target is exceeded.
    pub beta: f64,
    /// The most that it shrinks at a time.
    pub max_decrease: f64,
    /// The window to begin with, in packets.
    pub initial_packets: f64,
    /// The largest window, in bytes.
    pub max_window_bytes: u64,
}

impl Default for SwiftParams {
    fn default() -> SwiftParams {
        SwiftParams {
            base_target_ns: 25_000,
            base_delay_ns: 5_000,
            drain_every: 100,
            max_scaling_ns: 50_000,
            min_scaled_packets: 0.1,
            max_scaled_packets: 100.0,
            additive: 1.0,
            beta: 0.8,
            max_decrease: 0.5,
            initial_packets: 16.0,
            max_window_bytes: 64 << 20,
        }
    }
}

impl ControllerFactory for SwiftParams {
    fn build(&self, _now: Time, connection: &ControlledConnection) -> Box<dyn RateController> {
        Box::new(Swift {
            params: self.clone(),
            packet_bytes: f64::from(connection.mtu.bytes()),
            cwnd: self.initial_packets.max(MIN_CWND),
            min_rtt_ns: None,
            rtt_ns: None,
            decreased: None,
            drain: Drain::At(None),
        })
    }
}

/// One packet per thousand round trips.
const MIN_CWND: f64 = 0.001;

#[derive(Debug)]
struct Swift {
    params: SwiftParams,
    packet_bytes: f64,
    /// Congestion window, in packets; below one, packets are paced.
    cwnd: f64,
    /// Round trip without queues.
    min_rtt_ns: Option<u64>,
    /// Smoothed.
    rtt_ns: Option<u64>,
    /// When the window last shrank: at most once a round trip.
    decreased: Option<Time>,
    drain: Drain,
}

/// A pause that drains the flow's own queue, to measure the path without it.
///
/// The paper's targets come from the topology. Here those of longer paths come from the shortest
/// round trip, and a flow that starts while there is a queue mistakes it for a longer path: its
/// target is too high, it pushes the others out, and from then on the queue is its own. So yielding
/// for a moment is enough to correct the estimate.
#[derive(Clone, Copy, Debug)]
enum Drain {
    /// Start of the next drain; `None` if it is yet to be scheduled.
    At(Option<Time>),
    /// It lasts until a packet sent at this time or later is acknowledged: everything that was in
    /// flight before is gone then.
    Sent(Time),
}

/// Fraction of the window that a drain leaves.
const DRAINED: f64 = 0.25;

impl Swift {
    /// The target delay, section 3.2: the path's own, plus more for flows with small windows, whose
    /// share of a queue is small. The shortest round trip stands for the topology's term.
    fn target_ns(&self, min_rtt_ns: u64) -> f64 {
        let params = &self.params;
        let (low, high) = (params.min_scaled_packets, params.max_scaled_packets);
        let scale = |packets: f64| 1.0 / packets.max(f64::MIN_POSITIVE).sqrt();
        let range = (scale(low) - scale(high)).max(f64::MIN_POSITIVE);
        let alpha = params.max_scaling_ns as f64 / range;
        let scaled = alpha * (scale(self.cwnd) - scale(high));
        let scaled = scaled.clamp(0.0, params.max_scaling_ns as f64);
        let base = (min_rtt_ns + params.base_delay_ns).max(params.base_target_ns);
        base as f64 + scaled
    }

    /// Starts and ends drains; returns whether one is in progress. `rtt_ns` is that of a packet
    /// just acknowledged.
    fn drains(&mut self, now: Time, rtt_ns: Option<u64>, smoothed_ns: u64) -> bool {
        let after =
            |round_trips: u32| now.plus_nanos(smoothed_ns.saturating_mul(round_trips.into()));
        self.drain = match self.drain {
            Drain::At(None) => Drain::At(Some(after(self.params.drain_every))),
            Drain::At(Some(at)) if now >= at => Drain::Sent(after(1)),
            Drain::Sent(at) if rtt_ns.is_some_and(|rtt_ns| now >= at.plus_nanos(rtt_ns)) => {
                Drain::At(None)
            }
            as_before => as_before,
        };
        matches!(self.drain, Drain::Sent(_))
    }

    fn may_decrease(&self, now: Time) -> bool {
        let rtt_ns = self.rtt_ns.unwrap_or(0);
        self.decreased.is_none_or(|at| now.nanos_since(at) >= rtt_ns)
    }

    fn decrease(&mut self, now: Time, factor: f64) {
        if self.may_decrease(now) {
            self.cwnd *= factor.max(1.0 - self.params.max_decrease);
            self.decreased = Some(now);
        }
    }

    fn bound(&mut self) {
        let most = self.params.max_window_bytes as f64 / self.packet_bytes;
        self.cwnd = self.cwnd.clamp(MIN_CWND, most.max(1.0));
    }
}

impl RateController for Swift {
    fn pacing_rate_bps(&mut self, _now: Time) -> Option<u64> {
        // Only a window below one packet is paced: above that, acknowledgements clock the sender.
        let rtt_ns = self.rtt_ns.filter(|_| self.cwnd < 1.0)?;
        let bps = self.cwnd * self.packet_bytes * 8e9 / rtt_ns.max(1) as f64;
        Some((bps as u64).max(1))
    }

    fn window_bytes(&self) -> Option<u64> {
        let share = if let Drain::At(_) = self.drain { 1.0 } else { DRAINED };
        Some(((self.cwnd * share).max(1.0) * self.packet_bytes) as u64)
    }

    fn wants_feedback(&self) -> bool {
        true
    }

    fn on_sent(&mut self, _now: Time, _sent: &Sent) {}

    fn on_acked(&mut self, now: Time, acked: &Acked) {
        if let Some(rtt_ns) = acked.rtt_ns {
            self.min_rtt_ns = Some(self.min_rtt_ns.map_or(rtt_ns, |min| min.min(rtt_ns)).max(1));
            self.rtt_ns = Some(self.rtt_ns.map_or(rtt_ns, |s| s - s / 8 + rtt_ns / 8));
        }
        let (Some(min_rtt_ns), Some(smoothed)) = (self.min_rtt_ns, self.rtt_ns) else { return };
        // Measurements in a drain say nothing about the window.
        if self.drains(now, acked.rtt_ns, smoothed) {
            return;
        }
        let delay = acked.rtt_ns.unwrap_or(smoothed) as f64;
        let target = self.target_ns(min_rtt_ns);
        let packets = acked.bytes as f64 / self.packet_bytes;
        if delay < target {
            let per_ack = self.params.additive * packets;
            // A QP with nothing to send learns nothing about the path.
            let is_used = !acked.app_limited;
            self.cwnd += match (is_used, self.cwnd >= 1.0) {
                (false, _) => 0.0,
                (true, true) => per_ack / self.cwnd,
                (true, false) => per_ack,
            };
        } else if acked.rtt_ns.is_some() {
            self.decrease(now, 1.0 - self.params.beta * (delay - target) / delay.max(1.0));
        }
        self.bound();
    }

    fn on_lost(&mut self, now: Time, lost: &Lost) {
        // A timeout may mean that all is lost, but with go-back-N one lost packet can cause it.
        let factor = if lost.timeout { 1.0 - self.params.max_decrease } else { 0.8 };
        self.decrease(now, factor);
        self.bound();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Mtu, QpType};

    fn build() -> Box<dyn RateController> {
        let connection = ControlledConnection::new(QpType::Rc.descriptor(), Mtu::B4096);
        SwiftParams::default().build(Time::ZERO, &connection)
    }

    fn ack(controller: &mut dyn RateController, at_us: u64, packets: u64, rtt_us: u64) {
        let acked = Acked {
            bytes: packets * 4096,
            rtt_ns: Some(rtt_us * 1_000),
            in_flight_bytes: 0,
            app_limited: false,
            arrival_ns: None,
        };
        controller.on_acked(Time::from_micros(at_us), &acked);
    }

    #[test]
    fn the_window_grows_by_a_packet_a_round_trip_below_the_target() {
        let mut swift = build();
        let before = swift.window_bytes().unwrap();
        // 16 packets in 16 acknowledgements: one round trip.
        (0..16).for_each(|i| ack(&mut *swift, 10 + i, 1, 10));
        let grown = swift.window_bytes().unwrap() - before;
        assert!((3_700..4_200).contains(&grown), "{grown}");
    }

    #[test]
    fn it_shrinks_with_the_excess_and_once_a_round_trip() {
        let mut swift = build();
        ack(&mut *swift, 10, 1, 10);
        let before = swift.window_bytes().unwrap();
        ack(&mut *swift, 20, 1, 200);
        let once = swift.window_bytes().unwrap();
        assert!(once >= before / 2 && once < before * 9 / 10, "{before} to {once}");
        ack(&mut *swift, 21, 1, 200);
        assert_eq!(swift.window_bytes().unwrap(), once, "the same round trip");
        ack(&mut *swift, 400, 1, 200);
        assert!(swift.window_bytes().unwrap() < once);
    }

    #[test]
    fn below_a_packet_a_round_trip_it_pauses() {
        let mut swift = build();
        ack(&mut *swift, 10, 1, 10);
        assert_eq!(swift.pacing_rate_bps(Time::ZERO), None);
        for i in 1..30 {
            ack(&mut *swift, i * 3_000, 1, 1_000);
        }
        assert_eq!(swift.window_bytes(), Some(4096), "one packet may always be under way");
        let bps = swift.pacing_rate_bps(Time::ZERO).unwrap();
        assert!(bps < 4096 * 8 * 1_000, "less than one packet a millisecond: {bps}");
        // And back.
        for i in 100..400 {
            ack(&mut *swift, i * 3_000, 1, 10);
        }
        assert_eq!(swift.pacing_rate_bps(Time::ZERO), None);
    }

    #[test]
    fn a_flow_that_began_in_a_queue_learns_how_long_the_path_is() {
        let mut swift = build();
        // 100 µs of 10 are a queue, which stays as long as the window does.
        let rtt_us = |swift: &mut dyn RateController, at| {
            let window = swift.window_bytes().unwrap();
            let drained = window < 9 * 4096;
            ack(swift, at, 1, if drained { 10 } else { 100 });
            drained
        };
        let drained: Vec<u64> =
            (1..300).map(|i| i * 100).filter(|at| rtt_us(&mut *swift, *at)).collect();
        let first = *drained.first().expect("it drains");
        assert!((8_000..14_000).contains(&first), "after about 100 round trips: {first}");
        let before = swift.window_bytes().unwrap();
        ack(&mut *swift, 100_000, 1, 100);
        assert!(swift.window_bytes().unwrap() < before, "100 µs are too long for a path of 10");
    }

    #[test]
    fn small_windows_are_allowed_more_delay() {
        let connection = ControlledConnection::new(QpType::Rc.descriptor(), Mtu::B4096);
        let [small, large] = [1.0, 64.0].map(|initial_packets| {
            let params = SwiftParams { initial_packets, ..SwiftParams::default() };
            let mut swift = params.build(Time::ZERO, &connection);
            ack(&mut *swift, 10, 0, 10);
            // 28 µs: too much for a large window, not for a small one.
            let before = swift.window_bytes().unwrap();
            ack(&mut *swift, 60, 1, 28);
            swift.window_bytes().unwrap() >= before
        });
        assert!(small && !large);
    }
}
