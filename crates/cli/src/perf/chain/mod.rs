//! Chain replication: the sender writes to the first server, each server forwards a message to the
//! next, and the last one's acknowledgement returns the same way.
//!
//! A server forwards a message once it has received all of it, because the queue pair reports
//! messages, not packets. Several messages in flight keep all links of the chain busy. For finer
//! steps, send smaller messages.
//!
//! A message stays in its slot in every server's memory until all servers have it. Message `n` is
//! in slot `n % depth`. The sender posts message `n + depth` after the last server has acknowledged
//! message `n`. Acknowledgements carry a message count, so that one can cover many messages.

mod head;
mod links;
mod member;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::ops::Range;
use std::time::{Duration, Instant};

use bowline::{Access, Channel, Completion, Cq, Device, Mr, Qp, QpType};
use serde::{Deserialize, Serialize};

use super::args::{Spec, Test};
pub(super) use head::client;
pub(super) use links::{Down, Up};
pub(super) use member::server;

/// Maximum memory that a test may ask for, at each end.
const MAX_MEMORY: u64 = 4 << 30;
/// Number of empty polls before an end sleeps.
const EAGER_POLLS: u32 = 1_000;
/// How long it then sleeps. The sleep is short, because the end has other things to check.
const NAP: Duration = Duration::from_millis(2);
/// Prefix of the message with which a server tells the sender that it gives up.
const REPORT: &[u8] = b"chain:";
/// Maximum number of characters of the reason.
const MAX_WHY: usize = 200;

/// A server's place in the chain, which the sender tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    /// Position, counted from the sender, starting at 0.
    pub(crate) position: usize,
    pub(crate) servers: usize,
}

impl Place {
    /// Whether this place is possible.
    pub(crate) fn is_sane(&self) -> bool {
        self.position < self.servers && self.servers <= 1024
    }

    fn is_last(&self) -> bool {
        self.position + 1 == self.servers
    }
}

/// A neighbour in the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Side {
    Previous,
    Next,
}

/// Why one end of a connection in the chain gives up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Broken {
    pub(super) side: Side,
    pub(super) why: String,
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let side = match self.side {
            Side::Previous => "previous",
            Side::Next => "next",
        };
        write!(f, "the {side} one in the chain: {}", self.why)
    }
}

impl Error for Broken {}

impl Broken {
    fn new(side: Side, why: impl ToString) -> Broken {
        Broken { side, why: why.to_string() }
    }

    /// Encodes the message that a server sends to the sender.
    fn to_message(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut message = REPORT.to_vec();
        message.extend(serde_json::to_vec(self)?);
        Ok(message)
    }

    /// Decodes a server's message. Returns `None` if it is something else. The reason is shortened,
    /// and stripped of control characters, because it is shown to the user.
    fn from_message(message: &[u8]) -> Option<Broken> {
        let Broken { side, why } = serde_json::from_slice(message.strip_prefix(REPORT)?).ok()?;
        let why = why.chars().filter(|c| !c.is_control()).take(MAX_WHY).collect();
        Some(Broken { side, why })
    }
}

/// The resources of one end of a chain.
pub(crate) struct End {
    pub(crate) spec: Spec,
    pub(crate) device: Device,
    cq: Cq,
    memory: Memory,
    /// The connection towards the sender; the sender itself has none.
    up: Option<Up>,
    /// The connection towards the last server, which has none.
    down: Option<Down>,
}

impl End {
    /// Creates everything except the connections.
    pub(crate) fn new(device: Device, spec: Spec) -> Result<End, Box<dyn Error>> {
        if !matches!(spec.test, Test::WriteBw | Test::SendBw) {
            return Err("chain replication is for write-bw and send-bw".into());
        }
        let depth = spec.tx_depth;
        let slot = spec.max_size().next_multiple_of(bowline::Buffer::ALIGN);
        let bytes = slot as u64 * u64::from(depth);
        if bytes > MAX_MEMORY {
            let (asked, most) = (bytes >> 20, MAX_MEMORY >> 20);
            return Err(format!(
                "the test needs {asked} MiB of memory, and {most} MiB is the maximum: use smaller \
                 messages, or a smaller -t"
            )
            .into());
        }
        let pd = device.alloc_pd()?;
        let mr = pd.register(bytes as usize, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let memory = Memory { mr, slot, depth: depth.into() };
        // Each of the two queue pairs has one request and one receive for every message in flight.
        let cq = device.create_cq(4 * depth + 2)?;
        let qp = || -> Result<Qp, bowline::Error> {
            pd.qp(QpType::Rc, &cq).max_send_wr(depth).max_recv_wr(depth).build()
        };
        let has_up = spec.chain.is_some();
        let has_down = spec.chain.is_none_or(|place| !place.is_last());
        let up = if has_up { Some(Up::new(qp()?)) } else { None };
        let down = if has_down { Some(Down::new(qp()?)) } else { None };
        Ok(End { spec, device, cq, memory, up, down })
    }

    /// Connects a server to its neighbours. The sender tells it who they are.
    pub(crate) fn connect(&mut self, channel: &mut Channel) -> Result<(), Box<dyn Error>> {
        let is_send = self.spec.test == Test::SendBw;
        if let Some(up) = &mut self.up {
            up.connect(channel, &self.memory, is_send)?;
        }
        if let Some(down) = &mut self.down {
            down.connect(channel, &self.memory)?;
        }
        Ok(())
    }
}

/// A slot for each message that may be in flight.
pub(super) struct Memory {
    pub(super) mr: Mr,
    slot: usize,
    pub(super) depth: u64,
}

impl Memory {
    /// The memory range of message `n`.
    pub(super) fn place(&self, message: u64, bytes: usize) -> Range<usize> {
        let start = (message % self.depth) as usize * self.slot;
        start..start + bytes
    }

    pub(super) fn len(&self) -> u64 {
        self.slot as u64 * self.depth
    }

    /// Fills each slot with bytes that differ from those of every other slot and size.
    fn fill(&self, bytes: u32) {
        let mut noise = vec![0; bytes as usize];
        for place in 0..self.depth {
            let mut hasher = blake3::Hasher::new();
            hasher.update(&place.to_le_bytes()).update(&bytes.to_le_bytes());
            hasher.finalize_xof().fill(&mut noise);
            self.mr.write_at(self.place(place, noise.len()).start, &noise);
        }
    }

    /// A digest of `messages`. It covers only the last ones, which are still in memory.
    fn digest(&self, messages: Range<u64>, bytes: u32) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        let first = messages.start.max(messages.end.saturating_sub(self.depth));
        for message in first..messages.end {
            let place = self.place(message, bytes as usize);
            hasher.update(&self.mr.to_vec(place.start, place.len()));
        }
        *hasher.finalize().as_bytes()
    }
}

/// Polls for completions, eagerly at first, and records how long there have been none.
struct Eye {
    completions: [Completion; 32],
    in_vain: u32,
    idle_since: Option<Instant>,
}

impl Eye {
    fn new() -> Eye {
        Eye { completions: [Completion::default(); 32], in_vain: 0, idle_since: None }
    }

    /// The completions that are available now, possibly none.
    fn look(&mut self, cq: &Cq) -> Result<&[Completion], bowline::Error> {
        let count = match self.in_vain {
            0..EAGER_POLLS => cq.poll(&mut self.completions)?,
            _ => cq.wait(&mut self.completions, NAP)?,
        };
        if count > 0 {
            (self.in_vain, self.idle_since) = (0, None);
        } else {
            self.in_vain = self.in_vain.saturating_add(1);
            self.idle_since.get_or_insert_with(Instant::now);
        }
        Ok(&self.completions[..count])
    }

    fn idle(&self) -> Duration {
        self.idle_since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}
