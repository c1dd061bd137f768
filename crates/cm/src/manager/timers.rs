//! Timeouts.

use bowline_link::Time;

use super::connection::State;
use super::{CmManager, Ended, Event};
use crate::mad::{CommId, Rej, RejectReason};

impl CmManager {
    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(&(at, id)) = self.timers.first() {
            if at > now {
                return;
            }
            self.timers.pop_first();
            self.change(id, |connection| connection.deadline = None);
            self.on_deadline(now, id);
        }
    }

    fn on_deadline(&mut self, now: Time, id: CommId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let repeats = matches!(
            connection.state,
            State::ReqSent | State::RepSent | State::DreqSent | State::SidrSent
        );
        if repeats && connection.retries_left > 0 {
            connection.retries_left -= 1;
            let deadline = now.plus_nanos(connection.interval_ns);
            self.counters.retransmitted += 1;
            self.set_deadline(id, Some(deadline));
            return self.send_repeat(id);
        }
        match connection.state {
            State::ReqSent | State::RepSent => {
                // Owned or not, the peer may have an end of it. It is told once, and again if it
                // repeats its message.
                self.send_refusal(now, id, RejectReason::TIMEOUT, &[0; Rej::PRIVATE_LEN]);
                self.tell(id, Event::Unreachable { id });
            }
            State::DreqSent => self.end(now, id, Ended::PeerSilent),
            State::SidrSent => {
                self.close(now, id);
                self.tell(id, Event::Unreachable { id });
            }
            State::TimeWait => {
                self.tell(id, Event::TimewaitExit { id });
                self.close(now, id);
            }
            State::Refused | State::SidrReplied => self.close(now, id),
            State::ReqReceived
            | State::RepReceived
            | State::SidrReceived
            | State::Established
            | State::Closed => {}
        }
    }
}
