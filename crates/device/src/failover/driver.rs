//! The supervisor's thread. It wakes the supervisor for relevant events, and never makes it wait
//! for anything else.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bowline_failover::Entry;
use bowline_failover::mirror::{Engines, Layout, Place};
use bowline_io::{ChannelClosed, LinkNews, LinkState, run_promptly};
use bowline_wire::Qpn;

use super::keys::PeerKeys;
use super::{Core, Directory, Shared};

/// How often to check whether the ports are up. The kernel reports changes of an interface, but
/// nothing reports when an injected fault begins or ends.
const LINK_PERIOD: Duration = Duration::from_millis(5);

/// The reasons to wake the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// Something changed.
    Wake,
    /// A message from another agent.
    Control,
    /// The store has found an entry.
    Found,
    /// A connection on the engine with this index got no response.
    PathFailed(usize, Qpn),
}

const FOUND: u64 = Directory::FOUND;
const CONTROL: u64 = 2;

impl Token {
    pub(super) fn encode(self) -> u64 {
        match self {
            Token::Wake => 0,
            Token::Found => FOUND,
            Token::Control => CONTROL,
            Token::PathFailed(engine, qpn) => path_tag(engine) | u64::from(qpn.get()),
        }
    }

    /// The tag to which a lane adds a QP's number when the QP's path fails.
    pub(super) fn path_tag(layout: Layout, at: Place) -> u64 {
        path_tag(layout.index(at))
    }

    fn decode(token: u64) -> Token {
        match (token >> 32, token) {
            (0, FOUND) => Token::Found,
            (0, CONTROL) => Token::Control,
            (0, _) => Token::Wake,
            (tag, _) => Token::PathFailed(tag as usize - 1, Qpn::new((token & 0xff_ffff) as u32)),
        }
    }
}

fn path_tag(engine: usize) -> u64 {
    (engine as u64 + 1) << 32
}

/// The thread's state.
struct Driver<'a> {
    shared: &'a Shared,
    /// Which ports were up at the last check.
    up: Vec<bool>,
}

/// Runs the supervisor until it is stopped or a lane ends.
pub(super) fn run(shared: &Shared) {
    run_promptly();
    let mut driver = Driver { shared, up: vec![true; shared.engines.all().len()] };
    // Without this, changes are only seen when the ports are checked.
    let news = LinkNews::open().ok();
    while !shared.stopping.load(Ordering::Acquire) {
        let next = match &news {
            Some(news) => shared.inbox.wait_beside(news, driver.timeout()),
            None => shared.inbox.wait(Some(driver.timeout())),
        };
        let Ok(first) = next else { return };
        if news.as_ref().is_some_and(LinkNews::take) {
            shared.engines.all().iter().for_each(|lane| lane.recheck_link());
        }
        if driver.handle(first).is_err() {
            return;
        }
    }
}

impl Driver<'_> {
    /// How long to sleep if nothing happens.
    fn timeout(&self) -> Duration {
        let shared = self.shared;
        match shared.core().supervisor.deadline() {
            Some(deadline) => LINK_PERIOD.min(deadline - shared.now()),
            None => LINK_PERIOD,
        }
    }

    /// Takes in all events, then lets the supervisor act once. When a port fails, all of its
    /// connections fail at once, and the supervisor handles all of them together.
    fn handle(&mut self, first: Option<u64>) -> Result<(), ChannelClosed> {
        let shared = self.shared;
        let mut next = first;
        while let Some(token) = next {
            match Token::decode(token) {
                Token::PathFailed(engine, qpn) => {
                    if let Some(at) = shared.engines.layout().places().nth(engine) {
                        let now = shared.now();
                        shared.core().supervisor.path_failed(now, &*shared.engines, at, qpn);
                    }
                }
                Token::Found => found(shared),
                // The supervisor is called below in any case.
                Token::Control | Token::Wake => {}
            }
            next = shared.inbox.try_next()?;
        }
        self.look_at_ports();
        let core = &mut shared.core();
        shared.supervise(core, |supervisor, now, engines| supervisor.handle(now, engines));
        let Core { supervisor, keys, .. } = &mut **core;
        supervisor.teach_keys(&*shared.engines, keys.changes(), |addr, rkey| {
            keys.look(&shared.directory, addr, rkey)
        });
        Ok(())
    }

    fn look_at_ports(&mut self) {
        let shared = self.shared;
        for (at, was_up) in shared.engines.layout().places().zip(&mut self.up) {
            let is_up = shared.engines.lane(at).link() == LinkState::Up;
            if std::mem::replace(was_up, is_up) != is_up {
                let core = &mut shared.core();
                shared.supervise(core, |supervisor, now, engines| {
                    supervisor.port_changed(now, engines, at, is_up);
                });
            }
        }
    }
}

fn found(shared: &Shared) {
    for (who, bytes) in shared.directory.found() {
        if PeerKeys::is_ours(who) {
            shared.core().keys.found(who, &bytes);
            continue;
        }
        match Entry::decode(&bytes) {
            Ok(entry) => shared.peer_found(who, &entry),
            Err(error) => shared.log.warn(&format!(
                "failover: invalid store entry for the peer of QP {} ({error}), so the QP has no \
                 backup; run the same version in all processes of the job",
                who.qpn
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_the_channel() {
        let qpn = Qpn::new(0xff_fffe);
        for token in [
            Token::Wake,
            Token::Control,
            Token::Found,
            Token::PathFailed(0, qpn),
            Token::PathFailed(127, qpn),
        ] {
            assert_eq!(Token::decode(token.encode()), token);
        }
    }
}
