//! One host: what it posts, and what it remembers of it.

use bowline_nic::{
    Access, AddressVector, Completion, Connect, CqId, LossRecord, Nic, PdId, QpInit, QpType,
    RateControl, RecvWr, Remote, SendFlags, SendOp, SendWr, Sge, SwiftParams, Time,
};
use bowline_wire::{Psn, Qpn};

use super::scenario::{Kind, XpScenario};
use crate::check::pattern;
use crate::sdr_storm::memory::Memory;

/// Flag in the upper half of a `wr_id` that marks receives.
pub(super) const RECEIVES: u64 = 1 << 32;

/// A request or receive that has been posted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Posted {
    pub(super) deadline: Time,
    pub(super) ended: bool,
}

/// A host's memory, by purpose.
pub(super) struct Places {
    /// What it sends: one slot per request.
    pub(super) sources: Memory,
    /// Where its receives go: one slot each.
    pub(super) receives: Memory,
    /// Where the peer's WRITEs go, and what its READs see: one slot per request of the peer.
    pub(super) exposed: Memory,
    /// Where its READs go: one slot per request.
    pub(super) reads: Memory,
}

pub(super) struct End {
    pub(super) host: usize,
    pub(super) qpn: Qpn,
    cq: CqId,
    pub(super) places: Places,
    /// By request.
    pub(super) sends: Vec<Posted>,
    /// By receive.
    pub(super) receives: Vec<Posted>,
    /// What was reported missing, by `wr_id`.
    pub(super) losses: Vec<LossRecord>,
    /// By request of the peer: what a WRITE had placed when it could place no more.
    pub(super) closed: Vec<Option<Vec<u8>>>,
}

/// The bytes of a request of a host.
pub(super) fn message_of(scenario: &XpScenario, host: usize, index: usize) -> Vec<u8> {
    let seed = scenario.seed ^ (host as u64 + 1) << 40 ^ (index as u64 + 1) << 20;
    pattern::message(seed, scenario.messages[host][index].len as usize)
}

/// A list of the bytes at `place` of a memory, cut into pieces.
fn sges(memory: &Memory, place: usize, len: u32, cuts: &[u32]) -> Vec<Sge> {
    let source = memory.at(place);
    let ends = cuts.iter().copied().chain([len]);
    let mut from = 0;
    ends.map(|to| {
        let sge = Sge::new(source.key, source.addr + u64::from(from), to - from);
        from = to;
        sge
    })
    .collect()
}

impl End {
    pub(super) fn new(nic: &mut Nic, scenario: &XpScenario, host: usize) -> End {
        let pd = nic.alloc_pd().expect("within the limits");
        let cq = nic.create_cq(1_024).expect("within the limits");
        let init = QpInit { max_send_sge: 4, max_recv_sge: 4, ..QpInit::new(QpType::Xp, pd, cq) };
        let qpn = nic.create_qp(&init).expect("within the limits");
        nic.set_xp(qpn, &scenario.options[host]).expect("the options are legal");
        let places = Places::new(nic, pd, scenario, host);
        for index in 0..scenario.messages[host].len() {
            places.sources.write(index, &message_of(scenario, host, index));
        }
        let (sends, receives, losses) = (Vec::new(), Vec::new(), Vec::new());
        let closed = vec![None; scenario.messages[1 - host].len()];
        End { host, qpn, cq, places, sends, receives, losses, closed }
    }

    pub(super) fn connect(
        &self,
        nic: &mut Nic,
        now: Time,
        scenario: &XpScenario,
        (av, peer): (AddressVector, Qpn),
    ) {
        let tokens = scenario.tokens;
        let connect = Connect {
            access: Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ,
            av,
            path_mtu: scenario.mtu,
            sq_psn: Psn::new(tokens[self.host]),
            rq_psn: Psn::new(tokens[1 - self.host]),
            ..Connect::new(av.dst, peer)
        };
        let control = match (scenario.swift[self.host], scenario.rate_bps[self.host]) {
            (true, _) => RateControl::Swift(SwiftParams::default()),
            (_, Some(bits_per_sec)) => RateControl::Fixed { bits_per_sec },
            _ => RateControl::Unlimited,
        };
        let set = nic.set_rate_controller(now, self.qpn, control.factory());
        set.expect("the QP is there");
        nic.connect(now, self.qpn, &connect).expect("both ends are alike");
    }

    /// When the next request or receive is to be posted.
    pub(super) fn next_post(&self, scenario: &XpScenario) -> Option<Time> {
        let (messages, receives) = (&scenario.messages[self.host], &scenario.receives[self.host]);
        let next = [
            receives.get(self.receives.len()).map(|plan| plan.at_ns),
            messages.get(self.sends.len()).map(|plan| plan.at_ns),
        ];
        next.into_iter().flatten().min().map(Time::from_nanos)
    }

    /// Posts what is due.
    pub(super) fn post(
        &mut self,
        nic: &mut Nic,
        now: Time,
        scenario: &XpScenario,
        peer: &Places,
    ) -> Result<(), String> {
        let receives = &scenario.receives[self.host];
        while let Some(plan) = receives.get(self.receives.len())
            && plan.at_ns <= now.as_nanos()
        {
            let place = self.receives.len();
            let deadline = now.plus_nanos(plan.timeout_ns);
            self.receives.push(Posted { deadline, ended: false });
            let list = sges(&self.places.receives, place, plan.capacity, &plan.cuts);
            let wr = RecvWr { deadline, ..RecvWr::new(RECEIVES + place as u64, &list) };
            nic.post_recv(self.qpn, &wr).map_err(|e| format!("receive {place}: {e}"))?;
        }
        let messages = &scenario.messages[self.host];
        while let Some(plan) = messages.get(self.sends.len())
            && plan.at_ns <= now.as_nanos()
        {
            let index = self.sends.len();
            let deadline = now.plus_nanos(plan.timeout_ns);
            self.sends.push(Posted { deadline, ended: false });
            let theirs = peer.exposed.at(index);
            let remote = Remote { addr: theirs.addr, rkey: theirs.key.0 };
            let (op, memory) = match plan.kind {
                Kind::Send(None) => (SendOp::Send, &self.places.sources),
                Kind::Send(Some(imm)) => (SendOp::SendImm(imm), &self.places.sources),
                Kind::Write(None) => (SendOp::Write(remote), &self.places.sources),
                Kind::Write(Some(imm)) => (SendOp::WriteImm(remote, imm), &self.places.sources),
                Kind::Read => (SendOp::Read(remote), &self.places.reads),
            };
            let list = sges(memory, index, plan.len, &plan.cuts);
            let flags = if plan.signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
            let wr = SendWr {
                flags,
                deadline,
                stride: plan.stride,
                ..SendWr::new(index as u64, op, &list)
            };
            nic.post_send(now, self.qpn, &wr).map_err(|e| format!("request {index}: {e}"))?;
        }
        Ok(())
    }

    /// Polls completions, and records what was missing.
    pub(super) fn poll(&mut self, nic: &mut Nic) -> Vec<Completion> {
        let mut all = Vec::new();
        let mut batch = [Completion::default(); 16];
        while let Ok(taken @ 1..) = nic.poll_cq(self.cq, &mut batch) {
            all.extend_from_slice(&batch[..taken]);
        }
        self.losses.extend(std::iter::from_fn(|| nic.take_loss(self.qpn)));
        all
    }

    /// A packet of the peer's request `index` has arrived: WRITEs that are further behind than the
    /// window are over.
    pub(super) fn close_writes(&mut self, scenario: &XpScenario, index: usize) {
        let messages = &scenario.messages[1 - self.host];
        let mut later = 0;
        for (i, plan) in messages[..=index].iter().enumerate().rev() {
            let over = later >= u32::from(scenario.options[self.host].window);
            if over && plan.kind == Kind::Write(None) && self.closed[i].is_none() {
                self.closed[i] = Some(self.places.exposed.read(i, plan.len.into()));
            }
            later += u32::from(plan.kind != Kind::Read);
        }
    }

    /// The record of what was missing of a request.
    pub(super) fn loss(&self, wr_id: u64) -> Option<&LossRecord> {
        self.losses.iter().find(|record| record.wr_id == wr_id)
    }
}

impl Places {
    fn new(nic: &mut Nic, pd: PdId, scenario: &XpScenario, host: usize) -> Places {
        let lens = |host: usize| -> Vec<u64> {
            scenario.messages[host].iter().map(|m| m.len.into()).collect()
        };
        let seed = |what: u64| scenario.seed << 3 ^ what << 50 ^ host as u64;
        let (own, peer) = (lens(host), lens(1 - host));
        let receives: Vec<u64> =
            scenario.receives[host].iter().map(|plan| plan.capacity.into()).collect();
        Places {
            sources: Memory::new(nic, pd, &own, seed(1)),
            receives: Memory::new(nic, pd, &receives, seed(2)),
            exposed: Memory::new(nic, pd, &peer, seed(3)),
            reads: Memory::new(nic, pd, &own, seed(4)),
        }
    }
}
