//! A multicast address that reaches all members of a group at once.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline_io::Multicasts;
use bowline_multicast::MAX_MEMBERS;
use bowline_wire::Qpn;

use super::GroupMember;
use super::home::shared_regions;
use crate::setup::joining::{Join, LOCAL_SCOPE, Status};
use crate::{Channel, Error, Qp};

/// How long the sender probes: longer than a member waits.
const PROBE_FOR: Duration = Duration::from_millis(400);
/// The interval between probes.
const PROBE_EVERY: Duration = Duration::from_millis(5);

/// A multicast address that the members have joined, and that reaches them. Dropping it ends the
/// sender's use of it; members leave when their queue pairs end.
pub(super) struct Trunk {
    group: IpAddr,
    multicasts: Arc<Multicasts>,
}

impl Trunk {
    /// Has all members join a random address, and probes it. `Ok(Err(_))` says why it cannot be
    /// used; then no member receives it.
    pub(super) fn set_up(
        qp: &Qp,
        id: Qpn,
        offers: &[GroupMember],
        members: &mut [Channel],
    ) -> Result<Result<Trunk, String>, Error> {
        let (sender, multicasts) = match suits(qp, offers) {
            Ok(suits) => suits,
            Err(why) => return Ok(Err(why)),
        };
        let join = Join {
            group: random_group()?,
            sender,
            id,
            nonce: random()?,
            regions: shared_regions(offers)?,
        };
        let mut joined = vec![Status::Refused; members.len()];
        let outcome = join_all(qp, &join, offers, members, &mut joined)?;
        if let Err(why) = outcome {
            for (channel, status) in members.iter_mut().zip(&joined) {
                if *status != Status::Refused {
                    channel.ask_to_leave()?;
                }
            }
            return Ok(Err(why));
        }
        let group = IpAddr::V4(join.group);
        let listener = |member: &GroupMember| (member.endpoint.addr, member.endpoint.qpn.prefix());
        multicasts.set_audience(group, offers.iter().map(listener).collect());
        Ok(Ok(Trunk { group, multicasts }))
    }

    /// The address.
    pub(super) fn group(&self) -> IpAddr {
        self.group
    }
}

impl Drop for Trunk {
    fn drop(&mut self) {
        self.multicasts.forget_audience(self.group);
    }
}

/// The sender's address and its port's groups, if it can send to a multicast address.
fn suits(qp: &Qp, offers: &[GroupMember]) -> Result<(Ipv4Addr, Arc<Multicasts>), String> {
    if !(2..MAX_MEMBERS).contains(&offers.len()) {
        return Err(format!("it is for 2 to {} members", MAX_MEMBERS - 1));
    }
    let IpAddr::V4(sender) = qp.endpoint().addr else {
        return Err("it is for IPv4 addresses only".to_owned());
    };
    match qp.device().multicasts(qp.lane()) {
        Some(multicasts) => Ok((sender, Arc::clone(multicasts))),
        None => Err("the sender's port has no sockets: use --via udp".to_owned()),
    }
}

/// Asks all members to join, and probes until each of them has answered. `joined` has the last
/// answer of each.
fn join_all(
    qp: &Qp,
    join: &Join,
    offers: &[GroupMember],
    members: &mut [Channel],
    joined: &mut [Status],
) -> Result<Result<(), String>, Error> {
    for channel in &mut *members {
        channel.ask_to_join(join)?;
    }
    let mut why = Ok(());
    let mut note = |offer: &GroupMember, reason: &str| {
        if why.is_ok() {
            why = Err(format!("{}: {reason}", offer.endpoint.addr));
        }
    };
    for ((channel, offer), status) in members.iter_mut().zip(offers).zip(&mut *joined) {
        let (answer, reason) = channel.hear_joined()?;
        *status = answer;
        if answer != Status::Listening {
            note(offer, &reason);
        }
    }
    // Also if one has refused: the others wait for a probe, and answer sooner with one.
    let mtu = offers.iter().map(|offer| offer.endpoint.mtu).min();
    let mtu = mtu.map_or(qp.endpoint().mtu, |mtu| mtu.min(qp.endpoint().mtu));
    probe(qp, join, mtu.bytes(), members, joined)?;
    for ((channel, offer), status) in members.iter_mut().zip(offers).zip(joined) {
        if *status == Status::Listening {
            *status = channel.hear_joined()?.0;
            if *status != Status::Heard {
                note(offer, "packets to the group do not arrive");
            }
        }
    }
    Ok(why)
}

/// Sends probes until all members that listen have answered, or can have given up.
fn probe(
    qp: &Qp,
    join: &Join,
    mtu_bytes: u32,
    members: &[Channel],
    joined: &[Status],
) -> Result<(), Error> {
    let deadline = Instant::now() + PROBE_FOR;
    while Instant::now() < deadline {
        let to = (IpAddr::V4(join.group), join.id);
        qp.device().probe_multicast(qp.lane(), to, &join.nonce, mtu_bytes)?;
        std::thread::sleep(PROBE_EVERY);
        let mut waiting = members.iter().zip(joined).filter(|(_, s)| **s == Status::Listening);
        let mut all_have = true;
        while let (true, Some((channel, _))) = (all_have, waiting.next()) {
            all_have = channel.is_readable()?;
        }
        if all_have {
            break;
        }
    }
    Ok(())
}

/// A random address of those that organizations use as they like (RFC 2365).
fn random_group() -> Result<Ipv4Addr, Error> {
    let [a, b, c] = random()?;
    Ok(Ipv4Addr::new(LOCAL_SCOPE, 192 | a & 3, b, c))
}

fn random<const N: usize>() -> Result<[u8; N], Error> {
    bowline_device::random_bytes().map_err(|error| Error::system("read randomness", error))
}
