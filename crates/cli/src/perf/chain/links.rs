//! The two connections of a server in a chain, and the state of each.

use std::error::Error;

use bowline::{
    Channel, Completion, CompletionExt, Qp, Qpn, RecvWr, RemoteMr, SendOp, SendWr, WcOpcode,
};

use super::super::args::Test;
use super::{Broken, Memory, Side};

/// The error for messages that a program of this release never sends.
const NOT_OURS: &str = "protocol error: run the same release at all ends";

/// The connection towards the last server, over which messages leave.
pub(crate) struct Down {
    qp: Qp,
    remote: Option<RemoteMr>,
    /// Messages that were posted.
    pub(super) posted: u64,
    /// Messages whose requests have completed: the next server's NIC has received them.
    completed: u64,
    /// Messages that the next server and all servers after it have acknowledged.
    pub(super) acked: u64,
}

impl Down {
    pub(super) fn new(qp: Qp) -> Down {
        Down { qp, remote: None, posted: 0, completed: 0, acked: 0 }
    }

    pub(super) fn connect(
        &mut self,
        channel: &mut Channel,
        memory: &Memory,
    ) -> Result<(), Box<dyn Error>> {
        let peer = channel.connect(&self.qp, &[])?;
        let [remote] = peer.regions[..] else { return Err(NOT_OURS.into()) };
        if remote.len < memory.len() {
            return Err("the next server offers too little memory for a chain: \
                        run the same release on all ends"
                .into());
        }
        self.remote = Some(remote);
        for _ in 0..memory.depth {
            self.qp.post_recv(&RecvWr::new(0, &[]))?;
        }
        Ok(())
    }

    /// Messages that all following servers have received. Their requests must be complete as well,
    /// so that the queue has room for what the sender may post next.
    pub(super) fn done(&self) -> u64 {
        self.acked.min(self.completed)
    }

    /// Whether an acknowledgement is still outstanding.
    pub(super) fn is_waiting(&self) -> bool {
        self.done() < self.posted
    }

    /// Sends the next message from its slot in memory.
    pub(super) fn send(&mut self, memory: &Memory, test: Test, bytes: u32) -> Result<(), Broken> {
        let broken = |error: bowline::Error| Broken::new(Side::Next, error);
        let place = memory.place(self.posted, bytes as usize);
        let number = self.posted as u32;
        let op = match (test, &self.remote) {
            (Test::SendBw, _) => SendOp::SendImm(number),
            (_, Some(remote)) => {
                let mut at = remote.start();
                at.addr += place.start as u64;
                // The next server's program has to be notified of the message.
                SendOp::WriteImm(at, number)
            }
            (_, None) => return Err(Broken::new(Side::Next, "it is not connected")),
        };
        let sges = [memory.mr.sge(place).map_err(broken)?];
        self.qp.post_send(&SendWr::new(0, op, &sges)).map_err(broken)?;
        self.posted += 1;
        Ok(())
    }

    pub(super) fn is_of(&self, qpn: Qpn) -> bool {
        self.qp.qpn() == qpn
    }

    pub(super) fn on_completion(&mut self, done: &Completion) -> Result<(), Broken> {
        done.ok().map_err(|error| Broken::new(Side::Next, error))?;
        match done.opcode {
            WcOpcode::Recv => {}
            // The next server never writes to this one.
            WcOpcode::RecvWriteImm => return Err(Broken::new(Side::Next, NOT_OURS)),
            _ => {
                self.completed += 1;
                return Ok(());
            }
        }
        let told = done.imm.ok_or(Broken::new(Side::Next, NOT_OURS))?;
        let more = u64::from(told.wrapping_sub(self.acked as u32));
        if more > self.posted - self.acked {
            return Err(Broken::new(Side::Next, NOT_OURS));
        }
        self.acked += more;
        let posted = self.qp.post_recv(&RecvWr::new(0, &[]));
        posted.map_err(|error| Broken::new(Side::Next, error))
    }
}

/// The connection towards the sender, over which messages arrive.
pub(crate) struct Up {
    qp: Qp,
    is_send: bool,
    /// Messages that have arrived.
    pub(super) received: u64,
    /// Messages whose slots may be overwritten. Each of them has a receive posted for the slot's
    /// next message.
    freed: u64,
    /// Messages acknowledged to the previous neighbour, on behalf of this server and all after it.
    told: u64,
    /// Acknowledgements whose requests are not complete.
    outstanding: u64,
}

impl Up {
    pub(super) fn new(qp: Qp) -> Up {
        Up { qp, is_send: false, received: 0, freed: 0, told: 0, outstanding: 0 }
    }

    pub(super) fn connect(
        &mut self,
        channel: &mut Channel,
        memory: &Memory,
        is_send: bool,
    ) -> Result<(), Box<dyn Error>> {
        channel.connect(&self.qp, &[memory.mr.remote()])?;
        self.is_send = is_send;
        for message in 0..memory.depth {
            self.post_receive(memory, message)?;
        }
        Ok(())
    }

    fn post_receive(&self, memory: &Memory, message: u64) -> Result<(), bowline::Error> {
        if !self.is_send {
            return self.qp.post_recv(&RecvWr::new(0, &[]));
        }
        let slot = (memory.len() / memory.depth) as usize;
        let sges = [memory.mr.sge(memory.place(message, slot))?];
        self.qp.post_recv(&RecvWr::new(0, &sges))
    }

    pub(super) fn is_of(&self, qpn: Qpn) -> bool {
        self.qp.qpn() == qpn
    }

    /// Handles a completion. Returns whether it brought a message, which must have `bytes` bytes.
    pub(super) fn on_completion(&mut self, done: &Completion, bytes: u32) -> Result<bool, Broken> {
        done.ok().map_err(|error| Broken::new(Side::Previous, error))?;
        if !matches!(done.opcode, WcOpcode::Recv | WcOpcode::RecvWriteImm) {
            self.outstanding -= 1;
            return Ok(false);
        }
        let is_right = (done.opcode == WcOpcode::Recv) == self.is_send;
        if !is_right || done.imm != Some(self.received as u32) || done.byte_len != bytes {
            return Err(Broken::new(Side::Previous, NOT_OURS));
        }
        self.received += 1;
        Ok(true)
    }

    /// Acknowledges `messages` to the previous neighbour: this server and all after it have them.
    pub(super) fn acknowledge(&mut self, memory: &Memory, messages: u64) -> Result<(), Broken> {
        let broken = |error: bowline::Error| Broken::new(Side::Previous, error);
        while self.freed < messages {
            self.post_receive(memory, self.freed + memory.depth).map_err(broken)?;
            self.freed += 1;
        }
        // If the queue is full, a later acknowledgement covers this one.
        if self.told < messages && self.outstanding < memory.depth {
            let wr = SendWr::new(0, SendOp::SendImm(messages as u32), &[]);
            self.qp.post_send(&wr).map_err(broken)?;
            self.outstanding += 1;
            self.told = messages;
        }
        Ok(())
    }
}
