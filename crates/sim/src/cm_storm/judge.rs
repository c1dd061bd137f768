//! The rules: what an end is told must be true, and both ends must agree.

use core::net::IpAddr;

use bowline_cm::mad::{CommId, RejectReason, Rep, Req, SidrRep, SidrReq, SidrStatus};
use bowline_cm::{CmManager, Ended};
use bowline_wire::Qpn;

use super::end::{Asked, End, View, Why, stamped};
use super::world::{Act, CmWorld, addr};

/// Most messages that an end sends unprompted: three kinds, each with its retries and a reject.
const MESSAGES_PER_END: u64 = 3 * 16 + 3;

impl CmWorld<'_> {
    fn broken(&mut self, rule: &'static str, what: impl Into<String>) {
        self.sink.report(self.now, rule, what);
    }

    /// The attempt that a request belongs to, if every field matches what was requested.
    fn attempt_of(
        &self,
        host: usize,
        from: IpAddr,
        data: &[u8],
        matches: impl Fn(&Asked, CommId) -> bool,
    ) -> Option<usize> {
        let number = stamped(data)?;
        let attempt = self.attempts.get(number)?;
        let id = self.ends[attempt.active].id;
        let is_it = addr(attempt.from) == from && attempt.to == host;
        (is_it && matches(&attempt.asked, id)).then_some(number)
    }

    pub(super) fn on_request(&mut self, host: usize, id: CommId, from: IpAddr, req: &Req) {
        let attempt = self.attempt_of(host, from, &req.private_data, |asked, id| match asked {
            Asked::Connection(asked) => {
                let psn = asked.starting_psn == req.starting_psn;
                let data = asked.private_data == req.private_data;
                req.local_comm_id == id && asked.local_qpn == req.local_qpn && psn && data
            }
            Asked::Service(_) => false,
        });
        self.take_request(host, id, false, attempt);
    }

    pub(super) fn on_sidr_request(&mut self, host: usize, id: CommId, from: IpAddr, req: &SidrReq) {
        let attempt = self.attempt_of(host, from, &req.private_data, |asked, id| match asked {
            Asked::Service(asked) => req.request_id == id && asked.private_data == req.private_data,
            Asked::Connection(_) => false,
        });
        self.take_request(host, id, true, attempt);
    }

    fn take_request(&mut self, host: usize, id: CommId, sidr: bool, attempt: Option<usize>) {
        if attempt.is_none() {
            self.coverage.ghosts += 1;
            if self.scenario.forgeries_ns.is_empty() {
                return self.broken("requests", "a request that nobody made");
            }
        }
        let end = self.add_end(host, id, (false, sidr), attempt, Qpn::new(0));
        if let Some(number) = attempt {
            self.attempts[number].passives.push(end);
        }
        self.think(end, Act::Answer);
    }

    pub(super) fn on_reply(&mut self, end: usize, rep: &Rep) {
        let Some(number) = self.ends[end].attempt.filter(|_| self.ends[end].view == View::Asked)
        else {
            return self.broken("events", format!("a reply to {:?}", self.ends[end].view));
        };
        let to = self.attempts[number].to;
        let said = self.attempts[number].passives.iter().copied().find(|passive| {
            let passive = &self.ends[*passive];
            let same = |said: &Rep| {
                let data = said.private_data == rep.private_data;
                said.local_qpn == rep.local_qpn && said.starting_psn == rep.starting_psn && data
            };
            passive.host == to
                && passive.id == rep.local_comm_id
                && passive.rep.as_deref().is_some_and(same)
        });
        if said.is_none() {
            return self.broken("replies", "a reply that nobody gave");
        }
        self.ends[end].peer = said;
        self.ends[end].view = View::Replied;
        self.think(end, Act::Conclude);
    }

    /// Whether the peer of a passive end has established this very connection.
    fn is_established_by_asker(&self, end: usize) -> bool {
        self.ends[end].attempt.is_some_and(|attempt| {
            let asker = &self.ends[self.attempts[attempt].active];
            asker.was_established && asker.peer == Some(end)
        })
    }

    pub(super) fn on_established(&mut self, end: usize) {
        if self.ends[end].view != View::Accepted {
            return self.broken("events", format!("established from {:?}", self.ends[end].view));
        }
        if !self.is_established_by_asker(end) {
            return self.broken("agreement", "the peer has not established this");
        }
        self.ends[end].view = View::Established;
        self.ends[end].was_established = true;
        self.coverage.accepted += 1;
        self.enjoy(end);
    }

    pub(super) fn on_rejected(&mut self, end: usize, reason: RejectReason) {
        let view = self.ends[end].view;
        if !matches!(view, View::Asked | View::Replied | View::Accepted) {
            return self.broken("events", format!("rejected from {view:?}"));
        }
        if !self.is_true(end, reason) {
            return self.broken("reasons", format!("no reason for {reason:?}"));
        }
        self.coverage.rejected += 1;
        self.coverage.stale += u64::from(reason == RejectReason::STALE_CONNECTION);
        self.over(end, Why::Rejected(reason));
    }

    /// Whether the other end really had this reason.
    fn is_true(&self, end: usize, reason: RejectReason) -> bool {
        // The true owner of the address answers a forged request.
        let Some(number) = self.ends[end].attempt else { return true };
        let attempt = &self.attempts[number];
        if !self.ends[end].active {
            let asker = &self.ends[attempt.active];
            return match reason {
                RejectReason::CONSUMER => asker.said_no,
                RejectReason::TIMEOUT => asker.gave_up || asker.said_no,
                // Or it has the reply of the previous process at that address.
                RejectReason::INVALID_COMM_ID => asker.is_over() || asker.peer != Some(end),
                _ => false,
            };
        }
        let mut passives = attempt.passives.iter().map(|passive| &self.ends[*passive]);
        match reason {
            RejectReason::CONSUMER => passives.any(|passive| passive.said_no),
            RejectReason::TIMEOUT => passives.any(|passive| passive.gave_up),
            RejectReason::INVALID_SERVICE_ID => self.was_deaf(number),
            RejectReason::STALE_CONNECTION => attempt.reused,
            _ => false,
        }
    }

    /// Whether at some time since the attempt nobody listened.
    fn was_deaf(&self, attempt: usize) -> bool {
        let attempt = &self.attempts[attempt];
        self.hosts[attempt.to].listens.is_none_or(|since| since > attempt.at)
    }

    pub(super) fn on_unreachable(&mut self, end: usize) {
        let view = self.ends[end].view;
        let is_waiting = match self.ends[end].active {
            true => view == View::Asked,
            false => view == View::Accepted,
        };
        if !is_waiting {
            return self.broken("events", format!("unreachable from {view:?}"));
        }
        self.coverage.unreachable += 1;
        self.ends[end].gave_up = true;
        self.over(end, Why::Unreachable);
    }

    pub(super) fn on_disconnected(&mut self, end: usize, how: Ended) {
        let (view, active) = (self.ends[end].view, self.ends[end].active);
        let is_right = match how {
            Ended::ByUs => view == View::Hanging,
            // Or its transport has noticed.
            Ended::PeerSilent => {
                view == View::Hanging || (view == View::Established && self.has_no_peer(end))
            }
            Ended::ByPeer => {
                matches!(view, View::Established | View::Hanging)
                    || (view == View::Accepted && !active)
            }
            Ended::Rejected(_) => active && matches!(view, View::Established | View::Hanging),
            Ended::Replaced => matches!(view, View::Established | View::Hanging),
        };
        if !is_right {
            return self.broken("events", format!("{how:?} from {view:?}"));
        }
        if !active && !self.is_established_by_asker(end) {
            return self.broken("agreement", "the end of what the peer has not established");
        }
        self.coverage.disconnected += 1;
        self.coverage.silent += u64::from(how == Ended::PeerSilent);
        self.coverage.replaced += u64::from(how == Ended::Replaced);
        self.over(end, Why::Disconnected(how));
    }

    pub(super) fn on_sidr_reply(&mut self, end: usize, rep: &SidrRep) {
        let Some(number) = self.ends[end].attempt.filter(|_| self.ends[end].view == View::Asked)
        else {
            return self.broken("events", "an answer without a request");
        };
        let mut passives = self.attempts[number].passives.iter().map(|end| &self.ends[*end]);
        let is_true = match rep.status {
            SidrStatus::VALID => passives.any(|passive| {
                let same = |said: &SidrRep| (said.qpn, said.qkey) == (rep.qpn, rep.qkey);
                passive.sidr_rep.as_deref().is_some_and(same)
            }),
            SidrStatus::REJECT => passives.any(|passive| passive.said_no),
            SidrStatus::UNSUPPORTED => self.was_deaf(number),
            _ => false,
        };
        if !is_true {
            return self.broken("reasons", format!("no reason for {:?}", rep.status));
        }
        self.coverage.resolved += u64::from(rep.status == SidrStatus::VALID);
        self.over(end, Why::Resolved);
    }

    /// At quiescence: everything is done, and both ends agree.
    pub(super) fn judge_rest(&mut self) {
        for end in &self.ends {
            match end.view {
                View::Over(_) => {}
                View::Established => match self.counterpart(end) {
                    Some(View::Established) => {}
                    other => {
                        let what = format!("{end:?} is in use, its peer is {other:?}");
                        self.sink.report(self.now, "agreement", what);
                    }
                },
                view => {
                    let what = format!("host {} never leaves {view:?}", end.host);
                    self.sink.report(self.now, "quiesce", what);
                }
            }
        }
    }

    /// The state of the other end of a connection.
    pub(super) fn counterpart(&self, end: &End) -> Option<View> {
        let other = if end.active { end.peer? } else { self.attempts[end.attempt?].active };
        Some(self.ends[other].view)
    }

    /// Whether the queue pair at the other end of a connection is gone, or in error.
    pub(super) fn has_no_peer(&self, end: usize) -> bool {
        let peer = self.counterpart(&self.ends[end]);
        matches!(peer, Some(View::Over(_) | View::Hanging) | None)
    }

    /// What was requested on a healed network must be there.
    pub(super) fn judge_strict(&mut self) {
        let strict = self.attempts.iter().filter(|attempt| attempt.strict);
        let failed: Vec<String> = strict
            .filter(|attempt| {
                let wanted = match attempt.asked {
                    Asked::Connection(_) => View::Established,
                    Asked::Service(_) => View::Over(Why::Resolved),
                };
                let active = &self.ends[attempt.active];
                let mut passives = attempt.passives.iter().map(|end| &self.ends[*end]);
                active.view != wanted || !passives.any(|passive| passive.view == wanted)
            })
            .map(|attempt| format!("{} to {} on a healed network", attempt.from, attempt.to))
            .collect();
        for what in failed {
            self.broken("liveness", what);
        }
    }

    /// Nothing is left once all is forgotten, and nobody sent more messages than needed.
    pub(super) fn judge_end(&mut self) {
        for host in 0..self.hosts.len() {
            let Some(cm) = self.hosts[host].cm.take() else { continue };
            if !cm.is_empty() || cm.poll_timeout().is_some() {
                self.broken("leftovers", format!("{} connections at host {host}", cm.len()));
            }
            self.count(&cm);
            self.judge_talk(host, &cm);
        }
    }

    fn judge_talk(&mut self, host: usize, cm: &CmManager) {
        let life = self.hosts[host].life;
        let ends = self.ends.iter().filter(|end| end.host == host && end.life == life).count();
        let counters = cm.counters();
        let most = counters.received + MESSAGES_PER_END * ends as u64;
        if counters.sent > most {
            self.broken("wire", format!("{} messages, {most} would do", counters.sent));
        }
    }
}
