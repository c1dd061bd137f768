//! An end on another machine: the verbs of `lab/rxe/guest/verbs_agent.c`, one line per call.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use bowline::{Endpoint, Psn};
use bowline_nic::{
    Access, Completion, Event, Mtu, QpState, QpType, Remote, SendFlags, SendOp, WcOpcode, WcStatus,
};
use bowline_wire::{Qpn, ROCE_UDP_PORT};

use super::groups::{Group, Groups};
use crate::{
    Bridge, Bridged, Connection, End, Failure, Maker, MrId, Outcome, Piece, QpId, QpOptions,
    Region, Send,
};

/// Limit for a call; deregistering under emulation is the slowest.
const CALL_LIMIT: Duration = Duration::from_secs(20);

/// The right to bind windows, in the verbs API.
const MW_BIND: u32 = 16;

/// A NIC behind an agent.
pub struct AgentEnd {
    addr: IpAddr,
    lines: BufReader<TcpStream>,
    qpns: Vec<u32>,
    /// Addresses of regions.
    regions: Vec<u64>,
    groups: Option<Groups>,
    /// The groups of the requesters' queue pairs.
    bridged: BTreeMap<usize, Group>,
}

impl AgentEnd {
    /// Talks to the agent at `agent` about the NIC port with address `addr`.
    pub fn connect(agent: SocketAddr, addr: IpAddr) -> Outcome<AgentEnd> {
        let io = |error: std::io::Error| Failure::new(format!("the agent at {agent}: {error}"));
        let stream = TcpStream::connect_timeout(&agent, CALL_LIMIT).map_err(io)?;
        stream.set_read_timeout(Some(CALL_LIMIT)).map_err(io)?;
        stream.set_nodelay(true).map_err(io)?;
        let lines = BufReader::new(stream);
        let (qpns, regions, bridged) = (Vec::new(), Vec::new(), BTreeMap::new());
        let mut end = AgentEnd { addr, lines, qpns, regions, groups: None, bridged };
        end.call(&format!("gid {}", gid(addr)))?;
        Ok(end)
    }

    /// The same end, with a group between its RC queue pairs and their peers.
    #[must_use]
    pub fn with_groups(self, groups: Groups) -> AgentEnd {
        AgentEnd { groups: Some(groups), ..self }
    }

    fn call(&mut self, request: &str) -> Outcome<String> {
        let verb = request.split(' ').next().unwrap_or("");
        let io = |error: std::io::Error| Failure::new(format!("agent: {verb}: {error}"));
        self.lines.get_mut().write_all(format!("{request}\n").as_bytes()).map_err(io)?;
        let mut answer = String::new();
        self.lines.read_line(&mut answer).map_err(io)?;
        match answer.trim_end().split_once(' ').unwrap_or((answer.trim_end(), "")) {
            ("ok", results) => Ok(results.to_owned()),
            ("err", why) => Err(Failure::new(format!("agent: {why}"))),
            _ => Err(Failure::new(format!("agent: {verb}: no answer"))),
        }
    }

    fn qpn(&self, qp: QpId) -> Qpn {
        Qpn::new(self.qpns[qp.0])
    }
}

impl End for AgentEnd {
    fn addr(&self) -> IpAddr {
        self.addr
    }

    fn maker(&self) -> Maker {
        Maker::Rxe
    }

    fn register(&mut self, len: usize, access: Access) -> Outcome<Region> {
        let answer = self.call(&format!("mr {len} {}", access_flags(access)))?;
        let mut words = answer.split(' ');
        let id = MrId(number(words.next(), 10)? as usize);
        let (addr, rkey) = (number(words.next(), 10)?, number(words.next(), 16)? as u32);
        self.regions.resize(id.0 + 1, 0);
        self.regions[id.0] = addr;
        Ok(Region { id, addr, len, rkey })
    }

    fn bind_window(&mut self, qp: QpId, wr_id: u64, piece: Piece) -> Outcome<Remote> {
        let Piece { region, offset, len } = piece;
        let rights = access_flags(Access::REMOTE_WRITE);
        let key =
            self.call(&format!("mw {} {} {offset} {len} {rights} {wr_id}", region.0, qp.0))?;
        let addr = self.regions[region.0] + offset as u64;
        Ok(Remote { addr, rkey: number(Some(&key), 16)? as u32 })
    }

    fn free_window(&mut self, rkey: u32) -> Outcome {
        self.call(&format!("unmw {rkey:x}")).map(drop)
    }

    /// A window of type 2 on a region: rxe can revoke no other key that a user can have (see
    /// [`quirks::revokes_windows_only`](crate::quirks::revokes_windows_only)).
    fn register_revocable(&mut self, qp: QpId, len: usize) -> Outcome<Region> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::BIND_WINDOW;
        let region = self.register(len, access)?;
        const WR_ID: u64 = u64::MAX;
        let window = self.bind_window(qp, WR_ID, region.piece(0, len))?;
        for _ in 0..1000 {
            match self.poll(qp)?.first() {
                Some(wc) if wc.wr_id == WR_ID && wc.status == WcStatus::Success => {
                    return Ok(Region { rkey: window.rkey, ..region });
                }
                Some(wc) => return Err(Failure::new(format!("binding a window: {wc:?}"))),
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        Err(Failure::new("binding a window: no completion"))
    }

    fn deregister(&mut self, region: MrId) -> Outcome {
        self.call(&format!("unmr {}", region.0)).map(drop)
    }

    fn peek(&mut self, piece: Piece) -> Outcome<Vec<u8>> {
        if piece.len == 0 {
            return Ok(Vec::new());
        }
        let hex = self.call(&format!("peek {} {} {}", piece.region.0, piece.offset, piece.len))?;
        (0..hex.len() / 2).map(|i| Ok(number(hex.get(2 * i..2 * i + 2), 16)? as u8)).collect()
    }

    fn poke(&mut self, region: MrId, offset: usize, bytes: &[u8]) -> Outcome {
        let mut request = format!("poke {} {offset} ", region.0);
        for byte in bytes {
            // Writing to a String cannot fail.
            let _ = write!(request, "{byte:02x}");
        }
        self.call(&request).map(drop)
    }

    fn create_qp(&mut self, options: &QpOptions) -> Outcome<(QpId, u32)> {
        let qp_type = match options.qp_type {
            QpType::Rc => 2,
            QpType::Uc => 3,
            QpType::Ud => 4,
            other => {
                let name = other.descriptor().name;
                return Err(Failure::new(format!("the agent's verbs have no {name}")));
            }
        };
        let answer = self.call(&format!("qp {qp_type} 128 128 64"))?;
        let mut words = answer.split(' ');
        let id = QpId(number(words.next(), 10)? as usize);
        let qpn = number(words.next(), 10)? as u32;
        self.qpns.push(qpn);
        let access = access_flags(options.access);
        self.call(&format!("init {} {access} {}", id.0, options.qkey))?;
        Ok((id, qpn))
    }

    fn bridge(&mut self, qp: QpId, bridge: &Bridge) -> Outcome<Option<Bridged>> {
        let Some(groups) = &self.groups else { return Ok(None) };
        let endpoint = Endpoint {
            qp_type: QpType::Rc,
            addr: self.addr,
            udp_port: ROCE_UDP_PORT,
            qpn: self.qpn(qp),
            psn: Psn::new(bridge.sq_psn),
            mtu: bridge.mtu,
            rd_atomic: 0,
        };
        let (group, bridged) = groups.bridge(None, endpoint, bridge)?;
        self.bridged.insert(qp.0, group);
        Ok(Some(bridged))
    }

    fn destroy_qp(&mut self, qp: QpId) -> Outcome {
        self.bridged.remove(&qp.0);
        self.call(&format!("unqp {}", qp.0)).map(drop)
    }

    fn connect(&mut self, qp: QpId, to: &Connection) -> Outcome {
        let mtu = 1 + Mtu::ALL.iter().position(|mtu| *mtu == to.mtu).unwrap_or(0);
        self.call(&format!(
            "rtr {} {} {mtu} {} {} {} {}",
            qp.0,
            gid(to.addr),
            to.qpn,
            to.rq_psn,
            to.rd_atomic,
            to.min_rnr_timer
        ))?;
        self.call(&format!(
            "rts {} {} {} {} {} {}",
            qp.0, to.sq_psn, to.timeout, to.retry, to.rnr_retry, to.rd_atomic
        ))
        .map(drop)
    }

    fn fail(&mut self, qp: QpId) -> Outcome {
        self.call(&format!("fail {}", qp.0)).map(drop)
    }

    fn state(&mut self, qp: QpId) -> Outcome<QpState> {
        let states = [
            QpState::Reset,
            QpState::Init,
            QpState::Rtr,
            QpState::Rts,
            QpState::Sqd,
            QpState::Sqe,
            QpState::Err,
        ];
        let answer = self.call(&format!("state {}", qp.0))?;
        let found = states.get(number(Some(&answer), 10)? as usize).copied();
        found.ok_or_else(|| Failure::new(format!("agent: no such state: {answer}")))
    }

    fn post_recv(&mut self, qp: QpId, wr_id: u64, into: Piece) -> Outcome {
        let Piece { region, offset, len } = into;
        self.call(&format!("recv {} {wr_id} {} {offset} {len}", qp.0, region.0)).map(drop)
    }

    fn post_empty_recvs(&mut self, qp: QpId, wr_id: u64, count: u32) -> Outcome {
        self.call(&format!("recvs {} {wr_id} {count}", qp.0)).map(drop)
    }

    fn post_send(&mut self, qp: QpId, send: &Send) -> Outcome {
        let op = Op::new(send.op);
        let Piece { region, offset, len } = send.piece;
        let to = match send.to {
            Some(to) => format!("{} {} {}", gid(to.addr), to.qpn, to.qkey),
            None => "0 0 0".to_owned(),
        };
        self.call(&format!(
            "send {} {} {} {} {} {offset} {len} {} {:x} {} {} {} {to}",
            qp.0,
            send.wr_id,
            op.opcode,
            send_flags(send),
            region.0,
            op.remote_addr,
            op.rkey,
            op.imm,
            op.compare,
            op.swap
        ))
        .map(drop)
    }

    fn poll(&mut self, qp: QpId) -> Outcome<Vec<Completion>> {
        let answer = self.call(&format!("poll {}", qp.0))?;
        let qpn = self.qpn(qp);
        answer.split_whitespace().map(|wc| completion(wc, qpn)).collect()
    }

    fn arm_solicited(&mut self, qp: QpId) -> Outcome {
        self.call(&format!("arm {} 1", qp.0)).map(drop)
    }

    fn notified(&mut self, qp: QpId) -> Outcome<bool> {
        Ok(self.call(&format!("notified {}", qp.0))? == "1")
    }

    fn events(&mut self) -> Outcome<Vec<Event>> {
        let answer = self.call("events")?;
        Ok(answer.split_whitespace().filter_map(event).collect())
    }
}

/// An operation in the numbers of infiniband/verbs.h.
#[derive(Default)]
struct Op {
    opcode: u32,
    remote_addr: u64,
    rkey: u32,
    imm: u32,
    compare: u64,
    swap: u64,
}

impl Op {
    fn new(op: SendOp) -> Op {
        let at = |opcode, remote: bowline_nic::Remote| Op {
            opcode,
            remote_addr: remote.addr,
            rkey: remote.rkey,
            ..Op::default()
        };
        match op {
            SendOp::Write(to) => at(0, to),
            SendOp::WriteImm(to, imm) => Op { imm, ..at(1, to) },
            SendOp::Send => Op { opcode: 2, ..Op::default() },
            SendOp::SendImm(imm) => Op { opcode: 3, imm, ..Op::default() },
            SendOp::Read(from) => at(4, from),
            SendOp::CompareSwap { remote, compare, swap } => Op { compare, swap, ..at(5, remote) },
            SendOp::FetchAdd { remote, add } => Op { compare: add, ..at(6, remote) },
            SendOp::SendInvalidate(key) => Op { opcode: 9, imm: key, ..Op::default() },
            SendOp::LocalInvalidate(key) => Op { opcode: 7, imm: key, ..Op::default() },
            SendOp::BindWindow(_) => unreachable!("windows are bound by a call of their own"),
            SendOp::WritePackets(..) => unreachable!("the verbs API has no such request"),
        }
    }
}

fn access_flags(access: Access) -> u32 {
    // The first four rights have the verbs API's values, and rxe supports no others.
    let windows = if access.contains(Access::BIND_WINDOW) { MW_BIND } else { 0 };
    access.bits() & 0xf | windows
}

fn send_flags(send: &Send) -> u32 {
    let pairs = [(SendFlags::FENCE, 1), (SendFlags::SIGNALED, 2), (SendFlags::SOLICITED, 4)];
    let flags = pairs.iter().filter(|(flag, _)| send.flags.contains(*flag)).map(|(_, bit)| bit);
    flags.sum::<u32>() + if send.inline { 8 } else { 0 }
}

fn completion(words: &str, qpn: Qpn) -> Outcome<Completion> {
    let fields: Vec<u64> =
        words.split(',').map(|w| number(Some(w), 10)).collect::<Outcome<Vec<u64>>>()?;
    let [wr_id, status, opcode, byte_len, flags, imm, src_qpn] = fields[..] else {
        return Err(Failure::new(format!("agent: not a completion: {words}")));
    };
    const WITH_GRH: u64 = 1;
    const WITH_IMM: u64 = 2;
    // See `quirks::marks_invalidation_wrongly`: this is rxe's bit for it; the right one is 8.
    const WITH_INV: u64 = 4;
    let imm = imm as u32;
    Ok(Completion {
        wr_id,
        status: status_of(status)?,
        opcode: opcode_of(opcode),
        byte_len: byte_len as u32,
        imm: (flags & WITH_IMM != 0).then_some(imm),
        invalidated: (flags & WITH_INV != 0).then_some(imm.swap_bytes()),
        qpn,
        src_qpn: Qpn::new(src_qpn as u32),
        grh: flags & WITH_GRH != 0,
        ..Completion::default()
    })
}

fn status_of(number: u64) -> Outcome<WcStatus> {
    let found = u32::try_from(number).ok().and_then(WcStatus::from_verbs);
    found.ok_or_else(|| Failure::new(format!("agent: no such status: {number}")))
}

/// The opcode of a completion. It is meaningless for a failed one.
fn opcode_of(number: u64) -> WcOpcode {
    match number {
        1 => WcOpcode::Write,
        2 => WcOpcode::Read,
        3 => WcOpcode::CompareSwap,
        4 => WcOpcode::FetchAdd,
        5 => WcOpcode::BindWindow,
        6 => WcOpcode::LocalInvalidate,
        128 => WcOpcode::Recv,
        129 => WcOpcode::RecvWriteImm,
        _ => WcOpcode::Send,
    }
}

fn event(words: &str) -> Option<Event> {
    let (kind, qpn) = words.split_once(',')?;
    let qpn = Qpn::new(qpn.parse().ok()?);
    match kind {
        "1" => Some(Event::QpFatal(qpn)),
        "2" => Some(Event::QpRequestError(qpn)),
        "3" => Some(Event::QpAccessError(qpn)),
        "4" => Some(Event::CommEstablished(qpn)),
        "5" => Some(Event::SqDrained(qpn)),
        _ => None,
    }
}

/// An address in RoCEv2's GID format.
fn gid(addr: IpAddr) -> String {
    let octets = match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    octets.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn number(word: Option<&str>, radix: u32) -> Outcome<u64> {
    let word = word.unwrap_or("");
    u64::from_str_radix(word, radix).map_err(|e| Failure::new(format!("agent: {word:?}: {e}")))
}
