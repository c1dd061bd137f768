//! Transports of a connection: how offers reach the sender, and data the receiver.
//!
//! A receiver *offers* memory, and the sender fills each offer with one message. Offers are
//! numbered as they are made. [`rc`] and [`xp`] tell the sender where the memory is, which writes
//! it; [`sdr`] posts it as a receive of SDR's.

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

/// An offer as its sender knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// Its number.
    pub(crate) number: u64,
    /// What NCCL matches sends with receives by.
    pub(crate) tag: i32,
    /// Bytes of memory.
    pub(crate) len: u64,
    /// Where the memory is, for transports that write it.
    pub(crate) addr: u64,
    /// The key to it.
    pub(crate) rkey: u32,
}

/// Memory that is offered.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) tag: i32,
    pub(crate) len: u64,
    /// None of an empty one.
    pub(crate) mr: Option<Mr>,
}

/// A message for an offer.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) offer: Offer,
    /// None of an empty one.
    pub(crate) part: Option<Part>,
}

impl Job {
    /// Bytes of the message.
    pub(crate) fn len(&self) -> usize {
        self.part.as_ref().map_or(0, |part| part.range.len())
    }
}

/// What a sender hears of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendEvent {
    /// Memory was offered.
    Offered(Offer),
    /// The message for an offer has arrived, all of it.
    Done(u64),
}

/// What a receiver hears of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecvEvent {
    /// The message for an offer is there, so many bytes of it.
    Arrived { number: u64, len: u64 },
}

/// The sending end of a transport.
pub(crate) trait SendLink: Send {
    /// Sends a message. Its memory is in use until the event that says it has arrived.
    fn send(&mut self, job: Job) -> Result<(), Trouble>;

    /// Goes on, and says what has happened.
    fn poll(&mut self, events: &mut Vec<SendEvent>) -> Result<(), Trouble>;
}

/// The receiving end of a transport.
pub(crate) trait RecvLink: Send {
    /// Offers memory. The first place gets the number `first`.
    fn offer(&mut self, first: u64, places: &[Place]) -> Result<(), Trouble>;

    /// Goes on, and says what has happened.
    fn poll(&mut self, events: &mut Vec<RecvEvent>) -> Result<(), Trouble>;

    /// Whether everything that was said to the sender has been heard. Nobody polls any more after
    /// this.
    fn is_quiet(&mut self) -> Result<bool, Trouble>;
}

/// How a connection is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) transport: CommTransport,
    pub(crate) traffic_class: u8,
}

/// Retransmission timeout of RC, as verbs count it: 0.54 s. With seven retries a peer whose host
/// gives it no processor has four seconds; that one has died is known by other means.
const TIMEOUT: u8 = 17;

impl Wanted {
    fn options(self) -> ConnectOptions {
        let traffic_class = self.traffic_class;
        ConnectOptions { traffic_class, timeout: TIMEOUT, ..ConnectOptions::default() }
    }
}

/// Makes the end that sends.
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

/// Makes the end that receives.
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

/// Connects a queue pair to the one that the peer connects at the same step.
fn connect_qp(qp: &Qp, wanted: Wanted, channel: &mut Channel) -> Result<(), Error> {
    let peer = channel.exchange(qp, &[])?;
    qp.connect_with(&peer.endpoint, &wanted.options())
}
