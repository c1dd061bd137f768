//! Opening a device.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bowline_fec::{Fec, FecConfig, FecMode};
use bowline_io::{Impair, Lane, LaneConfig, LinkProfile, PcapTap, Port, Sharing, UdpConfig, Via};
use bowline_nic::{Mtu, Nic, NicConfig};

use crate::{Device, Error, Failover, random};

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
    udp: UdpConfig,
    via: Via,
    link: Option<LinkProfile>,
    pcap: Option<PathBuf>,
    fec: Option<FecMode>,
    failover: Option<Failover>,
    mtu: Option<Mtu>,
    window_bytes: Option<u32>,
    max_qps: Option<u32>,
    max_mrs: Option<u32>,
    max_wr: Option<u32>,
    max_cqe: Option<u32>,
}

/// What is under a NIC.
struct Ground {
    port: Box<dyn Port>,
    qpn_prefix: u8,
    max_mtu: Mtu,
}

impl DeviceBuilder {
    pub(crate) fn new(addr: IpAddr) -> DeviceBuilder {
        DeviceBuilder {
            udp: UdpConfig {
                sharing: Sharing::SameUser { registry_dir: None },
                ..UdpConfig::new(addr)
            },
            via: Via::Udp,
            link: None,
            pcap: None,
            fec: None,
            failover: None,
            mtu: None,
            window_bytes: None,
            max_qps: None,
            max_mrs: None,
            max_wr: None,
            max_cqe: None,
        }
    }

    /// The UDP port, of this device and of every peer it talks to; RoCEv2's 4791 unless set.
    pub fn udp_port(mut self, port: u16) -> Self {
        self.udp.udp_port = port;
        self
    }

    /// Keeps other programs of this user off the address, which they share otherwise.
    pub fn exclusive(mut self) -> Self {
        self.udp.sharing = Sharing::Exclusive;
        self
    }

    /// What carries the packets: a UDP socket unless set, or on a real NIC an AF_XDP socket, as root. The
    /// latter keeps other programs off the address.
    ///
    /// ```
    /// use bowline::Device;
    ///
    /// let device = Device::builder("127.9.1.10".parse().unwrap()).via("udp".parse()?).open()?;
    /// assert_eq!(device.via(), "udp");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn via(mut self, via: Via) -> Self {
        self.via = via;
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
        self.link = Some(profile);
        self
    }

    /// Writes every packet that the device sends and receives to a capture file, which is
    /// overwritten if it exists.
    ///
    /// Packets that an impaired link loses are not in it: it shows what is on the wire.
    pub fn pcap(mut self, file: impl AsRef<Path>) -> Self {
        self.pcap = Some(file.as_ref().to_owned());
        self
    }

    /// Protects connections by forward error correction, towards peers that have it too: lost packets are
    /// restored before a connection notices. [`FecMode::Off`] sends no repairs, but uses those of peers.
    ///
    /// ```
    /// use bowline::Device;
    ///
    /// let device = Device::builder("127.9.1.6".parse().unwrap()).fec("32,1".parse()?).open()?;
    /// assert_eq!(device.fec_counters().recovered, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fec(mut self, mode: FecMode) -> Self {
        self.fec = Some(mode);
        self
    }

    /// Keeps reliable connections alive over a backup NIC when this one, its cable or its switch dies, and
    /// brings them back when it returns. Peers need a backup as well.
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
        self.failover = Some(failover);
        self
    }

    /// The largest path MTU; what the interface carries unless set.
    pub fn mtu(mut self, mtu: Mtu) -> Self {
        self.mtu = Some(mtu);
        self
    }

    /// Bytes in flight towards one peer; 2 MiB unless set. On a long link it should be about twice
    /// the bandwidth-delay product.
    pub fn window_bytes(mut self, bytes: u32) -> Self {
        self.window_bytes = Some(bytes);
        self
    }

    /// Most queue pairs at a time.
    pub fn max_qps(mut self, count: u32) -> Self {
        self.max_qps = Some(count);
        self
    }

    /// Most memory regions at a time.
    pub fn max_mrs(mut self, count: u32) -> Self {
        self.max_mrs = Some(count);
        self
    }

    /// Most work requests in one queue.
    pub fn max_wr(mut self, count: u32) -> Self {
        self.max_wr = Some(count);
        self
    }

    /// Most completions in one completion queue.
    pub fn max_cqe(mut self, count: u32) -> Self {
        self.max_cqe = Some(count);
        self
    }

    /// Opens the device.
    pub fn open(self) -> Result<Device, Error> {
        let fec = self.fec.map(|mode| Fec::new(FecConfig::new(mode)));
        let mut ground = self.open_port(&self.udp)?;
        // Connections must fit both NICs.
        let backup = match &self.failover {
            Some(failover) => {
                let udp = UdpConfig { addr: failover.backup, ..self.udp.clone() };
                let mut backup = self.open_port(&udp)?;
                ground.max_mtu = ground.max_mtu.min(backup.max_mtu);
                backup.max_mtu = ground.max_mtu;
                Some(backup)
            }
            None => None,
        };
        let max_mtu = ground.max_mtu;
        let (lane, max_rd_atomic) = self.start(ground, fec.as_ref())?;
        let rails = match (&self.failover, backup) {
            (Some(failover), Some(backup)) => {
                let (backup, _) = self.start(backup, fec.as_ref())?;
                Some(failover.start([Arc::clone(&lane), backup])?)
            }
            _ => None,
        };
        Ok(Device::from_lane(lane, max_mtu, max_rd_atomic, fec, rails))
    }

    /// Opens a port, impaired and captured as asked for.
    fn open_port(&self, udp: &UdpConfig) -> Result<Ground, Error> {
        let (mut port, qpn_prefix) = self.via.open(udp)?;
        if let Some(file) = &self.pcap {
            let backup = self.failover.as_ref().is_some_and(|f| f.backup == port.caps().addr);
            let file = if backup { file.with_extension("backup.pcap") } else { file.clone() };
            port = Box::new(PcapTap::create(port, file)?);
        }
        if let Some(profile) = &self.link {
            port = Box::new(Impair::new(port, profile.clone()));
        }
        let max_mtu = self.check_mtu(port.caps().ip_mtu)?;
        Ok(Ground { port, qpn_prefix, max_mtu })
    }

    /// Makes a NIC on a port, and the lane that runs both.
    fn start(&self, ground: Ground, fec: Option<&Fec>) -> Result<(Arc<Lane>, u8), Error> {
        let caps = ground.port.caps();
        let mut config = NicConfig::new(caps.addr, random::bytes()?);
        config.udp_port = caps.udp_port;
        config.peer_udp_port = caps.udp_port;
        config.qpn_prefix = ground.qpn_prefix;
        config.max_mtu = ground.max_mtu;
        let set = |field: &mut u32, value: Option<u32>| *field = value.unwrap_or(*field);
        set(&mut config.window_bytes, self.window_bytes);
        set(&mut config.max_qps, self.max_qps);
        set(&mut config.max_mrs, self.max_mrs);
        set(&mut config.max_wr, self.max_wr);
        set(&mut config.max_cqe, self.max_cqe);
        let max_rd_atomic = config.max_rd_atomic;
        let mut nic = Nic::new(config)?;
        if let Some(fec) = fec {
            fec.install(&mut nic);
        }
        Ok((Lane::start(nic, ground.port, LaneConfig::default())?, max_rd_atomic))
    }

    /// The MTU asked for, or else the largest, if the interface carries it.
    fn check_mtu(&self, ip_mtu: u32) -> Result<Mtu, Error> {
        let largest = Mtu::for_ip_mtu(ip_mtu).ok_or_else(|| Error::Invalid {
            what: "address",
            why: format!("its interface carries only {ip_mtu} bytes a packet, too few for RoCEv2"),
        })?;
        match self.mtu {
            Some(mtu) if mtu > largest => Err(Error::Invalid {
                what: "MTU",
                why: format!(
                    "{} bytes do not fit the interface's {ip_mtu}: use {} or less",
                    mtu.bytes(),
                    largest.bytes()
                ),
            }),
            Some(mtu) => Ok(mtu),
            None => Ok(largest),
        }
    }
}
