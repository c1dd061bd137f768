//! The messages with which two ends authenticate each other.
//!
//! ```text
//! by key       →  1, Noise XX: e
//!              ←  e, ee, s, es
//!              →  s, se
//! by code      →  2, SPAKE2 element
//!              ←  SPAKE2 element
//!              →  Noise XXpsk0: psk, e
//!              ←  e, ee, s, es
//!              →  s, se
//! ```
//! The pre-shared key of XXpsk0 is the key that SPAKE2 derived from the code. The prologue of both
//! patterns contains the version, the mode and the SPAKE2 elements, so that changing any of them
//! breaks the handshake.

use snow::{Builder, HandshakeState};
use spake2::{Ed25519Group, Identity as SpakeIdentity, Password, Spake2};
use zeroize::Zeroizing;

use crate::{Code, Identity, PeerError, PublicKey, Session};

/// The pattern and its primitives.
pub(crate) const XX: &str = "Noise_XX_25519_ChaChaPoly_BLAKE2s";
const XX_PSK: &str = "Noise_XXpsk0_25519_ChaChaPoly_BLAKE2s";
const PROLOGUE: &[u8] = b"bowline setup 1";
/// Longest message of a handshake: the second of XX has 96 bytes.
pub const MAX_MESSAGE: usize = 128;
/// Bytes of a SPAKE2 element with its role.
const ELEMENT_BYTES: usize = 33;

/// How the ends authenticate each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// By their keys.
    Key = 1,
    /// By a code that both users have exchanged.
    Code = 2,
}

impl Mode {
    /// The mode that a first message requests.
    pub fn of(first: &[u8]) -> Option<Mode> {
        match first.first() {
            Some(1) => Some(Mode::Key),
            Some(2) => Some(Mode::Code),
            _ => None,
        }
    }
}

/// The next step.
#[derive(Debug)]
pub enum Progress {
    /// Send this, then wait for the peer's message.
    Reply(Vec<u8>),
    /// The peer has presented its key: check it, then continue with [`Handshake::proceed`], or
    /// stop.
    Check(PublicKey),
}

/// One end of a handshake.
pub struct Handshake {
    identity: Identity,
    mode: Mode,
    state: State,
}

enum State {
    /// Waits for the peer's SPAKE2 element. Boxed parts are large.
    Spake { spake: Box<Spake2<Ed25519Group>>, ours: Vec<u8>, initiator: bool },
    /// Exchanging Noise messages.
    Noise(Box<HandshakeState>),
    /// The peer's key waits to be checked.
    Checking(Box<HandshakeState>),
    /// Finished, successfully or not.
    Over,
}

impl Handshake {
    /// Starts as the connecting end; returns the first message.
    pub fn connect(
        identity: &Identity,
        code: Option<&Code>,
    ) -> Result<(Handshake, Vec<u8>), PeerError> {
        let identity = identity.clone();
        let Some(code) = code else {
            let mut noise = Box::new(build(&identity, Mode::Key, &[], None, true)?);
            let mut first = vec![Mode::Key as u8];
            first.extend(write(&mut noise)?);
            let state = State::Noise(noise);
            return Ok((Handshake { identity, mode: Mode::Key, state }, first));
        };
        let (spake, ours) = start_spake(code, true);
        let mut first = vec![Mode::Code as u8];
        first.extend_from_slice(&ours);
        let state = State::Spake { spake: Box::new(spake), ours, initiator: true };
        Ok((Handshake { identity, mode: Mode::Code, state }, first))
    }

    /// Starts as the accepting end, with the peer's first message. This uses up the code, whatever
    /// the outcome: do not use it again.
    pub fn accept(
        identity: &Identity,
        code: Option<&Code>,
        first: &[u8],
    ) -> Result<(Handshake, Vec<u8>), PeerError> {
        const INVALID: PeerError = PeerError::Invalid { what: "first message" };
        let identity = identity.clone();
        let (mode, message) = (Mode::of(first), first.get(1..).unwrap_or_default());
        match (mode, code) {
            (Some(Mode::Key), None) => {
                let mut noise = Box::new(build(&identity, Mode::Key, &[], None, false)?);
                read(&mut noise, message).ok_or(INVALID)?;
                let reply = write(&mut noise)?;
                Ok((Handshake { identity, mode: Mode::Key, state: State::Noise(noise) }, reply))
            }
            (Some(Mode::Code), Some(code)) => {
                let (spake, ours) = start_spake(code, false);
                let noise = after_spake(&identity, spake, &ours, message, false)?;
                let state = State::Noise(Box::new(noise));
                Ok((Handshake { identity, mode: Mode::Code, state }, ours))
            }
            _ => Err(INVALID),
        }
    }

    /// Handles the peer's next message. After an error the handshake is over.
    pub fn handle(&mut self, message: &[u8]) -> Result<Progress, PeerError> {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Spake { spake, ours, initiator } => {
                let noise = after_spake(&self.identity, *spake, &ours, message, initiator)?;
                let mut noise = Box::new(noise);
                let reply = write(&mut noise)?;
                self.state = State::Noise(noise);
                Ok(Progress::Reply(reply))
            }
            State::Noise(mut noise) => {
                let before = noise.get_remote_static().is_some();
                read(&mut noise, message).ok_or(match self.mode {
                    Mode::Key => PeerError::Invalid { what: "proof" },
                    Mode::Code => PeerError::WrongCode,
                })?;
                let peer = noise.get_remote_static().and_then(PublicKey::from_slice);
                match peer {
                    Some(peer) if !before => {
                        self.state = State::Checking(noise);
                        Ok(Progress::Check(peer))
                    }
                    _ => {
                        let reply = write(&mut noise)?;
                        self.state = State::Noise(noise);
                        Ok(Progress::Reply(reply))
                    }
                }
            }
            State::Checking(_) | State::Over => Err(PeerError::Invalid { what: "message" }),
        }
    }

    /// The peer's key is accepted: returns the last message to send, if there is one, and the
    /// session.
    pub fn proceed(&mut self) -> Result<(Option<Vec<u8>>, Session), PeerError> {
        let State::Checking(mut noise) = std::mem::replace(&mut self.state, State::Over) else {
            return Err(PeerError::Invalid { what: "message" });
        };
        let last = if noise.is_my_turn() && !noise.is_handshake_finished() {
            Some(write(&mut noise)?)
        } else {
            None
        };
        Ok((last, Session::new(*noise)?))
    }
}

impl std::fmt::Debug for Handshake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Handshake(of {:?})", self.identity)
    }
}

fn start_spake(code: &Code, initiator: bool) -> (Spake2<Ed25519Group>, Vec<u8>) {
    let password = Password::new(code.password());
    let (a, b) = (SpakeIdentity::new(b"bowline connect"), SpakeIdentity::new(b"bowline accept"));
    if initiator { Spake2::start_a(&password, &a, &b) } else { Spake2::start_b(&password, &a, &b) }
}

/// Noise under the key that both elements yield.
fn after_spake(
    identity: &Identity,
    spake: Spake2<Ed25519Group>,
    ours: &[u8],
    theirs: &[u8],
    initiator: bool,
) -> Result<HandshakeState, PeerError> {
    const INVALID: PeerError = PeerError::Invalid { what: "SPAKE2 element" };
    if theirs.len() != ELEMENT_BYTES {
        return Err(INVALID);
    }
    let agreed = Zeroizing::new(spake.finish(theirs).map_err(|_| INVALID)?);
    let psk = Zeroizing::new(blake3::derive_key("bowline 2026 pre-shared key of a code", &agreed));
    let (a, b) = if initiator { (ours, theirs) } else { (theirs, ours) };
    build(identity, Mode::Code, &[a, b].concat(), Some(&psk), initiator)
}

fn build(
    identity: &Identity,
    mode: Mode,
    said: &[u8],
    psk: Option<&[u8; 32]>,
    initiator: bool,
) -> Result<HandshakeState, PeerError> {
    let mut prologue = PROLOGUE.to_vec();
    prologue.push(mode as u8);
    prologue.extend_from_slice(said);
    let pattern = if psk.is_some() { XX_PSK } else { XX };
    let made = || {
        let mut builder = Builder::new(pattern.parse()?)
            .local_private_key(identity.secret())?
            .prologue(&prologue)?;
        if let Some(psk) = psk {
            builder = builder.psk(0, psk)?;
        }
        if initiator { builder.build_initiator() } else { builder.build_responder() }
    };
    made().map_err(|_: snow::Error| PeerError::Random)
}

fn write(noise: &mut HandshakeState) -> Result<Vec<u8>, PeerError> {
    let mut out = vec![0; MAX_MESSAGE];
    let len = noise.write_message(&[], &mut out).map_err(|_| PeerError::Random)?;
    out.truncate(len);
    Ok(out)
}

/// Reads a message, which carries no payload.
fn read(noise: &mut HandshakeState, message: &[u8]) -> Option<()> {
    if message.len() > MAX_MESSAGE {
        return None;
    }
    let mut payload = [0; MAX_MESSAGE];
    noise.read_message(message, &mut payload).ok().filter(|len| *len == 0).map(|_| ())
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
