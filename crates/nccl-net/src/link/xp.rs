//! Data over XP, which retransmits nothing: missing ranges are requested, and resent over RC.
//!
//! The sender writes into offered memory, with the offer's number as the immediate, and reports
//! over RC when all packets have been sent. If the end of a message has arrived, the receiver knows
//! from XP which ranges are missing. If the end is lost, the receiver requests the whole message, a
//! while after the sender has reported that it was sent. In both cases it reports when everything
//! has arrived. Packets that arrive after that find no valid key.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use bowline::{
    Channel, Completion, EndMark, Error, LossRecord, Pd, PostError, Qp, QpType, RecvWr, SendOp,
    SendWr, XpOptions,
};

use super::control::{Control, Happened, Kind, Post, unexpected, wr_id};
use super::message::{self, MAX_RANGES, Message};
use super::rc::{widen, write};
use super::{Job, Place, RecvEvent, RecvLink, SendEvent, SendLink, Wanted, connect_qp};
use crate::comm::{MAX_BYTES, MAX_OFFERS};
use crate::devices::OpenNic;
use crate::status::Trouble;

/// Number of messages that may overlap: XP's largest window.
const WINDOW: u8 = 16;
/// Maximum number of requests of each kind in an XP queue pair. The receive of a message that was
/// lost entirely stays until `WINDOW` later ones have started.
const DEPTH: usize = MAX_OFFERS + WINDOW as usize;
/// How long fragments may arrive after the last one.
const REORDER_NS: u64 = 500_000;
/// How much later packets may arrive than the report that they were sent.
const GRACE: Duration = Duration::from_millis(20);

/// Creates and connects both queue pairs.
pub(super) fn connect(
    nic: &OpenNic,
    pd: &Pd,
    wanted: Wanted,
    channel: &mut Channel,
) -> Result<(Control, Qp), Trouble> {
    let control = Control::new(nic, pd, 2 * DEPTH)?;
    let options = XpOptions { window: WINDOW, grace_ns: REORDER_NS, loss_log: DEPTH as u32 };
    let qp = pd
        .qp(QpType::Xp, &control.cq)
        .max_send_wr(DEPTH as u32)
        .max_recv_wr(DEPTH as u32)
        .xp(options)
        .build()?;
    control.connect(wanted, channel)?;
    connect_qp(&qp, wanted, channel)?;
    Ok((control, qp))
}

/// The sending end.
pub(super) struct XpSender {
    control: Control,
    qp: Qp,
    /// Messages that the receiver does not have yet, and whether a repair is in progress.
    jobs: BTreeMap<u64, (Job, bool)>,
}

impl XpSender {
    pub(super) fn connect(
        nic: &OpenNic,
        pd: &Pd,
        wanted: Wanted,
        channel: &mut Channel,
    ) -> Result<XpSender, Trouble> {
        let (control, qp) = connect(nic, pd, wanted, channel)?;
        Ok(XpSender { control, qp, jobs: BTreeMap::new() })
    }
}

impl SendLink for XpSender {
    fn send(&mut self, job: Job) -> Result<(), Trouble> {
        let number = job.offer.number;
        let Post::Write { id, from, to, imm: Some(imm) } =
            write(&job, wr_id(Kind::Express, number), 0..job.len(), Some(number as u32))?
        else {
            return Ok(());
        };
        self.qp.post_send(&SendWr::new(id, SendOp::WriteImm(to, imm), from.as_slice()))?;
        self.jobs.insert(number, (job, false));
        Ok(())
    }

    fn poll(&mut self, events: &mut Vec<SendEvent>) -> Result<(), Trouble> {
        let jobs = &mut self.jobs;
        self.control.poll(|control, happened| match happened {
            Happened::Said(Message::Offers(offers)) => {
                events.extend(offers.into_iter().map(SendEvent::Offered));
                Ok(())
            }
            Happened::Said(Message::Got { number }) if jobs.remove(&number).is_some() => {
                events.push(SendEvent::Done(number));
                Ok(())
            }
            Happened::Said(Message::Repair { number, ranges }) => {
                send_repair(control, jobs, number, &ranges)
            }
            Happened::Ended { kind, number, .. } => {
                let job = jobs.get_mut(&number);
                if kind == Kind::Repair as u8 {
                    job.into_iter().for_each(|(_, repairing)| *repairing = false);
                } else if kind == Kind::Express as u8
                    && let Some((job, _)) = job
                {
                    // The receiver may already have it, and may have said so.
                    control.post(Post::Message(message::sent(number, job.len() as u64)))?;
                }
                Ok(())
            }
            other => Err(unexpected(&other)),
        })
    }
}

/// Sends the missing ranges of a message, followed by its number.
fn send_repair(
    control: &mut Control,
    jobs: &mut BTreeMap<u64, (Job, bool)>,
    number: u64,
    ranges: &[Range<u32>],
) -> Result<(), Trouble> {
    let wrong = |why: &str| Err(Trouble::remote(format!("the peer asks for repair {why}")));
    let Some((job, repairing)) = jobs.get_mut(&number) else {
        return wrong("of a message that it has");
    };
    if *repairing {
        return wrong("of a message that is being repaired");
    }
    if ranges.last().is_some_and(|range| range.end as usize > job.len()) {
        return wrong("beyond the end of a message");
    }
    *repairing = true;
    for range in ranges {
        let range = range.start as usize..range.end as usize;
        control.post(write(job, wr_id(Kind::Beside, 0), range, None)?)?;
    }
    // Writes stay in order: when this one arrives, all of them have.
    control.post(write(job, wr_id(Kind::Repair, number), 0..0, Some(number as u32))?)
}

/// An offer whose message has not arrived.
struct Open {
    len: u64,
    /// The length that its sender reported, and when it reported that the message was sent.
    sent: Option<(u64, Instant)>,
    /// The length of the message, if missing ranges have been requested.
    repairing: Option<u64>,
}

/// The receiving end.
pub(super) struct XpReceiver {
    control: Control,
    qp: Qp,
    next: u64,
    open: BTreeMap<u64, Open>,
    /// Number of receives posted over XP so far, and of those that had no room.
    receives: u64,
    owed: u64,
}

impl XpReceiver {
    pub(super) fn connect(
        nic: &OpenNic,
        pd: &Pd,
        wanted: Wanted,
        channel: &mut Channel,
    ) -> Result<XpReceiver, Trouble> {
        let (control, qp) = connect(nic, pd, wanted, channel)?;
        Ok(XpReceiver { control, qp, next: 0, open: BTreeMap::new(), receives: 0, owed: 0 })
    }

    /// Posts one receive for each offer, whichever message it will take. If all messages are lost,
    /// nothing ends the receives, and there is no room until a message arrives.
    fn post_receives(&mut self) -> Result<(), Trouble> {
        while self.owed > 0 {
            let receive = wr_id(Kind::ExpressRecv, self.receives);
            match self.qp.post_recv(&RecvWr::new(receive, &[])) {
                Ok(()) => (self.receives, self.owed) = (self.receives + 1, self.owed - 1),
                Err(Error::Post(PostError::Full)) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// A receive over XP has ended.
    fn express(
        &mut self,
        completion: &Completion,
        events: &mut Vec<RecvEvent>,
    ) -> Result<(), Trouble> {
        let record = match completion.end {
            EndMark::Whole => None,
            _ => self.loss_of(completion.wr_id)?,
        };
        // Without an immediate nothing of the message has arrived. Its sender will report that it
        // was sent.
        let Some(imm) = completion.imm else { return Ok(()) };
        let number = widen(imm, self.next);
        // The receive of a message that was repaired entirely may end late.
        let Some(open) = self.open.get_mut(&number).filter(|open| open.repairing.is_none()) else {
            return Ok(());
        };
        if completion.end == EndMark::Whole {
            return self.arrived(number, completion.byte_len.into(), events);
        }
        let Some(LossRecord { message_len: Some(len), missing, .. }) = record else {
            return Ok(());
        };
        if u64::from(len) > open.len {
            return Err(too_long(number, len.into(), open.len));
        }
        open.repairing = Some(len.into());
        self.ask(number, len, missing)
    }

    /// The missing ranges of the receive with this work request number.
    fn loss_of(&self, wr_id: u64) -> Result<Option<LossRecord>, Trouble> {
        while let Some(record) = self.qp.take_loss()? {
            if record.wr_id == wr_id {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }

    /// Requests ranges of a message, or all of it if there are too many ranges to list.
    fn ask(&mut self, number: u64, len: u32, ranges: Vec<Range<u32>>) -> Result<(), Trouble> {
        let whole = 0..len;
        let ranges = match ranges.len() {
            0..=MAX_RANGES => ranges,
            _ => vec![whole],
        };
        self.control.post(Post::Message(message::repair(number, &ranges)))
    }

    fn arrived(
        &mut self,
        number: u64,
        len: u64,
        events: &mut Vec<RecvEvent>,
    ) -> Result<(), Trouble> {
        self.open.remove(&number);
        events.push(RecvEvent::Arrived { number, len });
        self.control.post(Post::Message(message::got(number)))
    }

    fn take(&mut self, happened: Happened, events: &mut Vec<RecvEvent>) -> Result<(), Trouble> {
        match happened {
            Happened::Said(Message::Sent { number, len }) if number < self.next => {
                if let Some(open) = self.open.get_mut(&number) {
                    if len > open.len {
                        return Err(too_long(number, len, open.len));
                    }
                    open.sent = Some((len, Instant::now()));
                }
                Ok(())
            }
            Happened::Written { imm, .. } => {
                let number = widen(imm, self.next);
                match self.open.get(&number).and_then(|open| open.repairing) {
                    Some(len) => self.arrived(number, len, events),
                    None => Err(Trouble::remote("the peer sent a repair that was not requested")),
                }
            }
            Happened::Ended { kind, completion, .. } if kind == Kind::ExpressRecv as u8 => {
                self.express(&completion, events)
            }
            Happened::Ended { .. } => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Requests messages of which too little has arrived to know what is missing.
    fn ask_overdue(&mut self) -> Result<(), Trouble> {
        let due = |(number, open): (&u64, &Open)| match (open.sent, open.repairing) {
            (Some((len, at)), None) if at.elapsed() >= GRACE => Some((*number, len)),
            _ => None,
        };
        let overdue: Vec<(u64, u64)> = self.open.iter().filter_map(due).collect();
        for (number, len) in overdue {
            if let Some(open) = self.open.get_mut(&number) {
                open.repairing = Some(len);
            }
            let len = len.min(MAX_BYTES as u64) as u32;
            let whole = 0..len;
            self.ask(number, len, if len > 0 { vec![whole] } else { Vec::new() })?;
        }
        Ok(())
    }
}

fn too_long(number: u64, len: u64, room: u64) -> Trouble {
    Trouble::remote(format!(
        "the peer sends {len} bytes into receive {number}, which has room for {room}"
    ))
}

impl RecvLink for XpReceiver {
    fn offer(&mut self, first: u64, places: &[Place]) -> Result<(), Trouble> {
        for (number, place) in (first..).zip(places) {
            self.open.insert(number, Open { len: place.len, sent: None, repairing: None });
        }
        self.next = first + places.len() as u64;
        self.owed += places.len() as u64;
        self.post_receives()?;
        self.control.post(Post::Message(message::offers(first, places, true)))
    }

    fn poll(&mut self, events: &mut Vec<RecvEvent>) -> Result<(), Trouble> {
        let mut happened = Vec::new();
        self.control.poll(|_, what| {
            happened.push(what);
            Ok(())
        })?;
        for what in happened {
            self.take(what, events)?;
        }
        self.post_receives()?;
        self.ask_overdue()
    }

    fn is_quiet(&mut self) -> Result<bool, Trouble> {
        self.poll(&mut Vec::new())?;
        Ok(self.control.is_quiet())
    }
}
