//! SDR: messages complete chunk by chunk, and a scheme makes them reliable. A loss costs only the
//! lost data.

use std::collections::HashMap;
use std::error::Error;
use std::time::{Duration, Instant};

use bowline::{
    Access, Device, Mr, ReliableConfig, ReliableEvent, ReliableQp, SdrConfig, WriteId, WriteOptions,
};

use super::scheme::{Outcome, Scheme, Stage, lost};

/// Longer than any scheme needs to repair a loss.
const PATIENCE: Duration = Duration::from_secs(30);

/// A reliability scheme over SDR.
pub(super) struct Sdr {
    pub(super) name: &'static str,
    /// The name of the scheme in the API.
    pub(super) scheme: &'static str,
}

impl Scheme for Sdr {
    fn name(&self) -> &'static str {
        self.name
    }

    fn run(&self, stage: &Stage<'_>) -> Result<Outcome, Box<dyn Error>> {
        let sender = End::new(stage, 0)?;
        let receiver = End::new(stage, 1)?;
        receiver.qp.connect(stage.from, &sender.qp.info()?)?;
        sender.qp.connect(stage.to, &receiver.qp.info()?)?;
        // The ends measure the round-trip time first.
        std::thread::sleep(2 * stage.link.rtt);
        let scheme = sender.qp.scheme(self.scheme)?;
        transfer(stage, &sender, &receiver, WriteOptions { scheme, imm: None })
    }
}

/// One NIC with everything that a transfer needs.
struct End {
    device: Device,
    qp: ReliableQp,
    mr: Mr,
}

impl End {
    fn new(stage: &Stage<'_>, direction: u64) -> Result<End, Box<dyn Error>> {
        let (link, load) = (stage.link, stage.load);
        let sends = direction == 0;
        let mut builder = Device::builder(if sends { stage.from } else { stage.to })
            .notice(crate::output::notice);
        if let Some(profile) = link.profile(load.link_seed(direction))? {
            builder = builder.link(profile);
        }
        if let Some(file) = stage.pcap.as_ref().filter(|_| sends) {
            builder = builder.pcap(file);
        }
        let device = builder.open()?;
        let pd = device.alloc_pd()?;
        let mr = pd.register(load.buffer_bytes(), Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let rate_bps = link.rate_gbps().map(|gbps| (gbps * 1e9) as u64);
        let config = ReliableConfig {
            sdr: SdrConfig { mtu: device.mtu(), rate_bps, ..SdrConfig::default() },
            max_write: load.message_bytes as u64,
            ..ReliableConfig::default()
        };
        let qp = ReliableQp::new(&pd, &config)?;
        Ok(End { device, qp, mr })
    }
}

/// Writes every message, and checks the acknowledged ones at the receiver.
fn transfer(
    stage: &Stage<'_>,
    from: &End,
    to: &End,
    options: WriteOptions,
) -> Result<Outcome, Box<dyn Error>> {
    let load = stage.load;
    (0..load.messages).for_each(|n| load.write(n, &from.mr));
    let range = |n| load.offset(n)..load.offset(n) + load.message_bytes;
    for n in 0..load.messages {
        to.qp.recv(&to.mr, range(n))?;
    }
    let mut posted: HashMap<WriteId, Instant> = HashMap::new();
    let mut next = 0;
    let mut completion_times = Vec::new();
    let start = Instant::now();
    let mut last = start;
    loop {
        let goes_on = start.elapsed() < load.time_limit;
        while goes_on && next < load.messages && (posted.len() as u64) < load.in_flight {
            let at = Instant::now();
            posted.insert(from.qp.write(&from.mr, range(next), options)?, at);
            next += 1;
        }
        if posted.is_empty() {
            break;
        }
        let ReliableEvent::Written { id, .. } = from.qp.next(PATIENCE)? else { continue };
        last = Instant::now();
        completion_times.extend(posted.remove(&id).map(|at| last - at));
        stage.bar.inc(1);
    }
    // For the progress bar, messages that the time limit cut off count as done.
    stage.bar.inc(load.messages - next);
    let packets_a_chunk = (64 << 10) / u64::from(from.device.mtu().bytes());
    Ok(Outcome {
        elapsed: last - start,
        completion_times,
        retransmitted_packets: from.qp.stats()?.chunks_resent * packets_a_chunk,
        sent_packets: from.device.counters()?.tx_packets,
        lost_packets: lost(&from.device)? + lost(&to.device)?,
        handover: None,
        wrong_bytes: (0..next).map(|n| load.wrong_bytes(n, &to.mr)).sum(),
    })
}
