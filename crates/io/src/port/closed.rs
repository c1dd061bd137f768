//! A placeholder for a port that has been closed.

use bowline_nic::{Time, TxBatch};

use super::{FrameSink, Port, PortCaps, PortCounters, PortError, PortFds};

/// Replaces a port that was closed before its owner is dropped: sends and receives nothing.
pub(crate) struct ClosedPort {
    caps: PortCaps,
    counters: PortCounters,
}

impl ClosedPort {
    /// The placeholder for `port`.
    pub(crate) fn after(port: &dyn Port) -> ClosedPort {
        ClosedPort { caps: port.caps(), counters: port.counters() }
    }
}

impl Port for ClosedPort {
    fn caps(&self) -> PortCaps {
        self.caps
    }

    fn send(&mut self, _now: Time, batch: &TxBatch, from: usize) -> Result<usize, PortError> {
        Ok(batch.bursts().len().saturating_sub(from))
    }

    fn recv(&mut self, _now: Time, _sink: &mut dyn FrameSink) -> Result<usize, PortError> {
        Ok(0)
    }

    fn fds(&self) -> PortFds {
        PortFds::default()
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}
