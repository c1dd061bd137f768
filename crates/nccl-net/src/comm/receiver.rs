//! The receiving end of a connection.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline::Pd;

use super::peer::State;
use super::{Health, MAX_BYTES, MAX_GROUP, Memories, Peer};
use crate::abi::MAX_REQUESTS;
use crate::devices::OpenNic;
use crate::link::{Place, RecvEvent, RecvLink};
use crate::memory::Landing;
use crate::status::Trouble;

/// How long to wait for the last messages to the sender to be acknowledged before closing the
/// connection.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// A receive that NCCL asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    pub(crate) addr: usize,
    pub(crate) len: usize,
    pub(crate) tag: i32,
    pub(crate) memory: usize,
}

/// The lengths of the messages of a request, in the order of its receives; a send has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) count: usize,
    pub(crate) lens: [usize; MAX_GROUP],
}

impl Arrival {
    /// The arrival of a single message.
    pub(crate) fn of_one(len: usize) -> Arrival {
        let mut lens = [0; MAX_GROUP];
        lens[0] = len;
        Arrival { count: 1, lens }
    }
}

/// A request in progress.
#[derive(Clone, Copy, Debug)]
struct Request {
    arrival: Arrival,
    /// Number of receives that have not completed.
    left: usize,
}

/// An offer whose message has not arrived.
struct Open {
    request: usize,
    index: usize,
    len: usize,
    memory: usize,
    landing: Landing,
}

/// The receiving end of a connection.
pub(crate) struct Receiver {
    /// Keeps the device open.
    _nic: Arc<OpenNic>,
    // Dropped in this order: the transport before the memory that it uses.
    link: Option<Box<dyn RecvLink>>,
    open: BTreeMap<u64, Open>,
    memories: Memories,
    peer: Peer,
    health: Health,
    next_offer: u64,
    requests: Vec<Option<Request>>,
    events: Vec<RecvEvent>,
}

impl Receiver {
    pub(crate) fn new(nic: Arc<OpenNic>, pd: Pd, link: Box<dyn RecvLink>, peer: Peer) -> Receiver {
        Receiver {
            _nic: nic,
            link: Some(link),
            open: BTreeMap::new(),
            memories: Memories::new(pd),
            peer,
            health: Health::default(),
            next_offer: 0,
            requests: vec![None; MAX_REQUESTS],
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

    /// Deregisters memory. If receives into it are open, they fail, and the connection with them.
    pub(crate) fn deregister(&mut self, number: usize) -> Result<(), Trouble> {
        self.memories.get(number)?;
        let posted = |open: &Open| open.memory == number && open.landing.mr.is_some();
        if self.open.values().any(posted) {
            self.open.retain(|_, open| !posted(open));
            let why = "memory was deregistered while receives into it were posted";
            let _ = self.health.keep::<()>(Err(Trouble::usage(why)));
        }
        self.memories.forget(number)
    }

    /// Starts receives; `None` if too many requests are open.
    pub(crate) fn recv(&mut self, wishes: &[Wish]) -> Result<Option<usize>, Trouble> {
        self.health.check()?;
        if !(1..=MAX_GROUP).contains(&wishes.len()) {
            let count = wishes.len();
            return Err(Trouble::argument(format!(
                "invalid number of receives {count}: use 1 to {MAX_GROUP}"
            )));
        }
        self.go_on()?;
        if self.peer.state() != State::Here {
            let left = Err(self.peer.left());
            return self.health.keep(left);
        }
        let Some(request) = self.requests.iter().position(Option::is_none) else { return Ok(None) };
        let landings = wishes.iter().map(|wish| self.land(wish)).collect::<Result<Vec<_>, _>>()?;
        let place = |(wish, landing): (&Wish, &Landing)| Place {
            tag: wish.tag,
            len: wish.len as u64,
            mr: landing.mr.clone(),
        };
        let places: Vec<Place> = wishes.iter().zip(&landings).map(place).collect();
        let first = self.next_offer;
        let Some(link) = &mut self.link else { return Ok(None) };
        let offered = link.offer(first, &places);
        for (index, (wish, landing)) in wishes.iter().zip(landings).enumerate() {
            let Wish { len, memory, .. } = *wish;
            self.open.insert(self.next_offer, Open { request, index, len, memory, landing });
            self.next_offer += 1;
        }
        self.health.keep(offered)?;
        let arrival = Arrival { count: wishes.len(), lens: [0; MAX_GROUP] };
        self.requests[request] = Some(Request { arrival, left: wishes.len() });
        Ok(Some(request))
    }

    fn land(&self, wish: &Wish) -> Result<Landing, Trouble> {
        let Wish { addr, len, memory, .. } = *wish;
        if len > MAX_BYTES {
            let why = format!("a receive of {len} bytes is too long: at most {MAX_BYTES} bytes");
            return Err(Trouble::argument(why));
        }
        // NCCL registers no memory for messages without bytes.
        match len {
            0 => Ok(Landing { mr: None }),
            _ => self.memories.get(memory)?.land(&self.memories.pd, addr, len),
        }
    }

    /// The lengths of a completed request; `None` if it has not completed.
    pub(crate) fn test(&mut self, index: usize) -> Result<Option<Arrival>, Trouble> {
        if self.request(index)?.left > 0 {
            self.health.check()?;
            self.go_on()?;
        }
        if self.request(index)?.left > 0 && self.peer.state() != State::Here {
            // Messages that arrived before the peer left may not have been processed yet.
            self.go_on()?;
            if self.request(index)?.left > 0 {
                let left = Err(self.peer.left());
                return self.health.keep(left);
            }
        }
        let request = self.request(index)?;
        if request.left > 0 {
            return Ok(None);
        }
        self.requests[index] = None;
        Ok(Some(request.arrival))
    }

    /// Makes progress while the caller waits for something else. An error is recorded.
    pub(crate) fn drive(&mut self) {
        if self.health.check().is_ok() && !self.open.is_empty() {
            let _ = self.go_on();
        }
    }

    fn request(&self, index: usize) -> Result<Request, Trouble> {
        let request = self.requests.get(index).copied().flatten();
        request.ok_or_else(|| Trouble::argument(format!("receive {index} has already completed")))
    }

    fn go_on(&mut self) -> Result<(), Trouble> {
        let mut events = std::mem::take(&mut self.events);
        let polled = self.link.as_mut().map_or(Ok(()), |link| link.poll(&mut events));
        let taken = events.drain(..).try_for_each(|event| self.take(event));
        self.events = events;
        let done = polled.and(taken);
        self.health.keep(done)
    }

    fn take(&mut self, RecvEvent::Arrived { number, len }: RecvEvent) -> Result<(), Trouble> {
        let Some(open) = self.open.remove(&number) else {
            let why = format!("the peer sent message {number}, for which there is no receive");
            return Err(Trouble::remote(why));
        };
        if len > open.len as u64 {
            let why = format!("the peer sent {len} bytes into a receive of {}", open.len);
            return Err(Trouble::remote(why));
        }
        if let Some(request) = self.requests.get_mut(open.request).and_then(Option::as_mut) {
            request.arrival.lens[open.index] = len as usize;
            request.left -= 1;
        }
        Ok(())
    }

    /// Closes the connection. Afterwards nothing writes to memory that was registered.
    pub(crate) fn close(&mut self) {
        if self.health.check().is_ok() && self.open.is_empty() {
            let deadline = Instant::now() + LAST_WORDS;
            let is_quiet = |link: &mut Box<dyn RecvLink>| link.is_quiet().unwrap_or(true);
            while self.peer.state() == State::Here
                && !self.link.as_mut().is_none_or(is_quiet)
                && Instant::now() < deadline
            {}
            self.peer.say_bye(self.next_offer);
        }
        self.health.end(Trouble::argument("the connection is closed"));
        self.link = None;
        self.open.clear();
        self.memories.known.clear();
    }

    #[cfg(test)]
    pub(super) fn peer_mut(&mut self) -> &mut Peer {
        &mut self.peer
    }
}
