//! Returning to the default rail.
//!
//! In [`Mode::Exact`] a connection just moves: nothing is executed twice, so nothing needs to
//! complete first. In [`Mode::Shift`] both ends complete what they have sent before anything moves,
//! behind the paper's fence. The returning end asks and the other end decides, so that neither end
//! is left with a fence or moved in the middle of a request.

use bowline_nic::{Fence, Time};

use crate::agent::{Agent, ConnectionId};
use crate::config::Mode;
use crate::connection::{Fencing, Phase};
use crate::message::{Kind, Message};
use crate::rail::{Rail, Rails, on};
use crate::report::Cause;

/// How often an end checks whether its fence is drained.
const LOOK_NS: u64 = 1_000_000;
/// Maximum number of times that the drain time is doubled.
const MAX_DOUBLED: u32 = 16;

impl Agent {
    /// The default rail works: begins the return.
    pub(crate) fn begin_return(&mut self, now: Time, rails: &mut dyn Rails, id: ConnectionId) {
        match self.config.mode {
            Mode::Exact => self.begin_move(now, rails, id, Cause::Return, None),
            Mode::Shift => {
                self.fence(rails, id);
                let Some(connection) = self.connections.get_mut(&id) else { return };
                connection.attempt = connection.attempt.wrapping_add(1);
                let fencing = Fencing { since: now, heard: None, next_at: now };
                connection.phase = Phase::Returning(fencing);
                self.return_on(now, rails, id);
            }
        }
    }

    fn fence(&self, rails: &mut dyn Rails, id: ConnectionId) {
        let Some(connection) = self.connections.get(&id) else { return };
        let qpn = connection.qpn();
        on(rails, connection.home, |nic, _| nic.fence_sends(qpn));
    }

    fn is_drained(&self, rails: &mut dyn Rails, id: ConnectionId) -> bool {
        let Some(connection) = self.connections.get(&id) else { return false };
        let qpn = connection.qpn();
        let drained = on(rails, connection.home, |nic, _| {
            if nic.fence(qpn) == Fence::WaitSignaled && nic.outstanding(qpn) == 0 {
                // Everything has completed, although nothing asked for a completion: the fence can
                // be here.
                let _ = nic.fence_sends(qpn);
            }
            nic.fence(qpn) == Fence::Drained
        });
        drained == Some(true)
    }

    /// Removes a fence: the return is called off.
    fn unfence(&mut self, rails: &mut dyn Rails, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.phase = Phase::Settled;
        let (qpn, home) = (connection.qpn(), connection.home);
        on(rails, home, |nic, _| nic.release_sends(qpn, None));
    }

    /// Checks whether the fence is drained, and if so asks the peer to return too.
    pub(crate) fn return_on(&mut self, now: Time, rails: &mut dyn Rails, id: ConnectionId) {
        let drained = self.is_drained(rails, id);
        let (repeat, patience) = (self.config.repeat_ns, self.config.drain_silence_ns);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let (number, home) = (connection.attempt, connection.home);
        let Phase::Returning(fencing) = &mut connection.phase else { return };
        if !drained {
            fencing.next_at = now.plus_nanos(LOOK_NS);
            return;
        }
        let heard = *fencing.heard.get_or_insert(now);
        fencing.next_at = now.plus_nanos(repeat);
        if now.nanos_since(heard) < patience {
            self.say(rails, home, id, Kind::Return, number);
        } else {
            // The peer is completely silent: treat the path as dead.
            self.begin_move(now, rails, id, Cause::Path, Some(patience));
        }
    }

    /// The peer has drained and wants to return.
    pub(crate) fn heard_return(
        &mut self,
        now: Time,
        rails: &mut dyn Rails,
        rail: Rail,
        id: ConnectionId,
        message: &Message,
    ) {
        let (first, most) = (self.config.drain_ns, self.config.drain_max_ns);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let until =
            now.plus_nanos(first.max(most.min(first << connection.refusals.min(MAX_DOUBLED))));
        if message.epoch != connection.epoch || connection.home != Rail::Backup {
            return;
        }
        // An attempt that was called off stays so, however late a duplicate of it arrives: the peer
        // no longer has a fence.
        let over = |refused: u32| message.number.wrapping_sub(refused).cast_signed() <= 0;
        if connection.refused.is_some_and(over) {
            return self.say(rails, rail, id, Kind::Busy, message.number);
        }
        if connection.phase == Phase::Settled {
            connection.phase = Phase::Draining { number: message.number, until };
            self.fence(rails, id);
        }
        self.drain_on(now, rails, id);
        if let Some(Phase::Draining { number, .. }) = self.connections.get(&id).map(|c| c.phase) {
            self.say(rails, rail, id, Kind::Draining, number);
        }
    }

    /// Begins the return if everything has completed, or calls it off if that takes too long.
    pub(crate) fn drain_on(&mut self, now: Time, rails: &mut dyn Rails, id: ConnectionId) {
        let drained = self.is_drained(rails, id);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Phase::Draining { number, until } = connection.phase else { return };
        if drained {
            self.begin_move(now, rails, id, Cause::Return, None);
        } else if until <= now {
            connection.refused = Some(number);
            connection.refusals = connection.refusals.saturating_add(1);
            let home = connection.home;
            self.counters.refused += 1;
            self.unfence(rails, id);
            self.say(rails, home, id, Kind::Busy, number);
        }
    }

    /// The peer is still draining.
    pub(crate) fn heard_draining(&mut self, now: Time, id: ConnectionId, message: &Message) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let ours = connection.epoch == message.epoch && connection.attempt == message.number;
        if let (true, Phase::Returning(fencing)) = (ours, &mut connection.phase) {
            fencing.heard = Some(now);
        }
    }

    /// The peer could not drain. Releases what was withheld for it, for longer than it was
    /// withheld.
    pub(crate) fn heard_busy(
        &mut self,
        now: Time,
        rails: &mut dyn Rails,
        id: ConnectionId,
        message: &Message,
    ) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let ours = connection.epoch == message.epoch && connection.attempt == message.number;
        if let (true, Phase::Returning(fencing)) = (ours, connection.phase) {
            let withheld = now.nanos_since(fencing.since);
            connection.rests_until = Some(now.plus_nanos(2 * withheld));
            self.unfence(rails, id);
        }
    }

    /// A connection that was told to wait may try to return again.
    pub(crate) fn rested(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.rests_until = None;
        }
    }
}
