//! The messages of a controller and a managed switch. Each is one message of a
//! [`Channel`](crate::Channel), whose frames bound its length.
//!
//! ```text
//! request: "BWSW" (4)  version (1)  kind (1)  body
//! answer:  "BWSW" (4)  version (1)  0 (1)  body, or 1 (1) and why it is refused, in ASCII
//!
//! kind        body                                          body of the answer
//! 1 hello                                                   ip version (1)  address (16)
//!                                                           udp port (2)  mtu (2)
//! 2 reserve   group, 0 for a new one (4)  members (1)       group (4)  IDs (4 each)
//! 3 install   group (4)  epoch (8)  policy (1)              nothing
//!             members that it needs (1)  patience in ns (8)
//!             paper's rules (1)  joins at a PSN (1)  PSN (4)
//!             sender with the group's regions
//!             member count (1); each: ID (4), queue pair
//!             with its regions. Queue pairs as at set-up,
//!             each behind its length (2)
//! 4 remove    group (4)                                     nothing
//! 5 evict     group (4)  member (4)                         nothing
//! 6 status    group (4)                                     epoch (8)  PSN known (1)  PSN (4)
//!                                                           each member: ID (4)  live (1)
//! 7 renew                                                   nothing
//! ```
//! Numbers are big-endian. Whatever is left over at the end of a message makes it invalid.

use std::net::IpAddr;

use bowline_multicast::{MAX_MEMBERS, Origin, Policy};
use bowline_nic::Mtu;
use bowline_wire::{Psn, Qpn};

use super::RemoteError;
use crate::endpoint::{Endpoint, RemoteMr};
use crate::multicast::GroupMember;
use crate::setup::message::{decode_endpoint, encode_endpoint};

const MAGIC: [u8; 4] = *b"BWSW";
/// Version of the protocol.
pub(crate) const VERSION: u8 = 1;
/// Longest reason of a refusal.
pub(super) const MAX_WHY: usize = 300;

const REFUSED: u8 = 1;

/// A group as one switch has it. The switch derives its table from this, so that the table's
/// packets always come from the switch's own address.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GroupSpec {
    pub(crate) group: Qpn,
    pub(crate) epoch: u64,
    pub(crate) policy: Policy,
    pub(crate) as_in_the_paper: bool,
    /// New members expect this PSN next. The table is refused if the sender is elsewhere.
    pub(crate) joins_at: Option<Psn>,
    /// The sender, or the queue pair that the next switch towards it seems to have.
    pub(crate) sender: Endpoint,
    /// The members' memory as the sender addresses it.
    pub(crate) regions: Vec<RemoteMr>,
    /// Members, or switches that stand for some, with their IDs.
    pub(crate) members: Vec<(Qpn, GroupMember)>,
}

/// What a controller asks for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Request {
    Hello,
    Reserve { group: Option<Qpn>, count: usize },
    Install(Box<GroupSpec>),
    Remove { group: Qpn },
    Evict { group: Qpn, member: Qpn },
    Status { group: Qpn },
    Renew,
}

/// What a switch says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Info {
    pub(crate) origin: Origin,
    /// The largest MTU that it carries.
    pub(crate) mtu: Mtu,
}

/// A group at a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteStatus {
    /// Version of its table.
    pub epoch: u64,
    /// The PSN that the sender uses next, as far as the switch has seen.
    pub next_psn: Option<Psn>,
    /// Its members, and whether they have not been evicted.
    pub members: Vec<(Qpn, bool)>,
}

fn begin(byte: u8) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend([VERSION, byte]);
    out
}

/// The last byte of a valid beginning, and the body.
fn begun(bytes: &[u8]) -> Result<(u8, Reader<'_>), RemoteError> {
    let (head, rest) = bytes.split_first_chunk::<6>().ok_or(RemoteError::Malformed("length"))?;
    let [magic @ .., version, byte] = head;
    if *magic != MAGIC {
        return Err(RemoteError::Malformed("beginning"));
    }
    if *version != VERSION {
        return Err(RemoteError::Version { theirs: *version });
    }
    Ok((*byte, Reader { rest }))
}

impl Request {
    pub(crate) fn encode(&self) -> Result<Vec<u8>, crate::Error> {
        let id = |kind, ids: &[Qpn]| {
            let mut out = begin(kind);
            ids.iter().for_each(|id| out.extend(id.get().to_be_bytes()));
            out
        };
        Ok(match self {
            Request::Hello => begin(1),
            Request::Reserve { group, count } => {
                let mut out = id(2, &[group.unwrap_or(Qpn::new(0))]);
                out.push(u8::try_from(*count).unwrap_or(u8::MAX));
                out
            }
            Request::Install(spec) => spec.encode(id(3, &[spec.group]))?,
            Request::Remove { group } => id(4, &[*group]),
            Request::Evict { group, member } => id(5, &[*group, *member]),
            Request::Status { group } => id(6, &[*group]),
            Request::Renew => begin(7),
        })
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Request, RemoteError> {
        let (kind, mut r) = begun(bytes)?;
        let request = match kind {
            1 => Request::Hello,
            2 => {
                let group = r.id_or_zero()?;
                let count = usize::from(r.byte()?);
                Request::Reserve { group: (group.get() != 0).then_some(group), count }
            }
            3 => Request::Install(Box::new(GroupSpec::decode(&mut r)?)),
            4 => Request::Remove { group: r.id()? },
            5 => Request::Evict { group: r.id()?, member: r.id()? },
            6 => Request::Status { group: r.id()? },
            7 => Request::Renew,
            _ => return Err(RemoteError::Malformed("kind")),
        };
        r.end()?;
        Ok(request)
    }
}

impl GroupSpec {
    fn encode(&self, mut out: Vec<u8>) -> Result<Vec<u8>, crate::Error> {
        out.extend(self.epoch.to_be_bytes());
        let (kind, least, after_ns) = match self.policy {
            Policy::Fail => (0, 0, 0),
            Policy::Evict { after_ns, least } => (1, least, after_ns),
            Policy::Quorum { k, after_ns } => (2, k, after_ns),
        };
        out.extend([kind, u8::try_from(least).unwrap_or(u8::MAX)]);
        out.extend(after_ns.to_be_bytes());
        out.extend([u8::from(self.as_in_the_paper), u8::from(self.joins_at.is_some())]);
        out.extend(self.joins_at.map_or(0, Psn::get).to_be_bytes());
        put_end(&mut out, &self.sender, &self.regions)?;
        out.push(u8::try_from(self.members.len()).unwrap_or(u8::MAX));
        for (id, member) in &self.members {
            out.extend(id.get().to_be_bytes());
            put_end(&mut out, &member.endpoint, &member.regions)?;
        }
        Ok(out)
    }

    fn decode(r: &mut Reader<'_>) -> Result<GroupSpec, RemoteError> {
        let group = r.id()?;
        let epoch = u64::from_be_bytes(r.array()?);
        let (kind, least) = (r.byte()?, usize::from(r.byte()?));
        let after_ns = u64::from_be_bytes(r.array()?);
        let is_right = (1..=MAX_MEMBERS).contains(&least) && after_ns > 0;
        let policy = match kind {
            0 if least == 0 && after_ns == 0 => Policy::Fail,
            1 if is_right => Policy::Evict { after_ns, least },
            2 if is_right => Policy::Quorum { k: least, after_ns },
            _ => return Err(RemoteError::Malformed("policy")),
        };
        let as_in_the_paper = r.flag()?;
        let joins_at = r.optional_psn()?;
        let (sender, regions) = r.queue_pair()?;
        let count = usize::from(r.byte()?);
        if count > MAX_MEMBERS {
            return Err(RemoteError::Malformed("number of members"));
        }
        let mut members = Vec::with_capacity(count);
        for _ in 0..count {
            let id = r.id()?;
            let (endpoint, regions) = r.queue_pair()?;
            members.push((id, GroupMember { endpoint, regions }));
        }
        Ok(GroupSpec { group, epoch, policy, as_in_the_paper, joins_at, sender, regions, members })
    }
}

/// A queue pair with regions, behind its length.
fn put_end(
    out: &mut Vec<u8>,
    endpoint: &Endpoint,
    regions: &[RemoteMr],
) -> Result<(), crate::Error> {
    let bytes = encode_endpoint(endpoint, regions)?;
    let len = u16::try_from(bytes.len())
        .map_err(|_| crate::setup::SetupError::TooManyRegions { count: regions.len() })?;
    out.extend(len.to_be_bytes());
    out.extend(bytes);
    Ok(())
}

/// An answer without anything more to say.
pub(super) fn done() -> Vec<u8> {
    begin(0)
}

/// An answer that says why not, as far as that is printable.
pub(super) fn refusal(why: &str) -> Vec<u8> {
    let mut out = begin(REFUSED);
    out.extend(printable(why.as_bytes()).bytes());
    out
}

fn printable(bytes: &[u8]) -> String {
    let show = |byte: &u8| if (0x20..0x7f).contains(byte) { char::from(*byte) } else { '?' };
    bytes.iter().take(MAX_WHY).map(show).collect()
}

/// The body of an answer; an error if the switch has refused.
fn answered(bytes: &[u8]) -> Result<Reader<'_>, RemoteError> {
    match begun(bytes)? {
        (0, r) => Ok(r),
        (REFUSED, r) => Err(RemoteError::Refused(printable(r.rest))),
        _ => Err(RemoteError::Malformed("answer")),
    }
}

/// Checks an answer that says nothing more.
pub(super) fn decode_done(bytes: &[u8]) -> Result<(), RemoteError> {
    answered(bytes)?.end()
}

pub(super) fn encode_info(info: &Info) -> Vec<u8> {
    let mut out = begin(0);
    let (version, octets) = match info.origin.addr {
        IpAddr::V4(v4) => (4, v4.to_ipv6_mapped().octets()),
        IpAddr::V6(v6) => (6, v6.octets()),
    };
    out.push(version);
    out.extend(octets);
    out.extend(info.origin.port.to_be_bytes());
    out.extend((info.mtu.bytes() as u16).to_be_bytes());
    out
}

pub(super) fn decode_info(bytes: &[u8]) -> Result<Info, RemoteError> {
    let mut r = answered(bytes)?;
    let version = r.byte()?;
    let addr = IpAddr::from(r.array::<16>()?).to_canonical();
    let port = u16::from_be_bytes(r.array()?);
    let mtu = Mtu::from_bytes(u16::from_be_bytes(r.array()?).into());
    r.end()?;
    let is_one = !addr.is_unspecified() && !addr.is_multicast();
    if !is_one || (version == 4) != addr.is_ipv4() {
        return Err(RemoteError::Malformed("address"));
    }
    let mtu = mtu.ok_or(RemoteError::Malformed("MTU"))?;
    Ok(Info { origin: Origin { addr, port }, mtu })
}

pub(super) fn encode_reserved(group: Qpn, ids: &[Qpn]) -> Vec<u8> {
    let mut out = begin(0);
    [group].iter().chain(ids).for_each(|id| out.extend(id.get().to_be_bytes()));
    out
}

pub(super) fn decode_reserved(bytes: &[u8], count: usize) -> Result<(Qpn, Vec<Qpn>), RemoteError> {
    let mut r = answered(bytes)?;
    let group = r.id()?;
    let ids = (0..count).map(|_| r.id()).collect::<Result<_, _>>()?;
    r.end()?;
    Ok((group, ids))
}

pub(super) fn encode_status(status: &RemoteStatus) -> Vec<u8> {
    let mut out = begin(0);
    out.extend(status.epoch.to_be_bytes());
    out.push(u8::from(status.next_psn.is_some()));
    out.extend(status.next_psn.map_or(0, Psn::get).to_be_bytes());
    for (id, is_live) in &status.members {
        out.extend(id.get().to_be_bytes());
        out.push(u8::from(*is_live));
    }
    out
}

pub(super) fn decode_status(bytes: &[u8]) -> Result<RemoteStatus, RemoteError> {
    let mut r = answered(bytes)?;
    let epoch = u64::from_be_bytes(r.array()?);
    let next_psn = r.optional_psn()?;
    let mut members = Vec::new();
    while !r.rest.is_empty() && members.len() < MAX_MEMBERS {
        members.push((r.id()?, r.flag()?));
    }
    r.end()?;
    Ok(RemoteStatus { epoch, next_psn, members })
}

/// Reads a message as each end would, and checks that what is taken is written as it came. Only
/// requests may differ: behind an IPv4 address, any bytes fill up its field.
pub(super) fn play(bytes: &[u8]) {
    if let Ok(request) = Request::decode(bytes) {
        let again = request.encode().expect("its parts were within the limits");
        assert_eq!(Request::decode(&again), Ok(request));
    }
    if let Ok(info) = decode_info(bytes) {
        assert_eq!(encode_info(&info), bytes);
    }
    if let Ok(status) = decode_status(bytes) {
        assert_eq!(encode_status(&status), bytes);
    }
    for count in 0..=MAX_MEMBERS {
        if let Ok((group, ids)) = decode_reserved(bytes, count) {
            assert_eq!(encode_reserved(group, &ids), bytes);
        }
    }
    if decode_done(bytes).is_ok() {
        assert_eq!(done(), bytes);
    }
    if let Err(RemoteError::Refused(why)) = answered(bytes).map(|_| ()) {
        assert!(why.len() <= MAX_WHY && why.is_ascii(), "{why:?}");
    }
}

/// The unread rest of a message.
struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], RemoteError> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(RemoteError::Malformed("length"))?;
        self.rest = rest;
        Ok(*head)
    }

    fn byte(&mut self) -> Result<u8, RemoteError> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn flag(&mut self) -> Result<bool, RemoteError> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(RemoteError::Malformed("flag")),
        }
    }

    fn below_2_24(&mut self) -> Result<u32, RemoteError> {
        let value = u32::from_be_bytes(self.array()?);
        if value < 1 << 24 { Ok(value) } else { Err(RemoteError::Malformed("24-bit number")) }
    }

    fn id_or_zero(&mut self) -> Result<Qpn, RemoteError> {
        self.below_2_24().map(Qpn::new)
    }

    fn id(&mut self) -> Result<Qpn, RemoteError> {
        let id = self.id_or_zero()?;
        if id.get() == 0 { Err(RemoteError::Malformed("ID")) } else { Ok(id) }
    }

    fn optional_psn(&mut self) -> Result<Option<Psn>, RemoteError> {
        match (self.flag()?, self.below_2_24()?) {
            (true, psn) => Ok(Some(Psn::new(psn))),
            (false, 0) => Ok(None),
            (false, _) => Err(RemoteError::Malformed("PSN")),
        }
    }

    fn queue_pair(&mut self) -> Result<(Endpoint, Vec<RemoteMr>), RemoteError> {
        let len = usize::from(u16::from_be_bytes(self.array()?));
        let (body, rest) =
            self.rest.split_at_checked(len).ok_or(RemoteError::Malformed("length"))?;
        self.rest = rest;
        decode_endpoint(body).map_err(|_| RemoteError::Malformed("queue pair"))
    }

    fn end(self) -> Result<(), RemoteError> {
        if self.rest.is_empty() { Ok(()) } else { Err(RemoteError::Malformed("length")) }
    }
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
