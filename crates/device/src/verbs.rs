//! Devices on the system's libibverbs.

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use bowline_failover::mirror::Layout;
use bowline_ibverbs::{Caps, Context, VerbsName};
use bowline_io::{EventChannel, LaneError, Via};
use bowline_nic::{NicConfig, Time};
use bowline_wire::ROCE_UDP_PORT;

use crate::driver::Driver;
use crate::engines::LaneEngines;
use crate::events::MAX_EVENTS;
use crate::groups::Groups;
use crate::multicast::Memberships;
use crate::placement::Placement;
use crate::{Device, DeviceError, DeviceSpec};

/// The packet transport of such a device, for display.
pub(crate) const VIA: &str = "verbs";

/// An open verbs device.
pub(crate) struct Verbs {
    pub(crate) context: Arc<Context>,
    opened: Instant,
    /// The driver that runs protocols, once there is one.
    driver: Mutex<Option<Arc<Driver>>>,
}

impl Verbs {
    /// The clock of the device.
    pub(crate) fn now(&self) -> Time {
        since(self.opened)
    }

    /// The driver that runs protocols on the device.
    pub(crate) fn driver(&self, config: &NicConfig) -> Result<Arc<Driver>, DeviceError> {
        let mut driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(driver) = &*driver {
            return Ok(Arc::clone(driver));
        }
        let started = Driver::start(&self.context, config.clone(), self.opened)?;
        Ok(Arc::clone(driver.insert(started)))
    }

    /// Stops the driver.
    pub(crate) fn shut_down(&self) {
        let driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(driver) = driver {
            driver.shut_down();
        }
    }
}

/// The time on a clock that started at `opened`.
pub(crate) fn since(opened: Instant) -> Time {
    Time::from_nanos(u64::try_from(opened.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// The error of a call that needs an engine, on a device that has none.
pub(crate) fn no_lane() -> LaneError {
    LaneError::Dead { reason: "a verbs device has no lanes".to_owned() }
}

impl DeviceSpec {
    pub(crate) fn open_verbs(&self, name: &VerbsName) -> Result<Arc<Device>, DeviceError> {
        self.check_verbs()?;
        let events =
            EventChannel::new(MAX_EVENTS).map_err(DeviceError::system("make a channel"))?;
        let events = Arc::new(events);
        let context = Context::open(name, Arc::clone(&events))?;
        let config = self.verbs_config(context.caps())?;
        let layout = Layout { lanes: 0, backed: false };
        Ok(Arc::new(Device {
            name: self.name.clone(),
            engines: Arc::new(LaneEngines::new(Vec::new(), layout)),
            verbs: Some(Verbs { context, opened: Instant::now(), driver: Mutex::default() }),
            names: Arc::new(RwLock::default()),
            events,
            peers: Arc::default(),
            placement: Placement::new(0),
            fec: None,
            congestion: None,
            config,
            udp: self.udp.clone(),
            failover: None,
            groups: Groups::default(),
            memberships: Memberships::default(),
            controls: Mutex::default(),
            replicators: Mutex::default(),
            last_xrc: AtomicU32::new(0),
        }))
    }

    /// Rejects settings that only Bowline's own engines support.
    fn check_verbs(&self) -> Result<(), DeviceError> {
        let limits = &self.limits;
        let own_limits = [limits.max_qps, limits.max_mrs, limits.max_wr, limits.max_cqe];
        let refused = [
            (
                self.lanes.get() > 1,
                "more than one lane",
                "a verbs device spreads its work by itself",
            ),
            (self.via != Via::Udp, "--via", "the NIC carries its own packets"),
            (
                self.udp.udp_port != ROCE_UDP_PORT,
                "another UDP port",
                "hardware NICs use port 4791 only",
            ),
            (
                self.link.is_some(),
                "impairing packets",
                "use `tc qdisc add dev IF root netem`, or `bowline wan`",
            ),
            (
                self.pcap.is_some(),
                "capturing packets",
                "use tcpdump on the device (`tcpdump -i rxe0`)",
            ),
            (
                self.fec.is_some(),
                "forward error correction",
                "open the device by its IP address, or use a scheme (ec-mds, ec-xor)",
            ),
            (
                self.congestion.is_some(),
                "congestion control",
                "the NIC has its own: set it with the vendor's tools",
            ),
            (
                self.backup.is_some(),
                "failover between two NICs",
                "open the device by its IP address, with --failover",
            ),
            (
                limits.window_bytes.is_some(),
                "a window",
                "the NIC limits the bytes in flight itself",
            ),
            (
                own_limits.iter().any(Option::is_some),
                "limits of its own",
                "the NIC has limits already: `bowline devinfo` shows them",
            ),
        ];
        match refused.into_iter().find(|(asked, ..)| *asked) {
            Some((_, what, instead)) => Err(DeviceError::NeedsSoftNic { what, instead }),
            None => Ok(()),
        }
    }

    fn verbs_config(&self, caps: &Caps) -> Result<NicConfig, DeviceError> {
        let mut config = NicConfig::new(caps.addr, [0; 32]);
        config.max_mtu = match self.limits.mtu {
            Some(mtu) if mtu > caps.mtu => {
                let (asked, most) = (mtu.bytes(), caps.mtu.bytes());
                let why = format!("{asked} bytes do not fit the port of {}: use {most}", caps.name);
                return Err(DeviceError::Invalid { what: "MTU", why });
            }
            asked => asked.unwrap_or(caps.mtu),
        };
        config.max_qps = caps.max_qps;
        config.max_cqs = caps.max_cqs;
        config.max_srqs = caps.max_srqs;
        config.max_pds = caps.max_pds;
        config.max_mrs = caps.max_mrs;
        config.max_wr = caps.max_wr;
        config.max_sge = caps.max_sge;
        config.max_cqe = caps.max_cqe;
        config.max_rd_atomic = caps.max_rd_atomic;
        Ok(config)
    }
}
