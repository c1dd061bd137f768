//! Bowline's messages that complete chunk by chunk, made reliable by a scheme. A message is over
//! for the sender when the receiver has told it that everything is there.

use std::net::IpAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use bowline::{
    Access, BbrParams, Connector, Device, Listener, Mr, Mtu, RateControl, ReliableConfig,
    ReliableEvent, ReliableQp, SdrConfig, SdrError, WriteOptions,
};

use crate::Result;
use crate::control::Server;
use crate::memory::Places;
use crate::peer;
use crate::spec::Spec;

/// A peer that does nothing for so long is gone.
const STALL: Duration = Duration::from_secs(30);
/// How long to sleep at most before looking whether the peer is still there.
const NAP: Duration = Duration::from_millis(100);

/// A NIC and what a measurement needs of it.
struct End {
    qp: ReliableQp,
    mr: Mr,
    scheme: usize,
    depth: usize,
}

impl End {
    fn new(spec: &Spec, addr: IpAddr) -> Result<End> {
        let mut builder = Device::builder(addr);
        if let Some(mtu) = spec.mtu.and_then(|bytes| Mtu::from_bytes(bytes.into())) {
            builder = builder.mtu(mtu);
        }
        let device = builder.open()?;
        let config = ReliableConfig {
            sdr: SdrConfig {
                mtu: device.mtu(),
                chunk_bytes: u32::try_from(spec.chunk)?,
                // Nobody is told the link's rate.
                congestion: spec.is_long().then(|| RateControl::Bbr(BbrParams::default())),
                ..SdrConfig::default()
            },
            max_write: spec.size as u64,
            k: spec.code[0],
            m: spec.code[1],
            ..ReliableConfig::default()
        };
        let pd = device.alloc_pd()?;
        let qp = ReliableQp::new(&pd, &config)?;
        let scheme = qp.scheme(&spec.kind.name())?;
        let places = Places::new(spec);
        let mr = pd.register(places.len(), Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        mr.fill(0, places.len(), 0x5a);
        let depth = spec.depth().min(config.max_outstanding() as usize).max(1);
        Ok(End { qp, mr, scheme, depth })
    }
}

/// The end that writes.
pub(crate) struct Sender {
    end: End,
    bytes: usize,
    sleeps: bool,
    outstanding: usize,
    arrived: u64,
}

impl Sender {
    pub(crate) fn connect(spec: &Spec) -> Result<Sender> {
        let end = End::new(spec, spec.from)?;
        end.qp.connect_over(&mut Connector::new().connect(spec.data_at())?)?;
        Ok(Sender { end, bytes: spec.size, sleeps: spec.is_long(), outstanding: 0, arrived: 0 })
    }

    /// Waits until at most so many messages are under way.
    fn drain(&mut self, most: usize) -> Result<()> {
        let mut since = Instant::now();
        while self.outstanding > most {
            // On a long link a core that spins is one that the link lacks.
            let event = if self.sleeps { self.end.qp.wait(NAP)? } else { self.end.qp.poll()? };
            match event {
                Some(ReliableEvent::Written { result, .. }) => {
                    result?;
                    self.outstanding -= 1;
                    self.arrived += self.bytes as u64;
                    since = Instant::now();
                }
                Some(ReliableEvent::Received { .. }) => {}
                None if since.elapsed() > STALL => {
                    return Err("the peer has stopped acknowledging".into());
                }
                None => {}
            }
        }
        Ok(())
    }
}

impl peer::Sender for Sender {
    fn send(&mut self, place: Range<usize>) -> Result<()> {
        self.drain(self.end.depth - 1)?;
        let options = WriteOptions { scheme: self.end.scheme, imm: None };
        self.end.qp.write(&self.end.mr, place, options)?;
        self.outstanding += 1;
        Ok(())
    }

    fn confirm(&mut self, _spin: bool) -> Result<()> {
        self.drain(0)
    }

    fn arrived(&self) -> Option<u64> {
        Some(self.arrived)
    }
}

pub(crate) fn serve(spec: &Spec, control: &Server) -> Result<()> {
    let end = End::new(spec, spec.at.ip())?;
    let mut places = Places::new(spec);
    let listener = Listener::bind(spec.data_at())?;
    control.listening()?;
    end.qp.connect_over(&mut listener.accept()?)?;
    // What is not posted yet: IDs that were in use a moment ago have to rest, and messages complete
    // in another order than their IDs are used again.
    let mut owed = end.depth;
    loop {
        while owed > 0 {
            let mut ahead = places.clone();
            match end.qp.recv(&end.mr, ahead.take(spec.size)) {
                Ok(_) => (places, owed) = (ahead, owed - 1),
                Err(bowline::Error::Sdr(SdrError::Quarantined | SdrError::Full { .. })) => break,
                Err(e) => return Err(e.into()),
            }
        }
        let event = end.qp.wait(Duration::from_millis(if owed > 0 { 1 } else { 5 }))?;
        if let Some(ReliableEvent::Received { result, .. }) = event {
            result?;
            owed += 1;
        }
    }
}
