//! How two ends detect each other's shims, and what they announce.

use bowline_nic::{HeaderBuf, ShimOut, Time, pad_of};
use bowline_wire::{
    AnnounceHeader, Bth, Hello, Opcode, Psn, Qpn, RepairHeader, ReportHeader, stale_psn,
};

use crate::params::FecConfig;

/// The addressee of a shim's own packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(crate) dest_qpn: Qpn,
    /// PSN of the peer's own requests, whose responses a shim's packet must not resemble.
    pub(crate) peer_psn: Psn,
}

impl Identity {
    fn bth(&self) -> Bth {
        Bth::new(Opcode::RC_REPAIR, self.dest_qpn, stale_psn(self.peer_psn))
    }

    pub(crate) fn repair_header(&self, repair: &RepairHeader, payload_len: usize) -> HeaderBuf {
        let mut bth = self.bth();
        bth.pad = pad_of(payload_len);
        let mut header = HeaderBuf::new(&bth);
        header.push(|bytes| repair.emit(bytes));
        header
    }

    fn announce(&self, announce: &AnnounceHeader) -> HeaderBuf {
        let mut header = HeaderBuf::new(&self.bth());
        header.push(|bytes| announce.emit(bytes));
        header
    }

    pub(crate) fn report(&self, report: &ReportHeader) -> HeaderBuf {
        let mut header = HeaderBuf::new(&self.bth());
        header.push(|bytes| report.emit(bytes));
        header
    }

    fn hello(&self) -> HeaderBuf {
        let mut header = HeaderBuf::new(&Hello::bth(self.dest_qpn, self.peer_psn));
        header.push(|bytes| Hello::aeth().emit(bytes));
        header
    }
}

/// Shortest time between two announcements triggered by greetings.
const ANNOUNCE_NS: u64 = 100_000;

/// Sends greetings until the peer is known; then announces.
#[derive(Debug)]
pub(crate) struct Negotiation {
    known: bool,
    hello_at: Time,
    hellos_left: u8,
    hello_gap_ns: u64,
    announce_at: Time,
    announced_at: Time,
}

impl Negotiation {
    pub(crate) fn stopped() -> Negotiation {
        Negotiation {
            known: false,
            hello_at: Time::NEVER,
            hellos_left: 0,
            hello_gap_ns: 0,
            announce_at: Time::NEVER,
            announced_at: Time::ZERO,
        }
    }

    pub(crate) fn start(now: Time, config: &FecConfig) -> Negotiation {
        Negotiation {
            hello_at: if config.hello_tries > 0 { now } else { Time::NEVER },
            hellos_left: config.hello_tries,
            hello_gap_ns: config.hello_ns,
            ..Negotiation::stopped()
        }
    }

    /// Whether the peer has the shim.
    #[inline]
    pub(crate) fn is_known(&self) -> bool {
        self.known
    }

    pub(crate) fn deadline(&self) -> Time {
        self.hello_at.min(self.announce_at)
    }

    /// The peer sent something that only a shim sends. Returns whether that is news.
    pub(crate) fn found(&mut self) -> bool {
        self.hello_at = Time::NEVER;
        !core::mem::replace(&mut self.known, true)
    }

    /// Announces a change to the peer, or the first state.
    pub(crate) fn announce_soon(&mut self, now: Time) {
        let earliest = match self.announced_at {
            Time::ZERO => now,
            last => now.max(last.plus_nanos(ANNOUNCE_NS)),
        };
        self.announce_at = self.announce_at.min(earliest);
    }

    pub(crate) fn transmit(
        &mut self,
        now: Time,
        peer: &Identity,
        announce: &AnnounceHeader,
        out: &mut ShimOut<'_>,
    ) {
        if self.hello_at <= now && out.room() > 0 {
            out.send_copy(&peer.hello(), &[], 0);
            self.hellos_left = self.hellos_left.saturating_sub(1);
            self.hello_at = Time::NEVER;
            if self.hellos_left > 0 {
                self.hello_at = now.plus_nanos(self.hello_gap_ns);
                self.hello_gap_ns = self.hello_gap_ns.saturating_mul(4);
            }
        }
        if self.announce_at <= now && self.known && out.room() > 0 {
            out.send_copy(&peer.announce(announce), &[], 0);
            self.announce_at = Time::NEVER;
            self.announced_at = now;
        }
    }
}
