//! Bowline's connected queue pairs: RDMA WRITE over RC, which completes when the peer's NIC has
//! acknowledged what is in its memory, and WRITE with immediate over UC, which the receiver counts.

use std::ops::Range;
use std::time::{Duration, Instant};

use bowline::{
    Access, BbrParams, Channel, Completion, CompletionExt, ConnectOptions, Connector, Cq, Device,
    Listener, Mr, Mtu, Qp, QpType, RateControl, RemoteMr,
};

use crate::Result;
use crate::control::Server;
use crate::memory::Places;
use crate::peer;
use crate::spec::{Kind, Spec};

/// Receives kept posted for the immediates of UC.
const RECEIVES: u32 = 512;
/// A peer that does nothing for so long is gone.
const STALL: Duration = Duration::from_secs(30);
/// How long to sleep at most before looking whether the peer is still there.
const NAP: Duration = Duration::from_millis(100);
/// Path MTU, unless told.
const MTU: Mtu = Mtu::B4096;

/// A NIC and what a measurement needs of it.
struct End {
    _device: Device,
    cq: Cq,
    mr: Mr,
    qps: Vec<Qp>,
    _idle: Vec<Qp>,
    options: ConnectOptions,
}

impl End {
    fn new(spec: &Spec, addr: std::net::IpAddr) -> Result<End> {
        let all = spec.qps + spec.idle_qps;
        let mut builder =
            Device::builder(addr).via(spec.via).mtu(mtu(spec)?).max_qps(all as u32 + 16);
        if spec.kind == Kind::RcFec {
            builder = builder.fec("auto".parse()?);
        }
        let device = builder.open()?;
        let pd = device.alloc_pd()?;
        let depth = spec.depth() as u32;
        let cq = device.create_cq((depth + RECEIVES) * spec.qps as u32 + 1)?;
        let places = Places::new(spec);
        let mr = pd.register_shared(places.len(), Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        mr.fill(0, places.len(), 0x5a);
        let kind = if spec.kind == Kind::Uc { QpType::Uc } else { QpType::Rc };
        let make = |count: usize, sends: u32, receives: u32| {
            let qp = || pd.qp(kind, &cq).max_send_wr(sends).max_recv_wr(receives).build();
            (0..count).map(|_| qp()).collect::<std::result::Result<Vec<_>, _>>()
        };
        let receives = if spec.kind == Kind::Uc { RECEIVES } else { 1 };
        let (qps, idle) = (make(spec.qps, depth, receives)?, make(spec.idle_qps, 1, 1)?);
        Ok(End { _device: device, cq, mr, qps, _idle: idle, options: connect_options(spec) })
    }

    /// Connects every queue pair to its counterpart; where the peer's memory is.
    fn join(&self, channel: &mut Channel) -> Result<RemoteMr> {
        let mut remote = None;
        for qp in self.qps.iter().chain(&self._idle) {
            let peer = channel.connect_with(qp, &[self.mr.remote()], &self.options)?;
            remote = peer.regions.first().copied();
        }
        remote.ok_or_else(|| "the peer offers no memory".into())
    }
}

fn mtu(spec: &Spec) -> Result<Mtu> {
    match spec.mtu {
        None => Ok(MTU),
        Some(bytes) => Mtu::from_bytes(bytes.into())
            .ok_or_else(|| format!("{bytes} is no path MTU of InfiniBand's").into()),
    }
}

/// The defaults on a local link; on a long one a window that fills it and a timeout beyond it.
fn connect_options(spec: &Spec) -> ConnectOptions {
    let mut options = ConnectOptions::default();
    if spec.is_long() {
        let least_us = (10.0 * spec.rtt).max(250.0) * 1e3;
        let code = (1..=31).find(|code| 4.096 * 2f64.powi(*code) >= least_us).unwrap_or(31);
        options.timeout = code as u8;
        options.window_bytes = Some(2 * spec.bdp_bytes() as u32);
    }
    options
}

/// The end that writes.
pub(crate) struct Sender {
    end: End,
    remote: RemoteMr,
    kind: Kind,
    depth: usize,
    sleeps: bool,
    /// Bytes of the messages under way, by queue pair.
    outstanding: Vec<usize>,
    completed: Vec<u64>,
    bytes: usize,
    next_qp: usize,
    _channel: Channel,
}

impl Sender {
    pub(crate) fn connect(spec: &Spec) -> Result<Sender> {
        let end = End::new(spec, spec.from)?;
        let mut channel = Connector::new().connect(spec.data_at())?;
        let remote = end.join(&mut channel)?;
        // UC hears nothing of its packets, from which a rate could be found out.
        if spec.is_long() && spec.kind != Kind::Uc {
            for qp in &end.qps {
                qp.set_rate_control(RateControl::Bbr(BbrParams::default()))?;
            }
        }
        let depth = if spec.qps > 1 { 2 } else { spec.depth() };
        let (kind, bytes, qps) = (spec.kind, spec.size, spec.qps);
        Ok(Sender {
            end,
            remote,
            kind,
            depth,
            sleeps: spec.is_long(),
            outstanding: vec![0; qps],
            completed: vec![0; qps],
            bytes,
            next_qp: 0,
            _channel: channel,
        })
    }

    /// Takes what has completed. On a long link it sleeps until something has: a core that spins
    /// there is one that the link lacks.
    fn poll(&mut self) -> Result<()> {
        let mut completions = [Completion::default(); 32];
        let count = match self.sleeps {
            true => self.end.cq.wait(&mut completions, NAP)?,
            false => self.end.cq.poll(&mut completions)?,
        };
        for completion in &completions[..count] {
            completion.ok()?;
            let qp = completion.wr_id as usize;
            self.outstanding[qp] -= 1;
            self.completed[qp] += self.bytes as u64;
        }
        Ok(())
    }

    /// The next queue pair in turn that has room, as soon as one has.
    fn ready_qp(&mut self) -> Result<usize> {
        let start = Instant::now();
        loop {
            let qps = self.outstanding.len();
            for _ in 0..qps {
                let qp = self.next_qp;
                self.next_qp = (qp + 1) % qps;
                if self.outstanding[qp] < self.depth {
                    return Ok(qp);
                }
            }
            // Only now: a program that looks after every request lets none wait for the next, and
            // each leaves alone.
            self.poll()?;
            if start.elapsed() > STALL {
                return Err("the peer has stopped acknowledging".into());
            }
        }
    }
}

impl peer::Sender for Sender {
    fn send(&mut self, place: Range<usize>) -> Result<()> {
        let qp = self.ready_qp()?;
        let to = self.remote.slice(place.start as u64..place.end as u64)?;
        let (queue, mr) = (&self.end.qps[qp], &self.end.mr);
        match self.kind {
            Kind::Uc => queue.write_imm(qp as u64, mr, place, to, 1)?,
            _ => queue.write(qp as u64, mr, place, to)?,
        }
        self.outstanding[qp] += 1;
        Ok(())
    }

    fn confirm(&mut self, _spin: bool) -> Result<()> {
        let start = Instant::now();
        while self.outstanding.iter().any(|n| *n > 0) {
            self.poll()?;
            if start.elapsed() > STALL {
                return Err("the peer has stopped acknowledging".into());
            }
        }
        Ok(())
    }

    fn arrived(&self) -> Option<u64> {
        // UC completes when the message has left: what arrived only the receiver knows.
        (self.kind != Kind::Uc).then(|| self.completed.iter().sum())
    }

    fn arrived_each(&self) -> &[u64] {
        &self.completed
    }
}

pub(crate) fn serve(spec: &Spec, control: &Server) -> Result<()> {
    let end = End::new(spec, spec.at.ip())?;
    let receives = if spec.kind == Kind::Uc { RECEIVES } else { 0 };
    for _ in 0..receives {
        end.qps[0].recv(0, &end.mr, 0..0)?;
    }
    let listener = Listener::bind(spec.data_at())?;
    control.listening()?;
    let mut channel = listener.accept()?;
    end.join(&mut channel)?;
    if spec.kind != Kind::Uc {
        // One-sided: the NIC's own thread answers, and this program has nothing to do.
        channel.set_timeout(Duration::from_secs(100_000));
        return Ok(channel.barrier()?);
    }
    let mut completions = [Completion::default(); 32];
    loop {
        let count = end.cq.poll(&mut completions)?;
        for completion in &completions[..count] {
            completion.ok()?;
            control.add(spec.size);
            end.qps[0].recv(0, &end.mr, 0..0)?;
        }
    }
}
