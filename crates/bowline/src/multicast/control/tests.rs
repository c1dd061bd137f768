//! Controllers that are wrong, hostile or gone.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bowline_multicast::Policy;
use bowline_nic::{Mtu, QpType};
use bowline_wire::{Psn, Qpn};

use super::message::{self, GroupSpec, Request};
use super::{LEASE, RemoteError, RemoteStatus};
use crate::endpoint::{Endpoint, RemoteMr};
use crate::multicast::{GroupMember, GroupSwitch, SwitchOptions};
use crate::{Channel, Connector, Error, Listener};

/// A switch that serves one controller.
struct Managed {
    switch: Arc<GroupSwitch>,
    at: SocketAddr,
    served: JoinHandle<Result<(), Error>>,
}

fn managed(addr: [u8; 4], lease: Duration) -> Managed {
    let switch = Arc::new(GroupSwitch::open(&SwitchOptions::new(addr.into())).unwrap());
    let (at, served) = serve(&switch, addr, lease);
    Managed { switch, at, served }
}

type Served = JoinHandle<Result<(), Error>>;

fn serve(switch: &Arc<GroupSwitch>, addr: [u8; 4], lease: Duration) -> (SocketAddr, Served) {
    let listener = Listener::bind((std::net::IpAddr::from(addr), 0)).unwrap();
    let at = listener.local_addr().unwrap();
    let switch = Arc::clone(switch);
    (at, std::thread::spawn(move || switch.serve_for(&mut listener.accept().unwrap(), lease)))
}

fn ask(channel: &mut Channel, request: &Request) -> Result<(), RemoteError> {
    message::decode_done(&raw(channel, &request.encode().unwrap()))
}

fn raw(channel: &mut Channel, request: &[u8]) -> Vec<u8> {
    channel.send(request).unwrap();
    channel.recv().unwrap()
}

fn reserve(channel: &mut Channel, count: usize) -> (Qpn, Vec<Qpn>) {
    let request = Request::Reserve { group: None, count }.encode().unwrap();
    message::decode_reserved(&raw(channel, &request), count).unwrap()
}

fn status(channel: &mut Channel, group: Qpn) -> Result<RemoteStatus, RemoteError> {
    message::decode_status(&raw(channel, &Request::Status { group }.encode().unwrap()))
}

fn endpoint(addr: [u8; 4], qpn: u32) -> Endpoint {
    let (qp_type, psn, mtu) = (QpType::Rc, Psn::new(5), Mtu::B1024);
    let qpn = Qpn::new(qpn);
    Endpoint { qp_type, addr: addr.into(), udp_port: 4791, qpn, psn, mtu, rd_atomic: 0 }
}

fn spec(group: Qpn, epoch: u64, ids: &[Qpn]) -> GroupSpec {
    let regions = vec![RemoteMr { addr: 4096, len: 64, rkey: 1 }];
    let members = ids.iter().zip(2..).map(|(id, host)| {
        (*id, GroupMember { endpoint: endpoint([127, 9, 9, host], 17), regions: regions.clone() })
    });
    GroupSpec {
        group,
        epoch,
        policy: Policy::Fail,
        as_in_the_paper: false,
        joins_at: None,
        sender: endpoint([127, 9, 9, 1], 16),
        regions: regions.clone(),
        members: members.collect(),
    }
}

fn install(channel: &mut Channel, spec: GroupSpec) -> Result<(), RemoteError> {
    ask(channel, &Request::Install(Box::new(spec)))
}

fn refused(answer: Result<(), RemoteError>) -> String {
    match answer {
        Err(RemoteError::Refused(why)) => why,
        other => panic!("it was not refused: {other:?}"),
    }
}

fn until(what: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !what() {
        assert!(Instant::now() < deadline, "it takes too long");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_table_is_installed_replaced_and_removed() {
    let Managed { switch, at, served } = managed([127, 210, 0, 100], LEASE);
    let mut channel = Connector::new().connect(at).unwrap();
    let (group, ids) = reserve(&mut channel, 2);
    install(&mut channel, spec(group, 1, &ids)).unwrap();
    let now = status(&mut channel, group).unwrap();
    assert_eq!((now.epoch, now.next_psn, now.members.len()), (1, Some(Psn::new(5)), 2));
    install(&mut channel, spec(group, 2, &ids[..1])).unwrap();
    assert_eq!(status(&mut channel, group).unwrap().members, [(ids[0], true)]);
    ask(&mut channel, &Request::Remove { group }).unwrap();
    assert!(switch.groups().is_empty());
    assert_eq!(refused(ask(&mut channel, &Request::Remove { group })), no_group());
    assert!(status(&mut channel, group).is_err());
    drop(channel);
    served.join().unwrap().unwrap();
}

fn no_group() -> String {
    RemoteError::NoGroup.to_string()
}

#[test]
fn an_epoch_never_goes_back() {
    let Managed { switch, at, .. } = managed([127, 211, 0, 100], LEASE);
    let mut channel = Connector::new().connect(at).unwrap();
    let (group, ids) = reserve(&mut channel, 2);
    install(&mut channel, spec(group, 7, &ids)).unwrap();
    for epoch in [0, 6, 7] {
        let why = refused(install(&mut channel, spec(group, epoch, &ids[..1])));
        assert!(why.contains(&format!("epoch {epoch}")) && why.contains('7'), "{why}");
    }
    let kept = &switch.groups()[0];
    assert_eq!((kept.epoch, kept.branches.len()), (7, 2), "the old table is in force");
    install(&mut channel, spec(group, u64::MAX, &ids)).unwrap();
}

#[test]
fn what_makes_no_sense_is_refused_and_says_why() {
    let Managed { switch, at, .. } = managed([127, 212, 0, 100], LEASE);
    let mut channel = Connector::new().connect(at).unwrap();
    let (group, ids) = reserve(&mut channel, 2);
    let mut wrong = Request::Renew.encode().unwrap();
    wrong[4] = 2;
    assert!(refused(message::decode_done(&raw(&mut channel, &wrong))).contains("version 2"));
    for bytes in [&b""[..], b"?", b"BWSW\x01", b"BWSW\x01\xff", &[0xff; 4000]] {
        assert!(refused(message::decode_done(&raw(&mut channel, bytes))).contains("invalid"));
    }
    // IDs that it has not reserved: those of somebody else.
    let taken = switch.reserve(1).unwrap();
    let foreign = [ids[0], taken.ids[0]];
    assert!(refused(install(&mut channel, spec(group, 1, &foreign))).contains("no such ID"));
    assert_eq!(refused(install(&mut channel, spec(taken.group, 1, &ids))), no_group());
    // A table that would send packets in a circle.
    let mut circle = spec(group, 1, &ids);
    circle.members[1].1.endpoint.addr = [127, 212, 0, 100].into();
    assert!(refused(install(&mut channel, circle)).contains("its own group"));
    // Tables that the engine rejects.
    assert!(refused(install(&mut channel, spec(group, 1, &[]))).contains("at least one member"));
    let mut port = spec(group, 1, &ids);
    port.sender.udp_port = 1;
    assert!(refused(install(&mut channel, port)).contains("UDP port 1"));
    assert!(refused(install(&mut channel, spec(group, 1, &[ids[0]; 2]))).contains("ID"));
    let quorum = Policy::Quorum { k: 3, after_ns: 1 };
    let needs = GroupSpec { policy: quorum, ..spec(group, 1, &ids) };
    assert!(refused(install(&mut channel, needs)).contains("needs 3 members"));
    let mut regions = spec(group, 1, &ids);
    regions.regions.clear();
    assert!(refused(install(&mut channel, regions)).contains("regions"));
    assert!(switch.groups().is_empty());
    // It can still have what makes sense, but not for another sender afterwards.
    install(&mut channel, spec(group, 1, &ids)).unwrap();
    let mut moved = spec(group, 2, &ids);
    moved.sender.addr = [127, 9, 9, 77].into();
    assert!(refused(install(&mut channel, moved)).contains("cannot change"));
    let late = GroupSpec { joins_at: Some(Psn::new(4)), ..spec(group, 2, &ids) };
    assert!(refused(install(&mut channel, late)).contains("join again"));
    let nobody = Request::Evict { group, member: taken.ids[0] };
    assert!(refused(ask(&mut channel, &nobody)).contains("no live member"));
    assert_eq!(switch.groups()[0].epoch, 1);
}

#[test]
fn a_controller_cannot_touch_what_another_has() {
    let addr = [127, 213, 0, 100];
    let Managed { switch, at, .. } = managed(addr, LEASE);
    let (at_2, _) = serve(&switch, addr, LEASE);
    let mut one = Connector::new().connect(at).unwrap();
    let mut other = Connector::new().connect(at_2).unwrap();
    let (group, ids) = reserve(&mut one, 1);
    install(&mut one, spec(group, 1, &ids)).unwrap();
    for request in [
        Request::Install(Box::new(spec(group, 9, &ids))),
        Request::Remove { group },
        Request::Evict { group, member: ids[0] },
        Request::Reserve { group: Some(group), count: 1 },
    ] {
        assert_eq!(refused(ask(&mut other, &request)), no_group(), "{request:?}");
    }
    assert_eq!(status(&mut one, group).unwrap().epoch, 1);
    drop(other);
    assert_eq!(status(&mut one, group).unwrap().epoch, 1, "the other one's end is nobody else's");
}

#[test]
fn tables_end_with_the_controller() {
    let Managed { switch, at, served } = managed([127, 214, 0, 100], LEASE);
    let mut channel = Connector::new().connect(at).unwrap();
    let (group, ids) = reserve(&mut channel, 2);
    install(&mut channel, spec(group, 1, &ids)).unwrap();
    assert_eq!(switch.groups().len(), 1);
    drop(channel);
    served.join().unwrap().unwrap();
    assert!(switch.groups().is_empty());
    // The IDs are free: all of them can be taken again.
    assert_eq!(switch.reserve_more(1 << 16).unwrap().len(), 1 << 16);
}

#[test]
fn a_silent_controller_loses_its_lease() {
    let lease = Duration::from_millis(150);
    let Managed { switch, at, served } = managed([127, 215, 0, 100], lease);
    let mut channel = Connector::new().connect(at).unwrap();
    let (group, ids) = reserve(&mut channel, 2);
    install(&mut channel, spec(group, 1, &ids)).unwrap();
    for _ in 0..6 {
        std::thread::sleep(lease / 3);
        ask(&mut channel, &Request::Renew).unwrap();
    }
    assert_eq!(switch.groups().len(), 1, "it is renewed");
    until(|| switch.groups().is_empty());
    assert!(served.join().unwrap().is_err());
}

#[test]
fn a_controller_that_dies_in_an_update_leaves_nothing() {
    let Managed { switch, at, served } = managed([127, 216, 0, 100], LEASE);
    let mut stream = TcpStream::connect(at).unwrap();
    let mut send = |request: &Request, part: Option<usize>| {
        let body = request.encode().unwrap();
        let frame = crate::setup::message::frame(crate::setup::message::Kind::Data, &body).unwrap();
        stream.write_all(&frame[..part.unwrap_or(frame.len())]).unwrap();
    };
    send(&Request::Reserve { group: None, count: 2 }, None);
    // The first IDs of a switch are known.
    let (group, ids) = (Qpn::new(0xfe_0000), [Qpn::new(0xfe_0001), Qpn::new(0xfe_0002)]);
    send(&Request::Install(Box::new(spec(group, 1, &ids))), None);
    until(|| switch.groups().len() == 1);
    send(&Request::Install(Box::new(spec(group, 2, &ids[..1]))), Some(40));
    std::thread::sleep(Duration::from_millis(50));
    let kept = &switch.groups()[0];
    assert_eq!((kept.epoch, kept.branches.len()), (1, 2), "half a table is none");
    drop(stream);
    served.join().unwrap().unwrap();
    assert!(switch.groups().is_empty());
}

#[test]
fn a_message_that_is_too_long_ends_the_connection() {
    let Managed { switch, at, served } = managed([127, 217, 0, 100], LEASE);
    let mut stream = TcpStream::connect(at).unwrap();
    let mut header = b"BWLN\x01\x03".to_vec();
    header.extend(u32::MAX.to_be_bytes());
    stream.write_all(&header).unwrap();
    let error = served.join().unwrap().expect_err("nobody reads 4 GiB").to_string();
    assert!(error.contains("longer than"), "{error}");
    assert!(switch.groups().is_empty());
}
