//! The agent's thread: wakes it for what concerns it, and never makes it wait for anything else.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bowline_failover::{Entry, Rail};
use bowline_io::{ChannelClosed, LinkNews, LinkState, run_promptly};
use bowline_wire::Qpn;

use crate::rails::{LanePair, Shared};

/// How often the ports are asked whether they are up. The kernel says when an interface changes, but
/// nobody when a fault that was ordered begins or ends.
const LINK_PERIOD: Duration = Duration::from_millis(5);
/// How often shared receive queues are restocked and the backup's events passed on, while connections
/// are away.
const SPLIT_PERIOD: Duration = Duration::from_millis(1);

/// What wakes the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// Something changed: look.
    Wake,
    /// A message from another agent.
    Control,
    /// The store has found something.
    Found,
    /// A connection got no answer.
    PathFailed(Rail, Qpn),
}

const FOUND: u64 = 1;
const CONTROL: u64 = 2;
const PATH: [u64; 2] = [1 << 32, 2 << 32];

impl Token {
    pub(crate) fn encode(self) -> u64 {
        match self {
            Token::Wake => 0,
            Token::Found => FOUND,
            Token::Control => CONTROL,
            Token::PathFailed(rail, qpn) => Token::path_tag(rail) | u64::from(qpn.get()),
        }
    }

    /// What a lane puts a QP's number to when its path fails.
    pub(crate) fn path_tag(rail: Rail) -> u64 {
        PATH[rail.index()]
    }

    fn decode(token: u64) -> Token {
        let qpn = || Qpn::new((token & 0xff_ffff) as u32);
        match token >> 32 << 32 {
            0 if token == FOUND => Token::Found,
            0 if token == CONTROL => Token::Control,
            0 => Token::Wake,
            tag if tag == PATH[0] => Token::PathFailed(Rail::Default, qpn()),
            _ => Token::PathFailed(Rail::Backup, qpn()),
        }
    }
}

/// What the thread remembers.
struct Driver<'a> {
    shared: &'a Shared,
    /// Which ports were up when they were last looked at.
    up: [bool; 2],
    /// Receives of a shared queue may be on the wrong lane.
    restock: bool,
}

/// Runs the agent until the rails are shut down or a lane ends.
pub(crate) fn run(shared: &Shared) {
    run_promptly();
    let mut driver = Driver { shared, up: [true; 2], restock: false };
    // Without it, changes are seen when the ports are asked.
    let news = LinkNews::open().ok();
    while !shared.stopping.load(Ordering::Acquire) {
        let next = match &news {
            Some(news) => shared.inbox.wait_beside(news, driver.timeout()),
            None => shared.inbox.wait(Some(driver.timeout())),
        };
        let Ok(first) = next else { return };
        if news.as_ref().is_some_and(LinkNews::take) {
            shared.lanes.iter().for_each(|lane| lane.recheck_link());
        }
        if driver.handle(first).is_err() {
            return;
        }
    }
}

impl Driver<'_> {
    /// How long there is nothing to do unless something happens.
    fn timeout(&self) -> Duration {
        let shared = self.shared;
        let period = if shared.away() == 0 { LINK_PERIOD } else { SPLIT_PERIOD };
        match shared.core().agent.deadline() {
            Some(deadline) => period.min(deadline - shared.now()),
            None => period,
        }
    }

    /// Takes in all that has happened, then lets the agent act once: when a port dies, all its
    /// connections fail at once, and what follows from that is done for all of them together.
    fn handle(&mut self, first: Option<u64>) -> Result<(), ChannelClosed> {
        let shared = self.shared;
        let mut next = first;
        while let Some(token) = next {
            match Token::decode(token) {
                Token::PathFailed(rail, qpn) => {
                    let rails = &mut LanePair(&shared.lanes);
                    shared.core().agent.path_failed(shared.now(), rails, rail, qpn);
                }
                Token::Found => found(shared),
                // The agent is called below in any case.
                Token::Control | Token::Wake => {}
            }
            next = shared.inbox.try_next()?;
        }
        self.look_at_ports();
        let core = &mut shared.core();
        shared.agent(core, |agent, now, rails| agent.handle(now, rails));
        let tables = shared.tables();
        let split = shared.away() != 0;
        if split || self.restock {
            let settled = tables.srqs().filter(|srq| srq.balance(shared, &core.links)).count();
            // Once more after the last connection has come home, and until all receives have.
            self.restock = split || settled < tables.srqs().count();
        }
        while let Some(event) = shared.lanes[1].events().try_next()? {
            if let Some(event) = tables.translate(event) {
                shared.lanes[0].events().push(event);
            }
        }
        Ok(())
    }

    fn look_at_ports(&mut self) {
        let shared = self.shared;
        for rail in Rail::ALL {
            let is_up = shared.lanes[rail.index()].link() == LinkState::Up;
            if std::mem::replace(&mut self.up[rail.index()], is_up) != is_up {
                let core = &mut shared.core();
                shared.agent(core, |agent, now, rails| agent.port_changed(now, rails, rail, is_up));
            }
        }
    }
}

fn found(shared: &Shared) {
    for (who, bytes) in shared.directory.found() {
        match Entry::decode(&bytes) {
            Ok(entry) => shared.peer_found(who, &entry),
            Err(error) => shared.log.warn(&format!(
                "failover: what the store has for the peer of QP {} makes no sense ({error}): it has \
                 no backup. Do all processes of the job have the same version?",
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
            Token::PathFailed(Rail::Default, qpn),
            Token::PathFailed(Rail::Backup, qpn),
        ] {
            assert_eq!(Token::decode(token.encode()), token);
        }
    }
}
