//! A message on a link: the input of all schemes.

use std::sync::Arc;

use crate::completion::Completion;
use crate::error::PlanError;
use crate::link::{Link, MAX_CHUNK_LOSS};
use crate::repeat::Rounds;
use crate::scheme::Scheme;

/// A message, and how it is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its bytes.
    pub bytes: u64,
    /// Bytes of a chunk: one bit of the receiver's bitmap.
    pub chunk_bytes: u64,
    /// Payload of a packet.
    pub mtu_bytes: u64,
}

impl Message {
    /// A message in chunks of 64 KiB and packets of 4 KiB.
    pub fn new(bytes: u64) -> Message {
        Message { bytes, chunk_bytes: 64 << 10, mtu_bytes: 4096 }
    }

    /// The same message in chunks of this size.
    pub fn with_chunk(self, chunk_bytes: u64) -> Message {
        Message { chunk_bytes, ..self }
    }

    fn check(&self) -> Result<(), PlanError> {
        if self.bytes == 0 {
            return Err(PlanError::new("size", "0 bytes; give at least 1".to_owned(), "128 MiB"));
        }
        if self.bytes > MAX_BYTES {
            let why = format!("{} bytes; give at most 1 EiB", self.bytes);
            return Err(PlanError::new("size", why, "128 MiB"));
        }
        if self.mtu_bytes == 0 {
            return Err(PlanError::new("mtu", "0 bytes; give at least 1".to_owned(), "4096"));
        }
        if self.chunk_bytes == 0 || !self.chunk_bytes.is_multiple_of(self.mtu_bytes) {
            let why = format!(
                "{} bytes; give a multiple of the MTU {}",
                self.chunk_bytes, self.mtu_bytes
            );
            return Err(PlanError::new("chunk", why, "64 KiB"));
        }
        if self.chunk_bytes / self.mtu_bytes > MAX_PACKETS_PER_CHUNK {
            let why = format!(
                "{} packets; give at most {MAX_PACKETS_PER_CHUNK}",
                self.chunk_bytes / self.mtu_bytes
            );
            return Err(PlanError::new("chunk", why, "64 KiB"));
        }
        Ok(())
    }
}

const MAX_BYTES: u64 = 1 << 60;
const MAX_PACKETS_PER_CHUNK: u64 = 1 << 16;

/// A message on a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transfer {
    link: Link,
    message: Message,
    chunk_loss: f64,
    /// Rate of separate loss events.
    chunk_events: f64,
}

impl Transfer {
    /// Checks both.
    pub fn new(link: Link, message: Message) -> Result<Transfer, PlanError> {
        link.check()?;
        message.check()?;
        let packets = message.chunk_bytes / message.mtu_bytes;
        let chunk_loss = link.loss.of_chunk(packets);
        if chunk_loss > MAX_CHUNK_LOSS {
            let why =
                format!("chunks of {packets} packets never arrive at this rate; give a lower one");
            return Err(PlanError::new("loss", why, "1e-3"));
        }
        let chunk_events = link.loss.events(chunk_loss, packets);
        Ok(Transfer { link, message, chunk_loss, chunk_events })
    }

    /// The link.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// The message.
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// M: the message in chunks. A short last chunk counts as a full one.
    pub fn chunks(&self) -> u64 {
        self.message.bytes.div_ceil(self.message.chunk_bytes)
    }

    /// T_INJ: chunk size over bandwidth.
    pub fn inject_s(&self) -> f64 {
        self.message.chunk_bytes as f64 * 8.0 / self.link.bandwidth_bps
    }

    /// P_drop: probability that a chunk is lost.
    pub fn chunk_loss(&self) -> f64 {
        self.chunk_loss
    }

    /// Completion on a link without loss: `M · T_INJ + RTT`.
    pub fn ideal_s(&self) -> f64 {
        self.chunks() as f64 * self.inject_s() + self.link.rtt_s
    }

    /// Distribution of the completion time under a scheme: from the injection of the first chunk
    /// until the sender has the acknowledgement of the last (section 4.2.1).
    pub fn completion(&self, scheme: &Scheme) -> Result<Completion, PlanError> {
        scheme.check()?;
        Ok(Completion::new(self, scheme))
    }

    pub(crate) fn packets_per_chunk(&self) -> u64 {
        self.message.chunk_bytes / self.message.mtu_bytes
    }

    pub(crate) fn packets(&self) -> u64 {
        self.message.bytes.div_ceil(self.message.mtu_bytes)
    }

    pub(crate) fn packet_s(&self) -> f64 {
        self.message.mtu_bytes as f64 * 8.0 / self.link.bandwidth_bps
    }

    /// The retransmission rounds of a chunk, for messages up to this one's length.
    pub(crate) fn rounds(&self, rto_s: f64) -> Arc<Rounds> {
        let (inject_s, events) = (self.inject_s(), self.chunk_events);
        Arc::new(Rounds::new(self.chunks(), inject_s, rto_s, events, self.chunk_loss))
    }
}
