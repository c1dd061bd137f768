//! The data plane of a switch.

mod status;
#[cfg(test)]
mod tests;

use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bowline_link::Time;
use bowline_wire::{BthView, FlowKey, NakCode, OpKind, PacketView, Psn, Qpn, Service};

pub use status::{EvictError, GroupStatus, MemberStatus, RootStatus};

use crate::answer::{Answer, Arrival};
use crate::counters::Counters;
use crate::merge::Record;
use crate::rewrite::{Edit, OldPlace, Rewriter};
use crate::root::{Event, Out, Root};
use crate::table::{GROUP_PREFIX, GroupKey, InvalidTable, Region, Table};

/// Responses that wait for the driver. A frame makes at most a few, so only a driver that breaks
/// the contract loses any.
const MAX_ANSWERS: usize = 4096;

/// Capacity of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchLimits {
    /// Groups.
    pub groups: usize,
}

impl Default for SwitchLimits {
    fn default() -> Self {
        // What the paper's switch holds.
        SwitchLimits { groups: 40_000 }
    }
}

/// What to do with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It belongs to no group here: forward it like any other.
    Pass,
    /// It was consumed, and is not forwarded.
    Taken,
    /// It is replaced by copies; see [`Switch::edit`].
    Replicate(Replicas),
}

/// The copies of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    group: usize,
    branches: u64,
    flow: FlowKey,
    id: Qpn,
    len: usize,
    place: Option<OldPlace>,
}

impl Replicas {
    /// The changes that turn an edited copy back into the frame.
    pub fn undo(&self, edit: &Edit) -> Edit {
        edit.inverse(self.flow, self.id, self.place.as_ref())
    }

    /// Whether copies of both frames go to the same places: branches are numbered by group.
    pub fn goes_with(&self, other: &Replicas) -> bool {
        (self.group, self.branches) == (other.group, other.branches)
    }

    /// Whether each branch makes the same changes to both frames, as to those from the middle of a
    /// message, which name no memory.
    pub fn is_edited_as(&self, other: &Replicas) -> bool {
        self.goes_with(other)
            && (self.len, self.id, self.flow) == (other.len, other.id, other.flow)
            && self.place.is_none()
            && other.place.is_none()
    }

    /// The branches that get a copy, as a bit set.
    pub fn branch_set(&self) -> u64 {
        self.branches
    }

    /// The branches that get a copy.
    pub fn branches(&self) -> impl Iterator<Item = usize> + use<> {
        let branches = self.branches;
        (0..64).filter(move |branch| branches >> branch & 1 != 0)
    }
}

#[derive(Debug)]
struct Group {
    key: GroupKey,
    epoch: u64,
    branches: Vec<Rewriter>,
    regions: Vec<Region>,
    root: Option<Root>,
    /// The root's next timeout, as in `Switch::deadlines`.
    deadline: Option<Time>,
}

/// A switch's packet processor: frames in, verdicts and responses out.
///
/// The driver calls [`handle_frame`](Switch::handle_frame) for each frame, sends the copies that
/// the verdict asks for ([`edit`](Switch::edit)), then what
/// [`poll_transmit`](Switch::poll_transmit) returns until that is empty. It calls
/// [`handle_timeout`](Switch::handle_timeout) at the time that
/// [`poll_timeout`](Switch::poll_timeout) returns, and calls the latter after every other call.
/// [`poll_event`](Switch::poll_event) may be called at any time. Time does not go backwards.
#[derive(Debug, Default)]
pub struct Switch {
    limits: SwitchLimits,
    groups: Vec<Option<Group>>,
    /// Empty slots of `groups`.
    free: Vec<usize>,
    by_key: BTreeMap<GroupKey, usize>,
    /// Groups and members by the destination of responses.
    by_answer: BTreeMap<(IpAddr, Qpn), (usize, usize)>,
    deadlines: BTreeSet<(Time, usize)>,
    answers: VecDeque<Answer>,
    events: VecDeque<Event>,
    counters: Counters,
}

impl Switch {
    /// A switch without groups.
    pub fn new(limits: SwitchLimits) -> Switch {
        Switch { limits, ..Switch::default() }
    }

    /// Installs a table for a group: a new one, or a newer version. The records of members that
    /// stay are kept.
    ///
    /// # Errors
    /// Why it is rejected; the old table stays in force.
    pub fn install(&mut self, now: Time, table: Table) -> Result<(), InvalidTable> {
        table.check()?;
        let known = self.by_key.get(&table.key).copied();
        let current = known.and_then(|slot| self.groups[slot].as_ref());
        if let Some(group) = current
            && table.epoch <= group.epoch
        {
            return Err(InvalidTable::Stale { offered: table.epoch, current: group.epoch });
        }
        if current.is_none() && self.by_key.len() >= self.limits.groups {
            return Err(InvalidTable::Full(self.by_key.len()));
        }
        if let (Some(old), Some(new)) = (current.and_then(|g| g.root.as_ref()), &table.root) {
            old.check_update(new)?;
        }
        self.check_ids(known, &table)?;
        let slot = known.unwrap_or_else(|| self.free_slot());
        let old = self.forget_answers(slot);
        let Table { key, epoch, branches, regions, root } = table;
        let mut out = Out {
            answers: &mut self.answers,
            events: &mut self.events,
            counters: &mut self.counters,
        };
        let root = match (old, root) {
            (Some(mut old), Some(config)) => {
                old.update(now, config, &mut out);
                Some(old)
            }
            (None, Some(config)) => Some(Root::new(key, config)),
            (_, None) => None,
        };
        let deadline = self.groups[slot].as_ref().and_then(|group| group.deadline);
        let branches = branches.into_iter().map(Rewriter::new).collect();
        self.by_key.insert(key, slot);
        for (member, id) in root.iter().flat_map(Root::member_ids).enumerate() {
            let answers_to = root.as_ref().map_or(key.sender, Root::answers_to);
            self.by_answer.insert((answers_to, id), (slot, member));
        }
        self.groups[slot] = Some(Group { key, epoch, branches, regions, root, deadline });
        self.arm(slot, now);
        Ok(())
    }

    /// Member IDs must be unused at the address that responses are sent to.
    fn check_ids(&self, known: Option<usize>, table: &Table) -> Result<(), InvalidTable> {
        let Some(root) = &table.root else { return Ok(()) };
        let is_foreign = |id: &Qpn| {
            let owner = self.by_answer.get(&(root.answers_to, *id));
            owner.is_some_and(|(slot, _)| Some(*slot) != known)
        };
        match root.members.iter().map(|member| member.id).find(is_foreign) {
            Some(id) => Err(InvalidTable::Id(id)),
            None => Ok(()),
        }
    }

    fn free_slot(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.groups.push(None);
            self.groups.len() - 1
        })
    }

    /// Takes a group's root out, and its member IDs out of the table.
    fn forget_answers(&mut self, slot: usize) -> Option<Root> {
        let root = self.groups[slot].as_mut()?.root.take()?;
        for id in root.member_ids() {
            self.by_answer.remove(&(root.answers_to(), id));
        }
        Some(root)
    }

    /// Removes a group. Its packets pass like any other from now on.
    pub fn remove(&mut self, key: &GroupKey) {
        let Some(slot) = self.by_key.remove(key) else { return };
        self.forget_answers(slot);
        if let Some(at) = self.groups[slot].take().and_then(|group| group.deadline) {
            self.deadlines.remove(&(at, slot));
        }
        self.free.push(slot);
    }

    /// How many groups it has.
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Whether it has no group.
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// The root's records of a group's members, by member ID.
    pub fn records(&self, key: &GroupKey) -> impl Iterator<Item = (Qpn, Record)> {
        let group = self.by_key.get(key).and_then(|slot| self.groups[*slot].as_ref());
        group.and_then(|group| group.root.as_ref()).into_iter().flat_map(Root::records)
    }

    /// The PSN after the last that a group's sender has sent, as far as its root has seen.
    pub fn next_psn(&self, key: &GroupKey) -> Option<Psn> {
        let group = self.by_key.get(key).and_then(|slot| self.groups[*slot].as_ref());
        group.and_then(|group| group.root.as_ref()).and_then(Root::next_psn)
    }

    /// Handles a frame.
    pub fn handle_frame(&mut self, now: Time, frame: &Arrival<'_>) -> Verdict {
        let Ok(bth) = BthView::new(frame.bytes) else { return Verdict::Pass };
        if bth.dest_qpn().prefix() != GROUP_PREFIX {
            return Verdict::Pass;
        }
        match self.handle_data(now, frame) {
            Verdict::Pass if self.handle_answer(now, frame) => Verdict::Taken,
            verdict => verdict,
        }
    }

    /// Handles a frame from a sender, as [`handle_frame`](Switch::handle_frame) does, for drivers
    /// that know its origin.
    pub fn handle_data(&mut self, now: Time, frame: &Arrival<'_>) -> Verdict {
        let Ok(bth) = BthView::new(frame.bytes) else { return Verdict::Pass };
        let key = GroupKey { sender: frame.flow.src, id: bth.dest_qpn() };
        match self.by_key.get(&key).copied() {
            Some(slot) => self.on_data(now, slot, frame),
            None => Verdict::Pass,
        }
    }

    /// Handles a frame from the network towards a sender: returns whether it is a member's
    /// response, and so consumed.
    pub fn handle_answer(&mut self, now: Time, frame: &Arrival<'_>) -> bool {
        let Ok(bth) = BthView::new(frame.bytes) else { return false };
        let found = self.by_answer.get(&(frame.flow.dst, bth.dest_qpn())).copied();
        if let Some((slot, member)) = found {
            self.on_answer(now, slot, member, frame);
        }
        found.is_some()
    }

    fn on_data(&mut self, now: Time, slot: usize, frame: &Arrival<'_>) -> Verdict {
        let Some(group) = self.groups[slot].as_mut() else { return Verdict::Pass };
        let Ok(packet) = PacketView::parse(frame.bytes) else {
            self.counters.drop_malformed += 1;
            return Verdict::Taken;
        };
        // UC is not acknowledged: where there is nothing to merge, it is copied unchanged.
        let is_carried = match packet.info().service {
            Service::Rc => true,
            Service::Uc => group.root.is_none(),
            _ => false,
        };
        if !is_carried || packet.info().kind.is_response() {
            self.counters.drop_opcode += 1;
            return Verdict::Taken;
        }
        self.counters.data_in += 1;
        let carried = carried(&group.regions, &packet);
        let branches = match &mut group.root {
            Some(root) => {
                let mut out = Out {
                    answers: &mut self.answers,
                    events: &mut self.events,
                    counters: &mut self.counters,
                };
                root.on_data(now, frame, &packet, carried.map(|_| ()), &mut out)
            }
            None if carried.is_err() => {
                self.counters.drop_region += 1;
                0
            }
            None => u64::MAX >> (64 - group.branches.len()),
        };
        let id = group.key.id;
        self.arm(slot, now);
        if branches == 0 {
            return Verdict::Taken;
        }
        self.counters.copies_out += u64::from(branches.count_ones());
        let place = carried.ok().flatten();
        let (flow, len) = (frame.flow, frame.bytes.len());
        Verdict::Replicate(Replicas { group: slot, branches, flow, id, len, place })
    }

    fn on_answer(&mut self, now: Time, slot: usize, member: usize, frame: &Arrival<'_>) {
        let Some(root) = self.groups[slot].as_mut().and_then(|group| group.root.as_mut()) else {
            return;
        };
        let Ok(packet) = PacketView::parse(frame.bytes) else {
            self.counters.drop_malformed += 1;
            return;
        };
        let mut out = Out {
            answers: &mut self.answers,
            events: &mut self.events,
            counters: &mut self.counters,
        };
        root.on_answer(now, member, frame, &packet, &mut out);
        self.arm(slot, now);
    }

    /// The changes for the copy of a branch. Call this before tables change.
    pub fn edit(&mut self, replicas: &Replicas, branch: usize) -> Option<Edit> {
        let group = self.groups.get_mut(replicas.group)?.as_mut()?;
        let rewriter = group.branches.get_mut(branch)?;
        Some(rewriter.edit(&replicas.flow, replicas.id, replicas.len, replicas.place.as_ref()))
    }

    /// The next response for a sender.
    pub fn poll_transmit(&mut self) -> Option<Answer> {
        self.answers.pop_front()
    }

    /// Whether there is a response for a sender.
    pub fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When to call [`handle_timeout`](Switch::handle_timeout).
    pub fn poll_timeout(&self) -> Option<Time> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// The timeout has come.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some((at, slot)) = self.deadlines.first().copied()
            && at <= now
        {
            self.deadlines.remove(&(at, slot));
            let Some(group) = self.groups[slot].as_mut() else { continue };
            group.deadline = None;
            let mut out = Out {
                answers: &mut self.answers,
                events: &mut self.events,
                counters: &mut self.counters,
            };
            if let Some(root) = &mut group.root {
                root.on_timeout(now, &mut out);
            }
            self.arm(slot, now);
        }
    }

    /// Its counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Records a group's next timeout, and keeps queues bounded.
    fn arm(&mut self, slot: usize, now: Time) {
        while self.answers.len() > MAX_ANSWERS {
            self.answers.pop_front();
            self.counters.drop_answers += 1;
        }
        let Some(group) = self.groups[slot].as_mut() else { return };
        // A deadline that has passed is for the next call, not for this very instant again.
        let wanted = group.root.as_ref().and_then(Root::deadline).map(|at| at.max(now));
        if wanted != group.deadline {
            if let Some(old) = group.deadline {
                self.deadlines.remove(&(old, slot));
            }
            group.deadline = wanted;
            self.deadlines.extend(wanted.map(|at| (at, slot)));
        }
    }
}

/// Whether groups support such a packet, and how to rewrite its RETH.
fn carried(regions: &[Region], packet: &PacketView<'_>) -> Result<Option<OldPlace>, NakCode> {
    let info = packet.info();
    if !matches!(info.kind, OpKind::Send | OpKind::Write) || info.has_invalidate {
        return Err(NakCode::InvalidRequest);
    }
    let (Some(reth), Some(at)) = (packet.reth(), OldPlace::reth_at(packet)) else {
        return Ok(None);
    };
    let found = regions.iter().position(|r| r.contains(reth.rkey, reth.va, reth.len));
    match found {
        Some(region) => Ok(Some(OldPlace { region, at, reth, base: regions[region].va })),
        // It writes nothing, so the address is not checked.
        None if reth.len == 0 => Ok(None),
        None => Err(NakCode::RemoteAccess),
    }
}
