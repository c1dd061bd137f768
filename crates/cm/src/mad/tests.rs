//! Messages compared with the standard's tables, and fuzzed with any bytes.

use bowline_wire::{Psn, Qpn};
use proptest::prelude::*;

use super::*;
use crate::{CmTimeout, IpAddressing, PortSpace, ServiceId};

/// A MAD of this attribute whose body is all ones.
fn ones(attribute: u8) -> [u8; MAD_LEN] {
    let mut bytes = [0xff; MAD_LEN];
    bytes[..HEADER_LEN].fill(0);
    bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
    bytes[17] = attribute;
    bytes
}

fn body_of(message: impl Into<Message>) -> [u8; BODY_LEN] {
    let mad = Mad { transaction_id: 0, message: message.into() }.encode();
    chunk(&mad, HEADER_LEN)
}

/// The non-zero bytes of a body.
fn set_bytes(body: &[u8; BODY_LEN]) -> Vec<(usize, u8)> {
    body.iter().copied().enumerate().filter(|(_, byte)| *byte != 0).collect()
}

#[test]
fn the_header_is_that_of_a_mad() {
    let mad = Mad { transaction_id: 0x0102_0304_0506_0708, message: Drep::default().into() };
    let bytes = mad.encode();
    assert_eq!(bytes[..8], [1, 0x07, 2, 0x03, 0, 0, 0, 0]);
    assert_eq!(bytes[8..16], [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(bytes[16..24], [0, 0x16, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn attributes_are_those_of_the_standard() {
    let expected = [
        (0x10, "REQ"),
        (0x11, "MRA"),
        (0x12, "REJ"),
        (0x13, "REP"),
        (0x14, "RTU"),
        (0x15, "DREQ"),
        (0x16, "DREP"),
        (0x17, "SIDR_REQ"),
        (0x18, "SIDR_REP"),
    ];
    for (attribute, name) in expected {
        let mad = Mad::decode(&ones(attribute)).expect("it is known");
        assert_eq!(mad.message.name(), name);
    }
}

#[test]
fn a_req_has_its_fields_where_the_standard_says() {
    let at = |req: Req| set_bytes(&body_of(req));
    let req = Req::default;
    assert_eq!(at(Req { local_comm_id: CommId(0xff), ..req() }), [(3, 0xff)]);
    assert_eq!(at(Req { service_id: ServiceId(0xff), ..req() }), [(15, 0xff)]);
    assert_eq!(at(Req { local_ca_guid: 0xff, ..req() }), [(23, 0xff)]);
    assert_eq!(at(Req { local_qkey: 0xff, ..req() }), [(31, 0xff)]);
    assert_eq!(at(Req { local_qpn: Qpn::new(0xff), ..req() }), [(34, 0xff)]);
    assert_eq!(at(Req { responder_resources: 0xff, ..req() }), [(35, 0xff)]);
    assert_eq!(at(Req { initiator_depth: 0xff, ..req() }), [(39, 0xff)]);
    let timeout = CmTimeout::new(31);
    assert_eq!(at(Req { remote_response_timeout: timeout, ..req() }), [(43, 0b1111_1000)]);
    assert_eq!(at(Req { transport: 3, ..req() }), [(43, 0b0000_0110)]);
    assert_eq!(at(Req { flow_control: true, ..req() }), [(43, 0b0000_0001)]);
    assert_eq!(at(Req { starting_psn: Psn::new(0xff), ..req() }), [(46, 0xff)]);
    assert_eq!(at(Req { local_response_timeout: timeout, ..req() }), [(47, 0b1111_1000)]);
    assert_eq!(at(Req { retry_count: 7, ..req() }), [(47, 0b0000_0111)]);
    assert_eq!(at(Req { pkey: 0xffff, ..req() }), [(48, 0xff), (49, 0xff)]);
    assert_eq!(at(Req { path_mtu: 15, ..req() }), [(50, 0b1111_0000)]);
    assert_eq!(at(Req { rdc_exists: true, ..req() }), [(50, 0b0000_1000)]);
    assert_eq!(at(Req { rnr_retry_count: 7, ..req() }), [(50, 0b0000_0111)]);
    assert_eq!(at(Req { max_cm_retries: 15, ..req() }), [(51, 0b1111_0000)]);
    assert_eq!(at(Req { srq: true, ..req() }), [(51, 0b0000_1000)]);
    assert_eq!(at(Req { extended_transport: 7, ..req() }), [(51, 0b0000_0111)]);
    assert_eq!(at(Req { sap_supported: true, ..req() }), [(139, 0b0000_0100)]);
    let mut private_data = [0; Req::PRIVATE_LEN];
    (private_data[0], private_data[91]) = (1, 2);
    assert_eq!(at(Req { private_data, ..req() }), [(140, 1), (231, 2)]);
}

#[test]
fn the_paths_of_a_req_have_their_fields_where_the_standard_says() {
    let path = Path::default;
    for (start, alternate) in [(52, false), (96, true)] {
        let at = |path: Path| {
            let mut req = Req::default();
            *(if alternate { &mut req.alternate } else { &mut req.primary }) = path;
            let set = set_bytes(&body_of(req)).into_iter();
            set.map(|(at, byte)| (at - start, byte)).collect::<Vec<_>>()
        };
        assert_eq!(at(Path { local_lid: 0xff, ..path() }), [(1, 0xff)]);
        assert_eq!(at(Path { remote_lid: 0xff, ..path() }), [(3, 0xff)]);
        let mut gid = [0; 16];
        gid[0] = 1;
        assert_eq!(at(Path { local_gid: gid, ..path() }), [(4, 1)]);
        assert_eq!(at(Path { remote_gid: gid, ..path() }), [(20, 1)]);
        let label = [(36, 0xff), (37, 0xff), (38, 0xf0)];
        assert_eq!(at(Path { flow_label: 0xf_ffff, ..path() }), label);
        assert_eq!(at(Path { packet_rate: 0x3f, ..path() }), [(39, 0x3f)]);
        assert_eq!(at(Path { traffic_class: 0xff, ..path() }), [(40, 0xff)]);
        assert_eq!(at(Path { hop_limit: 0xff, ..path() }), [(41, 0xff)]);
        assert_eq!(at(Path { service_level: 15, ..path() }), [(42, 0xf0)]);
        assert_eq!(at(Path { subnet_local: true, ..path() }), [(42, 0x08)]);
        assert_eq!(at(Path { ack_timeout: CmTimeout::new(31), ..path() }), [(43, 0xf8)]);
    }
}

#[test]
fn a_rep_has_its_fields_where_the_standard_says() {
    let at = |rep: Rep| set_bytes(&body_of(rep));
    let rep = Rep::default;
    assert_eq!(at(Rep { local_comm_id: CommId(0xff), ..rep() }), [(3, 0xff)]);
    assert_eq!(at(Rep { remote_comm_id: CommId(0xff), ..rep() }), [(7, 0xff)]);
    assert_eq!(at(Rep { local_qkey: 0xff, ..rep() }), [(11, 0xff)]);
    assert_eq!(at(Rep { local_qpn: Qpn::new(0xff), ..rep() }), [(14, 0xff)]);
    assert_eq!(at(Rep { local_eecn: 0xff, ..rep() }), [(18, 0xff)]);
    assert_eq!(at(Rep { starting_psn: Psn::new(0xff), ..rep() }), [(22, 0xff)]);
    assert_eq!(at(Rep { responder_resources: 0xff, ..rep() }), [(24, 0xff)]);
    assert_eq!(at(Rep { initiator_depth: 0xff, ..rep() }), [(25, 0xff)]);
    assert_eq!(at(Rep { target_ack_delay: CmTimeout::new(31), ..rep() }), [(26, 0xf8)]);
    assert_eq!(at(Rep { failover_accepted: 3, ..rep() }), [(26, 0x06)]);
    assert_eq!(at(Rep { flow_control: true, ..rep() }), [(26, 0x01)]);
    assert_eq!(at(Rep { rnr_retry_count: 7, ..rep() }), [(27, 0xe0)]);
    assert_eq!(at(Rep { srq: true, ..rep() }), [(27, 0x10)]);
    assert_eq!(at(Rep { local_ca_guid: 0xff, ..rep() }), [(35, 0xff)]);
    let mut private_data = [0; Rep::PRIVATE_LEN];
    (private_data[0], private_data[195]) = (1, 2);
    assert_eq!(at(Rep { private_data, ..rep() }), [(36, 1), (231, 2)]);
}

#[test]
fn other_messages_have_their_fields_where_the_standard_says() {
    let (local_comm_id, remote_comm_id) = (CommId(0x01), CommId(0x02));
    let ids = [(3, 1), (7, 2)];
    let with = |more: &[(usize, u8)]| [&ids[..], more].concat();
    let mut private_data = [0; Rej::PRIVATE_LEN];
    private_data[0] = 9;
    let mut info = [0; Rej::INFO_LEN];
    info[0] = 8;
    let (about, reason) = (About::Rep, RejectReason(28));
    let rej = Rej { local_comm_id, remote_comm_id, about, info_len: 1, reason, info, private_data };
    let more = with(&[(8, 0x40), (9, 0x02), (11, 28), (12, 8), (84, 9)]);
    assert_eq!(set_bytes(&body_of(rej)), more);

    let mut private_data = [0; Mra::PRIVATE_LEN];
    private_data[0] = 9;
    let service_timeout = CmTimeout::new(24);
    let mra = Mra { local_comm_id, remote_comm_id, about, service_timeout, private_data };
    assert_eq!(set_bytes(&body_of(mra)), with(&[(8, 0x40), (9, 24 << 3), (10, 9)]));

    let mut private_data = [0; Dreq::PRIVATE_LEN];
    private_data[0] = 9;
    let dreq = Dreq { local_comm_id, remote_comm_id, remote_qpn: Qpn::new(5), private_data };
    assert_eq!(set_bytes(&body_of(dreq)), with(&[(10, 5), (12, 9)]));

    let mut private_data = [0; Rtu::PRIVATE_LEN];
    private_data[0] = 9;
    let rtu = Rtu { local_comm_id, remote_comm_id, private_data };
    assert_eq!(set_bytes(&body_of(rtu)), with(&[(8, 9)]));
    let drep = Drep { local_comm_id, remote_comm_id, private_data };
    assert_eq!(set_bytes(&body_of(drep)), with(&[(8, 9)]));
}

#[test]
fn resolutions_have_their_fields_where_the_standard_says() {
    let (request_id, service_id) = (CommId(1), ServiceId(2));
    let mut private_data = [0; SidrReq::PRIVATE_LEN];
    private_data[0] = 9;
    let req = SidrReq { request_id, pkey: 3, service_id, private_data };
    assert_eq!(set_bytes(&body_of(req)), [(3, 1), (5, 3), (15, 2), (16, 9)]);

    let mut private_data = [0; SidrRep::PRIVATE_LEN];
    private_data[0] = 9;
    let mut info = [0; SidrRep::INFO_LEN];
    info[0] = 8;
    let (status, qpn) = (SidrStatus::NO_QP, Qpn::new(7));
    let rep =
        SidrRep { request_id, status, info_len: 4, qpn, service_id, qkey: 6, info, private_data };
    let set = [(3, 1), (4, 3), (5, 4), (10, 7), (19, 2), (23, 6), (24, 8), (96, 9)];
    assert_eq!(set_bytes(&body_of(rep)), set);
}

#[test]
fn all_ones_say_which_bits_are_reserved() {
    // Number of reserved bits of each message's body, by its table.
    let reserved = [
        (0x10, 32 + 32 + 2 * (6 + 3) + 6 - 1),
        (0x11, 6 + 3),
        (0x12, 6 + 1),
        (0x13, 8 + 8 + 8 + 4),
        (0x14, 0),
        (0x15, 8),
        (0x16, 0),
        (0x17, 16),
        (0x18, 16 + 8),
    ];
    for (attribute, bits) in reserved {
        let mad = Mad::decode(&ones(attribute)).expect("it is known");
        let left: u32 = mad.encode()[HEADER_LEN..].iter().map(|byte| byte.count_zeros()).sum();
        assert_eq!(left, bits, "attribute {attribute:#x}");
    }
}

#[test]
fn what_is_no_message_is_refused() {
    let good = ones(0x10);
    let with = |at: usize, byte: u8| {
        let mut bytes = good;
        bytes[at] = byte;
        Mad::decode(&bytes)
    };
    assert_eq!(Mad::decode(&good[..255]), Err(MadError::Length(255)));
    assert_eq!(with(0, 2), Err(MadError::BaseVersion(2)));
    assert_eq!(with(1, 3), Err(MadError::Class(3)));
    assert_eq!(with(2, 1), Err(MadError::ClassVersion(1)));
    assert_eq!(with(3, 0x81), Err(MadError::Method(0x81)));
    assert_eq!(with(17, 0x19), Err(MadError::Attribute(0x19)));
}

#[test]
fn a_message_is_for_a_service_or_for_who_gave_the_number() {
    let of = |message: Message| Destination::of(&Mad { transaction_id: 1, message }.encode());
    let (id, service_id) = (CommId(7), ServiceId(9));
    let service = Some(Destination::Service(service_id));
    assert_eq!(of(Req { service_id, ..Req::default() }.into()), service);
    assert_eq!(of(SidrReq { service_id, ..SidrReq::default() }.into()), service);
    let remote_comm_id = id;
    let connection = Some(Destination::Connection(id));
    assert_eq!(of(Rep { remote_comm_id, ..Rep::default() }.into()), connection);
    assert_eq!(of(Rtu { remote_comm_id, ..Rtu::default() }.into()), connection);
    assert_eq!(of(Rej { remote_comm_id, ..Rej::default() }.into()), connection);
    assert_eq!(of(Mra { remote_comm_id, ..Mra::default() }.into()), connection);
    assert_eq!(of(Dreq { remote_comm_id, ..Dreq::default() }.into()), connection);
    assert_eq!(of(Drep { remote_comm_id, ..Drep::default() }.into()), connection);
    assert_eq!(of(SidrRep { request_id: id, ..SidrRep::default() }.into()), connection);
    assert_eq!(of(Rej::default().into()), Some(Destination::Origin));
    assert_eq!(Destination::of(&[0; MAD_LEN]), None);
}

#[test]
fn service_ids_are_those_of_rdma_cm() {
    let service = ServiceId::of_port(PortSpace::TCP, 7174);
    assert_eq!(service.0, 0x0000_0000_0106_1c06);
    assert_eq!((service.space(), service.port()), (Some(PortSpace::TCP), 7174));
    assert_eq!(ServiceId(1 << 40).space(), None);
}

#[test]
fn ip_addresses_are_where_rdma_cm_has_them() {
    let v4 =
        IpAddressing { src_port: 0x1234, src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into() };
    let bytes = v4.encode();
    assert_eq!(bytes[..4], [0, 0x40, 0x12, 0x34]);
    assert_eq!(bytes[16..20], [10, 0, 0, 1]);
    assert_eq!(bytes[32..36], [10, 0, 0, 2]);
    assert_eq!(IpAddressing::decode(&bytes), Some(v4));
    let v6 = IpAddressing { src: [0x20; 16].into(), dst: [0x30; 16].into(), ..v4 };
    let bytes = v6.encode();
    assert_eq!((bytes[1], bytes[4], bytes[20]), (0x60, 0x20, 0x30));
    assert_eq!(IpAddressing::decode(&bytes), Some(v6));
    assert_eq!(IpAddressing::decode(&bytes[..35]), None);
}

proptest! {
    #[test]
    fn any_bytes_decode_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = Mad::decode(&bytes);
        let _ = IpAddressing::decode(&bytes);
    }

    #[test]
    fn what_is_read_is_written_again(
        attribute in 0x10_u8..=0x18,
        tid: u64,
        body in prop::collection::vec(any::<u8>(), BODY_LEN),
    ) {
        let mut bytes = ones(attribute);
        bytes[8..16].copy_from_slice(&tid.to_be_bytes());
        bytes[HEADER_LEN..].copy_from_slice(&body);
        let mad = Mad::decode(&bytes).expect("it is known");
        let again = mad.encode();
        prop_assert_eq!(Mad::decode(&again), Ok(mad));
        // Except for reserved bits nothing has changed.
        let mask = Mad::decode(&ones(attribute)).expect("it is known").encode();
        for at in HEADER_LEN..MAD_LEN {
            prop_assert_eq!(again[at], bytes[at] & mask[at], "byte {}", at);
        }
    }

    #[test]
    fn addresses_survive(port: u16, src: [u8; 16], dst: [u8; 16], v4: bool) {
        let addr = |bytes: [u8; 16]| match v4 {
            true => core::net::IpAddr::from([bytes[0], bytes[1], bytes[2], bytes[3]]),
            false => core::net::IpAddr::from(bytes),
        };
        let ip = IpAddressing { src_port: port, src: addr(src), dst: addr(dst) };
        prop_assert_eq!(IpAddressing::decode(&ip.encode()), Some(ip));
    }
}
