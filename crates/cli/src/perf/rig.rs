//! The resources of one end of a test: a device, queue pairs, memory.

use std::error::Error;
use std::time::{Duration, Instant};

use bowline::{
    Access, Buffer, Completion, CompletionExt, Cq, Device, Mr, Payload, Qp, RecvWr, RemoteMr,
    SendFlags, SendOp, SendWr, Sge, Time, UdDest,
};

use super::args::{Spec, Test};

/// Maximum memory that a test may ask for, at each end.
const MAX_MEMORY: u64 = 4 << 30;
/// Receives kept posted on each QP of a test that sends.
const RECEIVES: u32 = 512;
/// Work requests posted in one call.
const BATCH: u64 = 32;
/// Bytes of a message that is short.
const SHORT: usize = 64;
/// Length of the header in front of a datagram.
const GRH_LEN: usize = 40;
/// How long the READs of a batch may take if a response may be lost.
const READ_TIMEOUT: Duration = Duration::from_secs(1);
/// A peer that does nothing for this long is considered gone.
const STALL: Duration = Duration::from_secs(20);

/// One end of a test.
pub(crate) struct Rig {
    pub(crate) spec: Spec,
    pub(crate) device: Device,
    pub(crate) cq: Cq,
    pub(crate) qps: Vec<Qp>,
    /// For each QP, slots to send from, followed by as many slots for the peer to write to.
    pub(crate) mr: Mr,
    /// The peer's slots, by QP.
    pub(crate) remotes: Vec<RemoteMr>,
    /// The peer's QPs, if they receive datagrams.
    pub(crate) datagrams: Vec<UdDest>,
    slot: usize,
    /// Number of slots of each QP, which its messages use in turn.
    places: usize,
}

impl Rig {
    /// Creates everything except the connection.
    pub(crate) fn new(device: Device, spec: Spec) -> Result<Rig, Box<dyn Error>> {
        let pd = device.alloc_pd()?;
        let mut slot = spec.max_size().next_multiple_of(Buffer::ALIGN);
        if spec.transport.is_datagram() {
            let mtu = device.mtu().bytes();
            if spec.max_size() > mtu as usize {
                return Err(format!(
                    "a datagram carries at most {mtu} bytes here: use -s {mtu} or less"
                )
                .into());
            }
            slot = (slot + GRH_LEN).next_multiple_of(Buffer::ALIGN);
        }
        let places = (spec.region as usize / slot).max(1);
        let bytes = slot as u64 * places as u64 * 2 * u64::from(spec.qps);
        if bytes > MAX_MEMORY {
            let (asked, most) = (bytes >> 20, MAX_MEMORY >> 20);
            return Err(format!(
                "the test needs {asked} MiB of memory, and {most} MiB is the maximum: use fewer \
                 QPs, smaller messages or a smaller region"
            )
            .into());
        }
        let rights = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        let mr = pd.register_shared(bytes as usize, rights)?;
        if places > 1 {
            // Unwritten pages all map to one page of zeros, which would stay in the cache.
            mr.fill(0, bytes as usize, 0x5a);
        }
        let cq = device.create_cq((spec.tx_depth + RECEIVES) * u32::from(spec.qps) + 1)?;
        let qps = (0..spec.qps)
            .map(|_| {
                pd.qp(spec.transport.qp_type(), &cq)
                    // One more, to finish a run that ends between two signaled requests.
                    .max_send_wr(spec.tx_depth + 1)
                    .max_recv_wr(RECEIVES)
                    .max_inline(spec.inline)
                    .build()
            })
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Rig {
            spec,
            device,
            cq,
            qps,
            mr,
            remotes: Vec::new(),
            datagrams: Vec::new(),
            slot,
            places,
        })
    }

    /// The memory that the peer of QP `qp` may use.
    pub(crate) fn offer(&self, qp: usize) -> RemoteMr {
        let start = self.landing(qp) as u64;
        let all = self.mr.remote();
        let len = (self.slot * self.places) as u64;
        all.slice(start..start + len).expect("the region has places for every QP")
    }

    /// The first slot that QP `qp` sends from.
    pub(crate) fn source(&self, qp: usize) -> usize {
        2 * qp * self.places * self.slot
    }

    /// The first slot that the peer of QP `qp` writes to.
    pub(crate) fn landing(&self, qp: usize) -> usize {
        (2 * qp + 1) * self.places * self.slot
    }

    /// The offset of message `n` from a QP's first slot, at either end.
    fn place(&self, n: u64) -> usize {
        (n % self.places as u64) as usize * self.slot
    }

    /// Posts as many receives as the queue holds, if the test consumes any.
    pub(crate) fn post_all_receives(&self) -> Result<(), Box<dyn Error>> {
        if !matches!(self.spec.test, Test::SendBw | Test::SendLat) {
            return Ok(());
        }
        for qp in 0..self.qps.len() {
            self.post_receives(qp, RECEIVES as usize)?;
        }
        Ok(())
    }

    /// Posts `count` receives on a QP.
    pub(crate) fn post_receives(&self, qp: usize, count: usize) -> Result<(), Box<dyn Error>> {
        let sges = [self.sge(self.landing(qp), self.slot)?];
        let wrs = [RecvWr::new(wr_id(qp, 0), &sges); BATCH as usize];
        let mut left = count;
        while left > 0 {
            let now = left.min(wrs.len());
            self.qps[qp].post_recv_batch(&wrs[..now])?;
            left -= now;
        }
        Ok(())
    }

    /// Posts `messages` of `bytes` each on a QP. `signal` tells which of them ask for a completion.
    pub(crate) fn post_messages(
        &self,
        qp: usize,
        bytes: u32,
        messages: std::ops::Range<u64>,
        signal: impl Fn(u64) -> bool,
    ) -> Result<(), Box<dyn Error>> {
        let len = if self.spec.is_inline(bytes) { bytes as usize } else { 0 };
        // Zeroing the longer one would take a tenth of the time that a short message takes.
        let (mut short, mut long);
        let inline = if len <= SHORT {
            short = [0; SHORT];
            &mut short[..len]
        } else {
            long = [0; 1024];
            &mut long[..len]
        };
        self.mr.read_at(self.source(qp), inline);
        let mut next = messages.start;
        while next < messages.end {
            let count = (messages.end - next).min(BATCH);
            let batch = next..next + count;
            match count {
                // Latency is measured with one request at a time.
                1 => self.post_batch::<1>(qp, bytes, inline, batch, &signal)?,
                _ => self.post_batch::<{ BATCH as usize }>(qp, bytes, inline, batch, &signal)?,
            }
            next += count;
        }
        Ok(())
    }

    /// Posts at most `N` messages with one call.
    #[inline]
    fn post_batch<const N: usize>(
        &self,
        qp: usize,
        bytes: u32,
        inline: &[u8],
        messages: std::ops::Range<u64>,
        signal: impl Fn(u64) -> bool,
    ) -> Result<(), Box<dyn Error>> {
        let mut sges = [[Sge::default()]; N];
        for (sge, n) in sges.iter_mut().zip(messages.clone()) {
            *sge = [self.sge(self.source(qp) + self.place(n), bytes as usize)?];
        }
        let deadline = self.deadline(qp)?;
        let wrs: [SendWr<'_>; N] = std::array::from_fn(|i| {
            let n = messages.start + i as u64;
            let payload =
                if inline.is_empty() { Payload::Sges(&sges[i]) } else { Payload::Inline(inline) };
            let flags = if signal(n) { SendFlags::SIGNALED } else { SendFlags::empty() };
            let wr = SendWr::new(wr_id(qp, n), self.op(qp, n), &[]);
            let ud = self.datagrams.get(qp).copied();
            SendWr { payload, flags, deadline, ud, ..wr }
        });
        let count = (messages.end - messages.start) as usize;
        Ok(self.qps[qp].post_send_batch(&wrs[..count])?)
    }

    /// The deadline of a request that is posted now. A READ whose response may be lost needs one.
    fn deadline(&self, qp: usize) -> Result<Time, bowline::Error> {
        let waits = matches!(self.spec.test, Test::ReadBw | Test::ReadLat);
        if waits && !self.spec.transport.is_reliable() {
            return self.qps[qp].deadline_in(READ_TIMEOUT);
        }
        Ok(Time::NEVER)
    }

    fn op(&self, qp: usize, message: u64) -> SendOp {
        let mut remote = self.remotes[qp].start();
        remote.addr += self.place(message) as u64;
        match self.spec.test {
            Test::WriteBw | Test::WriteLat => SendOp::Write(remote),
            Test::SendBw | Test::SendLat => SendOp::Send,
            Test::ReadBw | Test::ReadLat => SendOp::Read(remote),
            Test::AtomicLat => SendOp::FetchAdd { remote, add: 1 },
        }
    }

    fn sge(&self, start: usize, len: usize) -> Result<Sge, bowline::Error> {
        self.mr.sge(start..start + len)
    }
}

/// A work request ID made of the QP and the message number.
fn wr_id(qp: usize, message: u64) -> u64 {
    (qp as u64) << 48 | message
}

/// The QP and the message number of a completed request.
pub(crate) fn qp_and_message(completion: &Completion) -> (usize, u64) {
    ((completion.wr_id >> 48) as usize, completion.wr_id & ((1 << 48) - 1))
}

/// How long polls find nothing before a program sleeps that may.
const AWAKE: Duration = Duration::from_micros(100);
/// After how many polls that found nothing the clock is read.
const CLOCK_EVERY: u32 = 32;
/// How long it sleeps before it checks whether to end.
const NAP: Duration = Duration::from_millis(20);

/// Polls a completion queue, checks every completion, and detects a stall.
pub(crate) struct Poller<'a> {
    cq: &'a Cq,
    completions: [Completion; 32],
    idle_since: Option<Instant>,
    /// Polls that found nothing, since something was found.
    idle_polls: u32,
}

impl<'a> Poller<'a> {
    pub(crate) fn new(cq: &'a Cq) -> Poller<'a> {
        Poller { cq, completions: [Completion::default(); 32], idle_since: None, idle_polls: 0 }
    }

    /// The completions that are available now, possibly none.
    pub(crate) fn poll(&mut self) -> Result<&[Completion], Box<dyn Error>> {
        let count = self.cq.poll(&mut self.completions)?;
        self.check(count)
    }

    fn check(&mut self, count: usize) -> Result<&[Completion], Box<dyn Error>> {
        let got = &self.completions[..count];
        for completion in got {
            completion.ok()?;
        }
        if count > 0 {
            (self.idle_since, self.idle_polls) = (None, 0);
        }
        Ok(got)
    }

    /// The completions that are available now. Sleeps if there have been none for a while, so that
    /// a sender that waits for its link leaves the CPU to others, and its CPU time is that of its
    /// work.
    pub(crate) fn poll_or_sleep(&mut self) -> Result<&[Completion], Box<dyn Error>> {
        let is_patient = self.idle_since.is_some_and(|since| since.elapsed() > AWAKE);
        if !is_patient {
            return self.poll();
        }
        let count = self.cq.wait(&mut self.completions, NAP)?;
        self.check(count)
    }

    /// Call this when nothing has happened. Fails if that has lasted too long.
    pub(crate) fn idle(&mut self) -> Result<(), Box<dyn Error>> {
        self.idle_polls = self.idle_polls.wrapping_add(1);
        // Reading the clock takes as long as a poll.
        if !self.idle_polls.is_multiple_of(CLOCK_EVERY) {
            return Ok(());
        }
        let since = *self.idle_since.get_or_insert_with(Instant::now);
        if since.elapsed() > STALL {
            let secs = STALL.as_secs();
            return Err(
                format!("no progress for {secs} s: check that the peer is still running").into()
            );
        }
        Ok(())
    }

    /// Call this when something other than a completion has happened.
    pub(crate) fn progressed(&mut self) {
        (self.idle_since, self.idle_polls) = (None, 0);
    }
}
