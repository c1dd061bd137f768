//! Setting up connections over TCP, with honest peers and with others.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bowline::{Channel, Connector, Error, Fault, Listener, QpType, SetupError};
use common::{End, PATIENCE, poll_one};

const SHORT: Duration = Duration::from_millis(300);

#[test]
fn both_ends_are_ready_when_connect_returns() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let end = End::new(QpType::Rc);
        let mut channel = listener.accept_timeout(PATIENCE).unwrap();
        channel.connect(&end.qp, &[end.remote()]).unwrap();
        channel.barrier().unwrap();
        end.mr.to_vec(0, 4)
    });
    let end = End::new(QpType::Rc);
    let mut channel = Connector::new().connect(address).unwrap();
    let peer = channel.connect(&end.qp, &[]).unwrap();
    assert_eq!(peer.regions.len(), 1);
    end.mr.write_at(0, b"done");
    end.qp.write(1, &end.mr, 0..4, peer.regions[0]).unwrap();
    poll_one(&end.cq);
    channel.barrier().unwrap();
    assert_eq!(server.join().unwrap(), b"done");
}

/// What `exchange` says of a peer that does `lie` on the raw TCP connection.
fn exchange_with(lie: impl FnOnce(&mut TcpStream) + Send + 'static) -> Error {
    let listener = Listener::bind("127.0.0.1:0").unwrap().with_timeout(SHORT);
    let address = listener.local_addr().unwrap();
    let liar = std::thread::spawn(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        lie(&mut stream);
        // Hold the connection open until the other end is done with it.
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let end = End::new(QpType::Rc);
    let start = Instant::now();
    let mut channel: Channel = listener.accept_timeout(PATIENCE).unwrap();
    let error = channel.connect(&end.qp, &[]).unwrap_err();
    assert!(start.elapsed() < PATIENCE, "it must not hang: {:?}", start.elapsed());
    drop(channel);
    liar.join().unwrap();
    error
}

/// A frame with any header.
fn frame(magic: &[u8; 4], version: u8, kind: u8, len: u32, body: &[u8]) -> Vec<u8> {
    let mut out = magic.to_vec();
    out.extend([version, kind]);
    out.extend(len.to_be_bytes());
    out.extend(body);
    out
}

#[test]
fn somebody_elses_protocol_is_named() {
    let error = exchange_with(|s| s.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap());
    assert!(matches!(error, Error::Setup(SetupError::WrongMagic(_))), "{error}");
    assert_eq!(error.fault(), Fault::Peer);
}

#[test]
fn another_version_is_named() {
    let error = exchange_with(|s| s.write_all(&frame(b"BWLN", 9, 1, 0, &[])).unwrap());
    assert!(matches!(error, Error::Setup(SetupError::WrongVersion { theirs: 9 })), "{error}");
    assert!(error.to_string().contains("same release"));
}

#[test]
fn a_huge_message_is_not_believed() {
    let error = exchange_with(|s| s.write_all(&frame(b"BWLN", 1, 1, u32::MAX, &[])).unwrap());
    assert!(matches!(error, Error::Setup(SetupError::TooLong { .. })), "{error}");
}

#[test]
fn a_message_of_the_wrong_kind_is_named() {
    let error = exchange_with(|s| s.write_all(&frame(b"BWLN", 1, 2, 0, &[])).unwrap());
    assert!(matches!(error, Error::Setup(SetupError::Unexpected { .. })), "{error}");
}

#[test]
fn rubbish_in_the_body_is_named() {
    let error = exchange_with(|s| s.write_all(&frame(b"BWLN", 1, 1, 33, &[0xee; 33])).unwrap());
    assert!(matches!(error, Error::Setup(SetupError::Invalid(_))), "{error}");
    let error = exchange_with(|s| s.write_all(&frame(b"BWLN", 1, 1, 2, &[1, 16])).unwrap());
    assert!(matches!(error, Error::Setup(SetupError::Truncated)), "{error}");
}

#[test]
fn a_silent_peer_times_out() {
    let error = exchange_with(|_| {});
    assert!(matches!(error, Error::Setup(SetupError::TimedOut { .. })), "{error}");
    assert_eq!(error.fault(), Fault::Path);
}

#[test]
fn a_peer_that_dribbles_gains_no_time() {
    let error = exchange_with(|s| {
        for byte in frame(b"BWLN", 1, 1, 33, &[1; 33]) {
            if s.write_all(&[byte]).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    assert!(matches!(error, Error::Setup(SetupError::TimedOut { .. })), "{error}");
}

#[test]
fn a_peer_that_hangs_up_is_named() {
    let error = exchange_with(|s| s.shutdown(std::net::Shutdown::Both).unwrap());
    assert!(matches!(error, Error::Setup(SetupError::Closed)), "{error}");
}

#[test]
fn queue_pairs_of_two_kinds_do_not_connect() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let end = End::new(QpType::Uc);
        listener.accept_timeout(PATIENCE).unwrap().connect(&end.qp, &[]).map(|_| ())
    });
    let end = End::new(QpType::Rc);
    let ours = Connector::new().connect(address).unwrap().connect(&end.qp, &[]);
    for error in [ours.map(|_| ()).unwrap_err(), server.join().unwrap().unwrap_err()] {
        assert!(matches!(error, Error::Setup(SetupError::Mismatch { .. })), "{error}");
    }
}

#[test]
fn a_lie_about_the_queue_pair_fails_in_bounded_time() {
    // A well-formed endpoint that is not there: setup cannot know, the first request does.
    let a = End::new(QpType::Rc);
    let b = End::new(QpType::Rc);
    let mut lie = b.qp.endpoint();
    lie.qpn = bowline::Qpn::new(lie.qpn.get() ^ 0x1ff);
    let options = bowline::ConnectOptions { timeout: 8, retry_count: 3, ..Default::default() };
    a.qp.connect_with(&lie, &options).unwrap();
    a.qp.write(1, &a.mr, 0..8, b.remote()).unwrap();
    let error = a.cq.next(PATIENCE).unwrap_err();
    assert_eq!(error.fault(), Fault::Path, "{error}");
    assert!(b.device.counters().unwrap().drop_no_qp > 0);
}

#[test]
fn nobody_listening_is_explained() {
    let closed: SocketAddr = Listener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = Connector::new().with_timeout(SHORT).connect(closed).unwrap_err();
    assert!(error.to_string().contains("start the server first"), "{error}");
}
