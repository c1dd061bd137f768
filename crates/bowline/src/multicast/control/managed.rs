//! A switch that a controller on another host gives its tables.

use std::collections::BTreeMap;
use std::time::Duration;

use bowline_multicast::{GroupKey, MAX_MEMBERS};
use bowline_wire::Qpn;

use super::message::{self, Request};
use super::{GroupSpec, LEASE, RemoteError, RemoteStatus};
use crate::multicast::{GroupSwitch, Reserved};
use crate::setup::SetupError;
use crate::{Channel, Error};

/// Groups of one controller.
const MAX_GROUPS: usize = 4096;
/// Member IDs of one group. Those of members that have left are not used again.
const MAX_IDS: usize = 1024;

/// A group of one controller.
struct Held {
    /// Once it has a table.
    key: Option<GroupKey>,
    ids: Vec<Qpn>,
}

/// What one controller has at this switch. All of it ends with the connection.
struct Holdings<'a> {
    switch: &'a GroupSwitch,
    groups: BTreeMap<Qpn, Held>,
}

impl GroupSwitch {
    /// Serves a controller until it disconnects, or has been silent for [`LEASE`]. Then the tables
    /// that it has installed are removed: packets of their groups are dropped, and nothing more is
    /// acknowledged.
    ///
    /// Whoever holds the channel decides which memory of which members the switch writes to.
    /// Authenticate it first ([`Channel::accept_peer`]).
    ///
    /// # Errors
    /// If the controller is silent for too long, or breaks the protocol of the channel. What it
    /// asks for and cannot have is refused with a reason, and it may go on.
    pub fn serve_controller(&self, channel: &mut Channel) -> Result<(), Error> {
        self.serve_for(channel, LEASE)
    }

    /// With another lease.
    pub(super) fn serve_for(&self, channel: &mut Channel, lease: Duration) -> Result<(), Error> {
        let mut holdings = Holdings { switch: self, groups: BTreeMap::new() };
        channel.set_timeout(lease);
        loop {
            let request = match channel.recv() {
                Ok(request) => request,
                Err(Error::Setup(SetupError::Closed)) => return Ok(()),
                Err(error) => return Err(error),
            };
            let answer = match holdings.answer(&request) {
                Ok(answer) => answer,
                Err(why) => message::refusal(&why.to_string()),
            };
            channel.send(&answer)?;
        }
    }
}

impl Holdings<'_> {
    fn answer(&mut self, request: &[u8]) -> Result<Vec<u8>, Error> {
        match Request::decode(request)? {
            Request::Hello => return Ok(message::encode_info(&self.switch.info())),
            Request::Reserve { group, count } => return self.reserve(group, count),
            Request::Install(spec) => self.install(&spec)?,
            Request::Remove { group } => {
                let held = self.groups.remove(&group).ok_or(RemoteError::NoGroup)?;
                self.end(group, held);
            }
            Request::Evict { group, member } => {
                let key = self.key(group)?;
                let evicted = self.switch.evict(&key, member);
                evicted.map_err(|e| RemoteError::Refused(e.to_string()))?;
            }
            Request::Status { group } => return self.status(group),
            Request::Renew => {}
        }
        Ok(message::done())
    }

    fn key(&self, group: Qpn) -> Result<GroupKey, RemoteError> {
        self.groups.get(&group).and_then(|held| held.key).ok_or(RemoteError::NoGroup)
    }

    /// Reserves IDs: for a new group, or for members that join one.
    fn reserve(&mut self, group: Option<Qpn>, count: usize) -> Result<Vec<u8>, Error> {
        let Some(group) = group else {
            if self.groups.len() >= MAX_GROUPS {
                return Err(RemoteError::TooMany(MAX_GROUPS).into());
            }
            let Reserved { group, ids } = self.switch.reserve(count.min(MAX_MEMBERS))?;
            let answer = message::encode_reserved(group, &ids);
            self.groups.insert(group, Held { key: None, ids });
            return Ok(answer);
        };
        let held = self.groups.get_mut(&group).ok_or(RemoteError::NoGroup)?;
        if held.ids.len() + count > MAX_IDS {
            return Err(RemoteError::TooManyIds(MAX_IDS).into());
        }
        let new = self.switch.reserve_more(count)?;
        held.ids.extend(&new);
        Ok(message::encode_reserved(group, &new))
    }

    fn install(&mut self, spec: &GroupSpec) -> Result<(), Error> {
        let held = self.groups.get_mut(&spec.group).ok_or(RemoteError::NoGroup)?;
        if !spec.members.iter().all(|(id, _)| held.ids.contains(id)) {
            return Err(RemoteError::NoId.into());
        }
        let key = GroupKey { sender: spec.sender.addr, id: spec.group };
        if held.key.is_some_and(|before| before != key) {
            return Err(RemoteError::Sender.into());
        }
        self.switch.install_group(spec)?;
        held.key = Some(key);
        Ok(())
    }

    fn status(&self, group: Qpn) -> Result<Vec<u8>, Error> {
        let key = self.key(group)?;
        let status = self.switch.group_status(&key).ok_or(RemoteError::NoGroup)?;
        Ok(message::encode_status(&status))
    }

    fn end(&self, group: Qpn, held: Held) {
        let Held { key, ids } = held;
        self.switch.end_group(key.as_ref(), &Reserved { group, ids });
    }
}

impl Drop for Holdings<'_> {
    fn drop(&mut self) {
        for (group, held) in std::mem::take(&mut self.groups) {
            self.end(group, held);
        }
    }
}

impl GroupSwitch {
    /// The state of a group, as a controller asks for it.
    pub(super) fn group_status(&self, key: &GroupKey) -> Option<RemoteStatus> {
        let group = self.groups().into_iter().find(|group| group.key == *key)?;
        let root = group.root?;
        let members = root.members.iter().map(|member| (member.id, member.is_live)).collect();
        Some(RemoteStatus { epoch: group.epoch, next_psn: root.next_psn, members })
    }
}
