//! Merges the events of QPs that carry messages together.

use std::collections::BTreeMap;

use super::event::{Failure, ReliableEvent};

/// Merges the events of QPs that carry messages together into one event per message.
///
/// A message is over when all its shares are: only then is its buffer the caller's again. It failed
/// if any of them did.
#[derive(Debug)]
pub struct Join {
    of: u32,
    writes: BTreeMap<u64, Joined>,
    recvs: BTreeMap<u64, Joined>,
}

/// What is known about a message so far.
#[derive(Clone, Copy, Debug)]
struct Joined {
    shares: u32,
    len: u64,
    imm: Option<u32>,
    result: Result<(), Failure>,
}

impl Join {
    /// For messages of `of` shares.
    pub fn new(of: u32) -> Join {
        Join { of, writes: BTreeMap::new(), recvs: BTreeMap::new() }
    }

    /// Takes an event of one of the QPs; returns the message's event if that was its last share.
    pub fn take(&mut self, event: ReliableEvent) -> Option<ReliableEvent> {
        match event {
            ReliableEvent::Written { id, result } => {
                let whole = add(&mut self.writes, self.of, id.0, 0, None, result)?;
                Some(ReliableEvent::Written { id, result: whole.result })
            }
            ReliableEvent::Received { id, len, imm, result } => {
                let Joined { len, imm, result, .. } =
                    add(&mut self.recvs, self.of, id.0, len, imm, result)?;
                Some(ReliableEvent::Received { id, len, imm, result })
            }
        }
    }
}

fn add(
    messages: &mut BTreeMap<u64, Joined>,
    of: u32,
    id: u64,
    len: u64,
    imm: Option<u32>,
    result: Result<(), Failure>,
) -> Option<Joined> {
    let nothing = Joined { shares: 0, len: 0, imm: None, result: Ok(()) };
    let message = messages.entry(id).or_insert(nothing);
    message.shares += 1;
    message.len = message.len.saturating_add(len);
    message.imm = message.imm.or(imm);
    message.result = message.result.and(result);
    if message.shares < of {
        return None;
    }
    messages.remove(&id)
}

#[cfg(test)]
mod tests {
    use super::super::{RecvId, WriteId};
    use super::*;

    #[test]
    fn a_message_is_over_when_its_last_share_is() {
        let mut join = Join::new(2);
        let part =
            |id, len, result| ReliableEvent::Received { id: RecvId(id), len, imm: Some(7), result };
        assert_eq!(join.take(part(0, 10, Ok(()))), None);
        assert_eq!(join.take(part(1, 0, Ok(()))), None);
        assert_eq!(join.take(part(1, 5, Ok(()))), Some(part(1, 5, Ok(()))));
        assert_eq!(join.take(part(0, 4, Ok(()))), Some(part(0, 14, Ok(()))));
        assert!(join.recvs.is_empty());
    }

    #[test]
    fn a_share_that_failed_fails_the_message() {
        let mut join = Join::new(3);
        let part = |result| ReliableEvent::Written { id: WriteId(4), result };
        assert_eq!(join.take(part(Ok(()))), None);
        assert_eq!(join.take(part(Err(Failure::TimedOut))), None);
        assert_eq!(join.take(part(Ok(()))), Some(part(Err(Failure::TimedOut))));
    }
}
