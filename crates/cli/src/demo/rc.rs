//! The standard's reliable connection uses go-back-N, in which one lost packet costs a whole
//! window. FEC below it can restore lost packets before the connection notices.

use std::collections::VecDeque;
use std::error::Error;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bowline::{Access, ConnectOptions, Cq, Device, Failover, FecMode, Mr, Qp, QpType};

use super::link::Link;
use super::scheme::{Outcome, Scheme, Stage, lost};

/// Longer than any retransmission can take.
const PATIENCE: Duration = Duration::from_secs(30);

/// RC WRITEs, with or without FEC and failover.
pub(super) struct ReliableConnection {
    pub(super) name: &'static str,
    /// The FEC code below the connection, if any.
    pub(super) fec: Option<&'static str>,
    /// Whether a backup NIC takes over when one is killed.
    pub(super) failover: bool,
}

impl Scheme for ReliableConnection {
    fn name(&self) -> &'static str {
        self.name
    }

    fn suits(&self, link: &Link) -> bool {
        link.killed == self.failover
    }

    fn run(&self, stage: &Stage<'_>) -> Result<Outcome, Box<dyn Error>> {
        let fec = self.fec.map(str::parse).transpose()?;
        let store = if self.failover { Some(Store::new()?) } else { None };
        let sender = End::new(stage, 0, fec, store.as_ref())?;
        let receiver = End::new(stage, 1, fec, store.as_ref())?;
        let options = ConnectOptions {
            timeout: stage.link.timeout_code(),
            window_bytes: Some(stage.link.window_bytes()),
            ..ConnectOptions::default()
        };
        receiver.qp.connect_with(&sender.qp.endpoint(), &options)?;
        sender.qp.connect_with(&receiver.qp.endpoint(), &options)?;
        if fec.is_some() {
            // The ends have to find each other first. A real program has time for that while it
            // sets up.
            std::thread::sleep(4 * stage.link.rtt + Duration::from_millis(20));
        }
        if self.failover {
            sender.await_backup()?;
            receiver.await_backup()?;
        }
        transfer(stage, &sender, &receiver)
    }
}

/// The directory in which the two ends find each other's backups. It is removed on drop.
struct Store(PathBuf);

impl Store {
    fn new() -> std::io::Result<Store> {
        let dir = std::env::temp_dir().join(format!("bowline-demo-{}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        Ok(Store(dir))
    }

    fn url(&self) -> String {
        format!("file://{}", self.0.display())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // On failure, a few bytes stay in a directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// One NIC with everything that a transfer needs.
struct End {
    device: Device,
    qp: Qp,
    cq: Cq,
    mr: Mr,
}

impl End {
    fn new(
        stage: &Stage<'_>,
        direction: u64,
        fec: Option<FecMode>,
        store: Option<&Store>,
    ) -> Result<End, Box<dyn Error>> {
        let (link, load) = (stage.link, stage.load);
        let sends = direction == 0;
        let mut builder = Device::builder(if sends { stage.from } else { stage.to })
            .window_bytes(link.window_bytes())
            .notice(crate::output::notice);
        if let Some(profile) = link.profile(load.link_seed(direction))? {
            builder = builder.link(profile);
        }
        if let Some(file) = stage.pcap.as_ref().filter(|_| sends) {
            builder = builder.pcap(file);
        }
        if let Some(mode) = fec {
            builder = builder.fec(mode);
        }
        if let Some(store) = store {
            let backup = stage.backups[usize::from(!sends)];
            builder = builder.failover(Failover::to(backup).store(&store.url()));
        }
        let device = builder.open()?;
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
        let mr = pd.register(load.buffer_bytes(), Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let qp = pd.qp(QpType::Rc, &cq).max_send_wr(load.in_flight as u32).build()?;
        Ok(End { device, qp, cq, mr })
    }

    /// Waits until the peer's backup is known.
    fn await_backup(&self) -> Result<(), Box<dyn Error>> {
        let start = Instant::now();
        while self.device.failover_account().is_some_and(|account| account.ready == 0) {
            if start.elapsed() > PATIENCE {
                return Err("the two ends did not find each other's backup NICs".into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// How long the connection took to resume over the backup.
    fn handover(&self) -> Option<Duration> {
        let account = self.device.failover_account()?;
        account.timeline.iter().find_map(|report| report.outcome.handover())
    }
}

/// Writes every message, and checks the acknowledged ones at the receiver.
fn transfer(stage: &Stage<'_>, from: &End, to: &End) -> Result<Outcome, Box<dyn Error>> {
    let load = stage.load;
    (0..load.messages).for_each(|n| load.write(n, &from.mr));
    let mut posted = VecDeque::new();
    let mut next = 0;
    let mut completion_times = Vec::new();
    let start = Instant::now();
    let mut last = start;
    loop {
        let goes_on = start.elapsed() < load.time_limit;
        while goes_on && next < load.messages && (posted.len() as u64) < load.in_flight {
            let at = load.offset(next);
            let range = at..at + load.message_bytes;
            let target = to.mr.remote().slice(range.start as u64..range.end as u64)?;
            posted.push_back(Instant::now());
            from.qp.write(next, &from.mr, range, target)?;
            next += 1;
        }
        let Some(posted_at) = posted.pop_front() else {
            break;
        };
        if stage.link.killed && completion_times.len() as u64 == load.messages / 2 {
            from.device.fault(&"down".parse()?);
        }
        // Completions arrive in posting order.
        from.cq.next(PATIENCE)?;
        last = Instant::now();
        completion_times.push(last - posted_at);
        stage.bar.inc(1);
    }
    // For the progress bar, messages that the time limit cut off count as done.
    stage.bar.inc(load.messages - next);
    let counters = from.qp.counters()?;
    Ok(Outcome {
        elapsed: last - start,
        completion_times,
        retransmitted_packets: counters.retransmitted_packets,
        sent_packets: counters.tx_packets,
        lost_packets: lost(&from.device)? + lost(&to.device)?,
        handover: from.handover(),
        wrong_bytes: (0..next).map(|n| load.wrong_bytes(n, &to.mr)).sum(),
    })
}
