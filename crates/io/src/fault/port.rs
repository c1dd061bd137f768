//! The middleware that applies faults.

use std::sync::Arc;
use std::time::Instant;

use bowline_link::{Fate, Link, LinkConfig, Loss};
use bowline_nic::{CleanPaths, FrameMeta, Time, TxBatch};
use bowline_wire::FlowKey;

use super::Faults;
use super::plan::Effects;
use crate::port::{FrameSink, Outbox, Port, PortCaps, PortCounters, PortError, PortFds, earlier};
use crate::udp::Multicasts;

/// Packets forwarded in one batch while there is loss; at least one burst of any port.
const BATCH_PACKETS: usize = 256;

/// Drops packets that a port sends and receives, as its [`Faults`] say.
///
/// It belongs right above the port that touches the network. A capture taken above it shows what a
/// capture on a host with a broken cable shows: every packet sent, and no packet that was lost on
/// the way in.
pub struct FaultPort<P> {
    inner: P,
    faults: Faults,
    outbox: Outbox,
    draw: Option<Draw>,
    /// There were faults at the last look, so one more look is needed when they end.
    busy: bool,
    /// When the effects may change.
    changes_at: Option<Time>,
    now: Time,
    dropped_in: u64,
    dropped_out: u64,
}

/// The loss of one request, with a random generator per direction.
struct Draw {
    order: u64,
    inward: Link,
    outward: Link,
}

impl Draw {
    fn new(order: u64, loss: Loss, seed: u64) -> Draw {
        let direction = |stream| {
            let mut link = Link::new(LinkConfig::default(), seed, stream);
            link.set_faults(bowline_link::Faults { loss, ..Default::default() });
            link
        };
        Draw { order, inward: direction(0), outward: direction(1) }
    }
}

fn is_lost(link: &mut Link, now: Time, len: usize) -> bool {
    link.admit(now, len, false) == Fate::Lost
}

impl<P: Port> FaultPort<P> {
    /// Wraps a port, with a new handle for its faults ([`Port::faults`]).
    pub fn new(inner: P) -> FaultPort<P> {
        FaultPort {
            outbox: Outbox::new(inner.caps().tx, BATCH_PACKETS),
            inner,
            faults: Faults::new(),
            draw: None,
            busy: false,
            changes_at: None,
            now: Time::ZERO,
            dropped_in: 0,
            dropped_out: 0,
        }
    }

    /// Whether packets pass as they are.
    #[inline]
    fn is_idle(&self) -> bool {
        !self.busy && !self.faults.is_active()
    }

    /// What to do to packets now.
    #[cold]
    fn effects(&mut self, now: Time) -> Effects {
        let effects = self.faults.effects();
        self.now = now;
        self.busy = effects.is_some() || !self.outbox.is_empty();
        let effects = effects.unwrap_or_default();
        let left = effects.until.map(|u| u.saturating_duration_since(Instant::now()));
        self.changes_at =
            left.map(|l| now.plus_nanos(u64::try_from(l.as_nanos()).unwrap_or(u64::MAX)));
        self.draw = match (self.draw.take(), effects.loss) {
            (Some(draw), Some((order, ..))) if draw.order == order => Some(draw),
            (_, Some((order, loss, seed))) => Some(Draw::new(order, loss, seed)),
            (_, None) => None,
        };
        if effects.drop_out {
            self.dropped_out += self.outbox.discard() as u64;
        }
        effects
    }

    /// [`Port::send`] while there are faults. A separate function keeps the fault-free path to the
    /// port below short.
    #[cold]
    #[inline(never)]
    fn send_amid_faults(
        &mut self,
        now: Time,
        batch: &TxBatch,
        from: usize,
    ) -> Result<usize, PortError> {
        let effects = self.effects(now);
        let bursts = batch.bursts().get(from..).unwrap_or_default();
        if effects.drop_out {
            self.dropped_out += bursts.iter().map(|b| b.packet_count() as u64).sum::<u64>();
            return Ok(bursts.len());
        }
        if self.draw.is_some() || !self.outbox.is_empty() {
            return self.send_some(now, batch, from);
        }
        self.inner.send(now, batch, from)
    }

    /// [`Port::recv`] while there are faults.
    #[cold]
    #[inline(never)]
    fn recv_amid_faults(
        &mut self,
        now: Time,
        sink: &mut dyn FrameSink,
    ) -> Result<usize, PortError> {
        let effects = self.effects(now);
        let (draw, dropped) = (&mut self.draw, &mut self.dropped_in);
        self.inner.recv(now, &mut |meta: &FrameMeta, frame: &[u8]| {
            let is_lost = |draw: &mut Draw| is_lost(&mut draw.inward, now, frame.len());
            if effects.drop_in || draw.as_mut().is_some_and(is_lost) {
                *dropped += 1;
            } else {
                sink.frame(meta, frame);
            }
        })
    }

    /// [`Port::flush`] while there are faults.
    #[cold]
    #[inline(never)]
    fn flush_amid_faults(&mut self, now: Time) -> Result<(), PortError> {
        if self.outbox.is_blocked() {
            self.effects(now);
            self.outbox.send(now, &mut self.inner)?;
        }
        self.inner.flush(now)
    }

    /// Sends the packets that are not lost; returns the number of bursts handled.
    fn send_some(&mut self, now: Time, batch: &TxBatch, from: usize) -> Result<usize, PortError> {
        let caps = self.inner.caps();
        let bursts = batch.bursts().get(from..).unwrap_or_default();
        for (done, burst) in bursts.iter().enumerate() {
            if self.outbox.is_blocked() || self.outbox.room() < burst.packet_count() {
                self.outbox.send(now, &mut self.inner)?;
            }
            if self.outbox.is_blocked() {
                return Ok(done);
            }
            let key = FlowKey {
                src: caps.addr,
                dst: burst.dst,
                src_port: caps.udp_port,
                dst_port: burst.dst_port,
            };
            for (id, packet) in batch.packets(burst).iter().enumerate() {
                let len = packet.udp_payload_len();
                if self.draw.as_mut().is_some_and(|draw| is_lost(&mut draw.outward, now, len)) {
                    self.dropped_out += 1;
                    continue;
                }
                let frame = batch.bytes(packet);
                if burst.is_summed() {
                    self.outbox.push(&key, burst.tos, id as u16, frame);
                } else {
                    self.outbox.push_unsummed(&key, burst.tos, frame);
                }
            }
        }
        self.outbox.send(now, &mut self.inner)?;
        Ok(bursts.len())
    }
}

impl<P: Port> Port for FaultPort<P> {
    fn caps(&self) -> PortCaps {
        self.inner.caps()
    }

    fn send(&mut self, now: Time, batch: &TxBatch, from: usize) -> Result<usize, PortError> {
        if self.is_idle() {
            return self.inner.send(now, batch, from);
        }
        self.send_amid_faults(now, batch, from)
    }

    fn recv(&mut self, now: Time, sink: &mut dyn FrameSink) -> Result<usize, PortError> {
        if self.is_idle() {
            return self.inner.recv(now, sink);
        }
        self.recv_amid_faults(now, sink)
    }

    fn flush(&mut self, now: Time) -> Result<(), PortError> {
        if !self.busy {
            return self.inner.flush(now);
        }
        self.flush_amid_faults(now)
    }

    fn poll_timeout(&self) -> Option<Time> {
        if !self.busy {
            return self.inner.poll_timeout();
        }
        let ours = earlier(self.changes_at, self.outbox.retry_at(self.now));
        earlier(ours, self.inner.poll_timeout())
    }

    fn before_sleep(&mut self) -> bool {
        self.inner.before_sleep()
    }

    fn fds(&self) -> PortFds {
        self.inner.fds()
    }

    fn clean_paths(&self) -> Option<&Arc<CleanPaths>> {
        self.inner.clean_paths()
    }

    fn counters(&self) -> PortCounters {
        let mut all = self.inner.counters();
        all.fault_dropped_in += self.dropped_in;
        all.fault_dropped_out += self.dropped_out;
        all
    }

    fn faults(&self) -> Option<&Faults> {
        Some(&self.faults)
    }

    fn multicasts(&self) -> Option<&Arc<Multicasts>> {
        self.inner.multicasts()
    }
}
