//! Messages between the two ends of a reliable connection over the control channel.

/// A control message of the reliable layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message<'a> {
    /// To the receiver: a message has begun. Repeated, since it may be lost; to a receiver that
    /// already knows, it is a probe.
    Begin(Begin),
    /// To the receiver, from the scheme's sending end.
    ToReceiver(u64, &'a [u8]),
    /// To the sender, from the scheme's receiving end.
    ToSender(u64, &'a [u8]),
    /// To the sender: this message, and all below the second number, are complete. The third number
    /// is the total of chunks that the receiver has reconstructed from parity, in all messages: a
    /// total survives the loss of any of these.
    Finished(u64, u64, u64),
    /// To the receiver: the sender has given up on a message.
    Aborted(u64),
    /// To the sender: the receiver has given up on a message.
    Refused(u64),
}

/// What a receiver must know about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Begin {
    pub(super) id: u64,
    pub(super) len: u64,
    /// Index of the scheme among the connection's.
    pub(super) scheme: u8,
    pub(super) imm: Option<u32>,
    /// How long sending the message takes, if the sender knows its rate.
    pub(super) wire_ns: u64,
}

impl Message<'_> {
    /// Appends it.
    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        let mut put = |kind: u8, words: &[u64], rest: &[u8]| {
            out.push(kind);
            words.iter().for_each(|word| out.extend(word.to_be_bytes()));
            out.extend(rest);
        };
        match self {
            Message::Begin(b) => {
                let imm = b.imm.unwrap_or(0).to_be_bytes();
                let tail = [b.scheme, u8::from(b.imm.is_some()), imm[0], imm[1], imm[2], imm[3]];
                put(0, &[b.id, b.len, b.wire_ns], &tail);
            }
            Message::ToReceiver(id, bytes) => put(1, &[*id], bytes),
            Message::ToSender(id, bytes) => put(2, &[*id], bytes),
            Message::Finished(id, below, recovered) => put(3, &[*id, *below, *recovered], &[]),
            Message::Aborted(id) => put(4, &[*id], &[]),
            Message::Refused(id) => put(5, &[*id], &[]),
        }
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Message<'_>> {
        let (kind, mut rest) = bytes.split_first()?;
        let mut word = || {
            let (head, tail) = rest.split_first_chunk::<8>()?;
            rest = tail;
            Some(u64::from_be_bytes(*head))
        };
        Some(match kind {
            0 => {
                let (id, len, wire_ns) = (word()?, word()?, word()?);
                let [scheme, has_imm, a, b, c, d] = *rest.first_chunk::<6>()?;
                let imm = (has_imm != 0).then(|| u32::from_be_bytes([a, b, c, d]));
                Message::Begin(Begin { id, len, scheme, imm, wire_ns })
            }
            1 => Message::ToReceiver(word()?, rest),
            2 => Message::ToSender(word()?, rest),
            3 => Message::Finished(word()?, word()?, word()?),
            4 => Message::Aborted(word()?),
            5 => Message::Refused(word()?),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_journey() {
        let begin = Begin { id: 7, len: 1 << 33, scheme: 3, imm: Some(0xfeed), wire_ns: 9 };
        let all = [
            Message::Begin(begin),
            Message::Begin(Begin { imm: None, ..begin }),
            Message::ToReceiver(1, b"abc"),
            Message::ToSender(2, b""),
            Message::Finished(9, 8, 7),
            Message::Aborted(4),
            Message::Refused(5),
        ];
        let mut bytes = Vec::new();
        for message in all {
            bytes.clear();
            message.emit(&mut bytes);
            assert_eq!(Message::parse(&bytes), Some(message));
            for cut in 0..bytes.len().min(9) {
                let _ = Message::parse(&bytes[..cut]);
            }
        }
        assert_eq!(Message::parse(&[]), None);
        assert_eq!(Message::parse(&[77, 0, 0]), None);
    }
}
