//! One message after the other over an emulated link.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use bowline::{
    Access, ConnectOptions, Device, LinkProfile, Mr, QpType, ReliableConfig, ReliableEvent,
    ReliableQp, SdrConfig, WriteOptions,
};

const ADDRS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(127, 0, 78, 1)), IpAddr::V4(Ipv4Addr::new(127, 0, 78, 2))];
const PATIENCE: Duration = Duration::from_secs(60);

/// The link, alike in both directions.
pub(crate) struct Link {
    pub(crate) rtt_ms: u32,
    pub(crate) bps: u64,
    pub(crate) loss_percent: f64,
    pub(crate) seed: u64,
}

impl Link {
    fn profile(&self, direction: u64) -> Result<LinkProfile, Box<dyn Error>> {
        let delay_us = u64::from(self.rtt_ms) * 500;
        let (loss, bps, seed) = (self.loss_percent, self.bps, self.seed * 2 + direction);
        let text = format!("loss={loss}%,delay={delay_us}us,rate={bps}bps,queue=64MiB,seed={seed}");
        Ok(text.parse()?)
    }

    fn device(&self, end: usize, window_bytes: u32) -> Result<Device, Box<dyn Error>> {
        let builder = Device::builder(ADDRS[end]).link(self.profile(end as u64)?);
        Ok(builder.window_bytes(window_bytes).open()?)
    }
}

fn check(mrs: &[Mr; 2], bytes: usize) -> Result<(), Box<dyn Error>> {
    let same = mrs[0].to_vec(0, bytes) == mrs[1].to_vec(0, bytes);
    if same { Ok(()) } else { Err("a message arrived other than it was sent".into()) }
}

fn fill(mr: &Mr, bytes: usize, run: u32) {
    let pattern: Vec<u8> =
        (0..bytes).map(|i| ((i * 31) as u32 ^ run ^ (i >> 8) as u32) as u8).collect();
    mr.write_at(0, &pattern);
}

/// Messages by a scheme over SDR.
pub(crate) fn scheme(
    link: &Link,
    name: &str,
    bytes: usize,
    runs: u32,
) -> Result<Vec<Duration>, Box<dyn Error>> {
    let config = ReliableConfig {
        sdr: SdrConfig { rate_bps: Some(link.bps), ..SdrConfig::default() },
        max_write: bytes as u64,
        ..ReliableConfig::default()
    };
    let mut made = Vec::new();
    for end in 0..2 {
        let pd = link.device(end, 2 << 20)?.alloc_pd()?;
        let mr = pd.register(bytes, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        made.push((ReliableQp::new(&pd, &config)?, mr));
    }
    let [(sender, from), (receiver, to)] = <[_; 2]>::try_from(made).map_err(|_| "two ends")?;
    receiver.connect(ADDRS[0], &sender.info()?)?;
    sender.connect(ADDRS[1], &receiver.info()?)?;
    let mrs = [from, to];
    let options = WriteOptions { scheme: sender.scheme(name)?, imm: None };
    let settle = Duration::from_millis(u64::from(link.rtt_ms) * 2);
    let mut times = Vec::new();
    for run in 0..runs {
        fill(&mrs[0], bytes, run);
        receiver.recv(&mrs[1], 0..bytes)?;
        // The receive is known to the sender before it starts, as with any that is posted ahead.
        std::thread::sleep(settle);
        let start = Instant::now();
        sender.write(&mrs[0], 0..bytes, options)?;
        let ReliableEvent::Written { .. } = sender.next(PATIENCE)? else {
            return Err("the sender received something".into());
        };
        times.push(start.elapsed());
        receiver.next(PATIENCE)?;
        check(&mrs, bytes)?;
    }
    Ok(times)
}

/// Messages by RC WRITEs: go-back-N.
pub(crate) fn gbn(link: &Link, bytes: usize, runs: u32) -> Result<Vec<Duration>, Box<dyn Error>> {
    let bdp = link.bps as f64 / 8.0 * f64::from(link.rtt_ms) / 1e3;
    let window = (2.0 * bdp) as u32;
    let mut made = Vec::new();
    for end in 0..2 {
        let device = link.device(end, window)?;
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
        let mr = pd.register(bytes, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        made.push((pd.qp(QpType::Rc, &cq).build()?, cq, mr));
    }
    // 4.096 µs times two to this: several round trips.
    let options =
        ConnectOptions { timeout: 17, window_bytes: Some(window), ..ConnectOptions::default() };
    let [(a, cq, from), (b, _, to)] = <[_; 2]>::try_from(made).map_err(|_| "two ends")?;
    b.connect_with(&a.endpoint(), &options)?;
    a.connect_with(&b.endpoint(), &options)?;
    let mrs = [from, to];
    let mut times = Vec::new();
    for run in 0..runs {
        fill(&mrs[0], bytes, run);
        let start = Instant::now();
        a.write(run.into(), &mrs[0], 0..bytes, mrs[1].remote())?;
        cq.next(PATIENCE)?;
        times.push(start.elapsed());
        check(&mrs, bytes)?;
    }
    Ok(times)
}
