use super::*;

fn endpoint() -> Endpoint {
    Endpoint {
        qp_type: QpType::Rc,
        addr: "127.1.2.3".parse().unwrap(),
        udp_port: 4791,
        qpn: Qpn::new(0x12_3456),
        psn: Psn::new(0xff_ffff),
        mtu: Mtu::B4096,
        rd_atomic: 16,
    }
}

fn regions() -> Vec<RemoteMr> {
    vec![RemoteMr { addr: 4096, len: 1 << 40, rkey: 7 }, RemoteMr { addr: 0, len: 0, rkey: 0 }]
}

#[test]
fn an_endpoint_survives_the_trip() {
    for addr in ["127.1.2.3", "2001:db8::1"] {
        let endpoint = Endpoint { addr: addr.parse().unwrap(), ..endpoint() };
        let body = encode_endpoint(&endpoint, &regions()).unwrap();
        assert_eq!(decode_endpoint(&body).unwrap(), (endpoint, regions()));
    }
}

#[test]
fn every_prefix_is_refused() {
    let body = encode_endpoint(&endpoint(), &regions()).unwrap();
    for len in 0..body.len() {
        assert!(decode_endpoint(&body[..len]).is_err(), "{len} bytes");
    }
    let mut longer = body;
    longer.push(0);
    assert!(decode_endpoint(&longer).is_err());
}

#[test]
fn no_byte_string_panics_or_is_half_valid() {
    let body = encode_endpoint(&endpoint(), &regions()).unwrap();
    for at in 0..body.len() {
        for value in 0..=255 {
            let mut changed = body.clone();
            changed[at] = value;
            if let Ok((e, r)) = decode_endpoint(&changed) {
                assert_eq!(encode_endpoint(&e, &r).unwrap().len(), changed.len());
            }
        }
    }
}

#[test]
fn impossible_fields_are_named() {
    let lie = |at: usize, bytes: &[u8]| {
        let mut body = encode_endpoint(&endpoint(), &[]).unwrap();
        body[at..at + bytes.len()].copy_from_slice(bytes);
        decode_endpoint(&body).unwrap_err().to_string()
    };
    assert!(lie(0, &[9]).contains("QP type"));
    assert!(lie(1, &[0, 1]).contains("MTU"));
    assert!(lie(4, &[0, 0, 0, 1]).contains("QP number"));
    assert!(lie(4, &[1, 0, 0, 0]).contains("QP number"));
    assert!(lie(8, &[1, 0, 0, 0]).contains("sequence number"));
    assert!(lie(12, &[5]).contains("IP version"));
    assert!(lie(15, &[224, 0, 0, 1]).contains("address"));
    assert!(lie(31, &[255, 255]).contains("regions"));
}

#[test]
fn a_region_that_wraps_is_refused() {
    let region = RemoteMr { addr: u64::MAX, len: 2, rkey: 0 };
    let body = encode_endpoint(&endpoint(), &[region]).unwrap();
    assert!(matches!(decode_endpoint(&body), Err(SetupError::Invalid(_))));
}

#[test]
fn headers_are_checked_before_anything_is_read() {
    let good: [u8; HEADER_LEN] = frame(Kind::Barrier, &[]).unwrap().try_into().unwrap();
    assert_eq!(parse_header(&good).unwrap().expect(Kind::Barrier).unwrap(), 0);
    let with = |at: usize, value: u8| {
        let mut header = good;
        header[at] = value;
        parse_header(&header).and_then(|header| header.expect(Kind::Barrier)).unwrap_err()
    };
    assert!(matches!(with(0, b'H'), SetupError::WrongMagic(_)));
    assert!(matches!(with(4, 2), SetupError::WrongVersion { theirs: 2 }));
    assert!(matches!(with(5, 3), SetupError::Unexpected { kind: 3, .. }));
    assert!(matches!(with(6, 0xff), SetupError::TooLong { .. }));
}

#[test]
fn too_much_is_not_sent_either() {
    assert!(matches!(frame(Kind::Data, &vec![0; MAX_BODY + 1]), Err(SetupError::TooLong { .. })));
    let regions = vec![RemoteMr { addr: 0, len: 0, rkey: 0 }; MAX_REGIONS + 1];
    assert!(matches!(
        encode_endpoint(&endpoint(), &regions),
        Err(SetupError::TooManyRegions { .. })
    ));
}
