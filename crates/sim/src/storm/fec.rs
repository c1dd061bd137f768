//! FEC in storms: on which QPs, with which codes, and with what result.
//!
//! It draws from its own generator, so that everything else about a seed stays the same.

use std::sync::Arc;

use bowline_fec::{
    AutoConfig, FecConfig, FecCounters, FecMode, FecShim, FecSnapshot, Params, Pool,
};
use bowline_nic::{Nic, QpType};
use bowline_wire::Qpn;

use super::scenario::ConnPlan;
use crate::rng::SimRng;
use crate::world::NicId;

const STREAM: u64 = 0xfec;
const MICROSECOND: u64 = 1_000;

/// Enables FEC on some connections: mostly at both ends, sometimes at one only.
pub(crate) fn draw(seed: u64, conns: &mut [ConnPlan]) {
    let rng = &mut SimRng::new(seed, STREAM);
    if rng.percent(50) {
        return;
    }
    for conn in conns.iter_mut().filter(|conn| conn.qp_type != QpType::Ud) {
        let ends = match rng.below(10) {
            0..4 => [true, true],
            4 => [true, false],
            5 => [false, true],
            _ => [false, false],
        };
        for (end, has_fec) in conn.ends.iter_mut().zip(ends) {
            end.fec = has_fec.then(|| draw_config(rng));
        }
    }
}

pub(super) fn draw_config(rng: &mut SimRng) -> FecConfig {
    let mode = match rng.below(8) {
        0 => FecMode::Off,
        1 | 2 => {
            // Storms are short: the controller has to forget faster than in production.
            let memory_ns = rng.range(200, 5_000) * MICROSECOND;
            FecMode::Auto(AutoConfig { memory_ns, ..AutoConfig::default() })
        }
        _ => {
            let c = rng.pick(&[1, 1, 2, 4, 8, 16]);
            let r = rng.pick(&[1, 4, 8, 16, 32, 64, 128]).max(c);
            FecMode::Fixed(Params::new(r, c).expect("a code within the limits"))
        }
    };
    FecConfig {
        hold_ns: rng.pick(&[20, 200, 2_000]) * MICROSECOND,
        hello_tries: rng.range(1, 4) as u8,
        hello_ns: rng.range(50, 400) * MICROSECOND,
        report_ns: rng.range(50, 1_000) * MICROSECOND,
        ..FecConfig::new(mode)
    }
}

/// What the shims of a world share.
#[derive(Debug)]
pub(super) struct FecWorld {
    seed: u64,
    counters: Arc<FecCounters>,
    /// By engine.
    pools: Vec<Pool>,
}

impl FecWorld {
    pub(super) fn new(seed: u64) -> FecWorld {
        FecWorld { seed, counters: Arc::default(), pools: Vec::new() }
    }

    pub(super) fn put_under(&mut self, engine: &mut Nic, nic: NicId, qpn: Qpn, config: FecConfig) {
        while self.pools.len() <= nic.0 {
            self.pools.push(Pool::new(self.pool_bytes(self.pools.len())));
        }
        let shim = FecShim::new(config, self.pools[nic.0].clone(), self.counters.clone());
        engine.add_shim(qpn, Box::new(shim)).expect("the QP is new");
    }

    /// Whether no engine's connections hold more memory than they may.
    pub(super) fn check_bounds(&self) -> Result<(), String> {
        for (nic, pool) in self.pools.iter().enumerate() {
            let (used, limit) = (pool.used_bytes(), self.pool_bytes(nic));
            if used > limit {
                return Err(format!("nic{nic}: FEC holds {used} bytes of {limit}"));
            }
        }
        Ok(())
    }

    /// Memory of an engine's pool. Some have hardly any.
    fn pool_bytes(&self, nic: usize) -> usize {
        SimRng::new(self.seed, STREAM + 1 + nic as u64).pick(&[8 << 10, 64 << 10, 4 << 20])
    }

    pub(super) fn counters(&self) -> FecSnapshot {
        self.counters.snapshot()
    }
}
