//! How a group's sender asks its members to receive a multicast address.
//!
//! ```text
//! sender → member  join:   version, 1 (1)  group address (4)  sender address (4)  group ID (4)
//!                          number of the probes (16)  region count (2)  regions
//! member → sender  joined: listening
//! sender → group           probes
//! member → sender  joined: heard, or silent
//! sender → member  leave, if it did not work for all, and then an endpoint as in any set-up
//!
//! joined: status (1)  reason, in text
//! ```
//! All of it happens between the two endpoint messages. The regions are the members' memory as the
//! sender will address it, in the order in which the member has offered its own.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use bowline_device::multicast::{Membership, Nonce};
use bowline_multicast::{GROUP_PREFIX, GroupKey, Leaf, Place, Region};
use bowline_wire::Qpn;

use super::message::{self, Kind, MAX_REGIONS, Reader};
use super::{Channel, Peer, SetupError};
use crate::{Error, Qp, RemoteMr};

/// Version of the request.
const VERSION: u8 = 1;
/// First byte of multicast addresses for local use (RFC 2365).
pub(crate) const LOCAL_SCOPE: u8 = 239;
/// How long a member waits for a probe.
const PROBE_WAIT: Duration = Duration::from_millis(300);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(1);
/// Longest reason.
const MAX_REASON: usize = 512;
/// Requests before the sender's endpoint: more than any sender has.
const MAX_REQUESTS: usize = 8;
const DOING: &str = "waiting for the peer's queue pair";

/// A request to join a multicast address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Join {
    /// The multicast address.
    pub(crate) group: Ipv4Addr,
    /// The group, as its packets show it.
    pub(crate) sender: Ipv4Addr,
    pub(crate) id: Qpn,
    pub(crate) nonce: Nonce,
    /// The members' memory, as the sender will address it.
    pub(crate) regions: Vec<RemoteMr>,
}

/// How far a member has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Status {
    /// It will not receive the address.
    Refused = 0,
    /// It waits for a probe.
    Listening = 1,
    /// A probe has arrived.
    Heard = 2,
    /// No probe has arrived.
    Silent = 3,
}

impl Join {
    pub(crate) fn encode(&self) -> Result<Vec<u8>, SetupError> {
        if self.regions.len() > MAX_REGIONS {
            return Err(SetupError::TooManyRegions { count: self.regions.len() });
        }
        let mut out = vec![VERSION];
        out.extend_from_slice(&self.group.octets());
        out.extend_from_slice(&self.sender.octets());
        out.extend_from_slice(&self.id.get().to_be_bytes());
        out.extend_from_slice(&self.nonce);
        message::put_regions(&mut out, &self.regions);
        Ok(out)
    }

    /// Reads a request; `None` if its version is unknown.
    fn decode(body: &[u8]) -> Result<Option<Join>, SetupError> {
        let mut r = Reader { rest: body };
        let [version] = r.array()?;
        if version != VERSION {
            return Ok(None);
        }
        let group = Ipv4Addr::from(r.array::<4>()?);
        let sender = Ipv4Addr::from(r.array::<4>()?);
        // Other multicast addresses may mean something to the network.
        if group.octets()[0] != LOCAL_SCOPE {
            return Err(SetupError::Invalid("group address: it does not begin with 239"));
        }
        if sender.is_multicast() || sender.is_unspecified() || sender.is_broadcast() {
            return Err(SetupError::Invalid("address: it is not one host's"));
        }
        let id = r.u32()?;
        if id >> 16 != u32::from(GROUP_PREFIX) {
            return Err(SetupError::Invalid("group ID"));
        }
        let nonce = r.array()?;
        let count = usize::from(u16::from_be_bytes(r.array()?));
        if count > MAX_REGIONS {
            return Err(SetupError::TooManyRegions { count });
        }
        let regions = r.regions(count)?;
        Ok(Some(Join { group, sender, id: Qpn::new(id), nonce, regions }))
    }

    /// What the port of a member with this queue pair and memory must know; or why it cannot be.
    fn membership(self, qpn: Qpn, own: &[RemoteMr]) -> Result<Membership, String> {
        let fits = |(theirs, own): (&RemoteMr, &RemoteMr)| theirs.len <= own.len;
        if self.regions.len() != own.len() || !self.regions.iter().zip(own).all(fits) {
            return Err("the sender's regions are not those that the member has offered".into());
        }
        let region = |r: &RemoteMr| Region { va: r.addr, len: r.len, rkey: r.rkey };
        let place = |r: &RemoteMr| Place { va: r.addr, rkey: r.rkey };
        Ok(Membership {
            group: IpAddr::V4(self.group),
            key: GroupKey { sender: IpAddr::V4(self.sender), id: self.id },
            regions: self.regions.iter().map(region).collect(),
            leaf: Leaf { qpn, places: own.iter().map(place).collect() },
            nonce: self.nonce,
        })
    }
}

impl Channel {
    /// Receives the peer's queue pair, and joins multicast addresses as the peer asks.
    pub(super) fn hear_as_member(&mut self, qp: &Qp, regions: &[RemoteMr]) -> Result<Peer, Error> {
        for _ in 0..MAX_REQUESTS {
            let header = self.recv_header(Instant::now() + self.timeout(), DOING)?;
            self.unread_header(header);
            if header.kind == Kind::Join as u8 {
                let body = self.recv_frame(Kind::Join, DOING)?;
                self.answer_join(qp, regions, &body)?;
            } else if header.kind == Kind::Leave as u8 {
                self.recv_frame(Kind::Leave, DOING)?;
                qp.core().leave_multicast();
            } else {
                break;
            }
        }
        self.hear()
    }

    fn answer_join(&mut self, qp: &Qp, regions: &[RemoteMr], body: &[u8]) -> Result<(), Error> {
        if let Err(why) = self.try_join(qp, regions, body)? {
            return self.send_joined(Status::Refused, &why);
        }
        self.send_joined(Status::Listening, "")?;
        let deadline = Instant::now() + PROBE_WAIT;
        while !qp.core().has_heard_multicast() {
            if Instant::now() >= deadline {
                qp.core().leave_multicast();
                return self.send_joined(Status::Silent, "");
            }
            std::thread::sleep(LOOK);
        }
        self.send_joined(Status::Heard, "")
    }

    /// Joins; `Ok(Err(_))` says why not.
    fn try_join(
        &self,
        qp: &Qp,
        regions: &[RemoteMr],
        body: &[u8],
    ) -> Result<Result<(), String>, Error> {
        let Some(join) = Join::decode(body)? else {
            return Ok(Err("it knows another version of the request".to_owned()));
        };
        if self.is_sealing() {
            return Ok(Err("its queue pair is sealed".to_owned()));
        }
        let membership = join.membership(qp.qpn(), regions);
        Ok(membership.and_then(|m| qp.core().join_multicast(m).map_err(|error| error.to_string())))
    }

    fn send_joined(&mut self, status: Status, reason: &str) -> Result<(), Error> {
        self.send_frame(Kind::Joined, &encode_joined(status, reason))
    }

    /// Asks a member to join.
    pub(crate) fn ask_to_join(&mut self, join: &Join) -> Result<(), Error> {
        self.send_frame(Kind::Join, &join.encode()?)
    }

    /// Tells a member that the group does not use the multicast address.
    pub(crate) fn ask_to_leave(&mut self) -> Result<(), Error> {
        self.send_frame(Kind::Leave, &[])
    }

    /// How far a member has got, and why not further.
    pub(crate) fn hear_joined(&mut self) -> Result<(Status, String), Error> {
        let body = self.recv_frame(Kind::Joined, "waiting for the peer to join a group")?;
        Ok(decode_joined(&body)?)
    }
}

/// The body of an answer.
pub(crate) fn encode_joined(status: Status, reason: &str) -> Vec<u8> {
    let mut out = vec![status as u8];
    out.extend(reason.bytes().take(MAX_REASON));
    out
}

fn decode_joined(body: &[u8]) -> Result<(Status, String), SetupError> {
    let (status, reason) = body.split_first().ok_or(SetupError::Truncated)?;
    let known = [Status::Refused, Status::Listening, Status::Heard, Status::Silent];
    let status = known.into_iter().find(|known| *known as u8 == *status);
    let status = status.ok_or(SetupError::Invalid("answer to a request to join"))?;
    if reason.len() > MAX_REASON {
        return Err(SetupError::Invalid("length of a reason"));
    }
    // It is shown to people: nothing in it may control their terminals.
    let reason = String::from_utf8_lossy(reason);
    Ok((status, reason.chars().filter(|c| !c.is_control()).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join() -> Join {
        Join {
            group: Ipv4Addr::new(239, 193, 1, 2),
            sender: Ipv4Addr::new(10, 0, 0, 1),
            id: Qpn::new(0xfe_0007),
            nonce: [7; 16],
            regions: vec![RemoteMr { addr: 0x1000, len: 64, rkey: 9 }],
        }
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(Join::decode(&join().encode().unwrap()).unwrap(), Some(join()));
        let answer = encode_joined(Status::Refused, "no\u{1b}[2J sockets");
        let read = decode_joined(&answer).unwrap();
        assert_eq!(read, (Status::Refused, "no[2J sockets".to_owned()));
    }

    #[test]
    fn nothing_else_is_read() {
        let right = join().encode().unwrap();
        for len in 1..right.len() {
            assert!(Join::decode(&right[..len]).is_err(), "{len} of {} bytes", right.len());
        }
        let changed = |at: usize, value: u8| {
            let mut body = right.clone();
            body[at] = value;
            Join::decode(&body)
        };
        assert_eq!(changed(0, 2).unwrap(), None, "another version");
        assert!(changed(1, 224).is_err(), "224.193.1.2 is not for local use");
        assert!(changed(5, 239).is_err(), "239.0.0.1 is no sender");
        assert!(changed(10, 7).is_err(), "an ID with a device's prefix");
        assert!(changed(29, 255).is_err(), "too many regions");
        assert!(decode_joined(&[]).is_err() && decode_joined(&[4]).is_err());
        assert!(decode_joined(&[0; MAX_REASON + 2]).is_err());
    }

    #[test]
    fn a_member_lends_no_more_memory_than_it_has_offered() {
        let own = |len| [RemoteMr { addr: 0x5000, len, rkey: 3 }];
        let membership = join().membership(Qpn::new(5), &own(64)).unwrap();
        assert_eq!(membership.leaf.places, [Place { va: 0x5000, rkey: 3 }]);
        assert!(join().membership(Qpn::new(5), &own(63)).is_err());
        assert!(join().membership(Qpn::new(5), &[]).is_err());
    }
}
