//! How the ends of a channel authenticate each other.

use std::net::SocketAddr;
use std::time::Instant;

use bowline_peers::{
    Code, Handshake, Identity, MAX_MESSAGE, Mode, PeerError, Progress, PublicKey, Refusal,
};
use bowline_seal::Role;

use super::Channel;
use super::error::SetupError;
use super::message::{Header, Kind};
use super::sealing::SealOffer;
use crate::Error;

const WAITING: &str = "waiting for the peer to say who it is";
/// After the handshake, encrypted: the peer is admitted. Anything else is a [`Refusal`].
const ADMITTED: u8 = 0;

/// The admission that an end waits for after its last message.
#[derive(Debug)]
pub(super) struct Admission {
    /// This end's key, and the peer's.
    ours: PublicKey,
    key: PublicKey,
    mode: Mode,
    seal: SealOffer,
}

/// Decides whom an accepting end admits.
pub trait AcceptPolicy {
    /// This end's key pair.
    fn identity(&self) -> Result<Identity, PeerError>;

    /// Takes the open code, so that nobody else gets it: it is good for one try.
    fn take_code(&self) -> Option<Code>;

    /// Whether the peer with this key may connect. Not asked if a code was right.
    fn admits(&self, key: &PublicKey) -> Result<bool, PeerError>;

    /// Whether a peer at this address may connect without identifying itself.
    fn admits_plain(&self, peer: SocketAddr) -> bool;
}

impl Channel {
    /// At the connecting end: proves this end's identity, and checks the peer's.
    ///
    /// With a code both ends prove that they were told the same one. `check` sees the peer's key
    /// before this end shows its own. When it returns, the channel is encrypted, the peer has
    /// admitted this end, and queue pairs that are connected over the channel are sealed.
    pub fn authenticate(
        &mut self,
        identity: &Identity,
        code: Option<&Code>,
        check: impl FnOnce(&PublicKey) -> Result<(), PeerError>,
    ) -> Result<(), Error> {
        // One deadline for everything: a peer that delays every message gains no time.
        let deadline = Instant::now() + self.timeout();
        self.introduce(identity, code, check, deadline)?;
        self.hear_admission(deadline)
    }

    /// Like [`authenticate`](Self::authenticate), but does not wait for the peer's admission: the
    /// peer is known and the channel is encrypted, so this end may go on to [`send`](Self::send), a
    /// round trip earlier. If the peer refuses, the first call that receives reports it.
    pub fn authenticate_early(
        &mut self,
        identity: &Identity,
        code: Option<&Code>,
        check: impl FnOnce(&PublicKey) -> Result<(), PeerError>,
    ) -> Result<(), Error> {
        self.introduce(identity, code, check, Instant::now() + self.timeout())
    }

    /// The handshake, up to this end's last message.
    fn introduce(
        &mut self,
        identity: &Identity,
        code: Option<&Code>,
        check: impl FnOnce(&PublicKey) -> Result<(), PeerError>,
        deadline: Instant,
    ) -> Result<(), Error> {
        let ours = identity.public();
        let (mut handshake, first) =
            Handshake::connect(identity, code).map_err(SetupError::Peer)?;
        self.send_frame(Kind::Handshake, &first)?;
        let key = loop {
            let message = self.recv_handshake(deadline, ours)?;
            match handshake.handle(&message).map_err(SetupError::Peer)? {
                Progress::Reply(reply) => self.send_frame(Kind::Handshake, &reply)?,
                Progress::Check(key) => break key,
            }
        };
        check(&key).map_err(SetupError::Peer)?;
        let (last, session) = handshake.proceed().map_err(SetupError::Peer)?;
        if let Some(last) = last {
            self.send_frame(Kind::Handshake, &last)?;
        }
        let secret = *session.secret();
        self.encrypt(session);
        let seal = self.offer_seal(&secret, Role::Initiator)?;
        let mode = code.map_or(Mode::Key, |_| Mode::Code);
        self.await_admission(Admission { ours, key, mode, seal });
        Ok(())
    }

    /// Receives the peer's admission, if it is still pending.
    pub(super) fn hear_admission(&mut self, deadline: Instant) -> Result<(), Error> {
        let Some(Admission { ours, key, mode, seal }) = self.take_admission() else {
            return Ok(());
        };
        match self.recv_handshake(deadline, ours)?[..] {
            [ADMITTED] => {
                self.log_peer(&key, mode);
                self.accept_seal(seal)
            }
            [byte] => {
                let refusal = Refusal::from_byte(byte);
                let refusal = refusal.ok_or(SetupError::Invalid("reason to refuse"))?;
                tracing::info!(target: "bowline::setup", "refused by the peer: {refusal}");
                Err(SetupError::Refused { refusal, ours: Some(ours) }.into())
            }
            _ => Err(SetupError::Invalid("end of the handshake").into()),
        }
    }

    /// At the accepting end: finds out who the peer is, and whether to admit it.
    ///
    /// Returns how it was identified, and `None` if it may stay unknown. A refused peer has been
    /// told why.
    pub fn accept_peer(&mut self, policy: &dyn AcceptPolicy) -> Result<Option<Mode>, Error> {
        let deadline = Instant::now() + self.timeout();
        let header = self.recv_header(deadline, WAITING)?;
        if header.kind != Kind::Handshake as u8 {
            let peer = self.peer_addr()?;
            if policy.admits_plain(peer) {
                tracing::debug!(target: "bowline::setup", "{peer} is not asked who it is");
                self.unread_header(header);
                return Ok(None);
            }
            return Err(self.reject(Refusal::Unauthenticated, None));
        }
        let first = self.recv_body(bounded(header)?, deadline, WAITING)?;
        let mode = Mode::of(&first).ok_or(SetupError::Invalid("first message"))?;
        let code = match mode {
            Mode::Key => None,
            Mode::Code => match policy.take_code() {
                Some(code) => Some(code),
                None => return Err(self.reject(Refusal::NoCode, None)),
            },
        };
        let identity = policy.identity().map_err(SetupError::Peer)?;
        let begun = Handshake::accept(&identity, code.as_ref(), &first);
        let (mut handshake, mut reply) = begun.map_err(SetupError::Peer)?;
        let key = loop {
            self.send_frame(Kind::Handshake, &reply)?;
            let message = self.recv_handshake(deadline, identity.public())?;
            match handshake.handle(&message) {
                Ok(Progress::Reply(next)) => reply = next,
                Ok(Progress::Check(key)) => break key,
                Err(PeerError::WrongCode) => return Err(self.reject(Refusal::WrongCode, None)),
                Err(e) => return Err(SetupError::Peer(e).into()),
            }
        };
        let (_, session) = handshake.proceed().map_err(SetupError::Peer)?;
        let secret = *session.secret();
        self.encrypt(session);
        if mode == Mode::Key && !policy.admits(&key).map_err(SetupError::Peer)? {
            let refusal = Refusal::UnknownKey;
            self.send_frame(Kind::Handshake, &[refusal as u8])?;
            self.hang_up();
            log_refusal(self, refusal);
            return Err(SetupError::Rejected { refusal, theirs: Some(key) }.into());
        }
        self.send_frame(Kind::Handshake, &[ADMITTED])?;
        self.log_peer(&key, mode);
        let seal = self.offer_seal(&secret, Role::Responder)?;
        self.accept_seal(seal)?;
        Ok(Some(mode))
    }

    fn recv_handshake(&mut self, deadline: Instant, ours: PublicKey) -> Result<Vec<u8>, Error> {
        let header = self.recv_header(deadline, WAITING)?;
        if header == (Header { kind: Kind::Refused as u8, len: 1 }) {
            return Err(match self.recv_refusal(deadline)? {
                SetupError::Refused { refusal, .. } => {
                    SetupError::Refused { refusal, ours: Some(ours) }.into()
                }
                other => other.into(),
            });
        }
        header.expect(Kind::Handshake)?;
        self.recv_body(bounded(header)?, deadline, WAITING)
    }

    /// Logs the identity of the peer.
    fn log_peer(&self, key: &PublicKey, mode: Mode) {
        let by = match mode {
            Mode::Key => "its key",
            Mode::Code => "a code",
        };
        let fingerprint = key.fingerprint();
        match self.peer_addr() {
            Ok(peer) => tracing::info!(
                target: "bowline::setup",
                "{peer} is known by {by}, fingerprint {fingerprint}; packets are sealed"
            ),
            Err(_) => tracing::info!(target: "bowline::setup", "{fingerprint} is known by {by}"),
        }
    }

    fn reject(&mut self, refusal: Refusal, theirs: Option<PublicKey>) -> Error {
        self.refuse(refusal);
        log_refusal(self, refusal);
        SetupError::Rejected { refusal, theirs }.into()
    }
}

fn log_refusal(channel: &Channel, refusal: Refusal) {
    let peer = channel.peer_addr().map_or_else(|_| "a peer".to_owned(), |addr| addr.to_string());
    tracing::info!(target: "bowline::setup", "refused {peer}: {refusal}");
}

/// The length of a handshake message, which is short.
fn bounded(header: Header) -> Result<usize, SetupError> {
    if header.len > MAX_MESSAGE {
        return Err(SetupError::Invalid("length of a handshake message"));
    }
    Ok(header.len)
}
