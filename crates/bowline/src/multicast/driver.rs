//! The thread of a switch: from the port into the engine, and out again in trains.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bowline_device::multicast::{Copier, Outgoing, Train};
use bowline_io::{Forwarder, FrameSink, Port, PortError, Round};
use bowline_multicast::Switch;
use bowline_nic::{FrameMeta, Time};
use bowline_wire::FlowKey;

use super::switch::Shared;

/// How long the thread sleeps before it checks whether to end.
const MAX_SLEEP: Duration = Duration::from_millis(20);
/// How long it waits for socket buffer space before it tries again.
const FULL_SLEEP: Duration = Duration::from_millis(1);

pub(super) struct Driver {
    port: Box<dyn Port>,
    shared: Arc<Shared>,
    out: Outgoing,
    copier: Copier,
}

impl Driver {
    pub(super) fn new(port: Box<dyn Port>, shared: Arc<Shared>) -> Driver {
        let out = Outgoing::new(port.caps().tx);
        Driver { port, shared, out, copier: Copier::of_switch() }
    }

    /// Forwards until the switch is dropped.
    pub(super) fn run(mut self) -> Result<(), PortError> {
        let dst_port = self.port.caps().udp_port;
        while !self.shared.stop.load(Ordering::Relaxed) {
            let now = self.shared.now();
            let wake_at = {
                let shared = Arc::clone(&self.shared);
                let mut engine = shared.engine();
                let (engine, out, copier) = (&mut *engine, &mut self.out, &mut self.copier);
                let mut sink = Sink { now, dst_port, engine, out, copier };
                let received = self.port.forward(now, &mut sink)?;
                engine.handle_timeout(now);
                while let Some(answer) = engine.poll_transmit() {
                    out.push(&answer.flow, 0, 0, answer.bytes());
                }
                if received > 0 { Some(now) } else { engine.poll_timeout() }
            };
            self.send()?;
            self.port.flush(now)?;
            *self.shared.port.lock().unwrap_or_else(PoisonError::into_inner) = self.port.counters();
            self.sleep_until(now, wake_at)?;
        }
        Ok(())
    }

    /// Sends everything, however long the port takes: meanwhile, arriving packets wait.
    fn send(&mut self) -> Result<(), PortError> {
        while !self.out.is_empty() && !self.shared.stop.load(Ordering::Relaxed) {
            // The port gives up on unresponsive addresses by this clock.
            let now = self.shared.now();
            if !self.out.send(now, &mut self.port)? {
                self.wait_for_room(now)?;
            }
        }
        Ok(())
    }

    fn wait_for_room(&self, now: Time) -> Result<(), PortError> {
        let fds = self.port.fds();
        if fds.write.is_some() {
            return fds.wait_writable(FULL_SLEEP);
        }
        // A port without a pollable descriptor tells when to poll again.
        let wait = self.port.poll_timeout().map_or(FULL_SLEEP, |at| at - now);
        std::thread::sleep(wait.min(FULL_SLEEP));
        Ok(())
    }

    fn sleep_until(&self, now: Time, wake_at: Option<Time>) -> Result<(), PortError> {
        let wake_at = [wake_at, self.port.poll_timeout()].into_iter().flatten().min();
        let sleep = wake_at.map_or(MAX_SLEEP, |at| (at - now).min(MAX_SLEEP));
        if sleep.is_zero() {
            return Ok(());
        }
        self.port.fds().wait_readable(sleep)
    }
}

/// Takes received frames into the engine, and their copies into a batch.
struct Sink<'a> {
    now: Time,
    dst_port: u16,
    engine: &'a mut Switch,
    out: &'a mut Outgoing,
    copier: &'a mut Copier,
}

impl FrameSink for Sink<'_> {
    fn frame(&mut self, meta: &FrameMeta, bytes: &[u8]) {
        self.frames(meta, bytes, bytes.len());
    }

    fn frames(&mut self, meta: &FrameMeta, bytes: &[u8], frame_len: usize) {
        let FrameMeta { src, dst, src_port, tos, ip_id, .. } = *meta;
        let flow = FlowKey { src, dst, src_port, dst_port: self.dst_port };
        let train = Train { flow, tos, bytes, frame_len, ip_id };
        self.copier.copy(self.now, self.engine, &train, self.out);
    }
}

impl Forwarder for Sink<'_> {
    fn round(&mut self, round: &mut dyn Round) {
        self.copier.forward(self.now, self.engine, self.dst_port, round, self.out);
    }
}
