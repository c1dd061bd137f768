//! Parses hosts from the command line.

use std::fmt;
use std::net::Ipv6Addr;

/// A host and its TCP port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// A host name, or an address without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Target {
    /// Parses `host`, `host:port`, `192.0.2.7:port`, `2001:db8::7` and `[2001:db8::7]:port`.
    pub(crate) fn parse(text: &str, default_port: u16) -> Result<Target, String> {
        let wrong = |why: &str| {
            format!("invalid host `{text}`: {why}, e.g. nas:18517 or [2001:db8::7]:18517")
        };
        let (host, port) = if let Some(rest) = text.strip_prefix('[') {
            let (host, rest) = rest.split_once(']').ok_or_else(|| wrong("close the bracket"))?;
            if host.parse::<Ipv6Addr>().is_err() {
                return Err(wrong("write an IPv6 address between the brackets"));
            }
            match rest.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if rest.is_empty() => (host, None),
                None => return Err(wrong("write a port after the bracket")),
            }
        } else if text.parse::<Ipv6Addr>().is_ok() {
            (text, None)
        } else {
            match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            }
        };
        if host.is_empty() || host.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(wrong("write a name or an address"));
        }
        let port = match port {
            Some(port) => port.parse().map_err(|_| wrong("write a port from 1 to 65535"))?,
            None => default_port,
        };
        Ok(Target { host: host.to_lowercase(), port })
    }
}

/// The syntax of `known_hosts`.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Target { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_read_as_people_write_them() {
        let read = |text| Target::parse(text, 9).map(|t| (t.host, t.port));
        let right = [
            ("nas", "nas", 9),
            ("NAS.example.org:70", "nas.example.org", 70),
            ("192.0.2.7", "192.0.2.7", 9),
            ("192.0.2.7:1", "192.0.2.7", 1),
            ("2001:db8::7", "2001:db8::7", 9),
            ("::1", "::1", 9),
            ("[::1]", "::1", 9),
            ("[2001:db8::7]:65535", "2001:db8::7", 65_535),
        ];
        for (text, host, port) in right {
            assert_eq!(read(text), Ok((host.to_owned(), port)), "{text}");
            let target = Target::parse(text, 9).unwrap();
            assert_eq!(Target::parse(&target.to_string(), 1), Ok(target));
        }
        for wrong in ["", ":7", "a:", "a:b", "a:70000", "[::1", "[::1]7", "[a]:7", "a b", "[]"] {
            let error = read(wrong).unwrap_err();
            assert!(error.contains("e.g. nas:18517"), "{error}");
        }
    }
}
