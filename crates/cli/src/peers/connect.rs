//! Connects to a peer and authenticates it.

use std::error::Error;
use std::io::{BufRead, IsTerminal, Write};
use std::net::{SocketAddr, ToSocketAddrs};

use bowline::peers::{Code, PeerError, PublicKey, TrustFiles, Verdict};
use bowline::{Channel, Connector};

use super::Target;
use crate::output;

/// How to authenticate the peer.
#[derive(Debug, Default)]
pub(crate) struct Trust {
    /// The code that both ends were given.
    pub(crate) code: Option<Code>,
    /// Authenticate nobody.
    pub(crate) insecure: bool,
    /// Authenticate on loopback too.
    pub(crate) secure: bool,
    /// Accept the key of an unknown host.
    pub(crate) accept_new: bool,
    /// Store the key of a host that a code has authenticated.
    pub(crate) remember: bool,
    /// Continue before the peer has admitted this end: a refusal arrives with the first answer.
    pub(crate) early: bool,
}

/// Connects, and authenticates both ends unless the peer is a process on this host or the user
/// chose otherwise.
pub(crate) fn connect(
    target: &Target,
    trust: &Trust,
) -> Result<Channel, Box<dyn Error + Send + Sync>> {
    let host = (target.host.as_str(), target.port);
    // Resolve the name first, so that an error names the host that was not found.
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
    // Once the peer has confirmed the code, it proves more than a file could.
    channel.authenticate(&identity, Some(code), |_| Ok(()))?;
    if let (true, Some(key)) = (trust.remember, channel.peer_key()) {
        files.trust_host(&target.to_string(), key)?;
        let fingerprint = key.fingerprint();
        output::notice(&format!("added {target} to the known hosts (key {fingerprint})"));
    }
    Ok(channel)
}

/// Looks up the host's key, and asks the user about an unknown one.
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
            output::notice(&format!("added {host} to the known hosts (key {fingerprint})"));
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
        "{host} is unknown. Its key fingerprint is {fingerprint}\n\
         (compare with `bowline key show` on that host). Trust it and connect? [y/N] "
    );
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer).is_ok()
        && matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}
