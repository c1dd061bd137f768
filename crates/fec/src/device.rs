//! FEC for all QPs of a device.

use std::sync::Arc;

use bowline_nic::{Nic, Shim};

use crate::{FecConfig, FecCounters, FecShim, FecSnapshot, Pool};

/// State that all shims of a device share: settings, memory, counters.
#[derive(Clone, Debug)]
pub struct Fec {
    config: FecConfig,
    pool: Pool,
    counters: Arc<FecCounters>,
}

impl Fec {
    /// FEC with these settings and a pool of the default size.
    pub fn new(config: FecConfig) -> Fec {
        Fec { config, pool: Pool::default(), counters: Arc::default() }
    }

    /// Adds a shim below every QP that the NIC creates from now on, if its packets can be coded.
    pub fn install(&self, nic: &mut Nic) {
        let fec = self.clone();
        nic.add_shim_maker(Box::new(move |transport| {
            FecShim::codes(transport).then(|| fec.shim() as Box<dyn Shim>)
        }));
    }

    /// A shim for one QP.
    pub fn shim(&self) -> Box<FecShim> {
        Box::new(FecShim::new(self.config, self.pool.clone(), self.counters.clone()))
    }

    /// Its settings.
    pub fn config(&self) -> &FecConfig {
        &self.config
    }

    /// The counters of its shims.
    pub fn counters(&self) -> FecSnapshot {
        self.counters.snapshot()
    }
}
