//! What a storm exercised: a seed that touches nothing proves nothing.

use bowline_fec::FecSnapshot;
use bowline_link::LinkStats;
use bowline_nic::Counters;

use super::scenario::OpKind;
use crate::attack::AttackCoverage;
use crate::cm_storm::CmCoverage;
use crate::collective_storm::CollectiveCoverage;
use crate::failover_storm::FailoverCoverage;
use crate::multicast_storm::MulticastCoverage;
use crate::sdr_storm::SdrCoverage;
use crate::world::WorldStats;
use crate::xp_storm::XpCoverage;

/// Operations posted, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpCount([u64; OpKind::ALL.len()]);

impl OpCount {
    /// One more.
    pub fn count(&mut self, kind: OpKind) {
        self.0[kind as usize] += 1;
    }

    /// Kinds and how many of each.
    pub fn iter(&self) -> impl Iterator<Item = (OpKind, u64)> {
        OpKind::ALL.into_iter().zip(self.0)
    }

    /// Adds another's.
    pub fn merge(&mut self, other: &OpCount) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }
}

/// Faults injected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCount {
    /// Packets lost.
    pub lost: u64,
    /// Packets dropped at full queues and rings.
    pub queue_drops: u64,
    /// Packets delivered twice.
    pub duplicated: u64,
    /// Packets held back.
    pub reordered: u64,
    /// Packets changed.
    pub corrupted: u64,
    /// Packets marked by queues.
    pub marked: u64,
    /// Pauses of hosts.
    pub pauses: u64,
}

impl FaultCount {
    /// What links and hosts of a world did.
    pub fn of(links: &LinkStats, world: &WorldStats) -> FaultCount {
        FaultCount {
            lost: links.lost,
            queue_drops: links.queue_drops + world.ring_drops,
            duplicated: links.duplicated,
            reordered: links.reordered,
            corrupted: links.corrupted,
            marked: links.marked,
            pauses: world.pauses,
        }
    }

    /// Names and numbers.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("lost", self.lost),
            ("queue drops", self.queue_drops),
            ("duplicated", self.duplicated),
            ("reordered", self.reordered),
            ("corrupted", self.corrupted),
            ("ECN-marked", self.marked),
            ("pauses", self.pauses),
        ]
        .into_iter()
    }

    /// Adds another's.
    pub fn merge(&mut self, other: &FaultCount) {
        self.lost += other.lost;
        self.queue_drops += other.queue_drops;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.corrupted += other.corrupted;
        self.marked += other.marked;
        self.pauses += other.pauses;
    }
}

/// What was exercised, as the application and the engines counted it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Operations posted.
    pub ops: OpCount,
    /// Completions polled.
    pub completions: u64,
    /// Sends that completed with an error.
    pub failed_sends: u64,
    /// Receives that completed with an error.
    pub flushed_receives: u64,
    /// Posts refused by a QP that had failed unseen.
    pub refused_posts: u64,
    /// QPs that gave up retrying.
    pub retry_exceeded: u64,
    /// Connections made anew.
    pub reconnects: u64,
    /// Bad requests that failed as they must.
    pub crimes_caught: u64,
    /// Bad requests whose NAK was lost.
    pub crimes_timed_out: u64,
    /// Notifications of completion queues.
    pub cq_notifications: u64,
    /// QPs that left a shared receive queue.
    pub last_wqe_events: u64,
    /// Events about QPs in error.
    pub qp_error_events: u64,
    /// Unreliable requests that had to be dropped.
    pub strays: u64,
    /// Send queues drained and restarted.
    pub drains: u64,
    /// QPs whose PSNs wrapped around.
    pub psn_wraps: u64,
    /// READ requests sent, retransmissions included.
    pub read_requests_sent: u64,
    /// Atomic requests sent, retransmissions included.
    pub atomic_requests_sent: u64,
    /// Packets that arrived in one datagram with the one before.
    pub coalesced: u64,
    /// QPs on other lanes than the first of their device.
    pub lanes: u64,
    /// Nonces of sealed packets, each recorded.
    pub nonces: u64,
    /// Keys that they were used with.
    pub keys: u64,
    /// What an attacker did.
    pub attack: AttackCoverage,
    /// What the storm over SDR exercised.
    pub sdr: SdrCoverage,
    /// What the storm over XP exercised.
    pub xp: XpCoverage,
    /// What the storm over multicast exercised.
    pub multicast: MulticastCoverage,
    /// What the storm over the connection manager exercised.
    pub cm: CmCoverage,
    /// What the storm over collectives exercised.
    pub collective: CollectiveCoverage,
    /// What became of connections with failover.
    pub failover: FailoverCoverage,
    /// All engines' counters.
    pub nic: Counters,
    /// All FEC shims' counters.
    pub fec: FecSnapshot,
}

impl Coverage {
    /// Names and numbers of what the application counted.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("completions polled", self.completions),
            ("failed sends", self.failed_sends),
            ("failed receives", self.flushed_receives),
            ("refused posts", self.refused_posts),
            ("retries exceeded", self.retry_exceeded),
            ("reconnects", self.reconnects),
            ("bad requests caught", self.crimes_caught),
            ("bad requests timed out", self.crimes_timed_out),
            ("CQ notifications", self.cq_notifications),
            ("last WQE events", self.last_wqe_events),
            ("QP error events", self.qp_error_events),
            ("stray requests", self.strays),
            ("send queues drained", self.drains),
            ("PSN wraps", self.psn_wraps),
            ("READ requests sent", self.read_requests_sent),
            ("atomic requests sent", self.atomic_requests_sent),
            ("packets coalesced", self.coalesced),
            ("QPs on further lanes", self.lanes),
            ("nonces of sealed packets", self.nonces),
            ("keys of sealed packets", self.keys),
        ]
        .into_iter()
    }

    /// Adds another's.
    pub fn merge(&mut self, other: &Coverage) {
        self.ops.merge(&other.ops);
        self.completions += other.completions;
        self.failed_sends += other.failed_sends;
        self.flushed_receives += other.flushed_receives;
        self.refused_posts += other.refused_posts;
        self.retry_exceeded += other.retry_exceeded;
        self.reconnects += other.reconnects;
        self.crimes_caught += other.crimes_caught;
        self.crimes_timed_out += other.crimes_timed_out;
        self.cq_notifications += other.cq_notifications;
        self.last_wqe_events += other.last_wqe_events;
        self.qp_error_events += other.qp_error_events;
        self.strays += other.strays;
        self.drains += other.drains;
        self.psn_wraps += other.psn_wraps;
        self.read_requests_sent += other.read_requests_sent;
        self.atomic_requests_sent += other.atomic_requests_sent;
        self.coalesced += other.coalesced;
        self.lanes += other.lanes;
        self.nonces += other.nonces;
        self.keys += other.keys;
        self.attack.merge(&other.attack);
        self.sdr.merge(&other.sdr);
        self.xp.merge(&other.xp);
        self.multicast.merge(&other.multicast);
        self.cm.merge(&other.cm);
        self.collective.merge(&other.collective);
        self.failover.merge(&other.failover);
        self.nic.merge(&other.nic);
        self.fec.merge(&other.fec);
    }
}
