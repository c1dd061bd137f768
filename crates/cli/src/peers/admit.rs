//! Admits one client, for commands that serve only one.

use std::error::Error;
use std::thread;
use std::time::Duration;

use bowline::peers::TrustFiles;
use bowline::{Channel, Listener};

use super::{RecvPolicy, TrustArgs};
use crate::output;

/// Wrong codes before the program exits, because somebody is guessing.
pub(crate) const MAX_TRIES: u32 = 3;
/// Delay before the next code opens after a wrong one. It doubles each time.
pub(crate) const FIRST_DELAY: Duration = Duration::from_secs(1);

/// Waits for the first client that is allowed to connect. Rejected clients are told why, and so is
/// the user.
pub(crate) fn admit(listener: &Listener, args: &TrustArgs) -> Result<Channel, Box<dyn Error>> {
    let files = TrustFiles::of_user().ok();
    let is_local = listener.local_addr()?.ip().is_loopback();
    let with_code = args.code.is_some();
    if !is_local && !args.insecure && !with_code {
        let authorized = files.as_ref().map(TrustFiles::authorized).transpose()?;
        if authorized.is_none_or(|keys| keys.is_empty()) {
            output::notice(
                "no key is trusted yet, so only this host can connect: use --code or --insecure, or `bowline \
                 key trust KEY` with the key that `bowline key show` prints at the client",
            );
        }
    }
    let policy = RecvPolicy::new(files, args.insecure).strict(args.seal || with_code);
    let (mut tries, mut delay) = (0, FIRST_DELAY);
    if with_code {
        eprintln!("code: {}", policy.open_code()?);
    }
    loop {
        let mut channel = listener.accept()?;
        let from = channel.peer_addr().map_or_else(|_| "?".to_owned(), |addr| addr.to_string());
        let visit = policy.visit();
        match channel.accept_peer(&visit) {
            Ok(_) => return Ok(channel),
            Err(e) => output::notice(&output::plain(&format!("{from}: {e}"))),
        }
        if visit.used_code() {
            tries += 1;
            if tries == MAX_TRIES {
                return Err(format!(
                    "{MAX_TRIES} wrong codes were tried: somebody may be guessing; start again \
                     for a new code"
                )
                .into());
            }
            thread::sleep(delay);
            delay *= 2;
            eprintln!("code: {}", policy.open_code()?);
        }
    }
}
