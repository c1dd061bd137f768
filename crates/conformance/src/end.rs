//! The operations that checks use on either end.

use std::net::IpAddr;

use bowline_nic::{Access, Completion, Event, Mtu, QpState, QpType, Remote, SendFlags, SendOp};

use crate::Outcome;

/// The implementation of an end's NIC: what [`crate::quirks`] depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maker {
    /// Ours.
    Bowline,
    /// The Linux kernel's soft-RoCE.
    Rxe,
}

/// A queue pair of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpId(pub usize);

/// A memory region of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrId(pub usize);

/// A memory region, as its owner and its peer need to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Which.
    pub id: MrId,
    /// Address of its first byte.
    pub addr: u64,
    /// Its length.
    pub len: usize,
    /// Its key.
    pub rkey: u32,
}

/// A part of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The region.
    pub region: MrId,
    /// First byte.
    pub offset: usize,
    /// How many.
    pub len: usize,
}

impl Region {
    /// A part of it.
    pub fn piece(&self, offset: usize, len: usize) -> Piece {
        Piece { region: self.id, offset, len }
    }
}

/// The attributes of a new queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpOptions {
    /// Its transport.
    pub qp_type: QpType,
    /// The peer's access rights through it.
    pub access: Access,
    /// Its Q_Key, if it is a UD one.
    pub qkey: u32,
}

/// Where and how a queue pair is connected.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    /// The peer's address.
    pub addr: IpAddr,
    /// The peer's queue pair.
    pub qpn: u32,
    /// Path MTU.
    pub mtu: Mtu,
    /// First sequence number that the peer sends.
    pub rq_psn: u32,
    /// First sequence number that we send.
    pub sq_psn: u32,
    /// READs and atomics outstanding, both ways.
    pub rd_atomic: u8,
    /// Code of the RNR timer that the peer is told.
    pub min_rnr_timer: u8,
    /// Code of the retransmission timeout.
    pub timeout: u8,
    /// Retries after timeouts.
    pub retry: u8,
    /// Retries after RNR NAKs.
    pub rnr_retry: u8,
}

/// A requester's queue pair and its peers, with a group between them.
#[derive(Clone, Debug)]
pub struct Bridge {
    /// The peers: the group's members.
    pub peers: Vec<BridgePeer>,
    /// Path MTU.
    pub mtu: Mtu,
    /// First sequence number of the requester's queue pair.
    pub sq_psn: u32,
}

/// A peer of the requester's queue pair.
#[derive(Clone, Copy, Debug)]
pub struct BridgePeer {
    /// Its address.
    pub addr: IpAddr,
    /// Its queue pair.
    pub qpn: u32,
    /// Memory that it offers.
    pub region: Region,
}

/// Address and queue pair that the requester connects to, and those that its peers connect to.
#[derive(Clone, Debug)]
pub struct Bridged {
    /// For the requester.
    pub requester: (IpAddr, u32),
    /// For each of its peers.
    pub responders: Vec<(IpAddr, u32)>,
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug)]
pub struct Datagram {
    /// The address.
    pub addr: IpAddr,
    /// The queue pair there.
    pub qpn: u32,
    /// The Q_Key it is sent with.
    pub qkey: u32,
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct Send {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// How.
    pub flags: SendFlags,
    /// Carry the payload in the request itself.
    pub inline: bool,
    /// With what.
    pub piece: Piece,
    /// To whom, on a UD queue pair.
    pub to: Option<Datagram>,
}

impl Send {
    /// A signaled request.
    pub fn new(wr_id: u64, op: SendOp, piece: Piece) -> Send {
        Send { wr_id, op, flags: SendFlags::SIGNALED, inline: false, piece, to: None }
    }
}

/// One side of a connection: a NIC and the memory of its host.
///
/// Every queue pair has its own completion queues. Nothing here waits: a [`crate::Lab`] polls and
/// lets time pass.
pub trait End {
    /// The port's address.
    fn addr(&self) -> IpAddr;
    /// Its NIC's implementation.
    fn maker(&self) -> Maker;

    /// Allocates zeroed memory and registers it.
    fn register(&mut self, len: usize, access: Access) -> Outcome<Region>;
    /// Registers memory whose key the peer of a queue pair may revoke, and write to until then.
    fn register_revocable(&mut self, qp: QpId, len: usize) -> Outcome<Region>;
    /// Allocates a memory window of type 2 and starts to bind it, for the peer of a queue pair to
    /// write. The region must allow it. A completion shows that it is bound.
    fn bind_window(&mut self, qp: QpId, wr_id: u64, piece: Piece) -> Outcome<Remote>;
    /// Frees the window that was bound under a key.
    fn free_window(&mut self, rkey: u32) -> Outcome;
    /// Ends a registration; the memory stays readable.
    fn deregister(&mut self, region: MrId) -> Outcome;
    /// The bytes of a piece of memory.
    fn peek(&mut self, piece: Piece) -> Outcome<Vec<u8>>;
    /// Changes memory.
    fn poke(&mut self, region: MrId, offset: usize, bytes: &[u8]) -> Outcome;

    /// Makes a queue pair, in the INIT state, and returns its number.
    fn create_qp(&mut self, options: &QpOptions) -> Outcome<(QpId, u32)>;
    /// Removes a queue pair.
    fn destroy_qp(&mut self, qp: QpId) -> Outcome;
    /// Puts a group between a queue pair and its peers, if this end supports that: returns what
    /// each of them is to connect to instead of the other.
    fn bridge(&mut self, qp: QpId, bridge: &Bridge) -> Outcome<Option<Bridged>> {
        let _ = (qp, bridge);
        Ok(None)
    }
    /// Makes it ready to receive, then to send.
    fn connect(&mut self, qp: QpId, connection: &Connection) -> Outcome;
    /// Moves it to the error state.
    fn fail(&mut self, qp: QpId) -> Outcome;
    /// Its state.
    fn state(&mut self, qp: QpId) -> Outcome<QpState>;

    /// Posts a receive.
    fn post_recv(&mut self, qp: QpId, wr_id: u64, into: Piece) -> Outcome;
    /// Posts receives without memory, all under one identifier.
    fn post_empty_recvs(&mut self, qp: QpId, wr_id: u64, count: u32) -> Outcome {
        let nothing = Piece { region: MrId(0), offset: 0, len: 0 };
        (0..count).try_for_each(|_| self.post_recv(qp, wr_id, nothing))
    }
    /// Posts a send.
    fn post_send(&mut self, qp: QpId, send: &Send) -> Outcome;
    /// Polls completions: sends first, then receives.
    fn poll(&mut self, qp: QpId) -> Outcome<Vec<Completion>>;
    /// Asks for a notification of the next receive that is solicited or fails.
    fn arm_solicited(&mut self, qp: QpId) -> Outcome;
    /// Whether that notification has come.
    fn notified(&mut self, qp: QpId) -> Outcome<bool>;
    /// Polls asynchronous events.
    fn events(&mut self) -> Outcome<Vec<Event>>;
}
