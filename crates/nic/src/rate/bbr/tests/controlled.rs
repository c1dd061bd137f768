//! A flow with a rate controller, which learns about its packets from reports, as in SDR.

use super::path::{Flow, Next, PACKET, Told};
use crate::rate::{
    ControlledConnection, ControllerFactory, RateController, Report, ReportMeter, Sent,
};
use crate::time::Time;
use crate::types::{Mtu, QpType};

pub(super) struct Controlled {
    controller: Box<dyn RateController>,
    meter: ReportMeter,
    sent: u64,
    next_packet: Time,
    next_stamp: Time,
    rtt_ns: Option<u64>,
    unanswered: u32,
    unreported: u64,
}

impl Controlled {
    pub(super) fn new(factory: &dyn ControllerFactory, start: Time) -> Controlled {
        let connection = ControlledConnection::new(QpType::Uc.descriptor(), Mtu::B1024);
        Controlled {
            controller: factory.build(start, &connection),
            meter: ReportMeter::new(PACKET as u32),
            sent: 0,
            next_packet: start,
            next_stamp: start,
            rtt_ns: None,
            unanswered: 0,
            unreported: 0,
        }
    }
}

impl Flow for Controlled {
    fn next(&mut self, now: Time) -> Next {
        if self.next_stamp <= now {
            // As SDR does: often at first, and then less and less until one is answered.
            let interval = self.rtt_ns.map_or(1_000_000, |rtt_ns| (rtt_ns / 8).max(200_000));
            self.next_stamp = now.plus_nanos(interval << (self.unanswered / 16).min(10));
            self.unanswered += 1;
            self.meter.on_stamp(now, self.sent);
            return Next::Stamp;
        }
        let window = self.controller.window_bytes().unwrap_or(u64::MAX);
        if self.meter.in_flight_bytes(self.sent) >= window {
            return Next::Wait(self.next_stamp);
        }
        let rate = self.controller.pacing_rate_bps(now).unwrap_or(u64::MAX).max(1);
        if self.next_packet > now {
            return Next::Wait(self.next_packet.min(self.next_stamp));
        }
        let gap = PACKET as u64 * 8_000_000_000 / rate;
        self.next_packet = self.next_packet.max(now).plus_nanos(gap.max(1));
        self.sent += 1;
        self.unreported += 1;
        if self.unreported >= 40 {
            let bytes = core::mem::take(&mut self.unreported) * PACKET as u64;
            let in_flight_bytes = Some(self.meter.in_flight_bytes(self.sent));
            self.controller.on_sent(now, &Sent { bytes, in_flight_bytes, app_limited: false });
        }
        Next::Data
    }

    fn told(&mut self, now: Time, told: Told) {
        let Told::Report { stamp, landed, clock } = told else { return };
        let clock_ns = clock.as_nanos();
        let report = Report { stamp, held_ns: 0, landed_at_stamp: landed, landed, clock_ns };
        let Some(heard) = self.meter.on_report(now, self.sent, &report) else { return };
        if let Some(lost) = &heard.lost {
            self.controller.on_lost(now, lost);
        }
        self.unanswered = 0;
        self.rtt_ns = heard.acked.rtt_ns.or(self.rtt_ns);
        self.controller.on_acked(now, &heard.acked);
    }

    fn acks(&self) -> bool {
        false
    }
}
