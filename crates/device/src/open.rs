//! Opening a device.

use std::path::PathBuf;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Instant;

use bowline_failover::Rail;
use bowline_failover::mirror::{Layout, Names};
use bowline_fec::{Fec, FecConfig};
use bowline_io::{
    EventChannel, Impair, Lane, LaneConfig, PcapFile, PcapTap, Port, PortError, SharedLink,
    Sharing, UdpConfig, Via,
};
use bowline_nic::{Event, Mtu, Nic, NicConfig, RateControl};

use crate::device::backup_name;
use crate::engines::LaneEngines;
use crate::events::{EngineEvents, LostPeers, MAX_EVENTS};
use crate::failover::Failover;
use crate::groups::Groups;
use crate::multicast::Memberships;
use crate::placement::Placement;
use crate::{Device, DeviceError, DeviceSpec, random_bytes};

/// A port, and the prefix that every QPN of the engine on it must have.
pub type Opened = (Box<dyn Port>, u8);

/// The range in which an engine's first QPN is chosen. An engine has a table of all numbers up to
/// the last, so a larger range would cost memory.
const FIRST_QPNS: u16 = 1 << 14;
/// The window towards a peer of a device on loopback. Between processes of one host, senders wait
/// for space in the receiver's socket, so it may hold more than is safe on a network. A receiver
/// that has no core for a while then has more to work on when it gets one. Twice as much still fits
/// a socket: a switch does not see its members' sockets, and may have to send all of it again.
const LOOPBACK_WINDOW: u32 = 3 << 20;

/// State that the engines of a device share.
struct Common {
    layout: Layout,
    config: NicConfig,
    fec: Option<Fec>,
    names: Arc<RwLock<Names>>,
    events: Arc<EventChannel<Event>>,
    peers: Arc<LostPeers>,
    epoch: Instant,
}

impl DeviceSpec {
    /// Opens the device.
    pub fn open(&self) -> Result<Arc<Device>, DeviceError> {
        if let Some(name) = &self.verbs {
            return self.open_verbs(name);
        }
        self.check()?;
        let lanes = self.lanes.get();
        let ports = match self.open_rails(lanes) {
            // Lanes share their address through the registry. Without it, the device gets one lane.
            Err(error) if lanes > 1 && error.is_registry() => {
                (self.udp.notice)(&format!("{error}; the device has one lane, not {lanes}"));
                self.open_rails(1)?
            }
            opened => opened?,
        };
        self.start(ports)
    }

    /// Opens the ports of all lanes, first the device's and then its backup's.
    fn open_rails(&self, lanes: usize) -> Result<Vec<Opened>, DeviceError> {
        let mut ports = self.open_rail(&self.udp, self.pcap.clone(), lanes)?;
        if let Some(backup) = &self.backup {
            let udp = UdpConfig { addr: backup.addr, ..self.udp.clone() };
            let pcap = self.pcap.as_ref().map(|file| file.with_extension("backup.pcap"));
            let opened = self.open_rail(&udp, pcap, lanes);
            let addr = backup.addr;
            ports.extend(opened.map_err(|source| DeviceError::Backup { addr, source })?);
        }
        Ok(ports)
    }

    /// Opens the device on ports that the caller provides: one for each lane, then one for each
    /// lane of the backup. The specification's addresses, impairment and capture are ignored.
    pub fn open_on(&self, ports: Vec<Opened>) -> Result<Arc<Device>, DeviceError> {
        let wanted = self.lanes.get() * if self.backup.is_some() { 2 } else { 1 };
        if ports.len() != wanted {
            let why = format!("{} given, the device has {wanted}", ports.len());
            return Err(DeviceError::Invalid { what: "number of ports", why });
        }
        self.start(ports)
    }

    fn start(&self, ports: Vec<Opened>) -> Result<Arc<Device>, DeviceError> {
        let backed = self.backup.is_some();
        let lanes = if backed { ports.len() / 2 } else { ports.len() };
        let layout = Layout { lanes, backed };
        let events =
            EventChannel::new(MAX_EVENTS).map_err(DeviceError::system("make a channel"))?;
        let common = Common {
            layout,
            config: self.nic_config(&ports)?,
            fec: self.fec.map(|mode| Fec::new(FecConfig::new(mode))),
            names: Arc::default(),
            events: Arc::new(events),
            peers: Arc::default(),
            epoch: Instant::now(),
        };
        let mut lanes = Vec::with_capacity(ports.len());
        for (index, opened) in ports.into_iter().enumerate() {
            lanes.push(self.start_lane(&common, index, opened)?);
        }
        let engines = Arc::new(LaneEngines::new(lanes, layout));
        let failover = match &self.backup {
            Some(backup) => Some(Failover::start(&engines, backup, self.log.clone())?),
            None => None,
        };
        let device = Arc::new(Device {
            name: self.name.clone(),
            engines,
            verbs: None,
            names: common.names,
            events: common.events,
            peers: common.peers,
            placement: Placement::new(layout.lanes),
            fec: common.fec,
            congestion: self.congestion.clone(),
            config: common.config,
            udp: self.udp.clone(),
            failover,
            groups: Groups::default(),
            memberships: Memberships::default(),
            controls: Mutex::default(),
            replicators: Mutex::default(),
            last_xrc: AtomicU32::new(0),
        });
        device.listen();
        Ok(device)
    }

    fn check(&self) -> Result<(), DeviceError> {
        let invalid = |what, why: String| Err(DeviceError::Invalid { what, why });
        let lanes = self.lanes.get();
        if self.backup.as_ref().is_some_and(|backup| backup.addr == self.udp.addr) {
            return invalid("backup", format!("{} cannot be its own backup", self.name));
        }
        if lanes > 1 && matches!(self.via, Via::Xdp(_)) {
            let why = "an AF_XDP device has one lane, since it has one queue of its NIC".into();
            return invalid("number of lanes", why);
        }
        if lanes > 1 && matches!(self.udp.sharing, Sharing::Exclusive) {
            let why = "lanes share their address, so it cannot be exclusive: use one lane".into();
            return invalid("number of lanes", why);
        }
        Ok(())
    }

    /// Opens the ports of all lanes of a rail, with the requested impairment and capture.
    fn open_rail(
        &self,
        udp: &UdpConfig,
        pcap: Option<PathBuf>,
        lanes: usize,
    ) -> Result<Vec<Opened>, PortError> {
        let pcap = pcap.map(|path| self.capture(path)).transpose()?;
        // The lanes of a rail share one cable.
        let link = self.link.as_ref().map(SharedLink::new);
        (0..lanes)
            .map(|lane| {
                let (mut port, qpn_prefix) = self.via.open(udp)?;
                if let Some(file) = &pcap {
                    port = Box::new(PcapTap::new(port, file.clone()));
                }
                if let Some(link) = &link {
                    port = Box::new(Impair::over(port, link, lane == 0));
                }
                Ok((port, qpn_prefix))
            })
            .collect()
    }

    /// A capture that reports when the disk is full.
    fn capture(&self, path: PathBuf) -> Result<PcapFile, PortError> {
        let (notice, name) = (self.udp.notice, path.display().to_string());
        PcapFile::create(path, move |error| {
            notice(&format!("the capture {name} is not complete: {error}"));
        })
    }

    /// The engines' common configuration. Connections must fit all ports that they may move to.
    fn nic_config(&self, ports: &[Opened]) -> Result<NicConfig, DeviceError> {
        let caps = ports[0].0.caps();
        let mut config = NicConfig::new(caps.addr, [0; 32]);
        config.udp_port = caps.udp_port;
        config.peer_udp_port = caps.udp_port;
        let smallest = ports.iter().map(|(port, _)| port.caps().ip_mtu).min();
        config.max_mtu = self.check_mtu(smallest.unwrap_or(caps.ip_mtu))?;
        if caps.addr.is_loopback() {
            config.window_bytes = LOOPBACK_WINDOW;
        }
        let set = |field: &mut u32, value: Option<u32>| *field = value.unwrap_or(*field);
        set(&mut config.window_bytes, self.limits.window_bytes);
        set(&mut config.max_qps, self.limits.max_qps);
        set(&mut config.max_mrs, self.limits.max_mrs);
        set(&mut config.max_wr, self.limits.max_wr);
        set(&mut config.max_cqe, self.limits.max_cqe);
        Ok(config)
    }

    /// The requested MTU, or else the largest, if the interface supports it.
    fn check_mtu(&self, ip_mtu: u32) -> Result<Mtu, DeviceError> {
        let largest = Mtu::for_ip_mtu(ip_mtu).ok_or_else(|| DeviceError::Invalid {
            what: "address",
            why: format!("the interface's MTU of {ip_mtu} bytes is too small for RoCEv2"),
        })?;
        match self.limits.mtu {
            Some(mtu) if mtu > largest => Err(DeviceError::Invalid {
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

    /// Creates an engine on a port, and the lane that runs both.
    fn start_lane(
        &self,
        common: &Common,
        index: usize,
        (port, qpn_prefix): Opened,
    ) -> Result<Arc<Lane>, DeviceError> {
        let layout = common.layout;
        let mut config = common.config.clone();
        config.addr = port.caps().addr;
        config.key_seed = random_bytes().map_err(DeviceError::system("read randomness"))?;
        config.qpn_prefix = qpn_prefix;
        let first: [u8; 2] = random_bytes().map_err(DeviceError::system("read randomness"))?;
        config.first_qpn = u16::from_le_bytes(first) % FIRST_QPNS;
        let mut nic = Nic::new(config)?;
        if let Some(fec) = &common.fec {
            fec.install(&mut nic);
        }
        let congestion = self.congestion.as_ref().and_then(RateControl::factory);
        nic.set_default_rate_controller(congestion);
        let Some(at) = layout.places().nth(index) else {
            return Err(DeviceError::Invalid { what: "lane", why: format!("there is no {index}") });
        };
        let name = match at.rail {
            Rail::Default => self.name.clone(),
            Rail::Backup => backup_name(&self.name),
        };
        let suffix = if layout.lanes > 1 { format!(".{}", at.lane) } else { String::new() };
        let config = LaneConfig {
            name: format!("bowline-{name}{suffix}"),
            epoch: common.epoch,
            ..LaneConfig::default()
        };
        let sink = EngineEvents {
            at,
            layout,
            names: Arc::clone(&common.names),
            events: Arc::clone(&common.events),
            peers: Arc::clone(&common.peers),
        };
        Ok(Lane::start(nic, port, config, Arc::new(sink))?)
    }
}
