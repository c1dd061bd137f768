//! An end of the link: a network namespace, the thread that holds it, and its device.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;

use crate::error::WanError;
use crate::sys::{self, Configurator, Offloads, Tun};

/// Packets that may wait to be read from a device: a superpacket is one.
const QUEUE_PACKETS: u32 = 20_000;

type Job = Box<dyn FnOnce() + Send>;

/// The configuration of an end.
#[derive(Clone, Debug)]
pub(crate) struct HostConfig {
    /// Its name, also that of its device.
    pub(crate) name: &'static str,
    pub(crate) addr: IpAddr,
    pub(crate) mtu: u32,
    /// What TCP may have in flight: large enough that buffers are not the limit.
    pub(crate) tcp_buffer_bytes: u64,
}

/// One end of the link.
///
/// Dropping it removes it, and its namespace once the programs in it have ended.
pub struct Host {
    name: &'static str,
    addr: IpAddr,
    thread_id: i32,
    jobs: Sender<Job>,
    tun: Arc<Tun>,
}

impl Host {
    pub(crate) fn start(config: HostConfig) -> Result<Host, WanError> {
        let (jobs, inbox) = mpsc::channel::<Job>();
        let (made, making) = mpsc::channel();
        let (name, addr) = (config.name, config.addr);
        thread::Builder::new()
            .name(format!("wan-{name}"))
            .spawn(move || {
                let tun = set_up(&config);
                let failed = tun.is_err();
                if made.send((rustix::thread::gettid().as_raw_nonzero().get(), tun)).is_err()
                    || failed
                {
                    return;
                }
                for job in inbox {
                    job();
                }
            })
            .map_err(|source| WanError::Thread { source })?;
        let (thread_id, tun) = making.recv().map_err(|_| WanError::HostGone { name })?;
        Ok(Host { name, addr, thread_id, jobs, tun: Arc::new(tun?) })
    }

    /// `left` or `right`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its address on the link.
    pub fn addr(&self) -> IpAddr {
        self.addr
    }

    /// A path that names its network namespace, for `nsenter`.
    pub fn namespace_path(&self) -> String {
        format!("/proc/{}/task/{}/ns/net", std::process::id(), self.thread_id)
    }

    /// Starts a program there, which ends when this process does.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn spawn(&self, mut command: Command) -> io::Result<Child> {
        sys::die_with_parent(&mut command);
        self.within(move || command.spawn())?
    }

    /// Whether a program there listens for connections or datagrams.
    pub fn is_listening(&self) -> bool {
        self.within(listening).unwrap_or(false)
    }

    /// Packets that the device dropped because they were not read in time.
    pub(crate) fn device_drops(&self) -> u64 {
        let name = self.name;
        self.within(move || device_drops(name)).unwrap_or(0)
    }

    pub(crate) fn tun(&self) -> Arc<Tun> {
        Arc::clone(&self.tun)
    }

    pub(crate) fn offloads(&self) -> Offloads {
        self.tun.offloads()
    }

    /// Runs something in the namespace.
    fn within<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
        let gone = || io::Error::other("the thread of this end is gone");
        let (done, result) = mpsc::channel();
        let job: Job = Box::new(move || drop(done.send(f())));
        self.jobs.send(job).map_err(|_| gone())?;
        result.recv().map_err(|_| gone())
    }
}

fn set_up(config: &HostConfig) -> Result<Tun, WanError> {
    let HostConfig { name, addr, mtu, tcp_buffer_bytes } = *config;
    sys::unshare_network().map_err(|source| WanError::Namespace { source })?;
    let tun = Tun::create(name).map_err(|source| WanError::Tun { source })?;
    let refused = |what| move |source| WanError::Configure { what, source };
    if addr.is_ipv4() {
        // Otherwise the kernel sends router and listener messages by itself, and these packets
        // would take part in the random draws. A kernel without IPv6 does not.
        drop(fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1"));
    }
    for (sysctl, first) in [("tcp_rmem", "4096 131072"), ("tcp_wmem", "4096 65536")] {
        let path = format!("/proc/sys/net/ipv4/{sysctl}");
        fs::write(path, format!("{first} {tcp_buffer_bytes}")).map_err(refused(sysctl))?;
    }
    let interfaces = Configurator::new().map_err(refused("a socket"))?;
    interfaces.up("lo").map_err(refused("loopback"))?;
    interfaces.set_mtu(name, mtu).map_err(refused("the MTU"))?;
    interfaces.set_queue_len(name, QUEUE_PACKETS).map_err(refused("the device's queue"))?;
    interfaces.add_address(name, addr).map_err(refused("the address"))?;
    interfaces.up(name).map_err(refused("the device"))?;
    Ok(tun)
}

/// Looks for a listening socket in the calling thread's namespace.
fn listening() -> bool {
    const TCP_LISTEN: &str = "0A";
    const UDP_UNCONNECTED: &str = "07";
    [("tcp", TCP_LISTEN), ("tcp6", TCP_LISTEN), ("udp", UDP_UNCONNECTED), ("udp6", UDP_UNCONNECTED)]
        .iter()
        .any(|(table, state)| {
            let text = fs::read_to_string(format!("/proc/thread-self/net/{table}"));
            text.unwrap_or_default()
                .lines()
                .skip(1)
                .any(|line| line.split_whitespace().nth(3) == Some(state))
        })
}

/// The sending side's drops, as `/proc/net/dev` has them.
fn device_drops(name: &str) -> u64 {
    const TX_DROP: usize = 11;
    fs::read_to_string("/proc/thread-self/net/dev")
        .unwrap_or_default()
        .lines()
        .find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'))
        .and_then(|counts| counts.split_whitespace().nth(TX_DROP)?.parse().ok())
        .unwrap_or(0)
}
