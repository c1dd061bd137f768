//! The part of Redis' protocol (RESP2) that is needed.

use crate::net::{Connection, NetError};

const MAX_LINE: usize = 4096;

/// An answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(Option<Vec<u8>>),
}

/// A command.
pub(super) fn encode(parts: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", parts.len()).into_bytes();
    for part in parts {
        out.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
        out.extend_from_slice(part);
        out.extend_from_slice(b"\r\n");
    }
    out
}

/// Reads the answer to a command; a value of more than `max` bytes is malformed.
pub(super) fn read(connection: &mut Connection, max: usize) -> Result<Reply, NetError> {
    let line = connection.read_line(MAX_LINE)?;
    let (Some(kind), Some(rest)) = (line.get(..1), line.get(1..)) else {
        return Err(NetError::malformed("an empty line, or one that is no text"));
    };
    let number = || -> Result<i64, NetError> {
        rest.parse().map_err(|_| NetError::malformed(format!("{rest:?} where a number belongs")))
    };
    match kind {
        "+" => Ok(Reply::Simple(rest.to_owned())),
        "-" => Ok(Reply::Error(rest.to_owned())),
        ":" => Ok(Reply::Integer(number()?)),
        "$" => match usize::try_from(number()?) {
            Err(_) => Ok(Reply::Bulk(None)),
            Ok(len) if len <= max => {
                let mut bytes = connection.read_exact(len + 2)?;
                if bytes.split_off(len) != b"\r\n" {
                    return Err(NetError::malformed("a value longer than it said"));
                }
                Ok(Reply::Bulk(Some(bytes)))
            }
            Ok(len) => Err(NetError::malformed(format!("a value of {len} bytes"))),
        },
        _ => Err(NetError::malformed(format!("an answer that begins with {kind:?}"))),
    }
}
