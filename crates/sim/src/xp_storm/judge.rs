//! Whether completions agree with the host's memory and with the rules.

use core::ops::Range;

use bowline_nic::{Completion, EndMark, LossRecord, Time, WcOpcode, WcStatus};

use super::end::{End, Places, RECEIVES, message_of};
use super::report::XpCoverage;
use super::scenario::{Kind, XpScenario};
use crate::check::pattern;

/// How long after its deadline a request may end.
const TICK_NS: u64 = 1_000;

/// The context in which a completion is checked.
pub(super) struct Judge<'a> {
    pub(super) scenario: &'a XpScenario,
    pub(super) now: Time,
    /// Requests that the peer has posted.
    pub(super) peer_posted: usize,
    /// The peer's memory.
    pub(super) peer: &'a Places,
}

impl Judge<'_> {
    /// Checks a completion of a host, and releases its memory.
    pub(super) fn completion(
        &self,
        end: &mut End,
        completion: &Completion,
        coverage: &mut XpCoverage,
    ) -> Result<(), String> {
        let index = (completion.wr_id & (RECEIVES - 1)) as usize;
        let posted = if completion.wr_id >= RECEIVES { &mut end.receives } else { &mut end.sends };
        let posted =
            posted.get_mut(index).ok_or("a completion of a request that was not posted")?;
        if std::mem::replace(&mut posted.ended, true) {
            return Err("a second completion of one request".to_owned());
        }
        if self.now > posted.deadline.plus_nanos(TICK_NS) {
            return Err(format!("{} ns late", self.now.nanos_since(posted.deadline)));
        }
        if completion.end == EndMark::Deadline && self.now < posted.deadline {
            return Err("its deadline is still to come".to_owned());
        }
        if completion.wr_id >= RECEIVES {
            self.receive(end, completion, index, coverage)
        } else if self.scenario.messages[end.host][index].kind == Kind::Read {
            self.read(end, completion, index, coverage)
        } else {
            self.sent(end, completion, index, coverage)
        }
    }

    fn sent(
        &self,
        end: &End,
        completion: &Completion,
        index: usize,
        coverage: &mut XpCoverage,
    ) -> Result<(), String> {
        let plan = &self.scenario.messages[end.host][index];
        let whole = completion.end == EndMark::Whole;
        *(if whole { &mut coverage.sent } else { &mut coverage.unsent }) += 1;
        let bytes_fit = match completion.end {
            EndMark::Whole => completion.byte_len == plan.len,
            EndMark::Deadline => completion.byte_len < plan.len.max(1),
            EndMark::Last | EndMark::Preempted => false,
        };
        if completion.status != WcStatus::Success || !bytes_fit {
            return Err(format!("{completion:?} of a request of {} bytes", plan.len));
        }
        Ok(())
    }

    fn read(
        &self,
        end: &End,
        completion: &Completion,
        index: usize,
        coverage: &mut XpCoverage,
    ) -> Result<(), String> {
        let len = self.scenario.messages[end.host][index].len;
        if completion.status != WcStatus::Success || completion.opcode != WcOpcode::Read {
            return Err(format!("{completion:?}"));
        }
        let memory = &end.places.reads;
        let untouched = memory.untouched(index, len.into());
        // Nobody writes there.
        let source = self.peer.exposed.untouched(index, len.into());
        let record = end.loss(completion.wr_id);
        let unsent = completion.end == EndMark::Deadline && record.is_none();
        let missing = if unsent { whole_of(len) } else { holes(completion, record) };
        expect(completion, &source, &untouched, &missing, &memory.read(index, len.into()))?;
        memory.restore(index, len.into());
        match completion.byte_len {
            _ if completion.end == EndMark::Whole => coverage.reads_whole += 1,
            0 => coverage.reads_empty += 1,
            _ => coverage.reads_partial += 1,
        }
        Ok(())
    }

    fn receive(
        &self,
        end: &mut End,
        completion: &Completion,
        number: usize,
        coverage: &mut XpCoverage,
    ) -> Result<(), String> {
        let peer = 1 - end.host;
        let messages = &self.scenario.messages[peer];
        let taking = messages.iter().enumerate().filter(|(_, m)| m.kind.takes_receive());
        let (index, message) = taking.clone().nth(number).ok_or("a receive for no message")?;
        let capacity = self.scenario.receives[end.host][number].capacity;
        let is_write = matches!(message.kind, Kind::Write(_));
        if !is_write && message.len > capacity && completion.status == WcStatus::LocLenErr {
            coverage.too_long += 1;
            return Ok(());
        }
        if completion.status != WcStatus::Success {
            return Err(format!("{completion:?}"));
        }
        let record = end.loss(completion.wr_id);
        let unseen = completion.end != EndMark::Whole
            && record.is_some_and(|record| record.message_len.is_none());
        if completion.end == EndMark::Preempted {
            self.check_preempted(end.host, index)?;
        }
        let (memory, place, len) = match (unseen, is_write) {
            (true, _) => (&end.places.receives, number, capacity),
            (false, true) => (&end.places.exposed, index, message.len),
            (false, false) => (&end.places.receives, number, message.len),
        };
        let untouched = memory.untouched(place, len.into());
        let bytes = if unseen { untouched.clone() } else { message_of(self.scenario, peer, index) };
        let missing = if unseen { whole_of(len) } else { holes(completion, record) };
        expect(completion, &bytes, &untouched, &missing, &memory.read(place, len.into()))?;
        let imm = if unseen { None } else { message.kind.imm() };
        if completion.imm != imm {
            return Err(format!("immediate {:?}, not {imm:?}", completion.imm));
        }
        self.check_last(completion, message.stride, len, &missing)?;
        coverage.count_receive(completion.end, completion.byte_len, unseen);
        memory.restore(place, len.into());
        if !unseen {
            end.close_writes(self.scenario, index);
            self.check_preempting(end, index)?;
        }
        if unseen && is_write {
            // None of it was placed at its target.
            let there = end.places.exposed.read(index, message.len.into());
            let untouched = end.places.exposed.untouched(index, message.len.into());
            return pattern::first_difference(&untouched, &there).map_or(Ok(()), Err);
        }
        Ok(())
    }

    /// A message is preempted only if enough later ones can have begun.
    fn check_preempted(&self, host: usize, index: usize) -> Result<(), String> {
        let window = usize::from(self.scenario.options[host].window);
        let messages = &self.scenario.messages[1 - host][..self.peer_posted];
        let later = messages.iter().skip(index + 1).filter(|m| m.kind != Kind::Read).count();
        if later < window {
            return Err(format!("preempted, but only {later} later messages were posted"));
        }
        Ok(())
    }

    /// A packet of message `index` has arrived: receives that many later messages have passed must
    /// have ended.
    fn check_preempting(&self, end: &End, index: usize) -> Result<(), String> {
        let window = usize::from(self.scenario.options[end.host].window);
        let messages = &self.scenario.messages[1 - end.host][..index];
        let before = messages.iter().filter(|m| m.kind.takes_receive()).count();
        let over = (before + 1).saturating_sub(window).min(end.receives.len());
        match end.receives[..over].iter().position(|posted| !posted.ended) {
            Some(number) => Err(format!("receive {number} has not ended before that")),
            None => Ok(()),
        }
    }

    /// A completion that reports the last fragment must have it.
    fn check_last(
        &self,
        completion: &Completion,
        stride: u16,
        len: u32,
        missing: &[Range<u32>],
    ) -> Result<(), String> {
        let contiguous = stride <= 1;
        if completion.end == EndMark::Last
            && contiguous
            && missing.last().is_some_and(|range| range.end == len)
        {
            return Err("ended by its last fragment, which is missing".to_owned());
        }
        Ok(())
    }
}

/// Checks the WRITEs without immediate that a host received: each fragment is there or not, and
/// closed ones have not changed. Releases the memory.
pub(super) fn judge_writes(
    end: &End,
    scenario: &XpScenario,
    coverage: &mut XpCoverage,
) -> Result<(), String> {
    let peer = 1 - end.host;
    let memory = &end.places.exposed;
    for (index, plan) in scenario.messages[peer].iter().enumerate() {
        if plan.kind != Kind::Write(None) {
            continue;
        }
        let (there, untouched) =
            (memory.read(index, plan.len.into()), memory.untouched(index, plan.len.into()));
        let message = message_of(scenario, peer, index);
        for k in 0..plan.len.div_ceil(scenario.mtu.bytes()) {
            let pieces = pieces_of(k, plan.len, plan.stride.into(), scenario.mtu.bytes());
            let all = |bytes: &[u8]| pieces.iter().all(|r| there[r.clone()] == bytes[r.clone()]);
            if !all(&message) && !all(&untouched) {
                return Err(format!("fragment {k} of WRITE {index} is there in part"));
            }
        }
        if let Some(closed) = &end.closed[index] {
            coverage.closed_writes += 1;
            if *closed != there {
                return Err(format!("WRITE {index} changed when later messages had ended"));
            }
        }
        memory.restore(index, plan.len.into());
    }
    Ok(())
}

/// Where the bytes of fragment `k` are, by the definition of the stride.
fn pieces_of(k: u32, len: u32, stride: u32, mtu: u32) -> Vec<Range<usize>> {
    let stride = stride.max(1);
    let group = k / stride * stride * mtu;
    if group + stride * mtu > len {
        let range = (k * mtu) as usize..((k + 1) * mtu).min(len) as usize;
        return std::iter::once(range).collect();
    }
    let part = mtu / stride;
    let first = |block| (group + block * mtu + k % stride * part) as usize;
    (0..stride).map(|block| first(block)..first(block) + part as usize).collect()
}

fn whole_of(len: u32) -> Vec<Range<u32>> {
    (len > 0).then_some(0..len).into_iter().collect()
}

fn holes(completion: &Completion, record: Option<&LossRecord>) -> Vec<Range<u32>> {
    match completion.end {
        EndMark::Whole => Vec::new(),
        _ => record.map(|record| record.missing.clone()).unwrap_or_default(),
    }
}

/// Memory holds the message except what is missing, and the completion says how much that is.
fn expect(
    completion: &Completion,
    message: &[u8],
    untouched: &[u8],
    missing: &[Range<u32>],
    there: &[u8],
) -> Result<(), String> {
    let mut expected = message.to_vec();
    let mut lacking = 0;
    for hole in missing {
        let range = hole.start as usize..hole.end as usize;
        expected[range.clone()].copy_from_slice(&untouched[range]);
        lacking += hole.len();
    }
    if completion.byte_len as usize != message.len() - lacking {
        return Err(format!(
            "{} bytes, but {lacking} of {} are missing",
            completion.byte_len,
            message.len()
        ));
    }
    match pattern::first_difference(&expected, there) {
        Some(difference) => Err(format!("{:?}, {missing:?} missing: {difference}", completion.end)),
        None => Ok(()),
    }
}
