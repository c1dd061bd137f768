//! Whether the other end is there: the set-up connection stays open for that.
//!
//! The kernel closes it when the peer's process dies, and finds out by itself when the peer's host
//! does. An end that received everything it offered memory for says so before it closes: its last
//! acknowledgement may be lost, and the sender must not take that for a failure.

use std::time::{Duration, Instant};

use bowline::Channel;

use crate::status::Trouble;

/// How often to look.
const LOOK: Duration = Duration::from_millis(20);
/// How long the rest of a message may take of which something is there.
const REST: Duration = Duration::from_secs(1);
/// What an end says that has received everything, before how many offers that was.
const BYE: &[u8; 4] = b"bye\0";

/// What is known of the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Here,
    /// It has left, and had received so many messages if it said so.
    Left(Option<u64>),
}

/// The other end.
pub(crate) struct Peer {
    /// None in tests.
    channel: Option<Channel>,
    state: State,
    looked: Instant,
}

impl Peer {
    pub(crate) fn new(channel: Option<Channel>) -> Peer {
        Peer { channel, state: State::Here, looked: Instant::now() }
    }

    /// Where the other end is, for people to read.
    pub(crate) fn name(&self) -> String {
        let addr = self.channel.as_ref().and_then(|channel| channel.peer_addr().ok());
        addr.map_or_else(|| "the peer".to_owned(), |addr| format!("the peer at {}", addr.ip()))
    }

    /// What is known of it, looked up if that was a while ago.
    pub(crate) fn state(&mut self) -> State {
        if self.state == State::Here && self.looked.elapsed() >= LOOK {
            self.look();
            self.looked = Instant::now();
        }
        self.state
    }

    fn look(&mut self) {
        let Some(channel) = &mut self.channel else { return };
        if let Ok(false) = channel.is_readable() {
            return;
        }
        channel.set_timeout(REST);
        let received = channel.recv().ok().and_then(|said| {
            let count = said.strip_prefix(BYE)?;
            Some(u64::from_be_bytes(count.try_into().ok()?))
        });
        self.state = State::Left(received);
    }

    /// Says that everything has been received, so many messages.
    pub(crate) fn say_bye(&mut self, received: u64) {
        if let (State::Here, Some(channel)) = (self.state, &mut self.channel) {
            let said = [&BYE[..], &received.to_be_bytes()].concat();
            channel.set_timeout(REST);
            // Who has left already needs to know nothing.
            let _ = channel.send(&said);
        }
    }

    /// What a request that is not over means when the other end has left.
    pub(crate) fn left(&self) -> Trouble {
        Trouble::remote(format!("{} has closed the connection or died", self.name()))
    }

    #[cfg(test)]
    pub(super) fn leave(&mut self, received: Option<u64>) {
        self.state = State::Left(received);
    }
}
