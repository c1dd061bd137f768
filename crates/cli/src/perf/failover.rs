//! Failover options, for tests whose device has a backup.

use std::net::IpAddr;

use bowline::{Failover, FailoverMode};
use clap::Args;

#[derive(Args)]
pub(crate) struct FailoverArgs {
    /// Keep connections alive over a backup NIC: exact (the default mode), or shift, which hardware
    /// NICs can do too. RC only; both ends need it
    #[arg(long, value_name = "MODE", num_args = 0..=1, require_equals = true,
          default_missing_value = "exact", requires = "backup", conflicts_with = "scheme")]
    failover: Option<FailoverMode>,
    /// Address of this end's backup NIC
    #[arg(long, value_name = "ADDRESS", requires = "failover")]
    backup: Option<IpAddr>,
    /// Store in which both ends find each other's backups: file:///DIR (the default), redis://HOST
    /// or etcd://HOST
    #[arg(long, value_name = "URL", requires = "failover")]
    store: Option<String>,
}

impl FailoverArgs {
    /// The failover settings for opening the device.
    pub(super) fn request(&self) -> Option<Failover> {
        let failover = Failover::to(self.backup?).mode(self.failover?);
        Some(match &self.store {
            Some(url) => failover.store(url),
            None => failover,
        })
    }
}
