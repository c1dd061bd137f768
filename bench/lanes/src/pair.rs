//! Two devices in one process, and workers that drive a lane of each.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bowline_bench_common::pin;
use bowline_device::{Cq, Device, DeviceSpec, Mr, Opened, Pd, Qp, QpRequest};
use bowline_io::{LaneError, MemoryHub};
use bowline_nic::{
    Access, Buffer, Completion, Connect, ControlError, Payload, PostError, QpType, Remote, SendOp,
    SendWr, Sge, WcStatus,
};
use bowline_wire::Qpn;

use crate::Result;

/// Requests that a worker keeps outstanding, and posts at a time.
const DEPTH: u32 = 128;
const BATCH: u32 = 32;
/// Memory that a worker sends from and writes to: it fits the core's own cache.
const REGION: usize = 256 << 10;
const UDP_PORT: u16 = 14_799;
/// Frames that wait at a port in memory.
const INBOX: usize = 1 << 14;
/// How long before the measurement workers run to warm up.
const WARM_UP: Duration = Duration::from_millis(50);

/// What carries the packets.
#[derive(Clone, Copy)]
pub(crate) enum Carrier {
    Memory,
    Udp,
}

/// What is measured.
pub(crate) struct Shape {
    pub(crate) carrier: Carrier,
    /// Lanes of each device, and so workers.
    pub(crate) lanes: usize,
    /// Workers of a device share a completion queue.
    pub(crate) one_cq: bool,
    /// Pairs of devices, which have nothing in common.
    pub(crate) devices: usize,
}

/// A worker's own counters, on cache lines of their own.
#[derive(Default)]
#[repr(align(128))]
struct Tally {
    done: AtomicU64,
    outstanding: AtomicU32,
}

/// One end: a device with a queue pair on every lane.
struct End {
    device: Arc<Device>,
    cqs: Vec<Arc<Cq>>,
    qps: Vec<Qp>,
    memory: Arc<Buffer>,
    mr: Mr,
}

/// Sender, receiver, and what the workers between them have done.
struct Pair {
    sender: End,
    receiver: End,
    tallies: Vec<Tally>,
}

/// Messages a second, of all workers together.
pub(crate) fn throughput(shape: &Shape, bytes: u32, run: Duration) -> Result<f64> {
    let pairs: Vec<Pair> =
        (0..shape.devices).map(|n| Pair::new(shape, n)).collect::<Result<_>>()?;
    let stop = AtomicBool::new(false);
    let total = || -> u64 {
        let tallies = pairs.iter().flat_map(|pair| &pair.tallies);
        tallies.map(|tally| tally.done.load(Ordering::Relaxed)).sum()
    };
    let rate = std::thread::scope(|scope| {
        let mut workers = Vec::new();
        for (n, pair) in pairs.iter().enumerate() {
            for lane in 0..shape.lanes {
                let (cpu, stop) = (n * shape.lanes + lane, &stop);
                workers.push(scope.spawn(move || {
                    let done = pin(cpu).map_err(|e| format!("cannot use CPU {cpu}: {e}"));
                    done.and_then(|()| pair.work(lane, bytes, stop))
                }));
            }
        }
        std::thread::sleep(WARM_UP);
        let (before, start) = (total(), Instant::now());
        std::thread::sleep(run);
        let rate = (total() - before) as f64 / start.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            worker.join().map_err(|_| "a worker panicked".to_owned())??;
        }
        Ok::<f64, String>(rate)
    })?;
    for pair in &pairs {
        pair.sender.device.shut_down();
        pair.receiver.device.shut_down();
    }
    Ok(rate)
}

impl Pair {
    fn new(shape: &Shape, n: usize) -> Result<Pair> {
        let hub = MemoryHub::new();
        let addr = |end: u8| IpAddr::from(Ipv4Addr::new(127, 77, n as u8 + 1, end));
        let sender = End::new(shape, &hub, addr(1))?;
        let receiver = End::new(shape, &hub, addr(2))?;
        for lane in 0..shape.lanes {
            sender.connect(lane, addr(2), receiver.qps[lane].qpn())?;
            receiver.connect(lane, addr(1), sender.qps[lane].qpn())?;
        }
        let tallies = (0..shape.lanes).map(|_| Tally::default()).collect();
        Ok(Pair { sender, receiver, tallies })
    }

    /// Keeps a queue pair busy, and drives its lane at both ends.
    fn work(&self, lane: usize, bytes: u32, stop: &AtomicBool) -> std::result::Result<(), String> {
        let own = &self.tallies[lane];
        let cq = &self.sender.cqs[lane % self.sender.cqs.len()];
        let far = &self.receiver.cqs[lane % self.receiver.cqs.len()];
        let mut out = [Completion::default(); 64];
        while !stop.load(Ordering::Relaxed) {
            if own.outstanding.load(Ordering::Relaxed) <= DEPTH - BATCH {
                own.outstanding.fetch_add(BATCH, Ordering::Relaxed);
                self.post(lane, bytes)?;
            }
            poll(far, &mut out).map_err(|e| e.to_string())?;
            let count = poll(cq, &mut out).map_err(|e| e.to_string())?;
            for completion in &out[..count] {
                if completion.status != WcStatus::Success {
                    return Err(format!("a WRITE failed: {:?}", completion.status));
                }
                let lane = completion.wr_id as usize;
                let tally = &self.tallies[lane];
                tally.done.fetch_add(1, Ordering::Relaxed);
                tally.outstanding.fetch_sub(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    fn post(&self, lane: usize, bytes: u32) -> std::result::Result<(), String> {
        let at = (lane * REGION) as u64;
        let (ours, theirs) = (&self.sender, &self.receiver);
        let sges = [Sge::new(ours.mr.key(), ours.memory.addr() + at, bytes)];
        let remote = Remote { addr: theirs.memory.addr() + at, rkey: theirs.mr.key().0 };
        let wr = SendWr {
            payload: Payload::Sges(&sges),
            ..SendWr::new(lane as u64, SendOp::Write(remote), &[])
        };
        let posted = ours.qps[lane]
            .post(|nic, now, qpn| Some((0..BATCH).try_for_each(|_| nic.post_send(now, qpn, &wr))));
        match posted.map_err(|e| e.to_string())? {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(error.to_string()),
            None => Err(PostError::Away.to_string()),
        }
    }
}

impl End {
    fn new(shape: &Shape, hub: &MemoryHub, addr: IpAddr) -> Result<End> {
        let mut spec = DeviceSpec::new("bench", addr);
        spec.lanes = shape.lanes.to_string().parse()?;
        spec.udp.udp_port = UDP_PORT;
        let device = match shape.carrier {
            Carrier::Udp => spec.open()?,
            Carrier::Memory => {
                let ports = (0..shape.lanes as u8).map(|prefix| -> Result<Opened> {
                    let port = hub.port_for(addr, UDP_PORT, prefix, INBOX)?;
                    Ok((Box::new(port), prefix))
                });
                spec.open_on(ports.collect::<Result<_>>()?)?
            }
        };
        let pd = Arc::new(Pd::create(&device)?);
        let queues = if shape.one_cq { 1 } else { shape.lanes };
        let cqs: Vec<Arc<Cq>> = (0..queues)
            .map(|_| Ok(Arc::new(Cq::create(&device, 4096, None)?)))
            .collect::<Result<_>>()?;
        let memory = Buffer::new(REGION * shape.lanes);
        let mr = Mr::register(&pd, &memory, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let qps = (0..shape.lanes)
            .map(|lane| {
                let cq = &cqs[lane % queues];
                Ok(Qp::create(QpRequest {
                    qp_type: QpType::Rc,
                    pd: Arc::clone(&pd),
                    send_cq: Arc::clone(cq),
                    recv_cq: Arc::clone(cq),
                    srq: None,
                    max_send_wr: 2 * DEPTH,
                    max_recv_wr: 1,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline: 0,
                    signal_all: false,
                    xrcd: None,
                    lane: Some(lane),
                })?)
            })
            .collect::<Result<_>>()?;
        Ok(End { device, cqs, qps, memory, mr })
    }

    fn connect(&self, lane: usize, peer: IpAddr, qpn: Qpn) -> Result<()> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let connect = Connect { access, ..Connect::new(peer, qpn) };
        for attr in connect.steps(QpType::Rc) {
            self.qps[lane].modify(&attr)??;
        }
        Ok(())
    }
}

/// Why a queue could not be polled.
#[derive(Debug)]
struct PollError(String);

impl std::fmt::Display for PollError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<LaneError> for PollError {
    fn from(error: LaneError) -> PollError {
        PollError(error.to_string())
    }
}

impl From<ControlError> for PollError {
    fn from(error: ControlError) -> PollError {
        PollError(error.to_string())
    }
}

fn poll(cq: &Cq, out: &mut [Completion]) -> std::result::Result<usize, PollError> {
    let mut filled = 0;
    cq.poll(out.len(), |nic, _, cq, room| {
        let got = nic.poll_cq(cq, &mut out[filled..filled + room])?;
        filled += got;
        Ok(got)
    })
}
