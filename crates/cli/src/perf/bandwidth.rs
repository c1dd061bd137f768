//! Bandwidth: keeps the queues full of messages.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bowline::{Channel, Completion, WcOpcode};

use super::account::Ledger;
use super::args::{Spec, Test};
use super::interval::{Intervals, Watch};
use super::report::{BandwidthRow, Row};
use super::rig::{Poller, Rig, qp_and_message};
use super::session;
use crate::{interrupt, output};

/// The peak is the best interval of at least this length.
const PEAK_WINDOW: Duration = Duration::from_millis(50);
/// Runs longer than this show a progress bar.
const PROGRESS_FROM: Duration = Duration::from_secs(2);

/// The messages of one QP.
#[derive(Clone, Default)]
struct Flow {
    posted: u64,
    completed: u64,
}

/// The end that sends.
struct Sender<'a> {
    rig: &'a Rig,
    bytes: u32,
    depth: u64,
    signal_every: u64,
    goal: Goal,
    flows: Vec<Flow>,
    start: Instant,
    meter: Meter<'a>,
}

impl<'a> Sender<'a> {
    fn new(rig: &'a Rig, bytes: u32, watch: Watch<'a>) -> Sender<'a> {
        let depth = u64::from(rig.spec.tx_depth);
        let start = Instant::now();
        Sender {
            rig,
            bytes,
            depth,
            signal_every: (depth / 4).max(1),
            goal: Goal::new(&rig.spec, &watch),
            flows: vec![Flow::default(); rig.qps.len()],
            start,
            meter: Meter::new(start, bytes, watch),
        }
    }

    /// Posts as much as there is room for. Returns whether anything is still outstanding.
    fn post(&mut self) -> Result<bool, Box<dyn Error>> {
        if interrupt::asked().is_some() {
            return Ok(false);
        }
        let end = self.goal.messages_per_qp(self.start);
        let every = self.signal_every;
        let mut is_open = false;
        for (qp, flow) in self.flows.iter_mut().enumerate() {
            // When time is up, the last posted request may be unsignaled. Post one more, which is
            // signaled.
            let unclosed = end == 0 && flow.posted > flow.completed && flow.posted % every != 0;
            let last = if end == 0 { flow.posted + u64::from(unclosed) } else { end };
            let room = self.depth - (flow.posted - flow.completed);
            let until = last.min(flow.posted + if unclosed { 1 } else { room });
            if until > flow.posted {
                self.rig.post_messages(qp, self.bytes, flow.posted..until, |n| {
                    (n + 1) % every == 0 || n + 1 == last
                })?;
                flow.posted = until;
            }
            is_open |= flow.completed < last;
        }
        Ok(is_open)
    }

    /// Handles completions. Each one also completes the requests before it.
    fn complete<'c>(&mut self, completions: impl Iterator<Item = &'c Completion>) {
        let mut done = 0;
        for completion in completions {
            let (qp, message) = qp_and_message(completion);
            done += message + 1 - self.flows[qp].completed;
            self.flows[qp].completed = message + 1;
        }
        if done > 0 {
            self.meter.add(done);
        }
    }

    fn finish(self) -> BandwidthRow {
        self.meter.finish(interrupt::asked().is_some())
    }
}

/// The end that receives. It keeps receives posted.
struct Receiver {
    consumed: Vec<usize>,
}

impl Receiver {
    fn new(rig: &Rig) -> Receiver {
        Receiver { consumed: vec![0; rig.qps.len()] }
    }

    fn take(&mut self, completion: &Completion) {
        self.consumed[qp_and_message(completion).0] += 1;
    }

    fn repost(&mut self, rig: &Rig) -> Result<(), Box<dyn Error>> {
        for (qp, count) in self.consumed.iter_mut().enumerate().filter(|(_, c)| **c > 0) {
            rig.post_receives(qp, std::mem::take(count))?;
        }
        Ok(())
    }
}

/// Sends messages of `bytes` and measures.
pub(crate) fn client<'a>(
    rig: &'a Rig,
    bytes: u32,
    watch: Watch<'a>,
) -> Result<BandwidthRow, Box<dyn Error>> {
    let mut sender = Sender::new(rig, bytes, watch);
    let mut poller = Poller::new(&rig.cq);
    while sender.post()? {
        let got = poller.poll()?;
        if got.is_empty() {
            poller.idle()?;
        } else {
            sender.complete(got.iter());
        }
    }
    Ok(sender.finish())
}

/// Serves a client: keeps receives posted where the test needs them, and the device running.
pub(crate) fn server(rig: &Rig, done: &AtomicBool) -> Result<(), Box<dyn Error>> {
    if rig.spec.test != Test::SendBw {
        // One-sided operations need nothing from this program: the device's own thread handles
        // them.
        return Ok(());
    }
    let mut poller = Poller::new(&rig.cq);
    let mut receiver = Receiver::new(rig);
    while !done.load(Ordering::Acquire) && interrupt::asked().is_none() {
        poller.poll()?.iter().for_each(|completion| receiver.take(completion));
        receiver.repost(rig)?;
    }
    Ok(())
}

/// Sends to the peer while the peer sends to this end, until both are done. Returns this end's
/// result and the peer's.
pub(crate) fn both<'a>(
    rig: &'a Rig,
    bytes: u32,
    watch: Watch<'a>,
    channel: &mut Channel,
    ledger: &mut Ledger,
) -> Result<[BandwidthRow; 2], Box<dyn Error>> {
    let mut hearing = channel.try_clone()?;
    let (told, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut sender = Some(Sender::new(rig, bytes, watch));
    let (mut receiver, mut poller) = (Receiver::new(rig), Poller::new(&rig.cq));
    std::thread::scope(|scope| {
        let listener = scope.spawn(|| {
            let row = hearing.recv().map_err(|e| e.to_string()).and_then(|row| read_row(&row));
            // If the peer was interrupted or is gone, there is nobody to continue with.
            let goes_on = row.as_ref().is_ok_and(|row| !row.test.interrupted);
            stop.store(!goes_on, Ordering::Release);
            told.store(true, Ordering::Release);
            row
        });
        let mut own = None;
        while own.is_none() || !told.load(Ordering::Acquire) {
            let is_over = match &mut sender {
                Some(sender) => !sender.post()? || stop.load(Ordering::Acquire),
                None => false,
            };
            if let Some(sender) = sender.take_if(|_| is_over) {
                let row = sender.finish();
                ledger.drain(&rig.device)?;
                session::tell(channel, &Row::Bandwidth(row.clone()))?;
                own = Some(row);
            }
            let got = poller.poll()?;
            if got.is_empty() {
                // Once this end is done, only silence on the channel reveals that the peer is gone.
                if sender.is_some() {
                    poller.idle()?;
                }
                continue;
            }
            let is_receive = |completion: &&Completion| completion.opcode == WcOpcode::Recv;
            got.iter().filter(is_receive).for_each(|completion| receiver.take(completion));
            receiver.repost(rig)?;
            if let Some(sender) = &mut sender {
                sender.complete(got.iter().filter(|completion| !is_receive(completion)));
            }
        }
        let peers = listener.join().map_err(|_| "the thread that listens to the peer failed")??;
        let own = own.ok_or("internal error: this end has no result")?;
        Ok([own, peers])
    })
}

fn read_row(bytes: &[u8]) -> Result<BandwidthRow, String> {
    match serde_json::from_slice(bytes) {
        Ok(Row::Bandwidth(row)) => Ok(row),
        Ok(Row::Latency(_)) => Err("the peer has measured latency, not bandwidth".to_owned()),
        Err(e) => Err(format!("the peer's result cannot be read: {e}")),
    }
}

/// When to stop, and a progress bar.
pub(super) struct Goal {
    iters: u64,
    duration: Option<Duration>,
    bar: Option<indicatif::ProgressBar>,
}

impl Goal {
    pub(super) fn new(spec: &Spec, watch: &Watch<'_>) -> Goal {
        let duration = spec.duration;
        let bar = duration
            .filter(|d| *d > PROGRESS_FROM && watch.every.is_none())
            .map(|d| output::progress(d.as_millis() as u64, &spec.test.name()));
        Goal { iters: spec.iters, duration, bar }
    }

    /// Number of messages for each QP; 0 when time is up.
    pub(super) fn messages_per_qp(&mut self, start: Instant) -> u64 {
        let Some(duration) = self.duration else {
            return self.iters;
        };
        let elapsed = start.elapsed();
        if let Some(bar) = &self.bar {
            bar.set_position(elapsed.as_millis() as u64);
        }
        if elapsed < duration { u64::MAX >> 16 } else { 0 }
    }
}

/// Counts completed messages over time.
pub(super) struct Meter<'a> {
    bytes: u32,
    start: Instant,
    window_start: Instant,
    in_window: u64,
    peak_per_sec: f64,
    total: u64,
    last: Instant,
    intervals: Option<Intervals<'a>>,
}

impl<'a> Meter<'a> {
    pub(super) fn new(start: Instant, bytes: u32, watch: Watch<'a>) -> Meter<'a> {
        Meter {
            bytes,
            start,
            window_start: start,
            in_window: 0,
            peak_per_sec: 0.0,
            total: 0,
            last: start,
            intervals: Intervals::new(watch, start),
        }
    }

    pub(super) fn add(&mut self, messages: u64) {
        self.last = Instant::now();
        self.total += messages;
        self.in_window += messages;
        if let Some(intervals) = &mut self.intervals {
            intervals.add(self.last, messages, self.bytes);
        }
        let window = self.last - self.window_start;
        if window >= PEAK_WINDOW {
            self.peak_per_sec = self.peak_per_sec.max(self.in_window as f64 / window.as_secs_f64());
            (self.window_start, self.in_window) = (self.last, 0);
        }
    }

    pub(super) fn finish(self, interrupted: bool) -> BandwidthRow {
        let average_per_sec = self.total as f64 / (self.last - self.start).as_secs_f64().max(1e-9);
        let gbps = |per_sec: f64| per_sec * f64::from(self.bytes) * 8.0 / 1e9;
        let intervals = self.intervals.map(Intervals::finish).unwrap_or_default();
        BandwidthRow {
            bytes: self.bytes,
            iterations: self.total,
            // A run shorter than a window has no better interval than the whole run.
            bw_peak_gbps: gbps(self.peak_per_sec.max(average_per_sec)),
            bw_average_gbps: gbps(average_per_sec),
            msg_rate_mpps: average_per_sec / 1e6,
            delivered: None,
            replication: None,
            directions: None,
            test: super::report::Circumstances { intervals, interrupted, ends: None },
        }
    }
}
