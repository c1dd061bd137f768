//! Latency: one message at a time, back and forth.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bowline::WcOpcode;
use hdrhistogram::Histogram;

use super::args::Test;
use super::interval::{Intervals, Watch};
use super::report::{Circumstances, LatencyRow};
use super::rig::{Poller, Rig};
use crate::interrupt;

/// Exchanges before the measurement starts, to warm up caches, routes and windows.
const WARM_UP: u64 = 2000;
/// Receives are reposted in batches of this size.
const REPOST_AT: usize = 64;
/// How often memory is looked at between two polls if packets carry messages: a nanosecond each.
const LOOKS: usize = 32;
/// The same if messages come without polls, because the peer writes memory directly.
const DIRECT_LOOKS: usize = 1024;
/// The longest latency that the histogram can record.
const MAX_NS: u64 = 60_000_000_000;

/// Plays ping-pong with messages of `bytes` and measures.
pub(crate) fn client(
    rig: &Rig,
    bytes: u32,
    watch: Watch<'_>,
) -> Result<LatencyRow, Box<dyn Error>> {
    let mut game = Game::new(rig, bytes);
    let mut histogram = Histogram::<u64>::new_with_bounds(1, MAX_NS, 3)
        .map_err(|e| format!("cannot make a histogram: {e}"))?;
    // As in perftest, a ping-pong is two messages, and a READ or atomic is one operation.
    let per_exchange = match rig.spec.test {
        Test::ReadLat | Test::AtomicLat => 1,
        _ => 2,
    };
    for _ in 0..WARM_UP {
        if interrupt::asked().is_some() {
            break;
        }
        game.exchange()?;
    }
    let (start, duration) = (Instant::now(), rig.spec.duration);
    let mut intervals = Intervals::new(watch, start).map(Intervals::with_times);
    let mut before = Instant::now();
    game.strike()?;
    loop {
        game.await_peer(None)?;
        let after = Instant::now();
        // Recorded while the next message is under way.
        game.strike()?;
        let nanos = (after - before).as_nanos() as u64 / per_exchange;
        histogram.saturating_record(nanos);
        before = after;
        if let Some(intervals) = &mut intervals {
            intervals.add_time(after, nanos, bytes);
        }
        let interrupted = interrupt::asked().is_some();
        let over = match duration {
            Some(duration) => after - start >= duration,
            None => histogram.len() >= rig.spec.iters,
        };
        if over || interrupted {
            // After Ctrl-C in a terminal that both ends share, the peer may answer no more.
            if !interrupted {
                game.await_peer(None)?;
            }
            let intervals = intervals.map(Intervals::finish).unwrap_or_default();
            let test = Circumstances { intervals, interrupted, ends: None };
            return Ok(LatencyRow::new(bytes, &histogram, test));
        }
    }
}

/// Responds to a client until `done`.
pub(crate) fn server(rig: &Rig, bytes: u32, done: &AtomicBool) -> Result<(), Box<dyn Error>> {
    let mut game = Game::new(rig, bytes);
    match rig.spec.test {
        Test::WriteLat | Test::SendLat => {
            while game.await_peer(Some(done))? {
                game.strike()?;
            }
            Ok(())
        }
        // One-sided operations are handled by the device. Polling keeps it awake, as at the
        // client's end.
        _ => {
            let mut poller = Poller::new(&rig.cq);
            while !done.load(Ordering::Acquire) && interrupt::asked().is_none() {
                poller.poll()?;
            }
            Ok(())
        }
    }
}

/// Clears a flag that an earlier test may have left.
pub(crate) fn clear_flag(rig: &Rig, bytes: u32) {
    if rig.spec.test == Test::WriteLat {
        rig.mr.fill(rig.landing(0), bytes as usize, 0);
    }
}

/// The state of a ping-pong at one end.
struct Game<'a> {
    rig: &'a Rig,
    bytes: u32,
    poller: Poller<'a>,
    signal_every: u64,
    sent: u64,
    /// Messages or responses from the peer that this end waited for.
    received: u64,
    /// Messages that have consumed a receive.
    arrived: u64,
    /// Receives that were consumed and are not reposted yet.
    consumed: usize,
    /// Signaled requests that have completed. READs and atomics are all signaled.
    completed: u64,
    /// How often to look for a message before the next poll.
    looks: usize,
}

impl<'a> Game<'a> {
    fn new(rig: &'a Rig, bytes: u32) -> Game<'a> {
        let signal_every = match rig.spec.test {
            Test::ReadLat | Test::AtomicLat => 1,
            _ => u64::from(rig.spec.tx_depth / 4).max(1),
        };
        let poller = Poller::new(&rig.cq);
        Game {
            rig,
            bytes,
            poller,
            signal_every,
            sent: 0,
            received: 0,
            arrived: 0,
            consumed: 0,
            completed: 0,
            looks: LOOKS,
        }
    }

    /// Sends a message and waits for the response.
    #[inline]
    fn exchange(&mut self) -> Result<(), Box<dyn Error>> {
        self.strike()?;
        self.await_peer(None).map(|_| ())
    }

    /// Sends one message.
    #[inline]
    fn strike(&mut self) -> Result<(), Box<dyn Error>> {
        if self.rig.spec.test == Test::WriteLat {
            let flag = flag_of(self.sent);
            self.rig.mr.write_at(self.rig.source(0) + self.bytes as usize - 1, &[flag]);
        }
        let every = self.signal_every;
        self.rig
            .post_messages(0, self.bytes, self.sent..self.sent + 1, |n| (n + 1) % every == 0)?;
        self.sent += 1;
        // The message is on its way, so there is time to repost receives.
        if self.consumed >= REPOST_AT {
            self.rig.post_receives(0, std::mem::take(&mut self.consumed))?;
        }
        Ok(())
    }

    /// Waits for the peer's message or response. Returns `false` if `done` was set first.
    #[inline]
    fn await_peer(&mut self, done: Option<&AtomicBool>) -> Result<bool, Box<dyn Error>> {
        loop {
            // Checking first saves a poll if the message came with the previous one. A peer may
            // also write memory without a packet that a poll would find.
            if let Some(look) = (0..self.looks).find(|_| self.has_arrived()) {
                self.looks = if look > 0 { DIRECT_LOOKS } else { LOOKS };
                self.received += 1;
                self.poller.progressed();
                return Ok(true);
            }
            self.poll()?;
            let is_over =
                |done: &AtomicBool| done.load(Ordering::Acquire) || interrupt::asked().is_some();
            if done.is_some_and(is_over) {
                return Ok(false);
            }
        }
    }

    #[inline]
    fn has_arrived(&self) -> bool {
        match self.rig.spec.test {
            Test::WriteLat => {
                let last = self.rig.landing(0) + self.bytes as usize - 1;
                let word = self.rig.mr.load_u64(last & !7);
                word.to_ne_bytes()[last & 7] == flag_of(self.received)
            }
            Test::SendLat => self.arrived > self.received,
            _ => self.completed > self.received,
        }
    }

    fn poll(&mut self) -> Result<(), Box<dyn Error>> {
        let got = self.poller.poll()?;
        if got.is_empty() {
            return self.poller.idle();
        }
        let receives = got.iter().filter(|c| c.opcode == WcOpcode::Recv).count();
        self.completed += (got.len() - receives) as u64;
        self.arrived += receives as u64;
        self.consumed += receives;
        Ok(())
    }
}

/// The last byte of message `n`: never 0, and different from its neighbours'.
fn flag_of(n: u64) -> u8 {
    (n % 255) as u8 + 1
}
