//! The admission policy of commands that wait for peers.

use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use bowline::peers::{Code, Identity, PeerError, PublicKey, TrustFiles};
use bowline::setup::AcceptPolicy;

/// Admits peers whose keys are authorized, one peer with a code, processes on this host, and
/// everybody if the user asked for that.
#[derive(Debug)]
pub(crate) struct RecvPolicy {
    /// `None` for a user without a home directory, who has no trusted keys.
    files: Option<TrustFiles>,
    insecure: bool,
    /// Authenticate processes on this host too.
    strict: bool,
    code: Mutex<Option<Code>>,
}

impl RecvPolicy {
    pub(crate) fn new(files: impl Into<Option<TrustFiles>>, insecure: bool) -> RecvPolicy {
        RecvPolicy { files: files.into(), insecure, strict: false, code: Mutex::default() }
    }

    /// Sets whether to authenticate processes on this host too.
    pub(crate) fn strict(self, strict: bool) -> RecvPolicy {
        RecvPolicy { strict, ..self }
    }

    fn files(&self) -> Result<&TrustFiles, PeerError> {
        self.files.as_ref().ok_or(PeerError::NoHome)
    }

    /// Opens a code. It is valid for one attempt by one peer.
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

/// The policy for one connection. It records whether the connection has used up the code.
#[derive(Debug)]
pub(crate) struct Visit<'a> {
    policy: &'a RecvPolicy,
    used_code: Cell<bool>,
}

impl RecvPolicy {
    /// The policy for a new connection.
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
