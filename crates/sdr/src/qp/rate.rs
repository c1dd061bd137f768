//! Rate control of an SDR QP, and its feedback.

use std::sync::Arc;

use bowline_nic::rate::Report;
use bowline_nic::{ControlledConnection, ControllerFactory, FixedRate, RateControl, Rnic, Time};
use bowline_wire::Qpn;

use super::SdrQp;
use crate::congestion::Congestion;
use crate::control::{Header, Kind};
use crate::error::SdrError;

impl SdrQp {
    /// Sets the congestion control, before the QP is connected.
    pub fn set_congestion(&mut self, congestion: Option<RateControl>) {
        self.config.congestion = congestion;
    }

    /// Puts a rate controller, or none, in charge of the QPs.
    pub(super) fn control_rate(&mut self, nic: &mut dyn Rnic, now: Time) -> Result<(), SdrError> {
        let qpns: Vec<Qpn> = self.sender.qps().iter().map(|qp| qp.qpn).collect();
        let factory = self.config.congestion.as_ref().and_then(RateControl::factory);
        let max = self.config.max_rate_bps;
        let fixed = match (self.config.rate_bps, max) {
            (Some(rate), Some(max)) => Some(rate.min(max)),
            (None, max) if factory.is_none() => max,
            (rate, _) => rate,
        };
        if let Some(bps) = fixed {
            let bits_per_sec = (bps / u64::from(self.config.channels)).max(1);
            let fixed: Arc<dyn ControllerFactory> = Arc::new(FixedRate { bits_per_sec });
            for qpn in qpns {
                nic.set_rate_controller(now, qpn, Some(Arc::clone(&fixed)))?;
            }
            return Ok(());
        }
        let Some(factory) = factory else {
            // Override even the NIC's default.
            return Ok(qpns
                .into_iter()
                .try_for_each(|qpn| nic.set_rate_controller(now, qpn, None))?);
        };
        let descriptor = self.config.transport.qp_type().descriptor();
        let connection = ControlledConnection::new(descriptor, self.config.mtu);
        let channels = self.config.channels;
        let congestion = Congestion::new(nic, now, &*factory, &connection, qpns, channels, max)?;
        self.congestion = Some(congestion);
        Ok(())
    }

    /// The current sending rate, where it is known.
    pub fn rate_bps(&mut self, now: Time) -> Option<u64> {
        self.config.rate_bps.or_else(|| self.congestion.as_mut()?.rate_bps(now))
    }

    /// Asks for a report if one is due.
    pub(super) fn drive_congestion(&mut self, nic: &mut dyn Rnic, now: Time) {
        let Some(congestion) = &mut self.congestion else { return };
        congestion.drive(nic, now, self.sender.has_nothing_to_send());
        if congestion.stamp_at().is_some_and(|at| at <= now) {
            congestion.on_stamp(nic, now);
            self.control_out(nic, now, Kind::Stamp, &[]);
        }
    }

    /// Handles the peer's report on our last stamp, if it has received one.
    pub(super) fn hear_report(&mut self, nic: &mut dyn Rnic, now: Time, header: &Header) {
        if header.probe == 0 {
            return;
        }
        let Some(congestion) = &mut self.congestion else { return };
        let report = Report {
            stamp: Time::from_nanos(header.probe),
            held_ns: header.probe_held,
            landed_at_stamp: header.probe_landed,
            landed: header.landed,
            clock_ns: header.stamp,
        };
        congestion.on_report(nic, now, &report);
    }
}
