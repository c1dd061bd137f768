//! Options for authenticating the peer, for commands that measure.

use bowline::peers::Code;
use clap::Args;

use super::Trust;

/// How to authenticate the peer.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct TrustArgs {
    /// Disable authentication and encryption (on loopback they are off by default)
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Authenticate both ends and encrypt every packet, even on loopback
    #[arg(long, visible_alias = "secure", conflicts_with = "insecure")]
    pub(crate) seal: bool,
    /// Accept the key of a host that is not known yet, without asking
    #[arg(long, conflicts_with = "insecure")]
    pub(crate) accept_new: bool,
    /// At the server: print a one-time code. At the client: the words of that code
    #[arg(long, value_name = "WORDS", num_args = 0..=1, conflicts_with = "insecure")]
    pub(crate) code: Option<Option<Code>>,
}

impl TrustArgs {
    /// The settings for the end that connects.
    pub(crate) fn of_client(&self) -> Result<Trust, String> {
        let code = match &self.code {
            Some(None) => {
                return Err(
                    "--code needs the words that the server prints: --code WORDS".to_owned()
                );
            }
            Some(Some(code)) => Some(code.clone()),
            None => None,
        };
        let TrustArgs { insecure, seal: secure, accept_new, .. } = *self;
        Ok(Trust { code, insecure, secure, accept_new, remember: false, early: false })
    }
}
