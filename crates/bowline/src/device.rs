//! Devices: a soft NIC on one address, and the thread that keeps it going.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bowline_fec::{Fec, FecSnapshot};
use bowline_io::control::ControlServer;
use bowline_io::{FaultRequest, Lane, PortCounters};
use bowline_nic::{Counters, Event, Mtu, Nic, Time};

use bowline_rails::{Account as FailoverAccount, Rail, Rails, RailsError};

use crate::{Cq, DeviceBuilder, Error, Pd};

/// A RoCEv2 NIC in this process, on one address of this machine.
///
/// On loopback 127.0.0.1, 127.0.0.2, … are as many NICs. The device closes when the last handle
/// to it, or to anything made from it, is dropped.
///
/// Whoever polls a completion queue drives the device; when nobody does, a thread of its own takes
/// over, so that peers are answered whatever the program does.
///
/// ```
/// use bowline::Device;
///
/// let device = Device::open("127.9.1.3")?;
/// let pd = device.alloc_pd()?;
/// let cq = device.create_cq(256)?;
/// assert_eq!(device.counters()?.completions, 0);
/// # drop((pd, cq));
/// # Ok::<(), bowline::Error>(())
/// ```
#[derive(Clone)]
pub struct Device {
    pub(crate) inner: Arc<DeviceInner>,
}

pub(crate) struct DeviceInner {
    lane: Arc<Lane>,
    /// The lane and its backup as one.
    rails: Option<Rails>,
    /// Tell `bowline devinfo` about it and its backup, if that could be arranged.
    _controls: Vec<ControlServer>,
    addr: IpAddr,
    udp_port: u16,
    mtu: Mtu,
    max_rd_atomic: u8,
    fec: Option<Fec>,
}

impl Device {
    /// Opens the NIC at an address of this machine, with the defaults of [`DeviceBuilder`].
    pub fn open(addr: &str) -> Result<Device, Error> {
        let addr = addr.parse().map_err(|_| Error::Invalid {
            what: "address",
            why: format!("{addr:?} is no IP address: write 127.0.0.1, 10.0.0.7 or fd00::7"),
        })?;
        Device::builder(addr).open()
    }

    /// Starts opening the NIC at an address of this machine.
    pub fn builder(addr: IpAddr) -> DeviceBuilder {
        DeviceBuilder::new(addr)
    }

    pub(crate) fn from_lane(
        lane: Arc<Lane>,
        mtu: Mtu,
        max_rd_atomic: u8,
        fec: Option<Fec>,
        rails: Option<Rails>,
    ) -> Device {
        let caps = lane.port_caps();
        let (addr, udp_port) = (caps.addr, caps.udp_port);
        let backup = rails.as_ref().map(|rails| rails.lane(Rail::Backup));
        let _controls = [Some(&lane), backup]
            .into_iter()
            .flatten()
            .filter_map(|lane| {
                ControlServer::for_lane(&lane.port_caps().addr.to_string(), lane).ok()
            })
            .collect();
        let inner = DeviceInner { lane, rails, _controls, addr, udp_port, mtu, max_rd_atomic, fec };
        Device { inner: Arc::new(inner) }
    }

    /// Its address.
    pub fn addr(&self) -> IpAddr {
        self.inner.addr
    }

    /// Its UDP port.
    pub fn udp_port(&self) -> u16 {
        self.inner.udp_port
    }

    /// What carries its packets, for people to read: `udp`, `xdp, copy` or `xdp, zero-copy`.
    pub fn via(&self) -> &'static str {
        self.inner.lane.port_caps().via
    }

    /// The largest path MTU that it carries.
    pub fn mtu(&self) -> Mtu {
        self.inner.mtu
    }

    /// Makes a protection domain.
    pub fn alloc_pd(&self) -> Result<Pd, Error> {
        Pd::new(&self.inner)
    }

    /// Makes a completion queue for up to `depth` completions.
    ///
    /// It must hold what all queue pairs that use it can have outstanding: when it overflows,
    /// completions are lost and its queue pairs fail.
    pub fn create_cq(&self, depth: u32) -> Result<Cq, Error> {
        Cq::new(&self.inner, depth)
    }

    /// What the NIC has done and seen.
    pub fn counters(&self) -> Result<Counters, Error> {
        Ok(self.inner.lane.counters()?.0)
    }

    /// What forward error correction has done; all zero without it.
    pub fn fec_counters(&self) -> FecSnapshot {
        self.inner.fec.as_ref().map(Fec::counters).unwrap_or_default()
    }

    /// What has become of its connections, if it has a backup.
    pub fn failover_account(&self) -> Option<FailoverAccount> {
        self.inner.rails.as_ref().map(Rails::account)
    }

    /// Makes the NIC fail, or ends that, to see what happens: what `bowline fault` does from outside.
    ///
    /// ```
    /// use bowline::Device;
    ///
    /// let device = Device::open("127.9.1.7")?;
    /// device.fault(&"down".parse()?);
    /// device.fault(&"up".parse()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fault(&self, request: &FaultRequest) {
        if let Some(faults) = self.inner.lane.faults() {
            faults.apply(request);
        }
    }

    /// What the socket below the NIC has done and seen.
    pub fn port_counters(&self) -> Result<PortCounters, Error> {
        Ok(self.inner.lane.counters()?.1)
    }

    /// The next event that is no completion, waiting for it up to `timeout`.
    pub fn next_event(&self, timeout: Duration) -> Result<Option<Event>, Error> {
        Ok(self.inner.lane.events().wait(Some(timeout))?)
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({} port {})", self.inner.addr, self.inner.udp_port)
    }
}

impl DeviceInner {
    /// Calls the NIC; what that makes ready leaves at once.
    pub(crate) fn control<R, E>(
        &self,
        f: impl FnOnce(&mut Nic, Time) -> Result<R, E>,
    ) -> Result<R, Error>
    where
        Error: From<E>,
    {
        Ok(self.lane.with(f)??)
    }

    /// Calls the NIC to post work, which may leave together with what is posted next.
    pub(crate) fn post<R, E>(
        &self,
        f: impl FnOnce(&mut Nic, Time) -> Result<R, E>,
    ) -> Result<R, Error>
    where
        Error: From<E>,
    {
        Ok(self.lane.post(f)??)
    }

    pub(crate) fn lane(&self) -> &Lane {
        &self.lane
    }

    pub(crate) fn rails(&self) -> Option<&Rails> {
        self.rails.as_ref()
    }

    /// Ends the counterpart of an object that is gone; what goes wrong leaves it to the device's end.
    pub(crate) fn forget(&self, end: impl FnOnce(&Rails) -> Result<(), RailsError>) {
        if let Some(rails) = &self.rails {
            let _ = end(rails);
        }
    }

    pub(crate) fn addr(&self) -> IpAddr {
        self.addr
    }

    pub(crate) fn udp_port(&self) -> u16 {
        self.udp_port
    }

    pub(crate) fn mtu(&self) -> Mtu {
        self.mtu
    }

    pub(crate) fn max_rd_atomic(&self) -> u8 {
        self.max_rd_atomic
    }
}
