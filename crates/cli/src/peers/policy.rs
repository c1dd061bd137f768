//! Whom commands that wait for others let in.

use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use bowline::peers::{Code, Identity, PeerError, PublicKey, TrustFiles};
use bowline::setup::AcceptPolicy;

/// Peers whose keys are authorized, one peer with a code, processes of this host, and everybody if
/// that was asked for.
#[derive(Debug)]
pub(crate) struct RecvPolicy {
    /// None for a user without a home, whom nobody can know.
    files: Option<TrustFiles>,
    insecure: bool,
    /// Processes of this host must say who they are, too.
    strict: bool,
    code: Mutex<Option<Code>>,
}

impl RecvPolicy {
    pub(crate) fn new(files: impl Into<Option<TrustFiles>>, insecure: bool) -> RecvPolicy {
        RecvPolicy { files: files.into(), insecure, strict: false, code: Mutex::default() }
    }

    /// Whether processes of this host must say who they are, too.
    pub(crate) fn strict(self, strict: bool) -> RecvPolicy {
        RecvPolicy { strict, ..self }
    }

    fn files(&self) -> Result<&TrustFiles, PeerError> {
        self.files.as_ref().ok_or(PeerError::NoHome)
    }

    /// Opens a code: it is good for one try of one peer.
    pub(crate) fn open_code(&self) -> Result<Code, PeerError> {
        let code = Code::generate()?;
        *self.code.lock().unwrap_or_else(PoisonError::into_inner) = Some(code.clone());
        Ok(code)
    }

    /// Whether a code is open.
    pub(crate) fn has_code(&self) -> bool {
        self.code.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

/// The policy for one connection, which knows whether that has used the code up.
#[derive(Debug)]
pub(crate) struct Visit<'a> {
    policy: &'a RecvPolicy,
    used_code: Cell<bool>,
}

impl RecvPolicy {
    /// For a new connection.
    pub(crate) fn visit(&self) -> Visit<'_> {
        Visit { policy: self, used_code: Cell::new(false) }
    }
}

impl Visit<'_> {
    /// Whether this connection has tried the code.
    pub(crate) fn used_code(&self) -> bool {
        self.used_code.get()
    }
}

impl AcceptPolicy for Visit<'_> {
    fn identity(&self) -> Result<Identity, PeerError> {
        self.policy.files()?.identity()
    }

    fn take_code(&self) -> Option<Code> {
        let code = self.policy.code.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.used_code.set(code.is_some());
        code
    }

    fn admits(&self, key: &PublicKey) -> Result<bool, PeerError> {
        Ok(self.policy.files()?.check_peer(key)?.is_some())
    }

    fn admits_plain(&self, peer: SocketAddr) -> bool {
        let is_local = peer.ip().to_canonical().is_loopback() && !self.policy.strict;
        self.policy.insecure || is_local
    }
}
