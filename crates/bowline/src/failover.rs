//! Devices with a backup: connections that survive the failure of a NIC.

use std::net::IpAddr;

use bowline_device::{BackupSpec, Mode};

/// How a device keeps its reliable connections alive when its NIC, its cable or its switch fails:
/// see [`DeviceBuilder::failover`](crate::DeviceBuilder::failover).
///
/// Both ends of a connection need a backup, and must find each other's in the same store.
#[derive(Clone, Debug)]
pub struct Failover {
    backup: IpAddr,
    mode: Mode,
    store_url: Option<String>,
    job: String,
}

impl Failover {
    /// Continues over the NIC at another address of this machine.
    pub fn to(backup: IpAddr) -> Failover {
        Failover { backup, mode: Mode::default(), store_url: None, job: "default".to_owned() }
    }

    /// What happens to requests in flight; exact by default.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Where peers find each other's backups: `file:///dir`, `redis://host` or `etcd://host`. By
    /// default a directory of this user on this host.
    pub fn store(mut self, url: &str) -> Self {
        self.store_url = Some(url.to_owned());
        self
    }

    /// The job that peers belong to: those of other jobs in the same store are ignored.
    pub fn job(mut self, name: &str) -> Self {
        self.job = name.to_owned();
        self
    }

    pub(crate) fn into_spec(self) -> BackupSpec {
        let Failover { backup: addr, mode, store_url, job } = self;
        BackupSpec { addr, mode, store_url, job }
    }
}
