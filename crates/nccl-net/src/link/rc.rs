//! Data over RC: the sender writes into offered memory, with the offer's number as the immediate.

use bowline::{Channel, Pd, Remote};

use super::control::{Control, Happened, Kind, Post, unexpected, wr_id};
use super::message::{self, Message};
use super::{Job, Place, RecvEvent, RecvLink, SendEvent, SendLink, Wanted};
use crate::devices::OpenNic;
use crate::status::Trouble;

/// The sending end.
pub(super) struct RcSender {
    control: Control,
}

impl RcSender {
    pub(super) fn connect(
        nic: &OpenNic,
        pd: &Pd,
        wanted: Wanted,
        channel: &mut Channel,
    ) -> Result<RcSender, Trouble> {
        let control = Control::new(nic, pd, 0)?;
        control.connect(wanted, channel)?;
        Ok(RcSender { control })
    }
}

/// The work request that writes a message, or part of it, into its offer.
pub(super) fn write(
    job: &Job,
    id: u64,
    range: std::ops::Range<usize>,
    imm: Option<u32>,
) -> Result<Post, Trouble> {
    let to = Remote { addr: job.offer.addr.wrapping_add(range.start as u64), rkey: job.offer.rkey };
    let from = match &job.part {
        Some(part) if !range.is_empty() => {
            let at = part.range.start;
            Some(part.mr.sge(at + range.start..at + range.end)?)
        }
        _ => None,
    };
    Ok(Post::Write { id, from, to, imm })
}

impl SendLink for RcSender {
    fn send(&mut self, job: Job) -> Result<(), Trouble> {
        let number = job.offer.number;
        let post = write(&job, wr_id(Kind::Data, number), 0..job.len(), Some(number as u32))?;
        self.control.post(post)
    }

    fn poll(&mut self, events: &mut Vec<SendEvent>) -> Result<(), Trouble> {
        self.control.poll(|_, happened| match happened {
            Happened::Said(Message::Offers(offers)) => {
                events.extend(offers.into_iter().map(SendEvent::Offered));
                Ok(())
            }
            Happened::Ended { kind, number, .. } => {
                if kind == Kind::Data as u8 {
                    events.push(SendEvent::Done(number));
                }
                Ok(())
            }
            other => Err(unexpected(&other)),
        })
    }
}

/// The receiving end.
pub(super) struct RcReceiver {
    control: Control,
    /// The number of the next offer. Immediates hold the lower half of a number.
    next: u64,
}

impl RcReceiver {
    pub(super) fn connect(
        nic: &OpenNic,
        pd: &Pd,
        wanted: Wanted,
        channel: &mut Channel,
    ) -> Result<RcReceiver, Trouble> {
        let control = Control::new(nic, pd, 0)?;
        control.connect(wanted, channel)?;
        Ok(RcReceiver { control, next: 0 })
    }
}

/// The offer that an immediate refers to: the latest one before `next` with these lower bits.
pub(super) fn widen(imm: u32, next: u64) -> u64 {
    let back = (next as u32).wrapping_sub(imm).wrapping_sub(1);
    next.wrapping_sub(1).wrapping_sub(u64::from(back))
}

impl RecvLink for RcReceiver {
    fn offer(&mut self, first: u64, places: &[Place]) -> Result<(), Trouble> {
        self.next = first + places.len() as u64;
        self.control.post(Post::Message(message::offers(first, places, true)))
    }

    fn poll(&mut self, events: &mut Vec<RecvEvent>) -> Result<(), Trouble> {
        let next = self.next;
        self.control.poll(|_, happened| match happened {
            Happened::Written { imm, len } => {
                events.push(RecvEvent::Arrived { number: widen(imm, next), len: len.into() });
                Ok(())
            }
            Happened::Ended { .. } => Ok(()),
            other => Err(unexpected(&other)),
        })
    }

    fn is_quiet(&mut self) -> Result<bool, Trouble> {
        self.poll(&mut Vec::new())?;
        Ok(self.control.is_quiet())
    }
}

#[cfg(test)]
mod tests {
    use super::widen;

    #[test]
    fn immediates_are_of_the_latest_offers() {
        assert_eq!(widen(0, 1), 0);
        assert_eq!(widen(6, 9), 6);
        let wrapped = (1 << 32) + 3;
        assert_eq!(widen(2, wrapped), (1 << 32) + 2);
        assert_eq!(widen(u32::MAX, wrapped), u64::from(u32::MAX));
    }
}
