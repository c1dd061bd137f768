//! The standard's reliable connection: go-back-N, in which one lost packet costs a whole window. And the
//! same with FEC below it, which restores what is lost before the connection notices.

use std::collections::VecDeque;
use std::error::Error;
use std::time::{Duration, Instant};

use bowline::{Access, ConnectOptions, Cq, Device, FecMode, Mr, Qp, QpType};

use super::scheme::{Outcome, Scheme, Stage};

/// Longer than any retransmission can take.
const PATIENCE: Duration = Duration::from_secs(30);

/// RC WRITEs.
pub(super) struct ReliableConnection {
    pub(super) name: &'static str,
    /// The code of the FEC below.
    pub(super) fec: Option<&'static str>,
}

impl Scheme for ReliableConnection {
    fn name(&self) -> &'static str {
        self.name
    }

    fn run(&self, stage: &Stage<'_>) -> Result<Outcome, Box<dyn Error>> {
        let fec = self.fec.map(str::parse).transpose()?;
        let sender = End::new(stage, 0, fec)?;
        let receiver = End::new(stage, 1, fec)?;
        let options = ConnectOptions {
            timeout: stage.link.timeout_code(),
            window_bytes: Some(stage.link.window_bytes()),
            ..ConnectOptions::default()
        };
        receiver.qp.connect_with(&sender.qp.endpoint(), &options)?;
        sender.qp.connect_with(&receiver.qp.endpoint(), &options)?;
        if fec.is_some() {
            // The ends have to find each other first, as those of a program do while it prepares.
            std::thread::sleep(4 * stage.link.rtt + Duration::from_millis(20));
        }
        transfer(stage, &sender, &receiver)
    }
}

/// One NIC with all that a transfer needs.
struct End {
    qp: Qp,
    cq: Cq,
    mr: Mr,
}

impl End {
    fn new(stage: &Stage<'_>, direction: u64, fec: Option<FecMode>) -> Result<End, Box<dyn Error>> {
        let (link, load) = (stage.link, stage.load);
        let sends = direction == 0;
        let mut builder = Device::builder(if sends { stage.from } else { stage.to })
            .window_bytes(link.window_bytes());
        if let Some(profile) = link.profile(load.link_seed(direction))? {
            builder = builder.link(profile);
        }
        if let Some(file) = stage.pcap.as_ref().filter(|_| sends) {
            builder = builder.pcap(file);
        }
        if let Some(mode) = fec {
            builder = builder.fec(mode);
        }
        let device = builder.open()?;
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
        let mr = pd.register(load.buffer_bytes(), Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let qp = pd.qp(QpType::Rc, &cq).max_send_wr(load.in_flight as u32).build()?;
        Ok(End { qp, cq, mr })
    }
}

/// Writes every message, and checks at the receiver those that were acknowledged.
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
        // Completions come in the order of the posts.
        from.cq.next(PATIENCE)?;
        last = Instant::now();
        completion_times.push(last - posted_at);
        stage.bar.inc(1);
    }
    // What the time limit cut off counts as done for the bar.
    stage.bar.inc(load.messages - next);
    let counters = from.qp.counters()?;
    Ok(Outcome {
        elapsed: last - start,
        completion_times,
        retransmitted_packets: counters.retransmitted_packets,
        sent_packets: counters.tx_packets,
        wrong_bytes: (0..next).map(|n| load.wrong_bytes(n, &to.mr)).sum(),
    })
}
