use super::*;
use bowline_nic::QpType;

fn endpoint(host: u8, qpn: u32) -> Endpoint {
    Endpoint {
        qp_type: QpType::Rc,
        addr: [10, 0, 0, host].into(),
        udp_port: 4791,
        qpn: Qpn::new(qpn),
        psn: Psn::new(0xff_fffe),
        mtu: Mtu::B1024,
        rd_atomic: 0,
    }
}

fn spec() -> GroupSpec {
    let region = |addr| RemoteMr { addr, len: 4096, rkey: 7 };
    let member = |host: u8| GroupMember {
        endpoint: endpoint(host, 0x11),
        regions: vec![region(u64::from(host)), region(0x9000)],
    };
    GroupSpec {
        group: Qpn::new(0xfe_0000),
        epoch: 3,
        policy: Policy::Evict { after_ns: 1_000_000, least: 1 },
        as_in_the_paper: false,
        joins_at: Some(Psn::new(17)),
        sender: endpoint(1, 0xfe_0009),
        regions: vec![region(2), region(0x9000)],
        members: vec![(Qpn::new(0xfe_0001), member(2)), (Qpn::new(0xfe_0002), member(3))],
    }
}

fn requests() -> Vec<Request> {
    let group = Qpn::new(0xfe_0000);
    vec![
        Request::Hello,
        Request::Reserve { group: None, count: 3 },
        Request::Reserve { group: Some(group), count: 1 },
        Request::Install(Box::new(spec())),
        Request::Install(Box::new(GroupSpec { policy: Policy::Fail, joins_at: None, ..spec() })),
        Request::Remove { group },
        Request::Evict { group, member: Qpn::new(0xfe_0001) },
        Request::Status { group },
        Request::Renew,
    ]
}

#[test]
fn requests_are_read_as_they_are_written() {
    for request in requests() {
        let bytes = request.encode().unwrap();
        assert_eq!(Request::decode(&bytes), Ok(request));
    }
}

#[test]
fn requests_that_are_cut_or_longer_are_refused() {
    for request in requests() {
        let bytes = request.encode().unwrap();
        for len in 0..bytes.len() {
            assert!(Request::decode(&bytes[..len]).is_err(), "{request:?} {len}");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(Request::decode(&longer).is_err(), "{request:?}");
    }
}

#[test]
fn another_version_is_named() {
    let mut bytes = Request::Renew.encode().unwrap();
    bytes[4] = 9;
    let error = Request::decode(&bytes).unwrap_err();
    assert_eq!(error, RemoteError::Version { theirs: 9 });
    assert!(error.to_string().contains("version 9"), "{error}");
    bytes[0] = b'X';
    assert_eq!(Request::decode(&bytes), Err(RemoteError::Malformed("beginning")));
}

#[test]
fn every_byte_of_a_table_may_be_wrong() {
    let bytes = Request::Install(Box::new(spec())).encode().unwrap();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut wrong = bytes.clone();
            wrong[at] ^= 1 << bit;
            // It must not panic; what it accepts is another valid request.
            if let Ok(request) = Request::decode(&wrong) {
                assert_eq!(Request::decode(&request.encode().unwrap()), Ok(request));
            }
        }
    }
}

#[test]
fn too_many_members_are_refused() {
    let one = spec().members[0].clone();
    let members = vec![one; MAX_MEMBERS + 1];
    let bytes = Request::Install(Box::new(GroupSpec { members, ..spec() })).encode().unwrap();
    assert_eq!(Request::decode(&bytes), Err(RemoteError::Malformed("number of members")));
}

#[test]
fn answers_are_read_as_they_are_written() {
    for addr in [[10, 0, 0, 9].into(), IpAddr::from([0xfd00_u16, 0, 0, 0, 0, 0, 0, 1])] {
        let info = Info { origin: Origin { addr, port: 4791 }, mtu: Mtu::B2048 };
        assert_eq!(decode_info(&encode_info(&info)), Ok(info));
    }
    let (group, ids) = (Qpn::new(0xfe_0000), vec![Qpn::new(0xfe_0001), Qpn::new(0xfe_0002)]);
    let bytes = encode_reserved(group, &ids);
    assert_eq!(decode_reserved(&bytes, 2), Ok((group, ids)));
    assert!(decode_reserved(&bytes, 1).is_err(), "more than were asked for");
    assert!(decode_reserved(&bytes, 3).is_err(), "fewer than were asked for");
    for next_psn in [None, Some(Psn::new(0xff_ffff))] {
        let members = vec![(Qpn::new(0xfe_0001), true), (Qpn::new(0xfe_0002), false)];
        let status = RemoteStatus { epoch: u64::MAX, next_psn, members };
        assert_eq!(decode_status(&encode_status(&status)), Ok(status));
    }
    assert_eq!(decode_done(&done()), Ok(()));
}

#[test]
fn a_refusal_says_why_in_printable_text() {
    let why = format!("no\x1b[31m room\n{}", "x".repeat(1000));
    let Err(RemoteError::Refused(said)) = decode_done(&refusal(&why)) else {
        panic!("it was refused");
    };
    assert!(said.starts_with("no?[31m room?x"), "{said}");
    assert_eq!(said.len(), MAX_WHY);
    // Bytes of another implementation are not trusted either.
    let mut bytes = refusal("no");
    bytes.extend([0x1b, 0xff]);
    assert_eq!(decode_done(&bytes), Err(RemoteError::Refused("no??".to_owned())));
}
