//! The files of `~/.config/bowline`: this host's key, and the keys that it trusts.
//!
//! - `key`: this host's identity, mode 0600.
//! - `known_hosts`: lines of `HOST:PORT KEY`, for hosts that this one connects to.
//! - `authorized_keys`: lines of `KEY NAME`, for peers that may connect.
//!
//! Empty lines and those that begin with `#` are kept. A file is replaced as a whole, under a lock,
//! so that no reader sees a partial file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::{Identity, PeerError, PublicKey};

/// Longest file that is read.
const MAX_BYTES: u64 = 4 << 20;

/// A host that this one has connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// As the user names it, with its port.
    pub host: String,
    /// Its key.
    pub key: PublicKey,
}

/// A peer that may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authorized {
    /// Its key.
    pub key: PublicKey,
    /// What the user calls it.
    pub name: String,
}

/// The status of a host's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the host's.
    Known,
    /// Nothing is known about the host.
    Unknown,
    /// The host had this key before.
    Changed(PublicKey),
}

/// The directory with the files.
#[derive(Clone, Debug)]
pub struct TrustFiles {
    dir: PathBuf,
}

impl TrustFiles {
    /// In a directory, which is created on the first write.
    pub fn at(dir: impl Into<PathBuf>) -> TrustFiles {
        TrustFiles { dir: dir.into() }
    }

    /// In the user's configuration directory: `$XDG_CONFIG_HOME/bowline`, or `~/.config/bowline`.
    pub fn of_user() -> Result<TrustFiles, PeerError> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let config = set("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let config = config.or_else(|| set("HOME").map(|home| Path::new(&home).join(".config")));
        Ok(TrustFiles::at(config.ok_or(PeerError::NoHome)?.join("bowline")))
    }

    /// Where this host's key is.
    pub fn key_path(&self) -> PathBuf {
        self.dir.join("key")
    }

    /// Where the keys of hosts are.
    pub fn known_path(&self) -> PathBuf {
        self.dir.join("known_hosts")
    }

    /// Where the keys of peers that may connect are.
    pub fn authorized_path(&self) -> PathBuf {
        self.dir.join("authorized_keys")
    }

    /// This host's identity; created on first use.
    pub fn identity(&self) -> Result<Identity, PeerError> {
        if let Some(identity) = self.read_identity()? {
            return Ok(identity);
        }
        match self.new_identity(false) {
            // Another process was first.
            Err(PeerError::KeyExists { path }) => self.read_identity()?.ok_or_else(|| {
                PeerError::Line { path, line: 1, why: "it vanished while it was read".to_owned() }
            }),
            made => made,
        }
    }

    /// Creates a new identity; replaces an existing one only if `replace` is set.
    pub fn new_identity(&self, replace: bool) -> Result<Identity, PeerError> {
        let (path, _lock) = (self.key_path(), self.lock()?);
        if !replace && fs::symlink_metadata(&path).is_ok() {
            return Err(PeerError::KeyExists { path });
        }
        let identity = Identity::generate()?;
        self.write(&path, identity.to_text().as_bytes())?;
        Ok(identity)
    }

    fn read_identity(&self) -> Result<Option<Identity>, PeerError> {
        let path = self.key_path();
        let Some(text) = read(&path)? else { return Ok(None) };
        let metadata = fs::metadata(&path).map_err(|e| failed("look at", &path, e))?;
        let mode = metadata.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(PeerError::Exposed { path, mode });
        }
        match Identity::from_text(&text) {
            Some(identity) => Ok(Some(identity)),
            None => {
                let why = "this is no key of Bowline's: move it away, then `bowline key new`";
                Err(PeerError::Line { path, line: 1, why: why.to_owned() })
            }
        }
    }

    /// Checks the key of a host.
    pub fn check_host(&self, host: &str, key: &PublicKey) -> Result<Verdict, PeerError> {
        let known = self.known()?;
        let mut of_host = known.iter().filter(|known| known.host == host).peekable();
        Ok(match of_host.peek() {
            None => Verdict::Unknown,
            Some(first) => {
                let before = first.key;
                if of_host.any(|known| known.key == *key) {
                    Verdict::Known
                } else {
                    Verdict::Changed(before)
                }
            }
        })
    }

    /// Whether a peer may connect; returns the user's name for it.
    pub fn check_peer(&self, key: &PublicKey) -> Result<Option<Authorized>, PeerError> {
        Ok(self.authorized()?.into_iter().find(|peer| peer.key == *key))
    }

    /// All hosts.
    pub fn known(&self) -> Result<Vec<Known>, PeerError> {
        parse(&self.known_path(), parse_known)
    }

    /// All peers that may connect.
    pub fn authorized(&self) -> Result<Vec<Authorized>, PeerError> {
        parse(&self.authorized_path(), parse_authorized)
    }

    /// Records a key as a host's; returns whether that is new.
    pub fn trust_host(&self, host: &str, key: PublicKey) -> Result<bool, PeerError> {
        let path = self.known_path();
        let _lock = self.lock()?;
        if self.check_host(host, &key)? == Verdict::Known {
            return Ok(false);
        }
        self.append(&path, &format!("{host} {key}"))?;
        Ok(true)
    }

    /// Lets a peer connect; returns whether that is new.
    pub fn trust_peer(&self, key: PublicKey, name: &str) -> Result<bool, PeerError> {
        let path = self.authorized_path();
        let _lock = self.lock()?;
        if self.check_peer(&key)?.is_some() {
            return Ok(false);
        }
        self.append(&path, format!("{key} {name}").trim_end())?;
        Ok(true)
    }

    /// Forgets hosts and peers of that name or key; returns how many.
    pub fn forget(&self, what: &str) -> Result<usize, PeerError> {
        let _lock = self.lock()?;
        let key = what.parse::<PublicKey>().ok();
        let is_host = |known: &Known| {
            let name = known.host.rsplit_once(':').map_or(&*known.host, |(name, _)| name);
            known.host == what || name == what || Some(known.key) == key
        };
        let is_peer = |peer: &Authorized| peer.name == what || Some(peer.key) == key;
        let hosts = self.retain(&self.known_path(), parse_known, is_host)?;
        Ok(hosts + self.retain(&self.authorized_path(), parse_authorized, is_peer)?)
    }

    /// Drops the lines that `is_gone` selects.
    fn retain<T>(
        &self,
        path: &Path,
        parse: fn(&str) -> Result<T, String>,
        is_gone: impl Fn(&T) -> bool,
    ) -> Result<usize, PeerError> {
        let Some(text) = read(path)? else { return Ok(0) };
        let (mut kept, mut gone) = (String::new(), 0);
        for line in text.lines() {
            if is_entry(line) && parse(line).is_ok_and(|entry| is_gone(&entry)) {
                gone += 1;
            } else {
                kept.push_str(line);
                kept.push('\n');
            }
        }
        if gone > 0 {
            self.write(path, kept.as_bytes())?;
        }
        Ok(gone)
    }

    fn append(&self, path: &Path, line: &str) -> Result<(), PeerError> {
        let mut text = read(path)?.unwrap_or_default();
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(line);
        text.push('\n');
        self.write(path, text.as_bytes())
    }

    /// Keeps other processes of the user from writing; the lock file stays.
    fn lock(&self) -> Result<File, PeerError> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir);
        made.map_err(|e| failed("make", &self.dir, e))?;
        let path = self.dir.join("lock");
        let options =
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).clone();
        let file = options.open(&path).map_err(|e| failed("open", &path, e))?;
        file.lock().map_err(|e| failed("lock", &path, e))?;
        Ok(file)
    }

    /// Replaces a file by one that only the user can read.
    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), PeerError> {
        let mut new = path.as_os_str().to_owned();
        new.push(".new");
        let new = PathBuf::from(new);
        // A leftover is from a run that was killed, as the lock is held.
        let _ = fs::remove_file(&new);
        let written = || {
            let mut file =
                OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&new, path)
        };
        written().map_err(|e| failed("write", path, e))
    }
}

/// A file's text, if there is one.
fn read(path: &Path) -> Result<Option<String>, PeerError> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.len() > MAX_BYTES => {
            Err(failed("read", path, io::Error::other("it is longer than 4 MiB")))
        }
        Ok(_) => fs::read_to_string(path).map(Some).map_err(|e| failed("read", path, e)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(failed("read", path, e)),
    }
}

fn failed(doing: &'static str, path: &Path, source: io::Error) -> PeerError {
    PeerError::Io { doing, path: path.to_owned(), source }
}

fn is_entry(line: &str) -> bool {
    let line = line.trim();
    !line.is_empty() && !line.starts_with('#')
}

/// The entries of a file. An unreadable line is an error: skipping it could turn a host whose key
/// changed into an unknown one.
fn parse<T>(path: &Path, entry: fn(&str) -> Result<T, String>) -> Result<Vec<T>, PeerError> {
    let text = read(path)?.unwrap_or_default();
    let lines = text.lines().enumerate().filter(|(_, line)| is_entry(line));
    lines
        .map(|(index, line)| {
            entry(line).map_err(|why| PeerError::Line {
                path: path.to_owned(),
                line: index + 1,
                why,
            })
        })
        .collect()
}

fn parse_known(line: &str) -> Result<Known, String> {
    let mut fields = line.split_whitespace();
    match (fields.next(), fields.next(), fields.next()) {
        (Some(host), Some(key), None) => {
            let key = key.parse().map_err(|e: PeerError| e.to_string())?;
            Ok(Known { host: host.to_owned(), key })
        }
        _ => Err("write HOST:PORT KEY, and nothing else".to_owned()),
    }
}

fn parse_authorized(line: &str) -> Result<Authorized, String> {
    let (key, name) = line.trim().split_once(char::is_whitespace).unwrap_or((line.trim(), ""));
    let key = key.parse().map_err(|e: PeerError| e.to_string())?;
    Ok(Authorized { key, name: name.trim().to_owned() })
}

/// Reads both kinds of lines, for fuzzers.
#[doc(hidden)]
pub fn parse_lines(text: &str) {
    for line in text.lines().filter(|line| is_entry(line)) {
        if let Ok(Known { host, key }) = parse_known(line) {
            assert_eq!(parse_known(&format!("{host} {key}")), Ok(Known { host, key }));
        }
        if let Ok(Authorized { key, name }) = parse_authorized(line) {
            let line = format!("{key} {name}");
            assert_eq!(parse_authorized(&line), Ok(Authorized { key, name }));
        }
    }
}

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
