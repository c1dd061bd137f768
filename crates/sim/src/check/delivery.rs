//! A reliable connection delivers every message exactly once and in order; the unreliable
//! services deliver only what was sent.

use bowline_nic::{Completion, WcOpcode};

use super::pattern;

/// A message that consumes a receive, as its sender knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The sender's request.
    pub wr_id: u64,
    /// What the receiver's completion must say.
    pub opcode: WcOpcode,
    /// Bytes sent or written.
    pub len: u32,
    /// Seed of its bytes.
    pub pattern: u64,
    /// Immediate data.
    pub imm: Option<u32>,
    /// Key that it revokes.
    pub invalidate: Option<u32>,
    /// Whether the sender set the solicited flag.
    pub solicited: bool,
}

impl Message {
    /// Whether a completion belongs to this message.
    ///
    /// # Errors
    /// What differs.
    pub fn matches(&self, completion: &Completion, header_len: u32) -> Result<(), String> {
        let is = (completion.opcode, completion.byte_len, completion.imm, completion.invalidated);
        let ought = (self.opcode, self.len + header_len, self.imm, self.invalidate);
        if is != ought {
            return Err(format!(
                "receive completed with (opcode, bytes, imm, invalidated) {is:x?}, \
                 sent was {ought:x?} (request {:#x})",
                self.wr_id
            ));
        }
        if completion.solicited != self.solicited {
            return Err(format!(
                "solicited is {}, sent was {}",
                completion.solicited, self.solicited
            ));
        }
        Ok(())
    }

    /// Whether these are its bytes.
    ///
    /// # Errors
    /// Where they differ first.
    pub fn matches_bytes(&self, bytes: &[u8]) -> Result<(), String> {
        let expected = pattern::message(self.pattern, self.len as usize);
        match pattern::first_difference(&expected, bytes) {
            None => Ok(()),
            Some(difference) => Err(format!("message of request {:#x}: {difference}", self.wr_id)),
        }
    }
}

/// Messages in one direction of a connection, since it was last connected.
#[derive(Debug, Default)]
pub struct Delivery {
    sent: Vec<Message>,
    /// Messages that an attacker sent in the sender's name, which the receiver cannot tell apart.
    forged: Vec<Message>,
    delivered: usize,
}

impl Delivery {
    /// A message was posted.
    pub fn sent(&mut self, message: Message) {
        self.sent.push(message);
    }

    /// An attacker sent a message in the sender's name, which an unreliable service may deliver.
    pub fn forged(&mut self, message: Message) {
        self.forged.push(message);
    }

    /// Messages delivered so far, in order.
    pub fn delivered(&self) -> usize {
        self.delivered
    }

    /// Messages posted so far.
    pub fn sent_count(&self) -> usize {
        self.sent.len()
    }

    /// The connection was re-established: no earlier message can arrive any more.
    pub fn reset(&mut self) {
        self.sent.clear();
        self.delivered = 0;
    }

    /// The next message of a reliable connection.
    ///
    /// # Errors
    /// If none is due.
    pub fn next_in_order(&mut self) -> Result<Message, String> {
        let message = self.sent.get(self.delivered).copied();
        self.delivered += 1;
        message.ok_or_else(|| {
            format!(
                "a receive completed, but all {} messages were delivered already",
                self.sent.len()
            )
        })
    }

    /// A message of an unreliable service that matches this completion and these bytes.
    ///
    /// The service may lose, duplicate and reorder messages, and accept a forgery as the peer's; it
    /// may not invent messages.
    ///
    /// # Errors
    /// If there is none.
    pub fn any_like(
        &mut self,
        completion: &Completion,
        header_len: u32,
        bytes: Option<&[u8]>,
    ) -> Result<Message, String> {
        self.delivered += 1;
        let all = self.sent.iter().chain(&self.forged).copied();
        let like = all.filter(|m| m.matches(completion, header_len).is_ok());
        let mut why = format!("no message was sent like {completion:x?}");
        for message in like {
            match bytes.map_or(Ok(()), |bytes| message.matches_bytes(bytes)) {
                Ok(()) => return Ok(message),
                Err(difference) => why = difference,
            }
        }
        Err(why)
    }

    /// Whether the first `count` messages, which their sender knows to be done, were delivered.
    pub fn all_delivered(&self) -> bool {
        self.delivered == self.sent.len()
    }

    /// The position of a request's message, if it is one.
    pub fn position_of(&self, wr_id: u64) -> Option<usize> {
        self.sent.iter().position(|m| m.wr_id == wr_id)
    }
}
