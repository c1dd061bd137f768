//! A small HTTP server for browsers and Prometheus: GET and HEAD, one request per connection, no
//! files.
//!
//! Clients are not trusted: the size and duration of requests and the number of connections are
//! bounded.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Connections that are served at a time, so that a slow one does not hold up the others.
const WORKERS: usize = 8;
/// How long one connection may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest request.
const MAX_REQUEST: usize = 8 << 10;

/// A response.
pub(crate) struct Response {
    /// Code and text of the status line.
    pub(crate) status: &'static str,
    /// Content type of the body, and other headers.
    pub(crate) headers: &'static str,
    /// The body.
    pub(crate) body: Arc<[u8]>,
}

impl Response {
    /// A line of text.
    pub(crate) fn text(status: &'static str, line: &str) -> Response {
        let body = format!("{line}\n").into_bytes().into();
        Response { status, headers: "Content-Type: text/plain; charset=utf-8\r\n", body }
    }
}

/// Answers a path, without its query. Returns `None` if the path does not exist.
pub(crate) type Handler = dyn Fn(&str) -> Option<Response> + Send + Sync;

/// Parses an address to listen on: a port on loopback, an address with the port of `default`, or
/// both.
pub(crate) fn parse_listen(text: &str, default: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse::<u16>() {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    let wrong =
        |_| format!("invalid address `{text}`: write a port or ADDRESS:PORT, e.g. {default}");
    if let Ok(ip) = text.parse::<IpAddr>() {
        let default: SocketAddr = default.parse().map_err(wrong)?;
        return Ok(SocketAddr::new(ip, default.port()));
    }
    text.parse().map_err(wrong)
}

/// Starts the server and returns its address. `what` names it in errors.
pub(crate) fn start(
    addr: SocketAddr,
    what: &str,
    handler: Arc<Handler>,
) -> Result<SocketAddr, String> {
    let cannot = |e: io::Error| format!("cannot serve {what} on {addr}: {e}");
    let listener = TcpListener::bind(addr).map_err(cannot)?;
    let at = listener.local_addr().map_err(cannot)?;
    for _ in 0..WORKERS {
        let listener = listener.try_clone().map_err(cannot)?;
        let handler = handler.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                match stream {
                    // A client that disconnects does not concern the server.
                    Ok(stream) => drop(answer(stream, &*handler)),
                    // Most likely out of file descriptors: do not spin.
                    Err(_) => thread::sleep(Duration::from_millis(50)),
                }
            }
        });
    }
    Ok(at)
}

fn answer(mut stream: TcpStream, handler: &Handler) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let head = read_head(&mut stream, deadline)?;
    let response = match head.as_deref().map(request) {
        None => Response::text("431 Request Header Fields Too Large", "the request is too long"),
        Some(Some(("GET" | "HEAD", path))) => handler(path)
            .unwrap_or_else(|| Response::text("404 Not Found", "there is no such page")),
        Some(Some(_)) => Response::text("405 Method Not Allowed", "use GET"),
        Some(None) => Response::text("400 Bad Request", "this is HTTP"),
    };
    let Response { status, headers, body } = response;
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    let text = format!(
        "HTTP/1.1 {status}\r\n{headers}{allow}X-Content-Type-Options: nosniff\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len(),
    );
    write(&mut stream, text.as_bytes(), deadline)?;
    if !head.is_some_and(|head| head.starts_with("HEAD ")) {
        write(&mut stream, &body, deadline)?;
    }
    Ok(())
}

/// Reads up to the empty line, within one deadline. Returns `None` if the request is too long.
fn read_head(stream: &mut TcpStream, deadline: Instant) -> io::Result<Option<String>> {
    let mut head = Vec::new();
    let mut part = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() > MAX_REQUEST {
            return Ok(None);
        }
        stream.set_read_timeout(Some(left(deadline)?))?;
        match stream.read(&mut part)? {
            0 => break,
            count => head.extend_from_slice(&part[..count]),
        }
    }
    Ok(Some(String::from_utf8_lossy(&head).into_owned()))
}

/// Writes everything within one deadline, however often the reader pauses.
fn write(stream: &mut TcpStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(deadline)?))?;
        match stream.write(bytes)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => bytes = &bytes[count..],
        }
    }
    Ok(())
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Method and path of a request.
fn request(head: &str) -> Option<(&str, &str)> {
    let mut words = head.lines().next()?.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let path = target.split('?').next().filter(|path| path.starts_with('/'))?;
    (version.starts_with("HTTP/1.") && words.next().is_none()).then_some((method, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: &str = "127.0.0.1:18518";

    fn server(body: Vec<u8>) -> SocketAddr {
        let body: Arc<[u8]> = body.into();
        let handler = move |path: &str| {
            let found = Response {
                status: "200 OK",
                headers: "Content-Type: text/html\r\n",
                body: body.clone(),
            };
            (path == "/").then_some(found)
        };
        start("127.0.0.1:0".parse().unwrap(), "a page", Arc::new(handler)).unwrap()
    }

    fn ask(at: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(at).unwrap();
        // A server that rejects the request may close the connection before it has read everything.
        let _ = stream.write_all(request);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[test]
    fn a_page_is_at_its_path_and_nothing_else_is() {
        let at = server(b"page".to_vec());
        let found = ask(at, b"GET /?x=1 HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(found.starts_with("HTTP/1.1 200 OK\r\n") && found.ends_with("\r\n\r\npage"));
        assert!(ask(at, b"HEAD / HTTP/1.0\r\n\r\n").ends_with("Connection: close\r\n\r\n"));
        for path in ["/secret", "//", "/../etc/passwd", "/%2e%2e/etc/passwd"] {
            let answer = ask(at, format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes());
            assert!(answer.starts_with("HTTP/1.1 404"), "{path}: {answer}");
        }
    }

    #[test]
    fn bad_requests_are_refused() {
        let at = server(Vec::new());
        let bad: [(&[u8], &str); 9] = [
            (b"POST / HTTP/1.1\r\n\r\n", "405"),
            (b"DELETE / HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n", "405"),
            (b"nonsense\r\n\r\n", "400"),
            (b"\r\n\r\n", "400"),
            (b"GET /\r\n\r\n", "400"),
            (b"GET / HTTP/2\r\n\r\n", "400"),
            (b"GET http://elsewhere/ HTTP/1.1\r\n\r\n", "400"),
            (b"GET / / HTTP/1.1\r\n\r\n", "400"),
            (b"\xff\xfe\x00 \xff \x00\r\n\r\n", "400"),
        ];
        for (request, status) in bad {
            let answer = ask(at, request);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
        }
    }

    #[test]
    fn an_endless_request_ends() {
        let at = server(Vec::new());
        // Closing a socket with unread bytes may reset the connection before the client reads the
        // answer.
        let answer = ask(at, &vec![b'a'; 64 << 10]);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
        assert!(ask(at, b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
    }

    #[test]
    fn silent_clients_hold_nobody_up() {
        let at = server(Vec::new());
        let _silent: Vec<_> = (0..WORKERS - 1).map(|_| TcpStream::connect(at).unwrap()).collect();
        assert!(ask(at, b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
    }

    #[test]
    fn a_client_that_does_not_read_is_left() {
        let at = server(vec![0; 64 << 20]);
        let mut idle: Vec<_> = (0..WORKERS).map(|_| TcpStream::connect(at).unwrap()).collect();
        for stream in &mut idle {
            stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        }
        // These connections occupy all workers until they time out.
        assert!(ask(at, b"HEAD / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
    }

    #[test]
    fn a_port_alone_is_loopbacks() {
        let at = |text: &str| parse_listen(text, DEFAULT).map(|addr| addr.to_string());
        assert_eq!(at("9400").unwrap(), "127.0.0.1:9400");
        assert_eq!(at("0.0.0.0").unwrap(), "0.0.0.0:18518");
        assert_eq!(at("[::1]:9400").unwrap(), "[::1]:9400");
        for wrong in ["", "here", "70000", "1.2.3:4"] {
            assert!(at(wrong).unwrap_err().contains(DEFAULT), "{wrong}");
        }
    }
}
