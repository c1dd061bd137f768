//! Devices with a backup: connections that outlive a NIC.

use std::net::IpAddr;
use std::sync::Arc;

use bowline_io::Lane;
use bowline_rails::{Log, Mode, Options, Rails};

use crate::{Error, random};

/// How a device keeps its reliable connections alive when its NIC, its cable or its switch dies: see
/// [`DeviceBuilder::failover`](crate::DeviceBuilder::failover).
///
/// Both ends of a connection need a backup, and must find each other's in the same store.
#[derive(Clone, Debug)]
pub struct Failover {
    pub(crate) backup: IpAddr,
    mode: Mode,
    store_url: Option<String>,
    job: String,
}

impl Failover {
    /// Goes on over the NIC at another address of this machine.
    pub fn to(backup: IpAddr) -> Failover {
        Failover { backup, mode: Mode::default(), store_url: None, job: "default".to_owned() }
    }

    /// What becomes of requests under way; exact unless set.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Where peers find each other's backups: `file:///dir`, `redis://host` or `etcd://host`. A
    /// directory of this user on this host unless set.
    pub fn store(mut self, url: &str) -> Self {
        self.store_url = Some(url.to_owned());
        self
    }

    /// The job that peers belong to: those of other jobs in the same store are not seen.
    pub fn job(mut self, name: &str) -> Self {
        self.job = name.to_owned();
        self
    }

    /// Makes the two lanes one.
    pub(crate) fn start(&self, lanes: [Arc<Lane>; 2]) -> Result<Rails, Error> {
        let store_url = self.store_url.clone().unwrap_or_else(bowline_store::default_url);
        let seed = random::bytes()?;
        // What happened is in the account; a library does not write to a program's terminal.
        let log = Log::new(|_, _| {});
        let options = Options { mode: self.mode, store_url, job: self.job.clone(), seed, log };
        Ok(Rails::start(lanes, options)?)
    }
}
