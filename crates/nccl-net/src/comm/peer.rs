//! Whether the other end is alive. The setup connection stays open to show that.
//!
//! The kernel closes it when the peer's process dies, and detects by itself when the peer's host
//! does. An end that has received everything it offered memory for says so before it closes: its
//! last acknowledgement may be lost, and the sender must not take that for a failure.

use std::time::{Duration, Instant};

use bowline::Channel;

use crate::status::Trouble;

/// How often to check.
const LOOK: Duration = Duration::from_millis(20);
/// How long the rest of a partly received message may take.
const REST: Duration = Duration::from_secs(1);
/// Sent by an end that has received everything, followed by the number of offers until then.
const BYE: &[u8; 4] = b"bye\0";

/// What is known about the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Here,
    /// It has left. If it said so, with the number of messages that it had received.
    Left(Option<u64>),
}

/// The other end.
pub(crate) struct Peer {
    /// `None` in tests.
    channel: Option<Channel>,
    state: State,
    looked: Instant,
}

impl Peer {
    pub(crate) fn new(channel: Option<Channel>) -> Peer {
        Peer { channel, state: State::Here, looked: Instant::now() }
    }

    /// The address of the other end, for messages.
    pub(crate) fn name(&self) -> String {
        let addr = self.channel.as_ref().and_then(|channel| channel.peer_addr().ok());
        addr.map_or_else(|| "the peer".to_owned(), |addr| format!("the peer at {}", addr.ip()))
    }

    /// The state of the other end, checked again after a while.
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

    /// Says that everything has been received, and how many messages that was.
    pub(crate) fn say_bye(&mut self, received: u64) {
        if let (State::Here, Some(channel)) = (self.state, &mut self.channel) {
            let said = [&BYE[..], &received.to_be_bytes()].concat();
            channel.set_timeout(REST);
            // A peer that has already left need not be told.
            let _ = channel.send(&said);
        }
    }

    /// The error for a request that has not completed when the other end has left.
    pub(crate) fn left(&self) -> Trouble {
        Trouble::remote(format!("{} has closed the connection or died", self.name()))
    }

    #[cfg(test)]
    pub(super) fn leave(&mut self, received: Option<u64>) {
        self.state = State::Left(received);
    }
}
