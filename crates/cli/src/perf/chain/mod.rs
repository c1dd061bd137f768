//! Chain replication: the sender writes to the first server, each server passes a message on to the
//! next, and the last one's word goes back the same way.
//!
//! A server passes a message on when it has all of it. The queue pair tells it of a message and not
//! of its packets, and several messages in flight keep all links of the chain busy. Whoever wants
//! smaller steps sends smaller messages.
//!
//! A message stays at its place in every server's memory until all have it: message `n` is at place
//! `n % depth`, and the sender posts message `n + depth` after it has heard that the last server
//! has message `n`. Acknowledgements count messages, so that one can stand for many.

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

/// Most memory that a test may ask for, on each end.
const MAX_MEMORY: u64 = 4 << 30;
/// How often an end looks for completions in vain before it sleeps.
const EAGER_POLLS: u32 = 1_000;
/// How long it sleeps then: it has to look after other things too.
const NAP: Duration = Duration::from_millis(2);
/// What a server that gives up tells the sender begins with this.
const REPORT: &[u8] = b"chain:";
/// Most characters of the reason in it.
const MAX_WHY: usize = 200;

/// A server's place in the chain, which the sender tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    /// Counted from the sender, from 0.
    pub(crate) position: usize,
    pub(crate) servers: usize,
}

impl Place {
    /// Whether such a place can be.
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

/// Why one end of a connection of the chain gives up.
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

    /// As a server tells the sender.
    fn to_message(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut message = REPORT.to_vec();
        message.extend(serde_json::to_vec(self)?);
        Ok(message)
    }

    /// As the sender hears it; `None` if it is something else. What people get to read of it is
    /// short and plain.
    fn from_message(message: &[u8]) -> Option<Broken> {
        let Broken { side, why } = serde_json::from_slice(message.strip_prefix(REPORT)?).ok()?;
        let why = why.chars().filter(|c| !c.is_control()).take(MAX_WHY).collect();
        Some(Broken { side, why })
    }
}

/// What one end of a chain works with.
pub(crate) struct End {
    pub(crate) spec: Spec,
    pub(crate) device: Device,
    cq: Cq,
    memory: Memory,
    /// Towards the sender; the sender itself has none.
    up: Option<Up>,
    /// Towards the last server, which has none.
    down: Option<Down>,
}

impl End {
    /// Makes everything but connections.
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
                "needs {asked} MiB, at most {most} are allowed: use smaller messages, or -t"
            )
            .into());
        }
        let pd = device.alloc_pd()?;
        let mr = pd.register(bytes as usize, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let memory = Memory { mr, slot, depth: depth.into() };
        // Each of two queue pairs has as many requests and as many receives as messages in flight.
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

    /// Connects a server to its neighbours, whom it hears of from the sender.
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

/// A place for each message that may be in flight.
pub(super) struct Memory {
    pub(super) mr: Mr,
    slot: usize,
    pub(super) depth: u64,
}

impl Memory {
    /// Where message `n` is.
    pub(super) fn place(&self, message: u64, bytes: usize) -> Range<usize> {
        let start = (message % self.depth) as usize * self.slot;
        start..start + bytes
    }

    pub(super) fn len(&self) -> u64 {
        self.slot as u64 * self.depth
    }

    /// Gives each place bytes that no other place and no other size has.
    fn fill(&self, bytes: u32) {
        let mut noise = vec![0; bytes as usize];
        for place in 0..self.depth {
            let mut hasher = blake3::Hasher::new();
            hasher.update(&place.to_le_bytes()).update(&bytes.to_le_bytes());
            hasher.finalize_xof().fill(&mut noise);
            self.mr.write_at(self.place(place, noise.len()).start, &noise);
        }
    }

    /// What is where `messages` are, of which the last are to be seen.
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

/// Looks for completions, eagerly at first, and knows how long there was none.
struct Eye {
    completions: [Completion; 32],
    in_vain: u32,
    idle_since: Option<Instant>,
}

impl Eye {
    fn new() -> Eye {
        Eye { completions: [Completion::default(); 32], in_vain: 0, idle_since: None }
    }

    /// What has completed by now, possibly nothing.
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
