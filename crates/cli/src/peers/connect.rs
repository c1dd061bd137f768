//! Connecting to a peer, and making sure that it is the right one.

use std::error::Error;
use std::io::{BufRead, IsTerminal, Write};
use std::net::{SocketAddr, ToSocketAddrs};

use bowline::peers::{Code, PeerError, PublicKey, TrustFiles, Verdict};
use bowline::{Channel, Connector};

use super::Target;
use crate::output;

/// What the user wants to know of the peer.
#[derive(Debug, Default)]
pub(crate) struct Trust {
    /// Both ends have been told this code.
    pub(crate) code: Option<Code>,
    /// Nobody is asked who they are.
    pub(crate) insecure: bool,
    /// Ask also on loopback.
    pub(crate) secure: bool,
    /// Take the key of a host that is not known yet.
    pub(crate) accept_new: bool,
    /// Keep the key of a host that a code has proven.
    pub(crate) remember: bool,
    /// Go on before the peer has let this end in: a refusal comes with the first answer.
    pub(crate) early: bool,
}

/// Connects, and authenticates both ends unless the peer is a process of this host or the user
/// wants it otherwise.
pub(crate) fn connect(
    target: &Target,
    trust: &Trust,
) -> Result<Channel, Box<dyn Error + Send + Sync>> {
    let host = (target.host.as_str(), target.port);
    // Found first, so that an error names what cannot be found.
    let addrs = host.to_socket_addrs().map_err(|e| format!("cannot find {target}: {e}"))?;
    let addrs: Vec<SocketAddr> = addrs.collect();
    let mut channel = Connector::new().connect(&addrs[..])?;
    let is_loopback = channel.peer_addr()?.ip().to_canonical().is_loopback();
    if trust.insecure || (is_loopback && trust.code.is_none() && !trust.secure) {
        return Ok(channel);
    }
    let files = TrustFiles::of_user()?;
    let identity = files.identity()?;
    let Some(code) = &trust.code else {
        let name = target.to_string();
        let check = |key: &PublicKey| check(&files, &name, *key, trust.accept_new);
        if trust.early {
            channel.authenticate_early(&identity, None, check)?;
        } else {
            channel.authenticate(&identity, None, check)?;
        }
        return Ok(channel);
    };
    // The code proves more than a file could, once the peer has said that it was right.
    channel.authenticate(&identity, Some(code), |_| Ok(()))?;
    if let (true, Some(key)) = (trust.remember, channel.peer_key()) {
        files.trust_host(&target.to_string(), key)?;
        output::notice(&format!("{target} is known from now on, by {}", key.fingerprint()));
    }
    Ok(channel)
}

/// Looks the host's key up, and asks about one that is not known.
fn check(
    files: &TrustFiles,
    host: &str,
    key: PublicKey,
    accept_new: bool,
) -> Result<(), PeerError> {
    let fingerprint = key.fingerprint();
    match files.check_host(host, &key)? {
        Verdict::Known => Ok(()),
        Verdict::Changed(before) => Err(PeerError::ChangedHost {
            host: host.to_owned(),
            before: before.fingerprint(),
            now: fingerprint,
        }),
        Verdict::Unknown if accept_new || confirm(host, &fingerprint) => {
            files.trust_host(host, key)?;
            output::notice(&format!("{host} is known from now on, by {fingerprint}"));
            Ok(())
        }
        Verdict::Unknown => Err(PeerError::UnknownHost { host: host.to_owned(), key, fingerprint }),
    }
}

/// Asks the user, if there is one.
fn confirm(host: &str, fingerprint: &str) -> bool {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() || !std::io::stderr().is_terminal() {
        return false;
    }
    eprint!(
        "{host} is not known yet. Its key has the fingerprint {fingerprint}\n\
         (`bowline key show` prints it there). Connect, and know it from now on? [y/N] "
    );
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer).is_ok()
        && matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}
