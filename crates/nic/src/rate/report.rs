//! Turns a receiver's reports into feedback for a rate controller.
//!
//! A protocol whose packets are not acknowledged one by one counts them instead. The sender puts
//! stamps among its packets and remembers how many it had sent by then. The receiver answers each
//! stamp with the number of packets that had landed when it came. All counts are cumulative, so a
//! lost stamp or report costs only precision.

use super::{Acked, Lost};
use crate::time::Time;

/// Stamps kept: several round trips' worth.
const STAMPS: usize = 64;

/// A receiver's answer to a stamp. Counts are in packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The stamp: when it was sent, by the sender's clock.
    pub stamp: Time,
    /// How long the receiver held it before it answered.
    pub held_ns: u64,
    /// Packets that had landed when the stamp came.
    pub landed_at_stamp: u64,
    /// Packets that have landed by now.
    pub landed: u64,
    /// The receiver's clock now.
    pub clock_ns: u64,
}

/// What a report reveals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    /// What was delivered since the last report.
    pub acked: Acked,
    /// What is known to have been lost since then, if anything.
    pub lost: Option<Lost>,
}

/// Keeps a sender's stamps, and turns reports into [`Heard`].
#[derive(Clone, Debug)]
pub struct ReportMeter {
    /// UDP payload of a packet.
    packet_bytes: u64,
    /// Stamps and packets sent by then; older ones are overwritten.
    stamps: [(Time, u64); STAMPS],
    stamped: usize,
    /// The most recently answered stamp, and the packets sent before it.
    answered: Option<(Time, u64)>,
    landed_at_stamp: u64,
    landed: u64,
    lost: u64,
    /// The first this many packets no longer count as in flight, whatever became of them.
    written_off: u64,
}

impl ReportMeter {
    /// For packets of this many bytes.
    pub fn new(packet_bytes: u32) -> ReportMeter {
        ReportMeter {
            packet_bytes: packet_bytes.into(),
            stamps: [(Time::ZERO, 0); STAMPS],
            stamped: 0,
            answered: None,
            landed_at_stamp: 0,
            landed: 0,
            lost: 0,
            written_off: 0,
        }
    }

    /// Updates the packet size, which is an estimate: some packets are shorter than others.
    pub fn set_packet_bytes(&mut self, bytes: u64) {
        self.packet_bytes = bytes;
    }

    /// A stamp follows the first `sent` packets. Stamps differ.
    pub fn on_stamp(&mut self, now: Time, sent: u64) {
        self.stamps[self.stamped % STAMPS] = (now, sent);
        self.stamped += 1;
    }

    /// Bytes in flight, given that `sent` packets have been sent.
    pub fn in_flight_bytes(&self, sent: u64) -> u64 {
        let before = self.answered.map_or(0, |(_, before)| before);
        let landed_since = self.landed.saturating_sub(self.landed_at_stamp);
        let unheard_of = sent.saturating_sub(before).saturating_sub(landed_since);
        unheard_of.min(sent.saturating_sub(self.written_off)) * self.packet_bytes
    }

    /// Feedback timed out: what is in flight no longer counts, given that `sent` packets have been
    /// sent.
    pub fn write_off(&mut self, sent: u64) {
        self.written_off = sent;
    }

    /// Handles a report; `None` if it is not newer than the last, or answers no stamp of ours.
    /// `sent` packets have been sent by now.
    pub fn on_report(&mut self, now: Time, sent: u64, report: &Report) -> Option<Heard> {
        let stamp = self.stamps.iter().rev().find(|(at, _)| *at == report.stamp).copied();
        let (at, before) = stamp.filter(|_| report.stamp > Time::ZERO)?;
        let is_newer = self.answered.is_none_or(|(last, _)| at >= last);
        let is_possible = report.landed_at_stamp <= report.landed && report.landed >= self.landed;
        if !is_newer || !is_possible {
            return None;
        }
        let is_fresh = self.answered.is_none_or(|(last, _)| at > last);
        // No more can have landed than was sent: a peer that claims more gains nothing.
        let landed = report.landed.min(sent);
        let bytes = landed.saturating_sub(self.landed) * self.packet_bytes;
        self.answered = Some((at, before));
        self.landed_at_stamp = report.landed_at_stamp.min(landed);
        self.landed = landed;
        let lost = before.saturating_sub(self.landed_at_stamp).saturating_sub(self.lost);
        self.lost += lost;
        let rtt_ns = now.nanos_since(at).saturating_sub(report.held_ns).max(1);
        let acked = Acked {
            bytes,
            rtt_ns: is_fresh.then_some(rtt_ns),
            in_flight_bytes: self.in_flight_bytes(sent),
            app_limited: false,
            arrival_ns: Some(report.clock_ns),
        };
        let lost = (lost > 0).then_some(Lost { bytes: lost * self.packet_bytes, timeout: false });
        Some(Heard { acked, lost })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(stamp_ms: u64, landed_at_stamp: u64, landed: u64) -> Report {
        let stamp = Time::from_millis(stamp_ms);
        Report { stamp, held_ns: 0, landed_at_stamp, landed, clock_ns: stamp_ms * 1_000_000 }
    }

    #[test]
    fn counts_become_arrivals_losses_and_what_is_in_flight() {
        let mut meter = ReportMeter::new(1_000);
        meter.on_stamp(Time::from_millis(10), 100);
        meter.on_stamp(Time::from_millis(20), 200);
        let heard = meter.on_report(Time::from_millis(30), 300, &report(10, 90, 95)).unwrap();
        assert_eq!(heard.acked.bytes, 95_000);
        assert_eq!(heard.acked.rtt_ns, Some(20_000_000));
        assert_eq!(heard.lost, Some(Lost { bytes: 10_000, timeout: false }));
        // 200 were sent behind the stamp, of which 5 have landed.
        assert_eq!(heard.acked.in_flight_bytes, 195_000);
        let heard = meter.on_report(Time::from_millis(40), 300, &report(20, 190, 190)).unwrap();
        assert_eq!((heard.acked.bytes, heard.lost), (95_000, None));
        assert_eq!(meter.in_flight_bytes(300), 100_000);
    }

    #[test]
    fn a_lost_report_is_made_up_for_by_the_next() {
        let mut meters = [ReportMeter::new(1_000), ReportMeter::new(1_000)];
        let mut totals = [(0, 0); 2];
        for (i, meter) in meters.iter_mut().enumerate() {
            for n in 1..=10 {
                meter.on_stamp(Time::from_millis(n), n * 10);
                if i == 0 || n % 5 == 0 {
                    let answer = report(n, n * 9, n * 9);
                    let heard = meter.on_report(Time::from_millis(n + 3), n * 10, &answer).unwrap();
                    totals[i].0 += heard.acked.bytes;
                    totals[i].1 += heard.lost.map_or(0, |lost| lost.bytes);
                }
            }
        }
        assert_eq!(totals, [(90_000, 10_000); 2]);
    }

    #[test]
    fn what_was_written_off_is_not_in_flight_and_counts_if_it_landed() {
        let mut meter = ReportMeter::new(1_000);
        meter.on_stamp(Time::from_millis(10), 100);
        meter.write_off(120);
        assert_eq!((meter.in_flight_bytes(120), meter.in_flight_bytes(130)), (0, 10_000));
        let heard = meter.on_report(Time::from_millis(30), 130, &report(10, 100, 125)).unwrap();
        assert_eq!((heard.acked.bytes, heard.acked.in_flight_bytes), (125_000, 5_000));
    }

    #[test]
    fn what_cannot_be_is_not_believed() {
        let mut meter = ReportMeter::new(1_000);
        meter.on_stamp(Time::from_millis(10), 100);
        let now = Time::from_millis(30);
        assert_eq!(meter.on_report(now, 100, &report(11, 1, 1)), None, "no stamp of ours");
        assert_eq!(meter.on_report(now, 100, &report(10, 9, 8)), None, "time runs backwards");
        let heard = meter.on_report(now, 100, &report(10, 100, u64::MAX)).unwrap();
        assert_eq!(heard.acked.bytes, 100_000, "no more than was sent");
        assert_eq!(meter.on_report(now, 100, &report(10, 50, 50)), None, "fewer than before");
    }
}
