//! Authentication of a job's ranks.

use std::net::SocketAddr;

use bowline::peers::{Code, Identity, PeerError, PublicKey, TrustFiles, Verdict};
use bowline::rendezvous::Guard;
use bowline::setup::AcceptPolicy;
use bowline::{Channel, Error, SetupError};

/// Accepts ranks that have this user's own key, as hosts with a shared home directory do, or a
/// trusted key (`bowline key trust`).
#[derive(Debug)]
pub(crate) struct KeyGuard {
    files: TrustFiles,
    identity: Identity,
}

impl KeyGuard {
    pub(crate) fn of_user() -> Result<KeyGuard, PeerError> {
        let files = TrustFiles::of_user()?;
        let identity = files.identity()?;
        Ok(KeyGuard { files, identity })
    }

    fn trusts(&self, key: &PublicKey) -> Result<bool, PeerError> {
        Ok(*key == self.identity.public() || self.files.check_peer(key)?.is_some())
    }
}

impl Guard for KeyGuard {
    fn visit(&self, channel: &mut Channel) -> Result<(), Error> {
        let host = channel.peer_addr()?.to_string();
        channel.authenticate(&self.identity, None, |key| {
            let is_known = self.files.check_host(&host, key)? == Verdict::Known;
            if is_known || self.trusts(key)? {
                return Ok(());
            }
            let (key, fingerprint) = (*key, key.fingerprint());
            Err(PeerError::UnknownHost { host, key, fingerprint })
        })
    }

    fn admit(&self, channel: &mut Channel) -> Result<(), Error> {
        let known = channel.accept_peer(self)?;
        // Nobody is admitted without a key.
        known.map(drop).ok_or_else(|| SetupError::Unsealed.into())
    }
}

impl AcceptPolicy for KeyGuard {
    fn identity(&self) -> Result<Identity, PeerError> {
        self.files.identity()
    }

    fn take_code(&self) -> Option<Code> {
        None
    }

    fn admits(&self, key: &PublicKey) -> Result<bool, PeerError> {
        self.trusts(key)
    }

    fn admits_plain(&self, _: SocketAddr) -> bool {
        false
    }
}
