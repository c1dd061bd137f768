//! The control channel: short messages, which may be lost, over an unreliable QP of their own.
//!
//! Besides the user's payload, each carries what both ends always need: how many receives are
//! posted (clear to send), which messages are over at their sender, how many packets have landed,
//! and timestamps that give the round trip. An end with packets in flight sends stamps, which the
//! peer answers with the number of packets that had landed when they came.
//!
//! ```text
//! version (1)  kind (1)  zero (6)  token, first half (8)
//! stamp, echo, held, landed, posted, retired, probe, probe held, probe landed (8 each)
//! what the user has to say (up to 920)
//! token, last half (8)
//! ```

use std::sync::Arc;

use bowline_nic::{
    Access, Buffer, Completion, CqId, MrKey, Payload, PdId, QpInit, RecvWr, Region, Rnic,
    SendFlags, SendOp, SendWr, Sge, Time, UdDest, WcStatus,
};
use bowline_wire::Qpn;

use crate::config::Transport;
use crate::error::SdrError;
use crate::token::{self, Token};
use crate::ud;

/// Longest payload of a control message.
pub const MAX_CONTROL: usize = 920;

const TOKEN_AT: usize = 8;
const WORDS_AT: usize = TOKEN_AT + token::HALF;
const HEADER: usize = WORDS_AT + 9 * 8;
/// Longest control message: one packet over datagrams, whatever the MTU of messages is.
pub(crate) const MAX_MESSAGE: usize = HEADER + MAX_CONTROL + token::HALF;
const VERSION: u8 = 3;
/// Receives kept posted. A message that finds none is lost, as if by the network.
const RECEIVES: u32 = 256;
const SENDS: u32 = 64;

/// Fields of every control message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    /// Its kind.
    pub(crate) kind: Kind,
    /// When it was sent, by its sender's clock.
    pub(crate) stamp: u64,
    /// The last stamp that its sender received from us, or zero.
    pub(crate) echo: u64,
    /// How long ago that was.
    pub(crate) held: u64,
    /// Packets that have landed at its sender.
    pub(crate) landed: u64,
    /// Receives that its sender has posted so far.
    pub(crate) posted: u64,
    /// Its sender will send nothing more of its messages below this one.
    pub(crate) retired: u64,
    /// The last stamp of ours that asked for a report, or zero.
    pub(crate) probe: u64,
    /// How long ago that stamp arrived.
    pub(crate) probe_held: u64,
    /// Packets that had landed when it arrived.
    pub(crate) probe_landed: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Only the header.
    #[default]
    Status,
    /// The sender waits for receives to be posted, and asks for an update.
    Ask,
    /// A message for the user of the channel.
    User,
    /// The sender wants a report of what has landed.
    Stamp,
}

impl Header {
    fn emit(&self, out: &mut [u8]) {
        out[0] = VERSION;
        out[1] = match self.kind {
            Kind::Status => 0,
            Kind::Ask => 1,
            Kind::User => 2,
            Kind::Stamp => 3,
        };
        out[2..TOKEN_AT].fill(0);
        let words = [
            self.stamp,
            self.echo,
            self.held,
            self.landed,
            self.posted,
            self.retired,
            self.probe,
            self.probe_held,
            self.probe_landed,
        ];
        for (place, word) in out[WORDS_AT..HEADER].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
    }

    fn parse(head: &[u8; HEADER]) -> Option<Header> {
        if head[0] != VERSION {
            return None;
        }
        let kind = match head[1] {
            0 => Kind::Status,
            1 => Kind::Ask,
            2 => Kind::User,
            3 => Kind::Stamp,
            _ => return None,
        };
        let mut words = head[WORDS_AT..].chunks_exact(8).map(|word| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(word);
            u64::from_be_bytes(bytes)
        });
        let mut word = || words.next().unwrap_or(0);
        let [stamp, echo, held] = [word(), word(), word()];
        let [landed, posted, retired] = [word(), word(), word()];
        let [probe, probe_held, probe_landed] = [word(), word(), word()];
        Some(Header {
            kind,
            stamp,
            echo,
            held,
            landed,
            posted,
            retired,
            probe,
            probe_held,
            probe_landed,
        })
    }
}

/// Writes a message in wire format; returns its length.
fn emit(header: &Header, payload: &[u8], token: &Token, out: &mut [u8; MAX_MESSAGE]) -> usize {
    let end = HEADER + payload.len().min(MAX_CONTROL);
    let (first, last) = token.halves();
    header.emit(&mut out[..HEADER]);
    out[TOKEN_AT..WORDS_AT].copy_from_slice(first);
    out[HEADER..end].copy_from_slice(&payload[..end - HEADER]);
    out[end..end + token::HALF].copy_from_slice(last);
    end + token::HALF
}

/// Why a message is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    /// It is not a message, or has another token: it is not from the peer.
    Token,
    /// It is from the peer, but malformed.
    Malformed,
}

/// Header and payload of a message whose writer knew the token.
fn parse<'a>(bytes: &'a [u8], token: &Token) -> Result<(Header, &'a [u8]), Refused> {
    let parts = bytes.split_first_chunk::<HEADER>().and_then(|(head, rest)| {
        let (payload, last) = rest.split_last_chunk()?;
        let (first, _) = head[TOKEN_AT..].split_first_chunk()?;
        Some((head, payload, first, last))
    });
    let Some((head, payload, first, last)) = parts else { return Err(Refused::Token) };
    if !token.matches(first, last) {
        return Err(Refused::Token);
    }
    let header = Header::parse(head).ok_or(Refused::Malformed)?;
    Ok((header, payload))
}

/// A control message as it came: header and payload.
pub(crate) struct Received {
    pub(crate) header: Header,
    bytes: [u8; MAX_CONTROL],
    len: usize,
}

impl Received {
    fn new(header: Header, payload: &[u8]) -> Received {
        let mut bytes = [0; MAX_CONTROL];
        let len = payload.len().min(MAX_CONTROL);
        bytes[..len].copy_from_slice(&payload[..len]);
        Received { header, bytes, len }
    }

    pub(crate) fn payload(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The channel's QP and its receive buffers.
pub(crate) struct Control {
    pub(crate) qpn: Qpn,
    recv_cq: CqId,
    buffer: Arc<Buffer>,
    key: MrKey,
    /// Bytes of a receive before the message: space for a datagram's GRH.
    headroom: usize,
    /// The peer's datagram address.
    pub(crate) peer: Option<UdDest>,
    /// The token that the peer's messages must carry.
    pub(crate) token: Token,
    /// The token that ours must carry, once the peer is known.
    pub(crate) peer_token: Option<Token>,
    /// Messages that could not be sent because the queue was full.
    pub(crate) dropped: u64,
    /// Messages from senders other than the peer.
    pub(crate) refused: u64,
}

impl Control {
    pub(crate) fn new(
        nic: &mut dyn Rnic,
        pd: PdId,
        send_cq: CqId,
        transport: Transport,
    ) -> Result<Control, SdrError> {
        let headroom = if transport == Transport::Ud { ud::GRH } else { 0 };
        let recv_cq = nic.create_cq(RECEIVES)?;
        let buffer = Buffer::new(RECEIVES as usize * (headroom + MAX_MESSAGE));
        let key = nic.register(pd, Region::owned(buffer.clone()), 0, Access::LOCAL_WRITE)?;
        let init = QpInit {
            recv_cq,
            max_send_wr: SENDS,
            max_recv_wr: RECEIVES,
            max_inline: MAX_MESSAGE as u32,
            ..QpInit::new(transport.qp_type(), pd, send_cq)
        };
        let qpn = nic.create_qp(&init)?;
        let token = Token::draw(nic);
        Ok(Control {
            qpn,
            recv_cq,
            buffer,
            key,
            headroom,
            peer: None,
            token,
            peer_token: None,
            dropped: 0,
            refused: 0,
        })
    }

    /// Posts all receives, once the QP has left the reset state.
    pub(crate) fn listen(&self, nic: &mut dyn Rnic) -> Result<(), SdrError> {
        (0..u64::from(RECEIVES)).try_for_each(|slot| self.post_recv(nic, slot))
    }

    fn post_recv(&self, nic: &mut dyn Rnic, slot: u64) -> Result<(), SdrError> {
        let size = (self.headroom + MAX_MESSAGE) as u32;
        let sge = Sge::new(self.key, slot * u64::from(size), size);
        Ok(nic.post_recv(self.qpn, &RecvWr::new(slot, &[sge]))?)
    }

    /// Sends a message, or drops it if too many are outstanding: users that depend on a message
    /// send it again after a while.
    pub(crate) fn send(&mut self, nic: &mut dyn Rnic, now: Time, header: &Header, payload: &[u8]) {
        debug_assert!(payload.len() <= MAX_CONTROL, "a control message is one packet");
        let Some(token) = &self.peer_token else { return };
        let mut bytes = [0; MAX_MESSAGE];
        let len = emit(header, payload, token, &mut bytes);
        let wr = SendWr {
            payload: Payload::Inline(&bytes[..len]),
            flags: SendFlags::empty(),
            ud: self.peer,
            // Not a piece's ID.
            ..SendWr::new(u64::MAX, SendOp::Send, &[])
        };
        if nic.post_send(now, self.qpn, &wr).is_err() {
            self.dropped += 1;
        }
    }

    /// The next valid message.
    pub(crate) fn next(&mut self, nic: &mut dyn Rnic) -> Option<Received> {
        loop {
            let mut polled = [Completion::default()];
            if nic.poll_cq(self.recv_cq, &mut polled).ok()? == 0 {
                return None;
            }
            let [completion] = polled;
            if completion.status != WcStatus::Success {
                // A datagram that is too long uses up its receive. A flushed one must not be posted
                // again: it would be flushed again, for ever.
                if completion.status == WcStatus::LocLenErr {
                    let _ = self.post_recv(nic, completion.wr_id);
                }
                continue;
            }
            let mut bytes = [0; MAX_MESSAGE];
            let len = (completion.byte_len as usize).saturating_sub(self.headroom).min(bytes.len());
            let at = completion.wr_id as usize * (self.headroom + MAX_MESSAGE);
            self.buffer.read_at(at + self.headroom, &mut bytes[..len]);
            let known =
                self.peer.is_none_or(|peer| ud::is_from(&peer, &completion, &self.buffer, at));
            // A QP in error accepts no receives; then nothing arrives any more either.
            let _ = self.post_recv(nic, completion.wr_id);
            match parse(&bytes[..len], &self.token) {
                Ok((header, payload)) if known => return Some(Received::new(header, payload)),
                Ok(_) | Err(Refused::Token) => self.refused += 1,
                Err(Refused::Malformed) => {}
            }
        }
    }

    pub(crate) fn destroy(&self, nic: &mut dyn Rnic) {
        // Any of them may be gone already, with the device.
        let _ = nic.destroy_qp(self.qpn);
        let _ = nic.deregister(self.key);
        let _ = nic.destroy_cq(self.recv_cq);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            kind: Kind::User,
            stamp: 1,
            echo: 2,
            held: 3,
            landed: 4,
            posted: 5,
            retired: 6,
            probe: 7,
            probe_held: 8,
            probe_landed: 9,
        }
    }

    fn token() -> Token {
        Token::from_bytes(*b"sixteen secrets!")
    }

    #[test]
    fn messages_survive_the_journey() {
        for payload in [&b""[..], b"hello", &[7; MAX_CONTROL]] {
            let mut bytes = [0; MAX_MESSAGE];
            let len = emit(&header(), payload, &token(), &mut bytes);
            assert_eq!(parse(&bytes[..len], &token()), Ok((header(), payload)));
            for cut in 0..len {
                assert_eq!(parse(&bytes[..cut], &token()), Err(Refused::Token), "{cut}");
            }
        }
    }

    #[test]
    fn the_token_is_looked_at_before_anything_else() {
        let mut bytes = [0; MAX_MESSAGE];
        let len = emit(&header(), b"hello", &token(), &mut bytes);
        for at in (TOKEN_AT..WORDS_AT).chain(len - token::HALF..len) {
            bytes[at] ^= 1;
            assert_eq!(parse(&bytes[..len], &token()), Err(Refused::Token), "{at}");
            bytes[at] ^= 1;
        }
        bytes[0] = VERSION + 1;
        assert_eq!(parse(&bytes[..len], &token()), Err(Refused::Malformed));
    }
}
