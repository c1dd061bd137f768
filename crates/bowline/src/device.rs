//! Devices: a soft NIC on one address, and the thread that drives it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bowline_device::{Account as FailoverAccount, ParseNameError, VerbsCaps, VerbsName};
use bowline_fec::FecSnapshot;
use bowline_io::{FaultRequest, PortCounters, Via};
use bowline_nic::{Counters, Event, Mtu};

use crate::{Cq, DeviceBuilder, Error, Pd};

/// A RoCEv2 NIC in this process, on one address of this machine.
///
/// On loopback 127.0.0.1, 127.0.0.2, … are as many NICs. A name such as `verbs:mlx5_0` opens one of
/// the system's RoCE NICs instead, in hardware or the kernel's own (`docs/verbs.md`). The device
/// closes when the last handle to it, or to anything created from it, is dropped.
///
/// A thread that polls a completion queue drives the device; otherwise a thread of its own takes
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
    pub(crate) inner: Arc<bowline_device::Device>,
}

impl Device {
    /// Opens the NIC at an address of this machine, or one of the system's verbs devices by
    /// `verbs:NAME`, with the defaults of [`DeviceBuilder`].
    pub fn open(name: &str) -> Result<Device, Error> {
        Device::named(name)?.open()
    }

    /// A builder for what [`Device::open`] opens.
    pub fn named(name: &str) -> Result<DeviceBuilder, Error> {
        let invalid = |why: String| Error::Invalid { what: "device", why };
        if VerbsName::is_meant(name) {
            return Ok(Device::verbs(
                name.parse().map_err(|e: ParseNameError| invalid(e.to_string()))?,
            ));
        }
        let addr = name.parse().map_err(|_| {
            invalid(format!(
                "{name:?} is no IP address: write 127.0.0.1, 10.0.0.7, fd00::7 or verbs:mlx5_0"
            ))
        })?;
        Ok(Device::builder(addr))
    }

    /// The NIC at an address of this machine that an earlier call opened in this process, if it is
    /// still in use; otherwise opens it. For libraries whose users do not manage devices:
    /// `BOWLINE_VIA` chooses what carries packets, [`Via::Auto`] by default.
    ///
    /// ```
    /// use bowline::Device;
    ///
    /// let addr = "127.9.1.12".parse().unwrap();
    /// let (one, other) = (Device::shared(addr)?, Device::shared(addr)?);
    /// let counters = one.alloc_pd().and(other.counters())?;
    /// assert_eq!(counters.completions, 0);
    /// # Ok::<(), bowline::Error>(())
    /// ```
    pub fn shared(addr: IpAddr) -> Result<Device, Error> {
        static OPEN: Mutex<BTreeMap<IpAddr, Weak<bowline_device::Device>>> =
            Mutex::new(BTreeMap::new());
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(inner) = open.get(&addr).and_then(Weak::upgrade) {
            return Ok(Device { inner });
        }
        let device = Device::builder(addr).via(via_from_env()?).open()?;
        open.retain(|_, device| device.strong_count() > 0);
        open.insert(addr, Arc::downgrade(&device.inner));
        Ok(device)
    }

    /// A builder for one of the system's verbs devices.
    pub fn verbs(name: VerbsName) -> DeviceBuilder {
        DeviceBuilder::verbs(name)
    }

    /// A builder for the NIC at an address of this machine.
    pub fn builder(addr: IpAddr) -> DeviceBuilder {
        DeviceBuilder::new(addr)
    }

    /// Its address.
    pub fn addr(&self) -> IpAddr {
        self.inner.addr()
    }

    /// Its UDP port.
    pub fn udp_port(&self) -> u16 {
        self.inner.config().udp_port
    }

    /// What carries its packets, human-readable: `udp`, `verbs`, `xdp, copy` or `xdp, zero-copy`.
    pub fn via(&self) -> &'static str {
        self.inner.via()
    }

    /// The largest path MTU that it carries.
    pub fn mtu(&self) -> Mtu {
        self.inner.config().max_mtu
    }

    /// Number of lanes; a verbs device has none.
    pub fn lanes(&self) -> usize {
        self.inner.lanes().len()
    }

    /// Allocates a protection domain.
    pub fn alloc_pd(&self) -> Result<Pd, Error> {
        Pd::new(&self.inner)
    }

    /// Creates a completion queue for up to `depth` completions.
    ///
    /// It must hold what all queue pairs that use it can have outstanding: when it overflows,
    /// completions are lost and its queue pairs fail.
    pub fn create_cq(&self, depth: u32) -> Result<Cq, Error> {
        Cq::new(&self.inner, depth)
    }

    /// Capabilities of the underlying verbs device, if there is one.
    pub fn verbs_caps(&self) -> Option<&VerbsCaps> {
        self.inner.verbs_caps()
    }

    /// The NIC's counters. A verbs device has none.
    pub fn counters(&self) -> Result<Counters, Error> {
        Ok(self.inner.counters()?.0)
    }

    /// Counters of forward error correction; all zero without it.
    pub fn fec_counters(&self) -> FecSnapshot {
        self.inner.fec_counters().unwrap_or_default()
    }

    /// Statistics of its failovers, if it has a backup.
    pub fn failover_account(&self) -> Option<FailoverAccount> {
        self.inner.failover_account()
    }

    /// Injects a fault into the NIC, or ends it, for experiments: what `bowline fault` does from
    /// outside. It has no effect on a verbs device: take its interface down.
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
        self.inner.fault(request);
    }

    /// Counters of the socket below the NIC.
    pub fn port_counters(&self) -> Result<PortCounters, Error> {
        Ok(self.inner.counters()?.1)
    }

    /// The next asynchronous event, waiting for it up to `timeout`.
    pub fn next_event(&self, timeout: Duration) -> Result<Option<Event>, Error> {
        Ok(self.inner.events().wait(Some(timeout))?)
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({} port {})", self.addr(), self.udp_port())
    }
}

/// What carries packets, by `BOWLINE_VIA`.
fn via_from_env() -> Result<Via, Error> {
    match std::env::var("BOWLINE_VIA").as_deref() {
        Ok("") | Err(_) => Ok(Via::Auto),
        Ok(text) => text.parse().map_err(|error| Error::Invalid {
            what: "environment",
            why: format!("BOWLINE_VIA: {error}"),
        }),
    }
}
