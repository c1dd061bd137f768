//! Messages of any size over one queue pair, one after another.

use std::collections::VecDeque;

use bowline_nic::{MrKey, Remote, SendFlags, SendOp, SendWr, Sge};
use bowline_wire::Qpn;

use crate::world::{NicId, World};

/// Bytes of one WRITE, and of the memory that all messages of a host read and write.
pub(super) const CHUNK_BYTES: u64 = 64 << 10;
/// WRITEs of one queue pair that are outstanding.
pub(super) const DEPTH: u32 = 8;

/// A direction of a connection, or of a group.
pub(super) struct Pipe {
    host: usize,
    qpn: Qpn,
    local: MrKey,
    remote: Remote,
    outstanding: u32,
    queue: VecDeque<Message>,
}

struct Message {
    job: u32,
    to_post: u64,
    is_posted: bool,
    /// Requests that are posted and not complete.
    requests: u32,
    /// The other end is notified when it has arrived.
    is_told: bool,
}

impl Pipe {
    pub(super) fn new(host: usize, qpn: Qpn, local: MrKey, remote: Remote) -> Pipe {
        Pipe { host, qpn, local, remote, outstanding: 0, queue: VecDeque::new() }
    }

    /// Adds a message.
    pub(super) fn push(&mut self, world: &mut World, job: u32, bytes: u64, is_told: bool) {
        let message = Message { job, to_post: bytes, is_posted: false, requests: 0, is_told };
        self.queue.push_back(message);
        self.post(world);
    }

    /// A request is complete. Returns the message that this acknowledges.
    pub(super) fn complete(&mut self, world: &mut World) -> Option<u32> {
        self.outstanding -= 1;
        let first = self.queue.front_mut().expect("a request belongs to a message");
        first.requests -= 1;
        let is_over = first.is_posted && first.requests == 0;
        let message = if is_over { self.queue.pop_front() } else { None };
        self.post(world);
        message.map(|message| message.job)
    }

    /// Posts as much as may be outstanding.
    fn post(&mut self, world: &mut World) {
        let (now, nic) = (world.now(), NicId(self.host));
        for message in self.queue.iter_mut().filter(|message| !message.is_posted) {
            while !message.is_posted {
                if self.outstanding == DEPTH {
                    return;
                }
                let bytes = message.to_post.min(CHUNK_BYTES);
                message.to_post -= bytes;
                message.is_posted = message.to_post == 0;
                let op = match (message.is_posted && message.is_told, bytes) {
                    (true, 0) => SendOp::SendImm(message.job),
                    (true, _) => SendOp::WriteImm(self.remote, message.job),
                    (false, _) => SendOp::Write(self.remote),
                };
                let sges = [Sge::new(self.local, 0, bytes as u32)];
                let sges = if bytes == 0 { &[][..] } else { &sges };
                let wr = SendWr { flags: SendFlags::SIGNALED, ..SendWr::new(0, op, sges) };
                let posted = world.nic_mut(nic).post_send(now, self.qpn, &wr);
                posted.expect("the queue has room");
                message.requests += 1;
                self.outstanding += 1;
            }
        }
    }
}
