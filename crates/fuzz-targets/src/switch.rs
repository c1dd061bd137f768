//! Packets at a multicast switch: a sender's, members', and a stranger's who knows every number but
//! no PSN.
//!
//! Whatever comes, the sender is never told that somebody has a packet who has not said so.

use core::net::{IpAddr, Ipv4Addr};

use bowline_multicast::{
    Arrival, Branch, GroupKey, Leaf, MemberConfig, Origin, Place, Policy, Region, RootConfig,
    Switch, SwitchLimits, Table, Verdict,
};
use bowline_nic::Time;
use bowline_wire::{
    Aeth, Bth, ExtHeaders, FlowKey, ICRC_LEN, ImmDt, NakCode, Opcode, Packet, PacketView, Psn, Qpn,
    ROCE_UDP_PORT, Reth, Syndrome, icrc_of,
};

use crate::host::Script;

const MEMBERS: usize = 3;
const SWITCH: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 100));
const SENDER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const STRANGER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 9, 9));
const SENDER_QPN: Qpn = Qpn::new(0x11);
const GROUP: Qpn = Qpn::new(0xfe_0000);
/// PSNs wrap soon.
const FIRST: Psn = Psn::new(0xff_fff0);
const REGION: Region = Region { va: 0x1000, len: 0x10000, rkey: 7 };

struct World {
    switch: Switch,
    now: Time,
    /// The PSN behind the last that was sent.
    sent_end: Psn,
    /// The last PSN that each member has said to have.
    has: [Psn; MEMBERS],
}

fn member_addr(member: usize) -> IpAddr {
    // Two members share an address.
    IpAddr::from([10, 0, 0, 2 + member.min(1) as u8])
}

fn member_id(member: usize) -> Qpn {
    Qpn::new(0xfe_0100 + member as u32)
}

fn flow(src: IpAddr) -> FlowKey {
    FlowKey { src, dst: SWITCH, src_port: ROCE_UDP_PORT, dst_port: ROCE_UDP_PORT }
}

/// Plays packets and time against a switch.
pub(crate) fn run(input: &[u8]) {
    let mut script = Script::new(input);
    let mut switch = Switch::new(SwitchLimits::default());
    switch.install(Time::ZERO, table()).expect("a right table");
    let told = FIRST.sub(1);
    let mut world = World { switch, now: Time::ZERO, sent_end: FIRST, has: [told; MEMBERS] };
    while !script.is_over() {
        world.step(&mut script);
        world.judge_answers();
    }
}

fn table() -> Table {
    let origin = Origin { addr: SWITCH, port: ROCE_UDP_PORT };
    let branch = |member: usize| Branch {
        dst: member_addr(member),
        src: Some(origin),
        leaf: Some(Leaf {
            qpn: Qpn::new(0x20 + member as u32),
            places: vec![Place { va: member as u64, rkey: member as u32 }],
        }),
    };
    let config = |member: usize| MemberConfig {
        addr: member_addr(member),
        id: member_id(member),
        branch: member,
    };
    let root = RootConfig {
        members: (0..MEMBERS).map(config).collect(),
        policy: Policy::Fail,
        mtu: 1024,
        ..RootConfig::new(SENDER_QPN, origin, SWITCH, Some(FIRST))
    };
    Table {
        key: GroupKey { sender: SENDER, id: GROUP },
        epoch: 1,
        branches: (0..MEMBERS).map(branch).collect(),
        regions: vec![REGION],
        root: Some(root),
    }
}

impl World {
    fn step(&mut self, script: &mut Script<'_>) {
        match script.byte() % 8 {
            0..=2 => self.send(script),
            3..=5 => self.answer(script),
            6 => {
                // A fuzzer that finds a right ICRC speaks for a member in its own right: that is
                // not what is tested.
                let from = if script.byte().is_multiple_of(2) { SENDER } else { STRANGER };
                let known = script.byte().is_multiple_of(2).then_some(0);
                self.handle(&flow(from), known, script.piece(256));
            }
            _ => {
                self.now = self.now.plus_nanos(u64::from(script.u32()));
                self.switch.handle_timeout(self.now);
                assert!(self.switch.poll_timeout().is_none_or(|at| at > self.now));
            }
        }
    }

    /// A packet of the sender's: the next one, or one near it.
    fn send(&mut self, script: &mut Script<'_>) {
        let (kind, at, len) = (script.byte(), script.byte(), u32::from(script.u16()));
        let opcodes = [
            Opcode::RC_SEND_ONLY,
            Opcode::RC_WRITE_FIRST,
            Opcode::RC_WRITE_MIDDLE,
            Opcode::RC_WRITE_ONLY_IMM,
            Opcode::RC_READ_REQ,
            Opcode(kind),
        ];
        let psn = if at == 0 { self.sent_end } else { self.sent_end.add(8).sub(at.into()) };
        let mut bth = Bth::new(opcodes[usize::from(kind) % opcodes.len()], GROUP, psn);
        bth.ack_req = kind & 0x40 != 0;
        let payload = vec![kind; (len % 1100) as usize & !3];
        let ext = ExtHeaders {
            reth: Some(Reth { va: REGION.va + u64::from(len), rkey: REGION.rkey, len }),
            imm: Some(ImmDt(1)),
            ..ExtHeaders::default()
        };
        let packet = Packet { bth, ext, payload: &payload, pad_bytes: [0; 3], icrc: 0 };
        let Some(bytes) = sealed(&flow(SENDER), &packet, script) else { return };
        // Whatever the switch makes of it, acknowledgements of it may come from now on.
        if !psn.before(self.sent_end) {
            self.sent_end = psn.next();
        }
        self.handle(&flow(SENDER), Some(0), &bytes);
    }

    /// A member's answer, or one in its name.
    fn answer(&mut self, script: &mut Script<'_>) {
        let (who, kind, at) = (script.byte(), script.byte(), script.byte());
        let member = usize::from(who) % MEMBERS;
        let syndrome = match kind % 8 {
            0..=3 => Syndrome::Ack { credits: Syndrome::NO_CREDITS },
            4 => Syndrome::Nak(NakCode::PsnSequence),
            5 => Syndrome::Rnr { timer: kind >> 3 },
            6 => Syndrome::Nak(NakCode::RemoteAccess),
            // Other values of this byte are read as one of those above.
            _ => Syndrome::Reserved(0x40 | kind & 0x1f),
        };
        let psn = self.sent_end.add(4).sub(at.into());
        let bth = Bth::new(Opcode::RC_ACK, member_id(member), psn);
        let aeth = Some(Aeth { syndrome, msn: at.into() });
        let ext = ExtHeaders { aeth, ..ExtHeaders::default() };
        let packet = Packet { bth, ext, payload: &[], pad_bytes: [0; 3], icrc: 0 };
        let is_stranger = who & 0x80 != 0;
        let from = flow(if is_stranger { STRANGER } else { member_addr(member) });
        let Some(bytes) = sealed(&from, &packet, script) else { return };
        let is_whole = icrc_of(&from, 0, &bytes[..bytes.len() - ICRC_LEN]).to_le_bytes()
            == bytes[bytes.len() - ICRC_LEN..];
        if is_whole && !is_stranger {
            // What it says may have been changed in a way that the ICRC tells: then it was not
            // said.
            let said = match syndrome {
                Syndrome::Ack { .. } => psn,
                _ => psn.sub(1),
            };
            if said.after(self.has[member]) {
                self.has[member] = said;
            }
        }
        self.handle(&from, Some(0), &bytes);
    }

    fn handle(&mut self, from: &FlowKey, ip_id: Option<u16>, bytes: &[u8]) {
        let arrival = Arrival { flow: *from, ip_id, bytes };
        let Verdict::Replicate(replicas) = self.switch.handle_frame(self.now, &arrival) else {
            return;
        };
        let is_right = |flow: &FlowKey, bytes: &[u8]| {
            let (body, icrc) = bytes.split_at(bytes.len() - ICRC_LEN);
            icrc_of(flow, 0, body).to_le_bytes() == icrc
        };
        for branch in replicas.branches() {
            let edit = self.switch.edit(&replicas, branch).expect("the branch exists");
            let mut copy = bytes.to_vec();
            edit.apply(&mut copy);
            assert_eq!(is_right(from, bytes), is_right(&edit.flow, &copy), "damage stays visible");
        }
    }

    /// The sender hears of nothing that a member lacks.
    fn judge_answers(&mut self) {
        while let Some(answer) = self.switch.poll_transmit() {
            let packet = PacketView::parse(answer.bytes()).expect("it was made here");
            assert_eq!((answer.flow.dst, packet.dest_qpn()), (SENDER, SENDER_QPN));
            let Some(aeth) = packet.aeth() else { continue };
            let acknowledged = match aeth.syndrome {
                Syndrome::Ack { .. } => packet.psn(),
                _ => packet.psn().sub(1),
            };
            let lacks = self.has.iter().position(|has| acknowledged.after(*has));
            assert_eq!(lacks, None, "{acknowledged} is acknowledged, members have {:?}", self.has);
        }
        while self.switch.poll_event().is_some() {}
    }
}

/// A packet on the wire, damaged if the script says so.
fn sealed(flow: &FlowKey, packet: &Packet<'_>, script: &mut Script<'_>) -> Option<Vec<u8>> {
    let mut bytes = vec![0; packet.wire_len().ok()?];
    packet.emit(&mut bytes).ok()?;
    let body = bytes.len() - ICRC_LEN;
    let icrc = icrc_of(flow, 0, &bytes[..body]);
    bytes[body..].copy_from_slice(&icrc.to_le_bytes());
    let damage = script.byte();
    if damage & 0xf0 == 0xf0 {
        let at = usize::from(script.u16()) % bytes.len();
        bytes[at] ^= damage << 4 | 1;
    }
    Some(bytes)
}
