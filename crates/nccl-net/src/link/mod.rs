//! Transports of a connection: how offers reach the sender, and how data reaches the receiver.
//!
//! A receiver *offers* memory, and the sender fills each offer with one message. Offers are
//! numbered in the order in which they are made. [`rc`] and [`xp`] tell the sender where the memory
//! is, and the sender writes it; [`sdr`] posts it as an SDR receive.

mod control;
mod message;
mod rc;
mod sdr;
#[cfg(test)]
mod tests;
mod xp;

use bowline::{Channel, CommTransport, ConnectOptions, Error, Mr, Pd, Qp};

use crate::devices::OpenNic;
use crate::memory::Part;
use crate::status::Trouble;

/// An offer, as its sender knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// Its number.
    pub(crate) number: u64,
    /// The tag by which NCCL matches sends with receives.
    pub(crate) tag: i32,
    /// Length of the memory in bytes.
    pub(crate) len: u64,
    /// Address of the memory, for transports that write it.
    pub(crate) addr: u64,
    /// The key of the memory.
    pub(crate) rkey: u32,
}

/// Offered memory.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) tag: i32,
    pub(crate) len: u64,
    /// `None` if it is empty.
    pub(crate) mr: Option<Mr>,
}

/// A message for an offer.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) offer: Offer,
    /// `None` if it is empty.
    pub(crate) part: Option<Part>,
}

impl Job {
    /// Length of the message in bytes.
    pub(crate) fn len(&self) -> usize {
        self.part.as_ref().map_or(0, |part| part.range.len())
    }
}

/// Events at the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendEvent {
    /// Memory was offered.
    Offered(Offer),
    /// The whole message for an offer has arrived.
    Done(u64),
}

/// Events at the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecvEvent {
    /// The message for an offer has arrived, with this length.
    Arrived { number: u64, len: u64 },
}

/// The sending end of a transport.
pub(crate) trait SendLink: Send {
    /// Sends a message. Its memory is in use until the event that reports its arrival.
    fn send(&mut self, job: Job) -> Result<(), Trouble>;

    /// Makes progress, and reports events.
    fn poll(&mut self, events: &mut Vec<SendEvent>) -> Result<(), Trouble>;
}

/// The receiving end of a transport.
pub(crate) trait RecvLink: Send {
    /// Offers memory. The first place gets the number `first`.
    fn offer(&mut self, first: u64, places: &[Place]) -> Result<(), Trouble>;

    /// Makes progress, and reports events.
    fn poll(&mut self, events: &mut Vec<RecvEvent>) -> Result<(), Trouble>;

    /// Whether the sender has received all our control messages. The link is not polled any more
    /// after this.
    fn is_quiet(&mut self) -> Result<bool, Trouble>;
}

/// How to set up a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) transport: CommTransport,
    pub(crate) traffic_class: u8,
}

/// Retransmission timeout of RC, as an exponent as in verbs: 0.54 s. With seven retries, a peer
/// whose host gives it no CPU time has four seconds. The death of a peer is detected by other
/// means.
const TIMEOUT: u8 = 17;

impl Wanted {
    fn options(self) -> ConnectOptions {
        let traffic_class = self.traffic_class;
        ConnectOptions { traffic_class, timeout: TIMEOUT, ..ConnectOptions::default() }
    }
}

/// Creates the sending end.
pub(crate) fn sender(
    nic: &OpenNic,
    wanted: Wanted,
    channel: &mut Channel,
) -> Result<(Pd, Box<dyn SendLink>), Trouble> {
    let pd = nic.device.alloc_pd()?;
    let link: Box<dyn SendLink> = match wanted.transport {
        CommTransport::Rc => Box::new(rc::RcSender::connect(nic, &pd, wanted, channel)?),
        CommTransport::Xp => Box::new(xp::XpSender::connect(nic, &pd, wanted, channel)?),
        CommTransport::Sdr(scheme) => Box::new(sdr::SdrSender::connect(&pd, scheme, channel)?),
    };
    Ok((pd, link))
}

/// Creates the receiving end.
pub(crate) fn receiver(
    nic: &OpenNic,
    wanted: Wanted,
    channel: &mut Channel,
) -> Result<(Pd, Box<dyn RecvLink>), Trouble> {
    let pd = nic.device.alloc_pd()?;
    let link: Box<dyn RecvLink> = match wanted.transport {
        CommTransport::Rc => Box::new(rc::RcReceiver::connect(nic, &pd, wanted, channel)?),
        CommTransport::Xp => Box::new(xp::XpReceiver::connect(nic, &pd, wanted, channel)?),
        CommTransport::Sdr(scheme) => Box::new(sdr::SdrReceiver::connect(&pd, scheme, channel)?),
    };
    Ok((pd, link))
}

/// Connects a queue pair to the one that the peer connects in the same step.
fn connect_qp(qp: &Qp, wanted: Wanted, channel: &mut Channel) -> Result<(), Error> {
    let peer = channel.exchange(qp, &[])?;
    qp.connect_with(&peer.endpoint, &wanted.options())
}
