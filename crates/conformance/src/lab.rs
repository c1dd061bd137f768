//! Two ends, their clock, and the common steps of checks.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use bowline_nic::{Access, Completion, Event, QpState, QpType, WcStatus};

use crate::failure::same;
use crate::{
    Bridge, BridgePeer, Bridged, Case, Connection, End, Failure, Maker, MrId, Outcome, QpId,
    QpOptions, Region, Send,
};

/// The Q_Key of every UD queue pair here, unless a check sets another.
pub(crate) const QKEY: u32 = 0x1234_5678;
/// All access rights that a peer may need, and those for a receive.
pub(crate) const ALL_RIGHTS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);
/// Limit for a step of a check, retries after losses included.
const STEP_LIMIT: Duration = Duration::from_secs(10);
/// How long an event may take: the thread that delivers it may have to wait for a core.
const EVENT_LIMIT: Duration = Duration::from_secs(2);

/// The clock of the ends.
pub trait Clock {
    /// Time since some fixed moment.
    fn now(&self) -> Duration;
    /// Lets time pass, and the ends work meanwhile.
    fn pass(&mut self, time: Duration) -> Outcome;
}

/// One of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The first.
    Left,
    /// The second: the foreign one, where there is one.
    Right,
}

impl Side {
    /// The other one.
    pub fn other(self) -> Side {
        match self {
            Side::Left => Side::Right,
            Side::Right => Side::Left,
        }
    }
}

/// A queue pair and its memory region.
#[derive(Clone, Copy, Debug)]
pub struct Qp {
    /// Whose.
    pub side: Side,
    /// Which.
    pub id: QpId,
    /// Its number on the wire.
    pub qpn: u32,
    /// Its memory.
    pub region: Region,
}

/// Two connected queue pairs.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// Sends requests.
    pub requester: Qp,
    /// Responds.
    pub responder: Qp,
}

/// The attributes of a check's pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) qp_type: QpType,
    /// Rights of the responder's queue pair.
    pub(crate) qp_rights: Access,
    /// Rights of the responder's memory.
    pub(crate) mr_rights: Access,
    pub(crate) region_len: usize,
    pub(crate) rd_atomic: u8,
    pub(crate) timeout: u8,
    pub(crate) retry: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
    /// First sequence numbers of requester and responder.
    pub(crate) psns: [u32; 2],
}

impl Setup {
    pub(crate) fn new(qp_type: QpType) -> Setup {
        Setup {
            qp_type,
            qp_rights: ALL_RIGHTS,
            mr_rights: ALL_RIGHTS,
            region_len: 64 << 10,
            rd_atomic: 8,
            timeout: 14,
            retry: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            psns: [0x00_1000, 0x7f_2000],
        }
    }
}

/// Two ends that checks are run on.
pub struct Lab {
    ends: [Box<dyn End>; 2],
    clock: Box<dyn Clock>,
    /// Completions that were polled while a check waited for fewer.
    backlog: BTreeMap<(Side, usize), Vec<Completion>>,
    live_qps: Vec<(Side, QpId)>,
    live_regions: Vec<(Side, MrId)>,
}

impl Lab {
    /// A lab with these ends.
    pub fn new(ends: [Box<dyn End>; 2], clock: Box<dyn Clock>) -> Lab {
        let (live_qps, live_regions) = (Vec::new(), Vec::new());
        Lab { ends, clock, backlog: BTreeMap::new(), live_qps, live_regions }
    }

    /// One end.
    pub fn end(&mut self, side: Side) -> &mut dyn End {
        &mut *self.ends[side as usize]
    }

    /// The implementation of a queue pair's NIC.
    pub fn maker(&mut self, qp: &Qp) -> Maker {
        self.end(qp.side).maker()
    }

    /// Makes two queue pairs with memory, and connects them.
    pub(crate) fn pair(&mut self, case: &Case, setup: &Setup) -> Outcome<Pair> {
        let pair = self.unconnected_pair(case, setup)?;
        self.connect(case, setup, &pair)?;
        Ok(pair)
    }

    pub(crate) fn unconnected_pair(&mut self, case: &Case, setup: &Setup) -> Outcome<Pair> {
        let requester = self.make_qp(case.requester, setup, ALL_RIGHTS, ALL_RIGHTS)?;
        let responder =
            self.make_qp(case.requester.other(), setup, setup.qp_rights, setup.mr_rights)?;
        Ok(Pair { requester, responder })
    }

    pub(crate) fn connect(&mut self, case: &Case, setup: &Setup, pair: &Pair) -> Outcome {
        let Pair { requester, responder } = *pair;
        let direct =
            Bridged { requester: self.place(&responder), responders: vec![self.place(&requester)] };
        let bridged = match setup.qp_type {
            QpType::Rc => self.bridge(case, setup, &requester, &[responder])?,
            _ => None,
        };
        self.connect_to(case, setup, (&requester, &[responder]), &bridged.unwrap_or(direct))
    }

    /// Makes a queue pair that sends and several that receive, with memory, and connects them
    /// through a group.
    pub(crate) fn group(
        &mut self,
        case: &Case,
        setup: &Setup,
        members: usize,
    ) -> Outcome<(Qp, Vec<Qp>)> {
        let sender = self.make_qp(case.requester, setup, ALL_RIGHTS, ALL_RIGHTS)?;
        let receiving = case.requester.other();
        let members: Vec<Qp> = (0..members)
            .map(|_| self.make_qp(receiving, setup, setup.qp_rights, setup.mr_rights))
            .collect::<Outcome<_>>()?;
        let bridged = self.bridge(case, setup, &sender, &members)?;
        let bridged = bridged.ok_or_else(|| Failure::new("this end makes no groups"))?;
        self.connect_to(case, setup, (&sender, &members), &bridged)?;
        Ok((sender, members))
    }

    fn place(&mut self, qp: &Qp) -> (IpAddr, u32) {
        (self.end(qp.side).addr(), qp.qpn)
    }

    /// Connects the requester and the responders to the given endpoints.
    fn connect_to(
        &mut self,
        case: &Case,
        setup: &Setup,
        (requester, responders): (&Qp, &[Qp]),
        bridged: &Bridged,
    ) -> Outcome {
        let [ours, theirs] = setup.psns;
        let responders = responders.iter().zip(&bridged.responders);
        let responders = responders.map(|(qp, to)| (qp, *to, [theirs, ours]));
        let requester = [(requester, bridged.requester, [ours, theirs])];
        for (qp, (addr, qpn), [sq_psn, rq_psn]) in requester.into_iter().chain(responders) {
            let connection = Connection {
                addr,
                qpn,
                mtu: case.mtu,
                rq_psn,
                sq_psn,
                rd_atomic: setup.rd_atomic,
                min_rnr_timer: setup.min_rnr_timer,
                timeout: setup.timeout,
                retry: setup.retry,
                rnr_retry: setup.rnr_retry,
            };
            self.end(qp.side).connect(qp.id, &connection)?;
        }
        Ok(())
    }

    /// The endpoints that queue pairs connect to if there is a group between them.
    fn bridge(
        &mut self,
        case: &Case,
        setup: &Setup,
        requester: &Qp,
        responders: &[Qp],
    ) -> Outcome<Option<Bridged>> {
        let peer = |qp: &Qp| {
            let (addr, qpn) = self.place(qp);
            BridgePeer { addr, qpn, region: qp.region }
        };
        let peers = responders.iter().map(peer).collect();
        let bridge = Bridge { peers, mtu: case.mtu, sq_psn: setup.psns[0] };
        self.end(requester.side).bridge(requester.id, &bridge)
    }

    fn make_qp(
        &mut self,
        side: Side,
        setup: &Setup,
        qp_rights: Access,
        mr_rights: Access,
    ) -> Outcome<Qp> {
        let options = QpOptions { qp_type: setup.qp_type, access: qp_rights, qkey: QKEY };
        let (id, qpn) = self.end(side).create_qp(&options)?;
        self.live_qps.push((side, id));
        let region = self.register(side, setup.region_len, mr_rights)?;
        Ok(Qp { side, id, qpn, region })
    }

    /// Registers more memory.
    pub(crate) fn register(&mut self, side: Side, len: usize, rights: Access) -> Outcome<Region> {
        let region = self.end(side).register(len, rights)?;
        self.live_regions.push((side, region.id));
        Ok(region)
    }

    /// Registers memory whose key the peer of a queue pair may revoke.
    pub(crate) fn register_revocable(&mut self, qp: &Qp, len: usize) -> Outcome<Region> {
        let region = self.end(qp.side).register_revocable(qp.id, len)?;
        self.live_regions.push((qp.side, region.id));
        Ok(region)
    }

    pub(crate) fn deregister(&mut self, side: Side, region: MrId) -> Outcome {
        self.live_regions.retain(|live| *live != (side, region));
        self.end(side).deregister(region)
    }

    pub(crate) fn destroy_qp(&mut self, qp: &Qp) -> Outcome {
        self.live_qps.retain(|live| *live != (qp.side, qp.id));
        self.end(qp.side).destroy_qp(qp.id)
    }

    /// Removes what a check has created, so that the next one starts clean.
    pub(crate) fn clear(&mut self) -> Outcome {
        for (side, qp) in std::mem::take(&mut self.live_qps) {
            self.end(side).destroy_qp(qp)?;
        }
        for (side, region) in std::mem::take(&mut self.live_regions) {
            self.end(side).deregister(region)?;
        }
        for side in [Side::Left, Side::Right] {
            self.end(side).events()?;
        }
        self.backlog.clear();
        Ok(())
    }

    /// Changes the memory beside a queue pair.
    pub(crate) fn poke(&mut self, qp: &Qp, offset: usize, bytes: &[u8]) -> Outcome {
        self.end(qp.side).poke(qp.region.id, offset, bytes)
    }

    /// Looks at the memory beside a queue pair.
    pub(crate) fn peek(&mut self, qp: &Qp, offset: usize, len: usize) -> Outcome<Vec<u8>> {
        self.end(qp.side).peek(qp.region.piece(offset, len))
    }

    /// Posts a receive into the memory beside a queue pair.
    pub(crate) fn recv(&mut self, qp: &Qp, wr_id: u64, offset: usize, len: usize) -> Outcome {
        self.end(qp.side).post_recv(qp.id, wr_id, qp.region.piece(offset, len))
    }

    /// Posts a send.
    pub(crate) fn send(&mut self, qp: &Qp, send: &Send) -> Outcome {
        self.end(qp.side).post_send(qp.id, send)
    }

    /// Waits for the next completions of a queue pair, sends and receives together.
    pub(crate) fn wait(&mut self, qp: &Qp, count: usize) -> Outcome<Vec<Completion>> {
        let deadline = self.clock.now() + STEP_LIMIT;
        let mut pause = Duration::from_micros(20);
        loop {
            let new = self.end(qp.side).poll(qp.id)?;
            let backlog = self.backlog.entry((qp.side, qp.id.0)).or_default();
            backlog.extend(new);
            if backlog.len() >= count {
                return Ok(backlog.drain(..count).collect());
            }
            if self.clock.now() > deadline {
                let have = backlog.len();
                let side = qp.side;
                return Err(Failure::new(format!(
                    "only {have} of {count} completions on QP {:#x} ({side:?}): {backlog:?}",
                    qp.qpn
                )));
            }
            self.clock.pass(pause)?;
            pause = (pause * 2).min(Duration::from_millis(1));
        }
    }

    /// Waits for one completion, which must have this identifier and status.
    pub(crate) fn expect(&mut self, qp: &Qp, wr_id: u64, status: WcStatus) -> Outcome<Completion> {
        let wc = self.wait(qp, 1)?[0];
        let what = format!("completion on the {}", role(qp));
        same(&what, (wc.wr_id, wc.status), (wr_id, status))?;
        same("QP number of the completion", wc.qpn.get(), qp.qpn)?;
        Ok(wc)
    }

    /// Waits for one completion, which must be this one and a success.
    pub(crate) fn done(&mut self, qp: &Qp, wr_id: u64) -> Outcome<Completion> {
        self.expect(qp, wr_id, WcStatus::Success)
    }

    /// Fails if a queue pair completes anything within `time`.
    pub(crate) fn quiet(&mut self, qp: &Qp, time: Duration) -> Outcome {
        self.clock.pass(time)?;
        let mut found = self.backlog.remove(&(qp.side, qp.id.0)).unwrap_or_default();
        found.extend(self.end(qp.side).poll(qp.id)?);
        if found.is_empty() {
            return Ok(());
        }
        Err(Failure::new(format!("a completion where none should be: {found:?}")))
    }

    /// Waits until a queue pair is in a state.
    pub(crate) fn reaches(&mut self, qp: &Qp, want: QpState) -> Outcome {
        let deadline = self.clock.now() + STEP_LIMIT;
        loop {
            let state = self.end(qp.side).state(qp.id)?;
            if state == want {
                return Ok(());
            }
            if self.clock.now() > deadline {
                return same(&format!("state of the {}", role(qp)), state, want);
            }
            self.clock.pass(Duration::from_millis(1))?;
        }
    }

    /// The time.
    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Lets time pass.
    pub(crate) fn pass(&mut self, time: Duration) -> Outcome {
        self.clock.pass(time)
    }

    /// Waits for an asynchronous event at a queue pair's end; returns `false` if there is none in
    /// time.
    pub(crate) fn raises(&mut self, qp: &Qp, is_it: impl Fn(&Event) -> bool) -> Outcome<bool> {
        let deadline = self.clock.now() + EVENT_LIMIT;
        loop {
            if self.end(qp.side).events()?.iter().any(&is_it) {
                return Ok(true);
            }
            if self.clock.now() > deadline {
                return Ok(false);
            }
            self.clock.pass(Duration::from_millis(1))?;
        }
    }
}

fn role(qp: &Qp) -> String {
    format!("{:?} QP {:#x}", qp.side, qp.qpn)
}
