//! A small HTTP server for Prometheus.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::metrics;
use super::sample::Sample;

/// Connections that are served at a time: a slow one does not hold up the others.
const WORKERS: usize = 4;
/// How long one connection may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest request.
const MAX_REQUEST: usize = 8 << 10;

/// Begins to serve; returns where.
pub(super) fn start(addr: SocketAddr) -> Result<SocketAddr, String> {
    let cannot = |e: io::Error| format!("cannot serve metrics on {addr}: {e}");
    let listener = TcpListener::bind(addr).map_err(cannot)?;
    let at = listener.local_addr().map_err(cannot)?;
    for _ in 0..WORKERS {
        let listener = listener.try_clone().map_err(cannot)?;
        thread::spawn(move || {
            for stream in listener.incoming() {
                match stream {
                    // A client that went away is its own concern.
                    Ok(stream) => drop(answer(stream)),
                    // Out of descriptors, most likely: do not spin on it.
                    Err(_) => thread::sleep(Duration::from_millis(50)),
                }
            }
        });
    }
    Ok(at)
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let head = read_head(&mut stream)?;
    let (status, body) = match request(&head) {
        Some(("GET" | "HEAD", "/metrics" | "/")) => match Sample::take() {
            Ok(sample) => ("200 OK", metrics::text(&sample)),
            Err(error) => ("500 Internal Server Error", format!("cannot look: {error}\n")),
        },
        Some(("GET" | "HEAD", _)) => ("404 Not Found", "metrics are at /metrics\n".to_owned()),
        Some(_) => ("405 Method Not Allowed", "use GET\n".to_owned()),
        None => ("400 Bad Request", "this is HTTP\n".to_owned()),
    };
    let is_head = head.starts_with("HEAD ");
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{}",
        body.len(),
        if is_head { "" } else { &body }
    );
    stream.write_all(text.as_bytes())
}

/// Reads up to the empty line, within one deadline.
fn read_head(stream: &mut TcpStream) -> io::Result<String> {
    let deadline = Instant::now() + PATIENCE;
    let mut head = Vec::new();
    let mut part = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() < MAX_REQUEST {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part)? {
            0 => break,
            count => head.extend_from_slice(&part[..count]),
        }
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// Method and path of a request.
fn request(head: &str) -> Option<(&str, &str)> {
    let mut words = head.lines().next()?.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let path = target.split('?').next()?;
    version.starts_with("HTTP/1.").then_some((method, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(at: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn metrics_are_at_their_path_and_nothing_else_is() {
        let at = start("127.0.0.1:0".parse().unwrap()).unwrap();
        let found = ask(at, "GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(found.starts_with("HTTP/1.1 200 OK\r\n"), "{found}");
        assert!(ask(at, "GET /secret HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(ask(at, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        assert!(ask(at, "nonsense\r\n\r\n").starts_with("HTTP/1.1 400"));
        assert!(ask(at, "HEAD / HTTP/1.0\r\n\r\n").ends_with("\r\n\r\n"));
    }

    #[test]
    fn silent_clients_hold_nobody_up() {
        let at = start("127.0.0.1:0".parse().unwrap()).unwrap();
        let _silent: Vec<_> = (0..3).map(|_| TcpStream::connect(at).unwrap()).collect();
        assert!(ask(at, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
    }
}
