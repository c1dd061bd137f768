//! The sending end of a connection.

use std::collections::VecDeque;
use std::sync::Arc;

use bowline::Pd;

use super::peer::State;
use super::{Health, MAX_OFFERS, Memories, Peer};
use crate::devices::OpenNic;
use crate::link::{Job, Offer, SendEvent, SendLink};
use crate::status::Trouble;

/// A send in progress.
#[derive(Clone, Copy, Debug)]
struct Request {
    offer: u64,
    len: usize,
    is_done: bool,
}

/// The sending end of a connection.
pub(crate) struct Sender {
    /// Keeps the device open.
    _nic: Arc<OpenNic>,
    // Dropped in this order: the transport before the memory that it uses.
    link: Option<Box<dyn SendLink>>,
    memories: Memories,
    peer: Peer,
    health: Health,
    /// Offers that no send has matched, oldest first, and the number of the next offer.
    offers: VecDeque<Offer>,
    next_offer: u64,
    requests: Vec<Option<Request>>,
    events: Vec<SendEvent>,
}

impl Sender {
    pub(crate) fn new(nic: Arc<OpenNic>, pd: Pd, link: Box<dyn SendLink>, peer: Peer) -> Sender {
        Sender {
            _nic: nic,
            link: Some(link),
            memories: Memories::new(pd),
            peer,
            health: Health::default(),
            offers: VecDeque::new(),
            next_offer: 0,
            requests: vec![None; MAX_OFFERS],
            events: Vec::new(),
        }
    }

    /// Registers memory.
    ///
    /// # Safety
    /// The bytes stay valid until they are deregistered, or the connection is closed.
    pub(crate) unsafe fn register(&mut self, addr: usize, len: usize) -> Result<usize, Trouble> {
        // SAFETY: upheld by the caller.
        unsafe { self.memories.register(addr, len) }
    }

    pub(crate) fn deregister(&mut self, number: usize) -> Result<(), Trouble> {
        self.memories.forget(number)
    }

    /// Starts a send; `None` if the peer has offered no memory for it yet.
    pub(crate) fn send(
        &mut self,
        addr: usize,
        len: usize,
        tag: i32,
        memory: usize,
    ) -> Result<Option<usize>, Trouble> {
        self.health.check()?;
        self.go_on()?;
        let Some(at) = self.offers.iter().position(|offer| offer.tag == tag) else {
            if self.peer.state() != State::Here {
                let left = Err(self.peer.left());
                return self.health.keep(left);
            }
            return Ok(None);
        };
        let Some(index) = self.requests.iter().position(Option::is_none) else { return Ok(None) };
        let offer = self.offers[at];
        if len as u64 > offer.len {
            return Err(Trouble::argument(format!(
                "a send of {len} bytes with tag {tag} is longer than its receive, {} bytes",
                offer.len
            )));
        }
        // NCCL registers no memory for messages without bytes.
        let part = if len == 0 { None } else { self.memories.get(memory)?.part(addr, len)? };
        let Some(link) = &mut self.link else { return Ok(None) };
        let sent = link.send(Job { offer, part });
        self.health.keep(sent)?;
        self.offers.remove(at);
        self.requests[index] = Some(Request { offer: offer.number, len, is_done: false });
        Ok(Some(index))
    }

    /// The length of a completed send; `None` if it has not completed.
    pub(crate) fn test(&mut self, index: usize) -> Result<Option<usize>, Trouble> {
        let request = self.request(index)?;
        if !request.is_done {
            self.health.check()?;
            self.go_on()?;
        }
        if !self.request(index)?.is_done {
            self.check_peer()?;
        }
        let request = self.request(index)?;
        if !request.is_done {
            return Ok(None);
        }
        self.requests[index] = None;
        Ok(Some(request.len))
    }

    /// Makes progress while the caller waits for something else. An error is recorded.
    pub(crate) fn drive(&mut self) {
        let is_open = |request: &Option<Request>| request.is_some_and(|request| !request.is_done);
        if self.health.check().is_ok() && self.requests.iter().any(is_open) {
            let _ = self.go_on();
        }
    }

    fn request(&self, index: usize) -> Result<Request, Trouble> {
        let request = self.requests.get(index).copied().flatten();
        request.ok_or_else(|| Trouble::argument(format!("send {index} has already completed")))
    }

    /// A peer that has left answers no more. Messages that it reported as received count as
    /// delivered.
    fn check_peer(&mut self) -> Result<(), Trouble> {
        let State::Left(received) = self.peer.state() else { return Ok(()) };
        // Events from before the peer left may not have been processed yet.
        self.go_on()?;
        let received = received.unwrap_or(0).min(self.next_offer);
        let open = self.requests.iter_mut().flatten().filter(|request| !request.is_done);
        let mut is_lost = false;
        for request in open {
            request.is_done = request.offer < received;
            is_lost |= !request.is_done;
        }
        let left = if is_lost { Err(self.peer.left()) } else { Ok(()) };
        self.health.keep(left)
    }

    fn go_on(&mut self) -> Result<(), Trouble> {
        let mut events = std::mem::take(&mut self.events);
        let polled = self.link.as_mut().map_or(Ok(()), |link| link.poll(&mut events));
        let taken = events.drain(..).try_for_each(|event| self.take(event));
        self.events = events;
        let done = polled.and(taken);
        self.health.keep(done)
    }

    fn take(&mut self, event: SendEvent) -> Result<(), Trouble> {
        match event {
            SendEvent::Offered(offer) => {
                let open = self.requests.iter().flatten().filter(|request| !request.is_done);
                if offer.number != self.next_offer {
                    return Err(Trouble::remote("the peer offers memory out of order"));
                }
                if self.offers.len() + open.count() >= MAX_OFFERS {
                    return Err(Trouble::remote("the peer offers more memory than it may"));
                }
                self.next_offer += 1;
                self.offers.push_back(offer);
            }
            SendEvent::Done(number) => {
                let mut open = self.requests.iter_mut().flatten();
                if let Some(request) = open.find(|request| request.offer == number) {
                    request.is_done = true;
                }
            }
        }
        Ok(())
    }

    /// Closes the connection. Afterwards nothing reads memory that was registered.
    pub(crate) fn close(&mut self) {
        self.health.end(Trouble::argument("the connection is closed"));
        self.link = None;
        self.memories.known.clear();
    }

    #[cfg(test)]
    pub(super) fn peer_mut(&mut self) -> &mut Peer {
        &mut self.peer
    }
}
