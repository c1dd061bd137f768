//! Opening a device.

use std::net::IpAddr;
use std::path::Path;

use bowline_device::{DeviceSpec, LaneCount, Log, Severity, VerbsName};
use bowline_fec::FecMode;
use bowline_io::{LinkProfile, Sharing, Via};
use bowline_nic::{Mtu, RateControl};

use crate::{Device, Error, Failover};

/// Settings of a device to be opened; see [`Device::builder`].
///
/// ```
/// use bowline::{Device, Mtu};
///
/// let device = Device::builder("127.9.1.4".parse().unwrap())
///     .mtu(Mtu::B1024)
///     .max_qps(16)
///     .open()?;
/// assert_eq!(device.mtu(), Mtu::B1024);
/// # Ok::<(), bowline::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing before `open`"]
pub struct DeviceBuilder {
    spec: DeviceSpec,
}

impl DeviceBuilder {
    pub(crate) fn new(addr: IpAddr) -> DeviceBuilder {
        let mut spec = DeviceSpec::new(addr.to_string(), addr);
        spec.log = Log::new(|severity, message| {
            // The messages name their subject, for logs without targets.
            let message = message.strip_prefix("failover: ").unwrap_or(message);
            match severity {
                Severity::Warning => tracing::warn!(target: "bowline::failover", "{message}"),
                Severity::Info => tracing::info!(target: "bowline::failover", "{message}"),
            }
        });
        DeviceBuilder { spec }
    }

    pub(crate) fn verbs(name: VerbsName) -> DeviceBuilder {
        DeviceBuilder { spec: DeviceSpec::verbs(name) }
    }

    /// The UDP port of this device and of all its peers; RoCEv2's 4791 by default.
    pub fn udp_port(mut self, port: u16) -> Self {
        self.spec.udp.udp_port = port;
        self
    }

    /// Keeps other programs of this user off the address, which they share by default.
    pub fn exclusive(mut self) -> Self {
        self.spec.udp.sharing = Sharing::Exclusive;
        self
    }

    /// Number of lanes; one by default. Each is an engine, a socket and, when busy, a core. Queue
    /// pairs are spread over them evenly, or as [`QpBuilder::lane`](crate::QpBuilder::lane) says;
    /// threads that work on queue pairs of different lanes, with completion queues of their own, do
    /// not wait for each other.
    ///
    /// ```
    /// use bowline::Device;
    ///
    /// let device = Device::builder("127.9.1.11".parse().unwrap()).lanes("2".parse()?).open()?;
    /// assert_eq!(device.lanes(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lanes(mut self, lanes: LaneCount) -> Self {
        self.spec.lanes = lanes;
        self
    }

    /// A callback for degraded but working set-ups, described in a sentence: for example, that no
    /// other process can share the address. None by default.
    pub fn notice(mut self, tell: fn(&str)) -> Self {
        self.spec.udp.notice = tell;
        self
    }

    /// A callback for working but perhaps unexpected set-ups, described in a sentence: for example,
    /// that packets to a process of this host go by UDP. None by default.
    pub fn detail(mut self, tell: fn(&str)) -> Self {
        self.spec.udp.detail = tell;
        self
    }

    /// What carries the packets: a UDP socket by default, shared memory to processes of this user
    /// on this host (`shm`, `auto`), or on a real NIC an AF_XDP socket, as root. The latter keeps
    /// other programs off the address.
    ///
    /// ```
    /// use bowline::Device;
    ///
    /// let device = Device::builder("127.9.1.10".parse().unwrap()).via("udp".parse()?).open()?;
    /// assert_eq!(device.via(), "udp");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn via(mut self, via: Via) -> Self {
        self.spec.via = via;
        self
    }

    /// Impairs what the device sends: loss, delay, a limited rate and more.
    ///
    /// ```
    /// use bowline::Device;
    ///
    /// let device = Device::builder("127.9.1.5".parse().unwrap())
    ///     .link("loss=0.1%,delay=10ms,rate=1Gbps".parse().unwrap())
    ///     .open()?;
    /// # Ok::<(), bowline::Error>(())
    /// ```
    pub fn link(mut self, profile: LinkProfile) -> Self {
        self.spec.link = Some(profile);
        self
    }

    /// Writes every packet that the device sends and receives to a capture file, which is
    /// overwritten if it exists.
    ///
    /// Packets that an impaired link loses are not in it: it shows what is on the wire.
    pub fn pcap(mut self, file: impl AsRef<Path>) -> Self {
        self.spec.pcap = Some(file.as_ref().to_owned());
        self
    }

    /// Protects connections to peers that have it too by forward error correction: lost packets are
    /// restored before a connection notices. [`FecMode::Off`] sends no repairs, but uses those of
    /// peers.
    ///
    /// ```
    /// use bowline::Device;
    ///
    /// let device = Device::builder("127.9.1.6".parse().unwrap()).fec("32,1".parse()?).open()?;
    /// assert_eq!(device.fec_counters().recovered, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fec(mut self, mode: FecMode) -> Self {
        self.spec.fec = Some(mode);
        self
    }

    /// Sets the default rate control of queue pairs: see `docs/congestion.md`. Without it a
    /// [`ReliableQp`](crate::ReliableQp) to another host measures its rate, and others send as fast
    /// as their windows allow.
    ///
    /// ```
    /// use bowline::Device;
    ///
    /// let device = Device::builder("127.9.1.9".parse().unwrap());
    /// let device = device.congestion_control("dcqcn:25Gbps".parse()?).open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn congestion_control(mut self, control: RateControl) -> Self {
        self.spec.congestion = Some(control);
        self
    }

    /// Keeps reliable connections alive over a backup NIC when this one, its cable or its switch
    /// fails, and moves them back when it returns. Peers need a backup too.
    ///
    /// ```
    /// use bowline::{Device, Failover};
    ///
    /// let backup = Failover::to("127.9.1.9".parse().unwrap());
    /// let device = Device::builder("127.9.1.8".parse().unwrap()).failover(backup).open()?;
    /// assert_eq!(device.failover_account().unwrap().away, 0);
    /// # Ok::<(), bowline::Error>(())
    /// ```
    pub fn failover(mut self, failover: Failover) -> Self {
        self.spec.backup = Some(failover.into_spec());
        self
    }

    /// The largest path MTU; that of the interface by default.
    pub fn mtu(mut self, mtu: Mtu) -> Self {
        self.spec.limits.mtu = Some(mtu);
        self
    }

    /// Bytes in flight to one peer; 2 MiB by default. On a long link it should be about twice the
    /// bandwidth-delay product.
    pub fn window_bytes(mut self, bytes: u32) -> Self {
        self.spec.limits.window_bytes = Some(bytes);
        self
    }

    /// Maximum number of queue pairs per lane.
    pub fn max_qps(mut self, count: u32) -> Self {
        self.spec.limits.max_qps = Some(count);
        self
    }

    /// Maximum number of memory regions.
    pub fn max_mrs(mut self, count: u32) -> Self {
        self.spec.limits.max_mrs = Some(count);
        self
    }

    /// Maximum number of work requests in one queue.
    pub fn max_wr(mut self, count: u32) -> Self {
        self.spec.limits.max_wr = Some(count);
        self
    }

    /// Maximum depth of a completion queue.
    pub fn max_cqe(mut self, count: u32) -> Self {
        self.spec.limits.max_cqe = Some(count);
        self
    }

    /// Opens the device.
    pub fn open(self) -> Result<Device, Error> {
        let device = Device { inner: self.spec.open()? };
        tracing::info!(
            target: "bowline::device",
            "{} via {}, MTU {}, lanes: {}",
            device.addr(),
            device.via(),
            device.mtu().bytes(),
            device.lanes()
        );
        Ok(device)
    }
}
