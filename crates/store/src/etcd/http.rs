//! A minimal HTTP/1.1 client: a POST, and an answer of known length or in chunks.

use crate::MAX_VALUE_BYTES;
use crate::net::{Connection, NetError};

const MAX_LINE: usize = 8192;
const MAX_HEADERS: usize = 64;
/// A value as base64 with the JSON around it, with space to spare.
const MAX_BODY: usize = 4 * MAX_VALUE_BYTES;

pub(super) struct Response {
    pub(super) status: u16,
    /// Whether the connection can be reused.
    pub(super) keep_alive: bool,
    pub(super) body: Vec<u8>,
}

/// Posts JSON, and reads the answer.
pub(super) fn post(
    connection: &mut Connection,
    host: &str,
    path: &str,
    body: &[u8],
) -> Result<Response, NetError> {
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    connection.send(&request)?;
    let head = Head::read(connection)?;
    let body = match head.framing {
        Framing::Length(len) => connection.read_exact(len)?,
        Framing::Chunked => read_chunks(connection)?,
    };
    Ok(Response { status: head.status, keep_alive: head.keep_alive, body })
}

struct Head {
    status: u16,
    keep_alive: bool,
    framing: Framing,
}

enum Framing {
    Length(usize),
    Chunked,
}

impl Head {
    fn read(connection: &mut Connection) -> Result<Head, NetError> {
        let first = connection.read_line(MAX_LINE)?;
        let status = first
            .strip_prefix("HTTP/1.")
            .and_then(|rest| rest.split(' ').nth(1))
            .and_then(|code| code.parse().ok())
            .filter(|code| (200..600).contains(code))
            .ok_or_else(|| NetError::malformed("an answer that is not HTTP"))?;
        let mut keep_alive = first.starts_with("HTTP/1.1");
        let mut framing = None;
        for _ in 0..MAX_HEADERS {
            let line = connection.read_line(MAX_LINE)?;
            if line.is_empty() {
                // Neither is present: the answer ends with the connection, which we do not support.
                let framing = framing
                    .ok_or_else(|| NetError::malformed("an HTTP answer without a length"))?;
                return Ok(Head { status, keep_alive, framing });
            }
            let (name, value) =
                line.split_once(':').ok_or_else(|| NetError::malformed("an odd HTTP header"))?;
            let value = value.trim();
            match name.to_ascii_lowercase().as_str() {
                "content-length" => framing = Some(Framing::Length(length(value, 10)?)),
                "transfer-encoding" if value.eq_ignore_ascii_case("chunked") => {
                    framing = Some(Framing::Chunked);
                }
                "connection" => keep_alive = !value.eq_ignore_ascii_case("close"),
                _ => {}
            }
        }
        Err(NetError::malformed("too many HTTP headers"))
    }
}

fn length(text: &str, radix: u32) -> Result<usize, NetError> {
    usize::from_str_radix(text, radix)
        .ok()
        .filter(|len| *len <= MAX_BODY)
        .ok_or_else(|| NetError::malformed(format!("{text:?} as a length")))
}

fn read_chunks(connection: &mut Connection) -> Result<Vec<u8>, NetError> {
    let mut body = Vec::new();
    loop {
        let line = connection.read_line(MAX_LINE)?;
        let len = length(line.split(';').next().unwrap_or_default().trim(), 16)?;
        if body.len() + len > MAX_BODY {
            return Err(NetError::malformed("an HTTP answer that is too long"));
        }
        body.extend(connection.read_exact(len)?);
        // A chunk is followed by the end of its line, the last one by trailers, which nobody sends.
        if !connection.read_line(MAX_LINE)?.is_empty() {
            return Err(NetError::malformed("a chunk longer than it said"));
        }
        if len == 0 {
            return Ok(body);
        }
    }
}
