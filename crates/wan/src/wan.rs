//! Two ends and the link between them.

use std::fmt;
use std::fs;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline_link::{LinkConfig, LinkProfile, Time};

use crate::error::WanError;
use crate::forward::Forwarder;
use crate::host::{Host, HostConfig};
use crate::line::{Direction, Line};
use crate::report::{DirectionReport, Report};
use crate::sys;

/// TCP's buffers are at least this large.
const MIN_TCP_BUFFER_BYTES: u64 = 32 << 20;

/// The configuration of a link between two namespaces.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WanConfig {
    /// From left to right.
    pub to_right: LinkProfile,
    /// From right to left.
    pub to_left: LinkProfile,
    /// The largest IP packet.
    pub mtu: u32,
    /// Addresses of IPv6 rather than IPv4.
    pub ipv6: bool,
    /// After how long both directions change their rate, delay and queue.
    pub step: Option<(Duration, LinkConfig)>,
    /// Sees every packet that a program sends, before the link does anything to it.
    pub tap: Option<Tap>,
}

/// Sees packets as the kernel delivers them, from the IP header on: up to 64 KiB at a time. Each
/// direction calls it from its own thread.
#[derive(Clone)]
pub struct Tap(Arc<See>);

type See = dyn Fn(&[u8]) + Send + Sync;

impl Tap {
    /// Calls this for each packet.
    pub fn new(see: impl Fn(&[u8]) + Send + Sync + 'static) -> Tap {
        Tap(Arc::new(see))
    }

    pub(crate) fn see(&self, packet: &[u8]) {
        (self.0)(packet);
    }
}

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tap")
    }
}

impl WanConfig {
    /// The same link both ways.
    pub fn new(link: LinkProfile) -> WanConfig {
        let to_right = link.clone();
        WanConfig { to_right, to_left: link, mtu: 1500, ipv6: false, step: None, tap: None }
    }

    fn addresses(&self) -> (IpAddr, IpAddr) {
        if self.ipv6 {
            let addr = |host| IpAddr::from([0xfd42, 0, 0, 0, 0, 0, 0, host]);
            (addr(1), addr(2))
        } else {
            (IpAddr::from([10, 42, 0, 1]), IpAddr::from([10, 42, 0, 2]))
        }
    }

    /// Twice what the link and its queues hold, as TCP also counts overhead.
    fn tcp_buffer_bytes(&self) -> u64 {
        let round_trip_ns = self.to_right.config.delay_ns + self.to_left.config.delay_ns;
        let holds = |link: &LinkProfile| {
            let bytes_per_s = link.config.rate_bps.unwrap_or(0) as f64 / 8.0;
            (bytes_per_s * round_trip_ns as f64 / 1e9) as u64 + link.config.queue_bytes
        };
        let most = holds(&self.to_right).max(holds(&self.to_left));
        most.saturating_mul(2).clamp(MIN_TCP_BUFFER_BYTES, 1 << 30)
    }
}

/// A link between two network namespaces, which exists as long as this value.
pub struct Wan {
    left: Host,
    right: Host,
    to_right: Forwarder,
    to_left: Forwarder,
    config: WanConfig,
    start: Instant,
}

impl Wan {
    /// Makes the namespaces and the link.
    ///
    /// Without `CAP_SYS_ADMIN` the process becomes root in its own user namespace, for which it
    /// must be single-threaded.
    ///
    /// # Errors
    /// If the kernel refuses a part of it.
    pub fn start(config: WanConfig) -> Result<Wan, WanError> {
        if !may_make_namespaces() {
            sys::enter_user_namespace().map_err(|source| WanError::UserNamespace { source })?;
        }
        let (left, right) = config.addresses();
        let host = |name, addr| {
            let tcp_buffer_bytes = config.tcp_buffer_bytes();
            Host::start(HostConfig { name, addr, mtu: config.mtu, tcp_buffer_bytes })
        };
        let (left, right) = (host("left", left)?, host("right", right)?);
        let line = |profile, direction| {
            let mut line = Line::new(profile, direction);
            if let Some((after, link)) = config.step {
                line.set_step(Time::ZERO + after, link);
            }
            line
        };
        let to_right = line(&config.to_right, Direction::ToRight);
        let to_left = line(&config.to_left, Direction::ToLeft);
        let tap = config.tap.clone();
        Ok(Wan {
            to_right: Forwarder::start("to-right", to_right, left.tun(), right.tun(), tap.clone())?,
            to_left: Forwarder::start("to-left", to_left, right.tun(), left.tun(), tap)?,
            left,
            right,
            config,
            start: Instant::now(),
        })
    }

    /// The left end.
    pub fn left(&self) -> &Host {
        &self.left
    }

    /// The right end.
    pub fn right(&self) -> &Host {
        &self.right
    }

    /// Takes the link down and returns its report; `None` if one of its threads failed.
    pub fn finish(self) -> Option<Report> {
        let seconds = self.start.elapsed().as_secs_f64();
        let (to_right, to_right_cpu) = self.to_right.stop()?;
        let (to_left, to_left_cpu) = self.to_left.stop()?;
        let offloads = self.left.offloads();
        Some(Report {
            seconds,
            tso: offloads.tso,
            uso: offloads.uso,
            mtu: self.config.mtu,
            to_right: describe(&self.config.to_right, &to_right, to_right_cpu, &self.left),
            to_left: describe(&self.config.to_left, &to_left, to_left_cpu, &self.right),
        })
    }
}

fn describe(profile: &LinkProfile, line: &Line, cpu: Duration, from: &Host) -> DirectionReport {
    let late_us = |quantile| line.lateness().quantile_ns(quantile) as f64 / 1000.0;
    let mut counters = line.counters();
    counters.device_drops = from.device_drops();
    DirectionReport {
        link: profile.to_string(),
        counters,
        late_p50_us: late_us(0.5),
        late_p99_us: late_us(0.99),
        late_max_us: late_us(1.0),
        read_late_p99_us: line.read_lateness().quantile_ns(0.99) as f64 / 1000.0,
        cpu_s: cpu.as_secs_f64(),
    }
}

/// Whether the process has `CAP_SYS_ADMIN`.
fn may_make_namespaces() -> bool {
    const CAP_SYS_ADMIN: u64 = 1 << 21;
    fs::read_to_string("/proc/self/status")
        .unwrap_or_default()
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
        .is_some_and(|set| set & CAP_SYS_ADMIN != 0)
}
