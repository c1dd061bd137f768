//! `bowline key`: this host's identity, and the keys that it trusts.

use std::error::Error;

use bowline::peers::{PublicKey, TrustFiles};
use clap::{Args, Subcommand};
use serde_json::json;

use super::Target;
use crate::output::{self, plain};
use crate::transfer::PORT;

/// Manage this host's key and the keys that it trusts
///
/// Hosts and peers know each other by keys, as in ssh. `send` checks the receiver's key against
/// known_hosts; `recv` admits peers whose key is in authorized_keys, and one peer with a code.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    bowline key show                                 this host's key, made at the first use\n  \
    bowline key trust bowline1:wXk… ada              let ada's sender in here\n  \
    bowline key trust --host nas:18517 bowline1:wXk… know a receiver before the first use\n  \
    bowline key forget nas                           a host that got a new key\n  \
    bowline key ls\n\n\
    The files are in ~/.config/bowline ($XDG_CONFIG_HOME/bowline): key, known_hosts and \
    authorized_keys.")]
pub(crate) struct KeyArgs {
    #[command(subcommand)]
    command: KeyCommand,
}

#[derive(Subcommand)]
enum KeyCommand {
    /// Print this host's public key and its fingerprint
    Show {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Create a new key for this host
    New {
        /// Replace an existing key; peers that know this host must be told
        #[arg(long)]
        force: bool,
    },
    /// Trust a sender's key; with --host, trust a receiver's key
    Trust {
        /// The key, as `bowline key show` prints it on that host
        key: PublicKey,
        /// What to call its owner
        #[arg(default_value = "", conflicts_with = "host")]
        name: String,
        /// The receiver that has the key, as HOST or HOST:PORT
        #[arg(long, value_name = "HOST")]
        host: Option<String>,
    },
    /// Forget a host, or the owner of a key
    Forget {
        /// A host, a name that was given to a key, or the key
        what: String,
    },
    /// List the hosts and keys that are trusted
    Ls {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

/// Runs `bowline key`.
pub(crate) fn run(args: &KeyArgs) -> Result<(), Box<dyn Error>> {
    let files = TrustFiles::of_user()?;
    match &args.command {
        KeyCommand::Show { json } => show(&files, *json),
        KeyCommand::New { force } => {
            let key = files.new_identity(*force)?.public();
            println!("{key}\nfingerprint {}", key.fingerprint());
            Ok(())
        }
        KeyCommand::Trust { key, host: Some(host), .. } => {
            let host = Target::parse(host, PORT)?.to_string();
            let new = files.trust_host(&host, *key)?;
            say(new, &format!("{host} is known by {}", key.fingerprint()));
            Ok(())
        }
        KeyCommand::Trust { key, name, host: None } => {
            if name.chars().any(char::is_control) {
                return Err("invalid name: remove the control characters".into());
            }
            let new = files.trust_peer(*key, name)?;
            say(new, &format!("the owner of {} may send here", key.fingerprint()));
            Ok(())
        }
        KeyCommand::Forget { what } => match files.forget(what)? {
            0 => Err(format!(
                "{what} is not trusted: `bowline key ls` lists the trusted hosts and keys"
            )
            .into()),
            count => {
                println!("forgot {count} key{}", if count == 1 { "" } else { "s" });
                Ok(())
            }
        },
        KeyCommand::Ls { json } => list(&files, *json),
    }
}

fn say(new: bool, text: &str) {
    println!("{text}{}", if new { "" } else { ", as before" });
}

fn show(files: &TrustFiles, json: bool) -> Result<(), Box<dyn Error>> {
    let key = files.identity()?.public();
    let path = files.key_path();
    if json {
        let (key, fingerprint) = (key.to_string(), key.fingerprint());
        let path = path.to_string_lossy();
        let value = json!({
            "version": output::JSON_VERSION, "key": key, "fingerprint": fingerprint, "path": path,
        });
        println!("{value}");
    } else {
        println!("{key}\nfingerprint {}", key.fingerprint());
        eprintln!("bowline: the secret key is in {}", path.display());
    }
    Ok(())
}

fn list(files: &TrustFiles, json: bool) -> Result<(), Box<dyn Error>> {
    let (known, authorized) = (files.known()?, files.authorized()?);
    if json {
        let hosts: Vec<_> = known
            .iter()
            .map(|known| {
                let fingerprint = known.key.fingerprint();
                json!({ "host": known.host, "key": known.key.to_string(), "fingerprint": fingerprint })
            })
            .collect();
        let peers: Vec<_> = authorized
            .iter()
            .map(|peer| {
                let fingerprint = peer.key.fingerprint();
                json!({ "name": peer.name, "key": peer.key.to_string(), "fingerprint": fingerprint })
            })
            .collect();
        let value = json!({
            "version": output::JSON_VERSION, "known_hosts": hosts, "authorized_keys": peers,
        });
        println!("{value}");
        return Ok(());
    }
    if known.is_empty() && authorized.is_empty() {
        println!("no key is trusted yet: `bowline key trust --help` says how");
    }
    for known in known {
        println!("host  {}  {}", known.key.fingerprint(), plain(&known.host));
    }
    for peer in authorized {
        println!("may send here  {}  {}", peer.key.fingerprint(), plain(&peer.name));
    }
    Ok(())
}
