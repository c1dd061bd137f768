//! Meeting at rank 0, over TCP.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bowline_collective::Rank;
use bowline_seal::Suite;

use super::{GroupSeal, Guard, Offers, PeerEnd, Place, message, missing};
use crate::setup::preferred_suite;
use crate::{Channel, Connector, Error, Listener, SetupError};

/// Pause between attempts until rank 0 listens.
const RETRY: Duration = Duration::from_millis(20);
/// How long a stranger may keep rank 0 from accepting ranks.
const GREETING: Duration = Duration::from_secs(2);
/// Ends of connections in one message.
const ENDS: usize = 1000;

pub(super) struct TcpPlace {
    addr: SocketAddr,
    rank: Rank,
    ranks: u32,
    /// At rank 0, one for each other rank, in order; elsewhere the one to rank 0.
    channels: Vec<Channel>,
    guard: Option<Box<dyn Guard>>,
    seal: Option<GroupSeal>,
}

impl TcpPlace {
    pub(super) fn new(addr: SocketAddr, (rank, ranks): (Rank, u32)) -> TcpPlace {
        TcpPlace { addr, rank, ranks, channels: Vec::new(), guard: None, seal: None }
    }

    /// Collects the offers of all, and sends each rank those for it.
    fn host(&mut self, offers: &Offers, timeout: Duration) -> Result<Vec<PeerEnd>, Error> {
        let deadline = Instant::now() + timeout;
        let listener = Listener::bind(self.addr)?.with_timeout(GREETING);
        let mut suite = preferred_suite()?;
        let mut guests: Vec<Option<(Channel, Vec<u8>)>> = (0..self.ranks).map(|_| None).collect();
        while guests.iter().skip(1).any(Option::is_none) {
            let left = deadline.saturating_duration_since(Instant::now());
            let absent = guests.iter().enumerate().skip(1).filter(|(_, guest)| guest.is_none());
            let absent = absent.map(|(rank, _)| rank as Rank);
            let mut channel = match listener.accept_timeout(left) {
                Ok(channel) => channel,
                Err(Error::Setup(SetupError::TimedOut { .. })) => {
                    return Err(missing(absent, timeout, ""));
                }
                Err(error) => return Err(error),
            };
            // Strangers are not waited for.
            match self.admit(&mut channel) {
                Ok(Some(theirs)) => suite = Suite::agree(suite, theirs),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(target: "bowline::setup", "somebody is no rank of ours: {error}");
                    continue;
                }
            }
            let Ok(bytes) = channel.recv() else { continue };
            let Ok(end) = message::end_for(&bytes, 0, self.ranks) else { continue };
            channel.set_timeout(timeout);
            match guests.get_mut(end.rank as usize) {
                Some(guest @ None) if end.rank > 0 => *guest = Some((channel, bytes)),
                _ => {
                    let why = format!("two programs say that they are rank {}", end.rank);
                    return Err(Error::Invalid { what: "rendezvous", why });
                }
            }
        }
        let mut all = vec![offers.to_bytes()];
        for (channel, bytes) in guests.into_iter().flatten() {
            self.channels.push(channel);
            all.push(bytes);
        }
        if self.guard.is_some() {
            let seal = GroupSeal::new(suite)?;
            for channel in &mut self.channels {
                channel.send(&seal.to_bytes())?;
            }
            self.seal = Some(seal);
        }
        for index in 0..self.channels.len() {
            let ends = ends_for(&all, index as Rank + 1, self.ranks)?;
            for ends in ends.chunks(ENDS) {
                let bytes: Vec<u8> = ends.iter().flat_map(|end| end.to_bytes()).collect();
                self.channels[index].send(&bytes)?;
            }
        }
        ends_for(&all, 0, self.ranks)
    }

    /// Admits a guest, if it is a rank; returns its cipher if the group is sealed.
    fn admit(&self, channel: &mut Channel) -> Result<Option<Suite>, Error> {
        let Some(guard) = &self.guard else { return Ok(None) };
        guard.admit(channel)?;
        let code = channel.recv()?;
        let suite = code.first().and_then(|code| Suite::from_code(*code));
        Ok(Some(suite.ok_or(SetupError::Invalid("cipher"))?))
    }

    /// Sends the offers to rank 0, and receives the others'.
    fn visit(&mut self, offers: &Offers, timeout: Duration) -> Result<Vec<PeerEnd>, Error> {
        let deadline = Instant::now() + timeout;
        let mut channel = loop {
            let left = deadline.saturating_duration_since(Instant::now()).max(RETRY);
            match Connector::new().with_timeout(left).connect(self.addr) {
                Ok(channel) => break channel,
                Err(error) if Instant::now() >= deadline => return Err(error),
                Err(_) => std::thread::sleep(RETRY),
            }
        };
        if let Some(guard) = &self.guard {
            guard.visit(&mut channel)?;
            channel.send(&[preferred_suite()?.code()])?;
        }
        channel.send(&offers.to_bytes())?;
        // Rank 0 waits for the others first.
        channel.set_timeout(timeout);
        if self.guard.is_some() {
            let seal = GroupSeal::from_bytes(&channel.recv()?);
            self.seal = Some(seal.ok_or(SetupError::Invalid("secret of the group"))?);
        }
        let mut ends = Vec::new();
        while ends.len() < self.ranks as usize - 1 {
            let bytes = channel.recv()?;
            let decoded = bytes.chunks(message::END_LEN).map(PeerEnd::from_bytes);
            let decoded = decoded.collect::<Option<Vec<_>>>().filter(|ends| !ends.is_empty());
            let invalid = SetupError::Invalid("list of ranks: run the same release everywhere");
            ends.extend(decoded.ok_or(invalid)?);
        }
        self.channels.push(channel);
        Ok(ends)
    }
}

impl Place for TcpPlace {
    fn guard(&mut self, guard: Box<dyn Guard>) -> Result<(), Error> {
        self.guard = Some(guard);
        Ok(())
    }

    fn seal(&self) -> Option<GroupSeal> {
        self.seal.clone()
    }

    fn exchange(&mut self, offers: &Offers, timeout: Duration) -> Result<Vec<PeerEnd>, Error> {
        match (self.rank, self.ranks) {
            (_, 1) => Ok(Vec::new()),
            (0, _) => self.host(offers, timeout),
            _ => self.visit(offers, timeout),
        }
    }

    fn sync(&mut self, timeout: Duration) -> Result<(), Error> {
        for channel in &mut self.channels {
            channel.set_timeout(timeout);
        }
        // At rank 0, all must have arrived before any is released.
        if self.rank == 0 {
            for channel in &mut self.channels {
                channel.recv()?;
            }
        }
        for channel in &mut self.channels {
            channel.send(&[])?;
        }
        if self.rank != 0 {
            for channel in &mut self.channels {
                channel.recv()?;
            }
        }
        Ok(())
    }
}

/// What all others offer to a rank.
fn ends_for(all: &[Vec<u8>], rank: Rank, ranks: u32) -> Result<Vec<PeerEnd>, Error> {
    let others = all.iter().enumerate().filter(|(index, _)| *index != rank as usize);
    others
        .map(|(index, bytes)| {
            message::end_for(bytes, rank, ranks).map_err(|why| Error::Invalid {
                what: "rendezvous",
                why: format!("the offer of rank {index} cannot be used: {why}"),
            })
        })
        .collect()
}
