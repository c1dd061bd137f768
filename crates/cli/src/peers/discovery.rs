//! Discovery: a sender with a code asks the local networks for the receiver that issued it.
//!
//! ```text
//! question:  "BWLN?" (5)  version (1)  nonce (8)  zeroes (2)     to 239.255.76.78, UDP port 18517
//! answer:    "BWLN!" (5)  version (1)  nonce (8)  TCP port (2)   to whoever asked
//! ```
//! Neither message reveals anything about the code. An answer is only a claim, which the handshake
//! verifies. Answers are no longer than questions, so that nobody can use a receiver to amplify a
//! flood against a third party.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

use super::Target;

/// Organization-local scope. With a time to live of 1, packets stay on the local network.
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 255, 76, 78);
const PORT: u16 = 18517;
const QUESTION: &[u8; 5] = b"BWLN?";
const ANSWER: &[u8; 5] = b"BWLN!";
const VERSION: u8 = 1;
const LEN: usize = 16;
/// How long to wait for the first answer, and for further answers after it.
const PATIENCE: Duration = Duration::from_secs(3);
const OTHERS: Duration = Duration::from_millis(300);
/// Interval at which a question is repeated, in case it was lost.
const AGAIN: Duration = Duration::from_millis(250);

/// Encodes a question or an answer.
fn message(kind: &[u8; 5], nonce: [u8; 8], port: u16) -> [u8; LEN] {
    let mut out = [0; LEN];
    out[..5].copy_from_slice(kind);
    out[5] = VERSION;
    out[6..14].copy_from_slice(&nonce);
    out[14..].copy_from_slice(&port.to_be_bytes());
    out
}

/// Decodes a question or an answer: its nonce and its port.
pub(crate) fn parse(is_answer: bool, bytes: &[u8]) -> Option<([u8; 8], u16)> {
    let bytes: &[u8; LEN] = bytes.try_into().ok()?;
    let kind = if is_answer { ANSWER } else { QUESTION };
    if bytes[..5] != kind[..] || bytes[5] != VERSION {
        return None;
    }
    let mut nonce = [0; 8];
    nonce.copy_from_slice(&bytes[6..14]);
    Some((nonce, u16::from_be_bytes([bytes[14], bytes[15]])))
}

/// Answers questions while `is_open` returns true. Returns `Err` if the port is not available.
pub(crate) fn answer(tcp_port: u16, is_open: impl Fn() -> bool) -> io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    // If one host runs several receivers, they all hear a question to the group.
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, PORT).into())?;
    for local in local_v4() {
        // An interface without multicast is reachable only from this host.
        let _ = socket.join_multicast_v4(&GROUP, &local);
    }
    let socket = UdpSocket::from(socket);
    socket.set_read_timeout(Some(Duration::from_millis(500)))?;
    let mut bytes = [0; 64];
    while is_open() {
        // A vanished peer can cause an error on this socket, which needs no handling.
        let Ok((len, from)) = socket.recv_from(&mut bytes) else { continue };
        if let Some((nonce, _)) = parse(false, &bytes[..len]) {
            let _ = socket.send_to(&message(ANSWER, nonce, tcp_port), from);
        }
    }
    Ok(())
}

/// Asks this host's networks for a receiver with a code.
pub(crate) fn find() -> Result<Target, String> {
    let mut nonce = [0; 8];
    getrandom::fill(&mut nonce)
        .map_err(|e| format!("cannot get random numbers from the system: {e}"))?;
    let sockets: Vec<(UdpSocket, SocketAddr)> = local_v4().into_iter().filter_map(asker).collect();
    let question = message(QUESTION, nonce, 0);
    let mut found: Vec<SocketAddr> = Vec::new();
    let start = Instant::now();
    let (mut deadline, mut asked) = (start + PATIENCE, None::<Instant>);
    while Instant::now() < deadline {
        if asked.is_none_or(|at| at.elapsed() > AGAIN) {
            asked = Some(Instant::now());
            for (socket, to) in &sockets {
                let _ = socket.send_to(&question, to);
            }
        }
        for (socket, _) in &sockets {
            let mut bytes = [0; 64];
            while let Ok((len, from)) = socket.recv_from(&mut bytes) {
                let Some((theirs, port)) = parse(true, &bytes[..len]) else { continue };
                let at = SocketAddr::new(from.ip(), port);
                if theirs == nonce && !found.contains(&at) && found.len() < 16 {
                    if found.is_empty() {
                        deadline = deadline.min(Instant::now() + OTHERS);
                    }
                    found.push(at);
                }
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    choose(found)
}

/// The receiver that answered. One on this host answers on loopback too.
fn choose(mut found: Vec<SocketAddr>) -> Result<Target, String> {
    found.sort_by_key(|at| (at.port(), at.ip().is_loopback(), at.ip()));
    let here: Vec<IpAddr> = bowline_io::local_addresses()
        .map(|all| all.into_iter().map(|local| local.addr).collect())
        .unwrap_or_default();
    let is_here = |ip: IpAddr| ip.is_loopback() || here.contains(&ip);
    found.dedup_by(|a, b| a.port() == b.port() && is_here(a.ip()) && is_here(b.ip()));
    match &found[..] {
        [only] => Ok(Target { host: only.ip().to_string(), port: only.port() }),
        [] => Err(
            "no receiver with a code answers on the networks of this host: start `bowline recv \
                   --code` there, or name its host with --to HOST"
                .to_owned(),
        ),
        several => {
            let list: Vec<String> = several.iter().map(SocketAddr::to_string).collect();
            let list = list.join(", ");
            Err(format!(
                "several receivers with a code answer ({list}): say which with --to HOST:PORT"
            ))
        }
    }
}

/// A socket that asks from one address of this host, and the address to ask.
fn asker(local: Ipv4Addr) -> Option<(UdpSocket, SocketAddr)> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).ok()?;
    socket.bind(&SocketAddrV4::new(local, 0).into()).ok()?;
    socket.set_nonblocking(true).ok()?;
    // Loopback has no multicast, so ask the receiver on this host directly.
    let to = if local.is_loopback() { local } else { GROUP };
    if !local.is_loopback() {
        socket.set_multicast_if_v4(&local).ok()?;
        socket.set_multicast_ttl_v4(1).ok()?;
    }
    Some((socket.into(), SocketAddrV4::new(to, PORT).into()))
}

fn local_v4() -> Vec<Ipv4Addr> {
    let all = bowline_io::local_addresses().unwrap_or_default();
    all.into_iter()
        .filter_map(|local| match local.addr {
            IpAddr::V4(v4) => Some(v4),
            IpAddr::V6(_) => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_and_answers_are_told_apart() {
        let question = message(QUESTION, [7; 8], 0);
        let answer = message(ANSWER, [7; 8], 4711);
        assert_eq!(parse(false, &question), Some(([7; 8], 0)));
        assert_eq!(parse(true, &answer), Some(([7; 8], 4711)));
        assert_eq!(parse(true, &question), None);
        assert_eq!(parse(false, &answer), None);
        for len in 0..LEN {
            assert_eq!(parse(true, &answer[..len]), None);
        }
        assert!(answer.len() <= question.len(), "nobody is flooded by answers");
    }

    #[test]
    fn one_receiver_is_taken_and_several_are_asked_about() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let one = choose(vec![at("192.0.2.7:18517")]).unwrap();
        assert_eq!(one.to_string(), "192.0.2.7:18517");
        assert!(choose(vec![]).unwrap_err().contains("--to HOST"));
        let several = choose(vec![at("192.0.2.7:1"), at("192.0.2.8:1")]).unwrap_err();
        assert!(several.contains("192.0.2.7:1, 192.0.2.8:1"), "{several}");
        let same = choose(vec![at("127.0.0.1:5"), at("127.0.0.1:5")]).unwrap();
        assert_eq!(same.port, 5);
    }
}
