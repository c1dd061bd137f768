//! The thread of one direction: reads packets, waits until they are due, writes them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bowline_link::Time;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::error::WanError;
use crate::line::Line;
use crate::sys::{self, Tun};
use crate::vnet::VNET_BYTES;
use crate::wan::Tap;

/// Packets read at a time, as long as none is due: 64 KiB take up to 200 µs to copy with cold
/// memory.
const BATCH: usize = 8;
/// How long due packets wait for others, and how often packets are read while they flow: waking up
/// for each would cost more than carrying it.
const NAP_NS: u64 = 40_000;
/// A core that has slept for long wakes up late. A sleep longer than `LONG_NS` ends this much
/// earlier, and the thread spins until the deadline: at most a thousand times a second.
const EARLY_NS: u64 = 120_000;
const LONG_NS: u64 = 1_000_000;
/// How often an idle thread checks whether it is to stop.
const IDLE_NS: u64 = 50_000_000;

/// A running direction.
pub(crate) struct Forwarder {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(Line, Duration)>,
}

impl Forwarder {
    /// Forwards packets from one device to the other.
    pub(crate) fn start(
        name: &str,
        line: Line,
        from: Arc<Tun>,
        to: Arc<Tun>,
        tap: Option<Tap>,
    ) -> Result<Forwarder, WanError> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name(format!("wan-{name}"))
            .spawn(move || {
                // Both, as the first does more where the second is not permitted.
                bowline_io::run_promptly();
                sys::run_before_programs();
                let mut carrier = Carrier::new(line, from, to);
                carrier.tap = tap;
                while !stopped.load(Ordering::Relaxed) {
                    carrier.turn();
                }
                (carrier.line, thread_cpu_time())
            })
            .map_err(|source| WanError::Thread { source })?;
        Ok(Forwarder { stop, thread })
    }

    /// Stops it; returns the line, and the CPU time that it took.
    pub(crate) fn stop(self) -> Option<(Line, Duration)> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().ok()
    }
}

struct Carrier {
    line: Line,
    from: Arc<Tun>,
    to: Arc<Tun>,
    tap: Option<Tap>,
    epoch: Instant,
    /// Since when a packet may have waited to be read.
    unread_since: Time,
    /// Woke up early for the next packet.
    is_early: bool,
}

impl Carrier {
    fn new(line: Line, from: Arc<Tun>, to: Arc<Tun>) -> Carrier {
        let (epoch, unread_since) = (Instant::now(), Time::ZERO);
        Carrier { line, from, to, tap: None, epoch, unread_since, is_early: false }
    }

    /// Writes packets that are due, reads pending ones, and sleeps if there were few.
    fn turn(&mut self) {
        self.write_due();
        let read = self.read_batch();
        if read < BATCH {
            self.rest(read > 0);
        }
    }

    fn now(&self) -> Time {
        Time::from_nanos(u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn write_due(&mut self) {
        let mut cpu_before = None;
        loop {
            let now = self.now();
            let Some(release) = self.line.release(now) else { return };
            let before = cpu_before.unwrap_or_else(thread_cpu_time);
            let written = self.to.write(release.headers, release.payload);
            let after = thread_cpu_time();
            let took = after.saturating_sub(before).as_nanos();
            self.line.write_took(u64::try_from(took).unwrap_or(u64::MAX));
            cpu_before = Some(after);
            if written.is_err() {
                self.line.count_refused_write();
            }
        }
    }

    /// The number of packets read; `BATCH` also if there are more but a packet is due first.
    fn read_batch(&mut self) -> usize {
        for count in 0..BATCH {
            if self.line.next_due().is_some_and(|due| due <= self.now()) {
                return BATCH;
            }
            match self.read() {
                Ok(true) => {}
                // If a device fails, somebody has taken it down on purpose; do nothing.
                Ok(false) | Err(_) => {
                    self.unread_since = self.now();
                    return count;
                }
            }
        }
        BATCH
    }

    /// Whether there was a packet.
    fn read(&mut self) -> io::Result<bool> {
        let now = self.now();
        let Some(buffer) = self.line.buffer() else {
            let mut discarded = [0; 64];
            let read = self.from.read(&mut discarded)?;
            if read.is_some() {
                self.line.count_overflow();
            }
            return Ok(read.is_some());
        };
        let Some(len) = self.from.read(buffer)? else { return Ok(false) };
        if let (Some(tap), Some(packet)) = (&self.tap, buffer.get(VNET_BYTES..len)) {
            tap.see(packet);
        }
        self.line.admit(self.unread_since, now, len);
        Ok(true)
    }

    /// Sleeps until there is something to do. While packets flow, those that arrive meanwhile wait
    /// for the end of the nap.
    fn rest(&mut self, is_flowing: bool) {
        let now = self.now();
        let due_in = self.line.next_wake(NAP_NS).map(|at| at.nanos_since(now));
        let is_early = std::mem::take(&mut self.is_early);
        match due_in {
            Some(0) => return,
            Some(soon) if is_early && soon <= EARLY_NS => {
                self.is_early = true;
                std::hint::spin_loop();
                return;
            }
            _ => {}
        }
        if is_flowing {
            sleep(due_in.unwrap_or(NAP_NS).min(NAP_NS));
            return;
        }
        let mut wait_ns = due_in.unwrap_or(u64::MAX).min(IDLE_NS);
        if due_in.is_some_and(|due_in| due_in > LONG_NS && due_in <= IDLE_NS) {
            wait_ns -= EARLY_NS;
            self.is_early = true;
        }
        let mut fds = [PollFd::new(&*self.from, PollFlags::IN)];
        // Interrupted or not, the next turn checks for work.
        let _ = poll(&mut fds, Some(&timespec(wait_ns)));
        self.unread_since = self.now();
    }
}

fn sleep(nanos: u64) {
    let _ = poll(&mut [], Some(&timespec(nanos)));
}

fn timespec(nanos: u64) -> Timespec {
    let duration = Duration::from_nanos(nanos);
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: duration.subsec_nanos().into() }
}

fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
