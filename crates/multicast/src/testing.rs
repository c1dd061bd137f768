//! Packets for tests, and a switch with one group.

use core::net::IpAddr;

use bowline_link::Time;
use bowline_wire::{
    Aeth, AtomicEth, Bth, ExtHeaders, FlowKey, ICRC_LEN, Ieth, ImmDt, NakCode, Opcode, Packet,
    PacketView, Psn, Qpn, ROCE_UDP_PORT, Reth, Syndrome, icrc_of,
};

use crate::{
    Arrival, Branch, GroupKey, Leaf, MemberConfig, Origin, Place, Region, RootConfig, Switch,
    SwitchLimits, Table, Verdict,
};

fn sealed(flow: &FlowKey, packet: &Packet<'_>) -> Vec<u8> {
    let mut bytes = vec![0; packet.wire_len().expect("a known opcode")];
    packet.emit(&mut bytes).expect("all headers are given");
    let body = bytes.len() - ICRC_LEN;
    let icrc = icrc_of(flow, 0, &bytes[..body]);
    bytes[body..].copy_from_slice(&icrc.to_le_bytes());
    bytes
}

/// A request with `len` bytes of payload.
pub(crate) fn data_packet(
    flow: &FlowKey,
    opcode: Opcode,
    qpn: Qpn,
    psn: Psn,
    len: usize,
    reth: Reth,
) -> Vec<u8> {
    let payload: Vec<u8> = (0..len).map(|i| i as u8).collect();
    let mut bth = Bth::new(opcode, qpn, psn);
    bth.pad = (len.wrapping_neg() & 3) as u8;
    bth.ack_req = true;
    let atomic = AtomicEth { va: reth.va, rkey: reth.rkey, swap_or_add: 1, compare: 0 };
    let ext = ExtHeaders {
        reth: Some(reth),
        atomic: Some(atomic),
        imm: Some(ImmDt(5)),
        ieth: Some(Ieth { rkey: reth.rkey }),
        ..ExtHeaders::default()
    };
    sealed(flow, &Packet { bth, ext, payload: &payload, pad_bytes: [0; 3], icrc: 0 })
}

/// An answer.
pub(crate) fn ack_packet(
    flow: &FlowKey,
    qpn: Qpn,
    psn: Psn,
    syndrome: Syndrome,
    msn: u32,
) -> Vec<u8> {
    let bth = Bth::new(Opcode::RC_ACK, qpn, psn);
    let ext = ExtHeaders { aeth: Some(Aeth { syndrome, msn }), ..ExtHeaders::default() };
    sealed(flow, &Packet { bth, ext, payload: &[], pad_bytes: [0; 3], icrc: 0 })
}

/// A congestion notification.
pub(crate) fn cnp_packet(flow: &FlowKey, qpn: Qpn) -> Vec<u8> {
    let bth = Bth::new(Opcode::CNP, qpn, Psn::new(0));
    let ext = ExtHeaders::default();
    sealed(flow, &Packet { bth, ext, payload: &[0; 16], pad_bytes: [0; 3], icrc: 0 })
}

pub(crate) const SENDER: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 1));
pub(crate) const SENDER_QPN: Qpn = Qpn::new(0x11);
pub(crate) const GROUP: GroupKey = GroupKey { sender: SENDER, id: Qpn::new(0xfe_0000) };
pub(crate) const REGION: Region = Region { va: 0x1000, len: 0x1000, rkey: 0x77 };

/// Members 0 and 1 share an address.
pub(crate) fn member_addr(member: usize) -> IpAddr {
    IpAddr::from([10, 0, 0, 2 + member.max(1) as u8])
}

pub(crate) fn member_id(member: usize) -> Qpn {
    Qpn::new(0xfe_0100 + member as u32)
}

pub(crate) fn member_qpn(member: usize) -> Qpn {
    Qpn::new(0x200 + member as u32)
}

pub(crate) fn flow(src: IpAddr, dst: IpAddr) -> FlowKey {
    FlowKey { src, dst, src_port: ROCE_UDP_PORT, dst_port: ROCE_UDP_PORT }
}

/// A table for members with a branch each.
pub(crate) fn table(epoch: u64, members: &[usize], config: RootConfig) -> Table {
    let branch = |member: &usize| Branch {
        dst: member_addr(*member),
        src: None,
        leaf: Some(Leaf {
            qpn: member_qpn(*member),
            places: vec![Place { va: 0x10_0000 * *member as u64, rkey: *member as u32 }],
        }),
    };
    let config_of = |(branch, member): (usize, &usize)| MemberConfig {
        addr: member_addr(*member),
        id: member_id(*member),
        branch,
    };
    let members_of = members.iter().enumerate().map(config_of).collect();
    Table {
        key: GROUP,
        epoch,
        branches: members.iter().map(branch).collect(),
        regions: vec![REGION],
        root: Some(RootConfig { members: members_of, ..config }),
    }
}

/// A root that starts at a PSN, or that knows nothing.
pub(crate) fn root(first_psn: Option<u32>) -> RootConfig {
    let peer = Origin { addr: member_addr(0), port: ROCE_UDP_PORT };
    RootConfig { mtu: 256, ..RootConfig::new(SENDER_QPN, peer, SENDER, first_psn.map(Psn::new)) }
}

/// What is reported to the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Ack(u32),
    Nak(u32),
    Rnr(u32),
    Refused(u32, NakCode),
    Cnp,
}

/// A switch with one group.
pub(crate) struct Rig {
    pub(crate) switch: Switch,
    pub(crate) now: Time,
}

impl Rig {
    pub(crate) fn new(members: usize, config: RootConfig) -> Rig {
        let mut switch = Switch::new(SwitchLimits::default());
        let all: Vec<usize> = (0..members).collect();
        switch.install(Time::ZERO, table(1, &all, config)).expect("a good table");
        Rig { switch, now: Time::ZERO }
    }

    /// Handles a frame of the sender; returns the QPNs that copies go to, and each copy.
    pub(crate) fn frame(&mut self, bytes: &[u8]) -> Vec<(Qpn, Vec<u8>)> {
        let from = flow(SENDER, member_addr(0));
        let arrival = Arrival { flow: from, ip_id: Some(0), bytes };
        let Verdict::Replicate(replicas) = self.switch.handle_frame(self.now, &arrival) else {
            return Vec::new();
        };
        let copy = |branch| {
            let edit = self.switch.edit(&replicas, branch).expect("it exists");
            let mut copy = bytes.to_vec();
            edit.apply(&mut copy);
            let view = PacketView::parse(&copy).expect("still a packet");
            (view.dest_qpn(), copy)
        };
        replicas.branches().map(copy).collect()
    }

    /// Handles a request of the sender; returns the members that get it.
    pub(crate) fn request(&mut self, opcode: Opcode, psn: u32, reth: Reth) -> Vec<usize> {
        let from = flow(SENDER, member_addr(0));
        let bytes = data_packet(&from, opcode, GROUP.id, Psn::new(psn), 64, reth);
        let copies = self.frame(&bytes);
        copies.iter().map(|(qpn, _)| (qpn.get() - member_qpn(0).get()) as usize).collect()
    }

    /// Handles a SEND of the sender; returns the members that get it.
    pub(crate) fn send(&mut self, psn: u32) -> Vec<usize> {
        let nowhere = Reth { va: 0, rkey: 0, len: 0 };
        self.request(Opcode::RC_SEND_ONLY, psn, nowhere)
    }

    /// Bytes that come from a member's address.
    pub(crate) fn hear_member(&mut self, member: usize, bytes: &[u8]) -> Vec<Told> {
        let from = flow(member_addr(member), SENDER);
        let arrival = Arrival { flow: from, ip_id: Some(0), bytes };
        assert_eq!(self.switch.handle_frame(self.now, &arrival), Verdict::Taken);
        self.told()
    }

    /// Handles a response of a member; returns what is reported to the sender.
    pub(crate) fn answer(&mut self, member: usize, psn: u32, syndrome: Syndrome) -> Vec<Told> {
        let from = flow(member_addr(member), SENDER);
        let bytes = ack_packet(&from, member_id(member), Psn::new(psn), syndrome, 0);
        self.hear_member(member, &bytes)
    }

    pub(crate) fn ack(&mut self, member: usize, psn: u32) -> Vec<Told> {
        self.answer(member, psn, Syndrome::Ack { credits: 3 })
    }

    pub(crate) fn nak(&mut self, member: usize, psn: u32) -> Vec<Told> {
        self.answer(member, psn, Syndrome::Nak(NakCode::PsnSequence))
    }

    pub(crate) fn rnr(&mut self, member: usize, psn: u32) -> Vec<Told> {
        self.answer(member, psn, Syndrome::Rnr { timer: 4 })
    }

    pub(crate) fn cnp(&mut self, member: usize) -> Vec<Told> {
        let bytes = cnp_packet(&flow(member_addr(member), SENDER), member_id(member));
        self.hear_member(member, &bytes)
    }

    /// What was reported to the sender since the last call.
    pub(crate) fn told(&mut self) -> Vec<Told> {
        let mut told = Vec::new();
        while let Some(answer) = self.switch.poll_transmit() {
            assert_eq!(answer.flow, flow(member_addr(0), SENDER), "as the sender expects it");
            let view = PacketView::parse(answer.bytes()).expect("well formed");
            let body = &answer.bytes()[..answer.bytes().len() - ICRC_LEN];
            assert_eq!(view.icrc(), icrc_of(&answer.flow, 0, body));
            assert_eq!(view.dest_qpn(), SENDER_QPN);
            let psn = view.psn().get();
            told.push(match view.aeth().map(|aeth| aeth.syndrome) {
                None => Told::Cnp,
                Some(Syndrome::Ack { credits }) => {
                    assert_eq!(credits, Syndrome::NO_CREDITS);
                    Told::Ack(psn)
                }
                Some(Syndrome::Rnr { .. }) => Told::Rnr(psn),
                Some(Syndrome::Nak(NakCode::PsnSequence)) => Told::Nak(psn),
                Some(Syndrome::Nak(code)) => Told::Refused(psn, code),
                Some(Syndrome::Reserved(byte)) => panic!("reserved syndrome {byte}"),
            });
        }
        told
    }
}
