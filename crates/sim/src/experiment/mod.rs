//! Measurements in virtual time.

mod collectives;
mod completion;
mod fig10;
mod flows;
mod goodput;
mod group_session;
mod lowar;
mod replication;
mod scaled;
mod session;
mod steps;
mod storage;

use bowline_link::LinkConfig;
use bowline_nic::{NicConfig, TxCaps};

use crate::net::{Topology, pair};
use crate::world::{HostConfig, RxId, TxId, World};
pub use collectives::{Carrier, Collective, CollectivesConfig, CollectivesOutcome, collectives};
pub use completion::{CompletionConfig, CompletionTime, completion};
pub use fig10::{Fig10Config, Fig10Row, SCHEMES, fig10, model};
pub use flows::{FlowPlan, FlowsConfig, FlowsOutcome, Shape, flows, jain};
pub use goodput::{Goodput, GoodputConfig, goodput};
pub use group_session::{GroupConfig, GroupTime, group_completion};
pub use lowar::{Figure, FigureBar, FigureRow, GaveUp, LowarFigure, lowar, wan};
pub use replication::{Fabric, ReplicationConfig, StreamOutcome, StreamPlan, Way, replication};
pub use scaled::{Scaled, ScaledCase};
pub use session::{Losses, Session};
pub use steps::{StepsConfig, StepsRun, hindsight_s, steps};
pub use storage::{StorageConfig, StorageOutcome, storage};

/// Two hosts, an engine each, and a cable between them.
fn two_hosts(seed: u64, cable: LinkConfig) -> World {
    let addrs = Topology::ipv4(2);
    let topology = pair(seed, [addrs[0], addrs[1]], cable);
    let hosts = addrs.iter().map(|addr| HostConfig {
        nics: vec![NicConfig::new(*addr, [7; 32])],
        tx_caps: TxCaps::SINGLE,
        tx_batch: 64,
        tx_id: TxId::Burst,
        rx_id: RxId::Known,
        coalesce_ns: 0,
        ring_packets: 0,
    });
    World::new(seed, topology, hosts.collect())
}

#[cfg(test)]
mod goodput_tests;
#[cfg(test)]
mod session_tests;
