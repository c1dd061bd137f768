//! Where a store is: its parsed URL.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::StoreError;
use crate::net::Endpoint;
use crate::sys::effective_uid;

const REDIS_PORT: u16 = 6379;
const ETCD_PORT: u16 = 2379;

/// Where a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    Dir(PathBuf),
    Redis(RedisLocation),
    Etcd(Endpoint),
}

/// A database of a Redis server, and the credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RedisLocation {
    pub(crate) endpoint: Endpoint,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) db: u16,
}

impl fmt::Display for RedisLocation {
    /// Omits user and password, since this is displayed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "redis://{}", self.endpoint)?;
        if self.db == 0 { Ok(()) } else { write!(f, "/{}", self.db) }
    }
}

impl FromStr for Location {
    type Err = StoreError;

    fn from_str(url: &str) -> Result<Location, StoreError> {
        // A URL may hold a password, so errors do not show it.
        let bad = |shown: &str, why: &str| StoreError::invalid("store", shown, why);
        match url.split_once("://") {
            Some(("file", path)) if Path::new(path).is_absolute() => {
                Ok(Location::Dir(PathBuf::from(path)))
            }
            Some(("file", _)) => Err(bad(url, "write file:///DIR with a directory from the root")),
            Some(("redis", rest)) => redis(rest).map(Location::Redis).ok_or_else(|| {
                bad(
                    "redis://…",
                    "write redis://HOST, redis://HOST:PORT/DB or redis://USER:PASSWORD@HOST",
                )
            }),
            Some(("etcd", rest)) => endpoint(rest.strip_suffix('/').unwrap_or(rest), ETCD_PORT)
                .map(Location::Etcd)
                .ok_or_else(|| bad(url, "write etcd://HOST or etcd://HOST:PORT")),
            _ => {
                let scheme = url.split("://").next().unwrap_or_default();
                Err(bad(scheme, "write file:///DIR, redis://HOST or etcd://HOST"))
            }
        }
    }
}

fn redis(rest: &str) -> Option<RedisLocation> {
    let (login, rest) = match rest.rsplit_once('@') {
        Some((login, rest)) => (Some(login), rest),
        None => (None, rest),
    };
    let (server, db) = rest.split_once('/').unwrap_or((rest, ""));
    let db = if db.is_empty() { 0 } else { db.parse().ok()? };
    let (user, password) = match login {
        Some(login) => {
            let (user, password) = login.split_once(':')?;
            let user = percent_decode(user)?;
            (Some(user).filter(|user| !user.is_empty()), Some(percent_decode(password)?))
        }
        None => (None, None),
    };
    Some(RedisLocation { endpoint: endpoint(server, REDIS_PORT)?, user, password, db })
}

/// `HOST`, `HOST:PORT`, `[V6]` or `[V6]:PORT`.
fn endpoint(text: &str, default_port: u16) -> Option<Endpoint> {
    let (host, port) = match text.strip_prefix('[') {
        Some(bracketed) => {
            let (host, rest) = bracketed.split_once(']')?;
            host.parse::<std::net::Ipv6Addr>().ok()?;
            (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = match port {
        Some(port) => port.parse().ok().filter(|port| *port != 0)?,
        None => default_port,
    };
    let valid = |b: u8| b.is_ascii_alphanumeric() || b"-._:".contains(&b);
    let fits = !host.is_empty() && host.bytes().all(valid);
    fits.then(|| Endpoint { host: host.to_owned(), port })
}

fn percent_decode(text: &str) -> Option<String> {
    let mut out = Vec::new();
    let mut parts = text.split('%');
    out.extend_from_slice(parts.next()?.as_bytes());
    for part in parts {
        let (hex, rest) = part.split_at_checked(2)?;
        out.push(u8::from_str_radix(hex, 16).ok()?);
        out.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(out).ok()
}

/// The store that needs no set-up: a directory of this user on this host, for processes of one
/// host.
pub fn default_url() -> String {
    let runtime = std::env::var("XDG_RUNTIME_DIR").ok().filter(|dir| Path::new(dir).is_absolute());
    let base = match runtime {
        Some(dir) => format!("{dir}/bowline"),
        None => format!("/dev/shm/bowline-{}", effective_uid()),
    };
    format!("file://{base}/store")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(host: &str, port: u16) -> Endpoint {
        Endpoint { host: host.to_owned(), port }
    }

    #[test]
    fn a_directory_is_absolute() {
        assert_eq!("file:///a/b".parse::<Location>().unwrap(), Location::Dir("/a/b".into()));
        for bad in ["file://a/b", "file://", "file", "", "/a/b", "ftp://a", "file:/a"] {
            assert!(bad.parse::<Location>().is_err(), "{bad:?}");
        }
        assert!(default_url().parse::<Location>().is_ok());
    }

    #[test]
    fn servers_have_hosts_and_ports() {
        for (url, expected) in [
            ("etcd://db", endpoint("db", 2379)),
            ("etcd://10.0.0.1:79/", endpoint("10.0.0.1", 79)),
            ("etcd://[::1]", endpoint("::1", 2379)),
            ("etcd://[fe80::1]:5", endpoint("fe80::1", 5)),
        ] {
            assert_eq!(url.parse::<Location>().unwrap(), Location::Etcd(expected), "{url}");
        }
        for bad in
            ["etcd://", "etcd://a:0", "etcd://a:x", "etcd://a/b", "etcd://[::1", "etcd://u:p@a"]
        {
            assert!(bad.parse::<Location>().is_err(), "{bad:?}");
        }
        assert_eq!(endpoint("::1", 5).to_string(), "[::1]:5");
    }

    #[test]
    fn redis_has_databases_and_logins_that_are_not_shown() {
        let Location::Redis(plain) = "redis://db".parse().unwrap() else { panic!() };
        assert_eq!((plain.endpoint, plain.db, plain.password), (endpoint("db", 6379), 0, None));
        let Location::Redis(full) = "redis://me:p%40s:%2f@db:7/3".parse().unwrap() else {
            panic!()
        };
        assert_eq!(full.to_string(), "redis://db:7/3");
        assert_eq!((full.user.as_deref(), full.password.as_deref()), (Some("me"), Some("p@s:/")));
        let Location::Redis(bare) = "redis://:secret@db".parse().unwrap() else { panic!() };
        assert_eq!((bare.user, bare.password.as_deref()), (None, Some("secret")));
        for bad in ["redis://", "redis://a/b", "redis://secret@a", "redis://:a%zz@b", "redis://a b"]
        {
            let error = bad.parse::<Location>().unwrap_err().to_string();
            assert!(!error.contains("secret") && error.contains("redis://HOST"), "{error}");
        }
    }
}
