//! The other end of a connection: one peer, or the members of a multicast group.
//!
//! A sender to a group has one set of QPs for packets, which a switch copies to all members, and a
//! control channel with each. Members do not know of each other, nor of the group. Their reports
//! are merged: a message may be sent when all have posted a receive for it, and a packet counts as
//! landed when it has landed everywhere.

use bowline_nic::{AddressVector, CqId, PdId, Rnic, Time};
use bowline_wire::Qpn;

use super::{SdrQp, bring_up};
use crate::config::{SdrConfig, Transport};
use crate::control::{Control, Header, Kind};
use crate::error::SdrError;
use crate::info::SdrInfo;

/// Most members of a group.
pub const MAX_MEMBERS: usize = 64;

/// A peer.
pub(super) struct Peer {
    pub(super) control: Control,
    /// The last stamp that it sent, and its arrival time.
    echo: Option<(u64, Time)>,
    /// Its last stamp that asked for a report, its arrival time, and what had landed by then.
    probe: Option<(u64, Time, u64)>,
    /// Receives that it has posted, and packets that have landed there, by its own account.
    posted: u64,
    landed: u64,
    /// It was evicted: it is sent nothing, and its messages are ignored.
    is_out: bool,
}

impl Peer {
    pub(super) fn new(control: Control) -> Peer {
        Peer { control, echo: None, probe: None, posted: 0, landed: 0, is_out: false }
    }

    /// Fills in the header fields that answer its messages.
    fn answer(&self, now: Time, header: &Header) -> Header {
        let (echo, held) = self.echo.map_or((0, 0), |(stamp, at)| (stamp, now.nanos_since(at)));
        let (probe, probe_held, probe_landed) = self
            .probe
            .map_or((0, 0, 0), |(stamp, at, landed)| (stamp, now.nanos_since(at), landed));
        Header { echo, held, probe, probe_held, probe_landed, ..*header }
    }

    /// Records a header. It cannot have posted more receives than `most`.
    pub(super) fn hear(&mut self, now: Time, header: &Header, landed_here: u64, most: u64) {
        self.echo = Some((header.stamp, now));
        if header.kind == Kind::Stamp {
            self.probe = Some((header.stamp, now, landed_here));
        }
        self.hear_posted(header.posted, most);
        self.landed = header.landed;
    }

    /// It has posted so many receives, or says so.
    pub(super) fn hear_posted(&mut self, posted: u64, most: u64) {
        if posted <= most {
            self.posted = self.posted.max(posted);
        }
    }

    /// Brings its control channel up.
    pub(super) fn connect(
        &mut self,
        nic: &mut dyn Rnic,
        now: Time,
        av: AddressVector,
        config: &SdrConfig,
        peer: &SdrInfo,
    ) -> Result<(), SdrError> {
        bring_up(nic, now, self.control.qpn, peer.control, av, config)?;
        self.open(nic, now, peer)
    }

    /// The QP is up: both can send from now on.
    pub(super) fn open(
        &mut self,
        nic: &mut dyn Rnic,
        now: Time,
        peer: &SdrInfo,
    ) -> Result<(), SdrError> {
        // Control traffic is small, and rate control depends on it: it must not be throttled.
        nic.set_rate_controller(now, self.control.qpn, None)?;
        self.control.peer_token = Some(peer.token);
        self.control.listen(nic)
    }
}

/// All peers: at least one.
pub(super) struct Peers {
    pub(super) all: Vec<Peer>,
}

impl Peers {
    /// Creates the control channels of this many peers.
    pub(super) fn new(
        nic: &mut dyn Rnic,
        pd: PdId,
        send_cq: CqId,
        transport: Transport,
        count: usize,
    ) -> Result<Peers, SdrError> {
        let mut all = Vec::with_capacity(count);
        for _ in 0..count {
            all.push(Peer::new(Control::new(nic, pd, send_cq, transport)?));
        }
        Ok(Peers { all })
    }

    /// Receives that all peers have posted.
    pub(super) fn posted(&self) -> u64 {
        self.live().map(|peer| peer.posted).min().unwrap_or(0)
    }

    /// Packets landed at the peer that lacks most.
    pub(super) fn landed(&self) -> u64 {
        self.live().map(|peer| peer.landed).min().unwrap_or(0)
    }

    /// Peers that were not evicted.
    fn live(&self) -> impl Iterator<Item = &Peer> {
        self.all.iter().filter(|peer| !peer.is_out)
    }

    /// Whether a member has not been evicted.
    pub(super) fn is_live(&self, member: usize) -> bool {
        self.all.get(member).is_some_and(|peer| !peer.is_out)
    }

    /// The same for all members, as a bit set.
    pub(super) fn live_set(&self) -> u64 {
        (0..self.all.len()).filter(|member| self.is_live(*member)).fold(0, |set, m| set | 1 << m)
    }

    /// Whether no other member has more packets missing.
    pub(super) fn is_slowest(&self, member: usize) -> bool {
        self.all[member].landed == self.landed()
    }

    /// Sends a message to all members.
    pub(super) fn send(&mut self, nic: &mut dyn Rnic, now: Time, header: &Header, payload: &[u8]) {
        for peer in self.all.iter_mut().filter(|peer| !peer.is_out) {
            let header = peer.answer(now, header);
            peer.control.send(nic, now, &header, payload);
        }
    }

    /// Messages from senders other than peers.
    pub(super) fn refused(&self) -> u64 {
        self.all.iter().map(|peer| peer.control.refused).sum()
    }
}

/// Where the packets for a group go: to the switch that copies them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPath {
    /// The address that they are sent to.
    pub av: AddressVector,
    /// The QPNs, one for each QP of [`SdrInfo::data`].
    pub qpns: Vec<Qpn>,
}

impl SdrQp {
    /// Creates a QP that sends to the members of a group. There are no groups over datagrams.
    pub fn for_group(
        nic: &mut dyn Rnic,
        pd: PdId,
        config: &SdrConfig,
        members: usize,
    ) -> Result<SdrQp, SdrError> {
        let fail = |what, why: String| Err(SdrError::Config { what, why });
        if !(1..=MAX_MEMBERS).contains(&members) {
            return fail("members", format!("{members} is not between 1 and {MAX_MEMBERS}"));
        }
        if config.transport != Transport::Uc {
            return fail("transport", "groups are over UC: keys are rewritten on the way".into());
        }
        SdrQp::with_peers(nic, pd, config, members)
    }

    /// Number of members, including evicted ones.
    pub fn members(&self) -> usize {
        self.peers.all.len()
    }

    /// Members that were not evicted, as a bit set.
    pub fn live_members(&self) -> u64 {
        self.peers.live_set()
    }

    /// When a member last sent something; `None` if it never did.
    pub fn last_heard(&self, member: usize) -> Option<Time> {
        self.peers.all.get(member)?.echo.map(|(_, at)| at)
    }

    /// Continues without a member: it is no longer waited for. The last one stays.
    pub fn evict(&mut self, member: usize) -> Result<(), SdrError> {
        let fail = |why: String| Err(SdrError::Config { what: "member", why });
        if !self.peers.is_live(member) {
            return fail(format!("{member} is none of the group's {}", self.members()));
        }
        if self.live_members() == 1 << member {
            return fail(format!("{member} is the last one: end the group instead"));
        }
        self.peers.all[member].is_out = true;
        self.sender.clear(&self.config, self.peers.posted());
        Ok(())
    }

    /// What a member of the group needs to know to connect.
    ///
    /// # Panics
    /// If there is no such member.
    pub fn info_for(&self, member: usize) -> SdrInfo {
        let control = &self.peers.all[member].control;
        SdrInfo { control: control.qpn, token: control.token, ..self.info() }
    }

    /// Connects to the members of a group, in their order, each at its address. Packets go to
    /// `path`; the sender addresses memory by the first member's keys ([`SdrInfo::roots`]).
    pub fn connect_group(
        &mut self,
        nic: &mut dyn Rnic,
        now: Time,
        path: &GroupPath,
        members: &[(AddressVector, SdrInfo)],
    ) -> Result<(), SdrError> {
        for (_, peer) in members {
            peer.check_against(&self.config)?;
        }
        let is_right =
            members.len() == self.peers.all.len() && path.qpns.len() == self.sender.qps().len();
        let Some((_, first)) = members.first().filter(|_| is_right) else {
            let why = format!("{} members for a group of {}", members.len(), self.members());
            return Err(SdrError::Config { what: "group", why });
        };
        for (qp, to) in self.sender.qps().iter().zip(&path.qpns) {
            bring_up(nic, now, qp.qpn, *to, path.av, &self.config)?;
        }
        for (peer, (av, info)) in self.peers.all.iter_mut().zip(members) {
            peer.connect(nic, now, *av, &self.config, info)?;
        }
        self.sender.roots.clone_from(&first.roots);
        self.control_rate(nic, now)?;
        self.connected = true;
        self.status_due = true;
        Ok(())
    }
}
