//! Ends of a setup connection that authenticate each other, and others that are kept out.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use bowline::peers::{Code, Identity, Mode, PeerError, PublicKey, Refusal};
use bowline::setup::AcceptPolicy;
use bowline::{Channel, Connector, Error, Listener, SetupError};

const PATIENCE: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(500);

/// An end that accepts.
struct Policy {
    identity: Identity,
    code: Mutex<Option<Code>>,
    authorized: Vec<PublicKey>,
    plain: bool,
}

impl Policy {
    fn new(authorized: &[&Identity]) -> Policy {
        Policy {
            identity: Identity::generate().unwrap(),
            code: Mutex::default(),
            authorized: authorized.iter().map(|identity| identity.public()).collect(),
            plain: false,
        }
    }
}

impl AcceptPolicy for Policy {
    fn identity(&self) -> Result<Identity, PeerError> {
        Ok(self.identity.clone())
    }

    fn take_code(&self) -> Option<Code> {
        self.code.lock().unwrap().take()
    }

    fn admits(&self, key: &PublicKey) -> Result<bool, PeerError> {
        Ok(self.authorized.contains(key))
    }

    fn admits_plain(&self, _peer: SocketAddr) -> bool {
        self.plain
    }
}

type Accepted = Result<(Option<Mode>, Channel), Error>;

/// Runs `client` against an end with this policy.
fn against<R>(policy: &Policy, client: impl FnOnce(SocketAddr) -> R) -> (R, Accepted) {
    let listener = Listener::bind("127.0.0.1:0").unwrap().with_timeout(SHORT * 4);
    let address = listener.local_addr().unwrap();
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            let mut channel = listener.accept_timeout(PATIENCE)?;
            let mode = channel.accept_peer(policy)?;
            Ok((mode, channel))
        });
        let outcome = client(address);
        (outcome, server.join().unwrap())
    })
}

fn connect(
    address: SocketAddr,
    identity: &Identity,
    code: Option<&Code>,
) -> Result<Channel, Error> {
    let mut channel = Connector::new().connect(address)?;
    channel.authenticate(identity, code, |_| Ok(()))?;
    Ok(channel)
}

fn refusal(error: &Error) -> Option<Refusal> {
    match error {
        Error::Setup(
            SetupError::Refused { refusal, .. } | SetupError::Rejected { refusal, .. },
        ) => Some(*refusal),
        _ => None,
    }
}

#[test]
fn known_peers_share_a_secret_and_talk() {
    let ada = Identity::generate().unwrap();
    let policy = Policy::new(&[&ada]);
    let (ours, theirs) = against(&policy, |at| connect(at, &ada, None));
    let (mut ours, (mode, mut theirs)) = (ours.unwrap(), theirs.unwrap());
    assert_eq!(mode, Some(Mode::Key));
    assert_eq!(ours.peer_key(), Some(policy.identity.public()));
    assert_eq!(theirs.peer_key(), Some(ada.public()));
    assert!(ours.session_secret().is_some());
    assert_eq!(ours.session_secret(), theirs.session_secret());
    assert!(ours.is_sealing() && theirs.is_sealing(), "queue pairs are sealed");
    assert_eq!((ours.is_initiator(), theirs.is_initiator()), (Some(true), Some(false)));
    // Short, empty, and as long as they get, both ways, by two threads at once.
    let long: Vec<u8> = (0..bowline::setup::MAX_BODY).map(|at| at as u8).collect();
    for message in [&b"x"[..], b"", &long] {
        let mut sender = ours.try_clone().unwrap();
        thread::scope(|scope| {
            scope.spawn(move || sender.send(message).unwrap());
            assert_eq!(theirs.recv().unwrap(), message);
            theirs.send(message).unwrap();
            assert_eq!(ours.recv().unwrap(), message);
        });
    }
}

#[test]
fn a_key_that_nobody_knows_is_refused_with_what_to_do() {
    let stranger = Identity::generate().unwrap();
    let (ours, theirs) = against(&Policy::new(&[]), |at| connect(at, &stranger, None));
    let (ours, theirs) = (ours.unwrap_err(), theirs.unwrap_err());
    assert_eq!(refusal(&ours), Some(Refusal::UnknownKey));
    let trust = format!("bowline key trust {}", stranger.public());
    assert!(ours.to_string().contains(&trust), "{ours}");
    assert!(theirs.to_string().contains(&trust), "{theirs}");
}

/// An end that goes on before the peer has answered.
fn connect_early(address: SocketAddr, identity: &Identity) -> Channel {
    let mut channel = Connector::new().connect(address).unwrap();
    channel.authenticate_early(identity, None, |_| Ok(())).unwrap();
    channel
}

#[test]
fn an_end_may_speak_before_it_is_let_in() {
    let ada = Identity::generate().unwrap();
    let (ours, theirs) = against(&Policy::new(&[&ada]), |at| {
        let mut channel = connect_early(at, &ada);
        assert!(channel.is_sealing() && channel.try_clone().is_err());
        channel.send(b"early").unwrap();
        channel
    });
    let (mut ours, mut theirs) = (ours, theirs.unwrap().1);
    assert_eq!(theirs.recv().unwrap(), b"early");
    theirs.send(b"answer").unwrap();
    assert_eq!(ours.recv().unwrap(), b"answer");
    assert!(ours.is_sealing() && theirs.is_sealing() && ours.try_clone().is_ok());
}

#[test]
fn an_end_that_spoke_early_hears_that_it_is_refused() {
    let stranger = Identity::generate().unwrap();
    let (ours, theirs) = against(&Policy::new(&[]), |at| {
        let mut channel = connect_early(at, &stranger);
        // Unread data must not displace the reason.
        channel.send(&[1; 50_000]).unwrap();
        channel.recv().unwrap_err()
    });
    assert_eq!(refusal(&ours), Some(Refusal::UnknownKey), "{ours}");
    assert!(ours.to_string().contains(&stranger.public().to_string()), "{ours}");
    assert_eq!(refusal(&theirs.unwrap_err()), Some(Refusal::UnknownKey));
}

#[test]
fn this_end_shows_its_key_to_nobody_that_it_does_not_know() {
    let ada = Identity::generate().unwrap();
    let policy = Policy::new(&[&ada]);
    let (ours, theirs) = against(&policy, |at| {
        let mut channel = Connector::new().connect(at)?;
        channel.authenticate(&ada, None, |_| Err(PeerError::WrongCode))
    });
    assert!(ours.is_err());
    // It hung up before it said who it is.
    assert!(matches!(theirs, Err(Error::Setup(SetupError::Closed))), "{theirs:?}");
}

#[test]
fn a_code_is_good_for_one_try() {
    let (ada, code) = (Identity::generate().unwrap(), Code::generate().unwrap());
    let policy = Policy::new(&[]);
    *policy.code.lock().unwrap() = Some(code.clone());
    let (ours, theirs) = against(&policy, |at| connect(at, &ada, Some(&code)));
    assert_eq!(theirs.unwrap().0, Some(Mode::Code));
    ours.unwrap();
    let (ours, _) = against(&policy, |at| connect(at, &ada, Some(&code)));
    assert_eq!(refusal(&ours.unwrap_err()), Some(Refusal::NoCode));

    let wrong = (0..).map(|_| Code::generate().unwrap()).find(|other| *other != code).unwrap();
    *policy.code.lock().unwrap() = Some(code.clone());
    let (ours, theirs) = against(&policy, |at| connect(at, &ada, Some(&wrong)));
    assert_eq!(refusal(&ours.unwrap_err()), Some(Refusal::WrongCode));
    assert_eq!(refusal(&theirs.unwrap_err()), Some(Refusal::WrongCode));
    let (ours, _) = against(&policy, |at| connect(at, &ada, Some(&code)));
    assert_eq!(refusal(&ours.unwrap_err()), Some(Refusal::NoCode), "it was tried, so it is void");
}

#[test]
fn who_says_nothing_about_himself_is_told_to() {
    let mut policy = Policy::new(&[]);
    let plain = |at| {
        let mut channel = Connector::new().connect(at)?;
        channel.send(b"hello")?;
        channel.recv()
    };
    let (ours, theirs) = against(&policy, plain);
    assert_eq!(refusal(&ours.unwrap_err()), Some(Refusal::Unauthenticated));
    assert_eq!(refusal(&theirs.unwrap_err()), Some(Refusal::Unauthenticated));
    policy.plain = true;
    let (channel, theirs) = against(&policy, |at| {
        let mut channel = Connector::new().connect(at)?;
        channel.send(b"hello")?;
        Ok::<_, Error>(channel)
    });
    let (mode, mut theirs) = theirs.unwrap();
    assert_eq!((mode, theirs.session_secret()), (None, None));
    assert_eq!(theirs.recv().unwrap(), b"hello");
    drop(channel);
}

#[test]
fn an_end_that_has_no_keys_says_so() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || listener.accept_timeout(PATIENCE)?.recv());
    let error = connect(address, &Identity::generate().unwrap(), None).unwrap_err();
    assert_eq!(refusal(&error), Some(Refusal::NoKeys), "{error}");
    assert!(server.join().unwrap().is_err());
}

/// A man in the middle, who may change what the connecting end sends.
fn in_between(
    to: SocketAddr,
    mut meddle: impl FnMut(usize, &mut Vec<u8>) + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut server = TcpStream::connect(to).unwrap();
        let (mut back_from, mut back_to) =
            (server.try_clone().unwrap(), client.try_clone().unwrap());
        thread::spawn(move || {
            let _ = std::io::copy(&mut back_from, &mut back_to);
            let _ = back_to.shutdown(std::net::Shutdown::Both);
        });
        for count in 0.. {
            let Some(mut piece) = read_frame(&mut client) else { break };
            meddle(count, &mut piece);
            if server.write_all(&piece).is_err() {
                break;
            }
        }
        let _ = server.shutdown(std::net::Shutdown::Both);
    });
    at
}

/// A frame of the handshake, which ends its header of ten bytes with a length, or a record, which
/// begins with one.
fn read_frame(from: &mut TcpStream) -> Option<Vec<u8>> {
    let mut frame = vec![0; 2];
    from.read_exact(&mut frame).ok()?;
    let len = if frame == *b"BW" {
        frame.resize(10, 0);
        from.read_exact(&mut frame[2..]).ok()?;
        u32::from_be_bytes(*frame.last_chunk()?) as usize
    } else {
        u16::from_be_bytes(*frame.last_chunk()?).into()
    };
    let at = frame.len();
    frame.resize(at + len, 0);
    from.read_exact(&mut frame[at..]).ok()?;
    Some(frame)
}

#[test]
fn nobody_in_between_changes_or_downgrades_it() {
    let ada = Identity::generate().unwrap();
    let policy = Policy::new(&[&ada]);
    // The mode; a bit of the ephemeral key; a bit of the proof; the kind of frame.
    let changes: [(usize, usize, u8); 4] = [(0, 10, 3), (0, 20, 1), (1, 40, 1), (0, 5, 7)];
    for (message, at, bits) in changes {
        let (ours, theirs) = against(&policy, |address| {
            let address = in_between(address, move |count, piece| {
                if count == message {
                    piece[at] ^= bits;
                }
            });
            connect(address, &ada, None)
        });
        assert!(ours.is_err() && theirs.is_err(), "message {message}, byte {at}");
    }
    // With a peer that would take plain connections, ours still does not become one.
    let mut open = Policy::new(&[&ada]);
    open.plain = true;
    let (ours, _) = against(&open, |address| {
        let address = in_between(address, |count, piece| {
            if count == 0 {
                piece[5] = 3;
            }
        });
        connect(address, &ada, None)
    });
    assert!(ours.is_err());
}

#[test]
fn a_changed_or_repeated_record_ends_the_channel() {
    for repeat in [false, true] {
        let ada = Identity::generate().unwrap();
        let policy = Policy::new(&[&ada]);
        let (ours, theirs) = against(&policy, |address| {
            let address = in_between(address, move |count, piece| {
                // The first two are the handshake, the next agrees on sealing.
                if count == 3 && repeat {
                    piece.extend_from_within(..);
                } else if count == 3 {
                    *piece.last_mut().unwrap() ^= 1;
                }
            });
            let mut channel = connect(address, &ada, None)?;
            channel.send(b"message")?;
            Ok::<_, Error>(channel)
        });
        let (_ours, mut theirs) = (ours.unwrap(), theirs.unwrap().1);
        if repeat {
            assert_eq!(theirs.recv().unwrap(), b"message");
        }
        let error = theirs.recv().unwrap_err();
        assert!(error.to_string().contains("interferes"), "{error}");
    }
}

#[test]
fn a_peer_that_dribbles_through_the_handshake_gains_no_time() {
    let policy = Policy::new(&[]);
    let start = Instant::now();
    let ((), theirs) = against(&policy, |address| {
        let mut stream = TcpStream::connect(address).unwrap();
        let mut frame = b"BWLN\x01\x04".to_vec();
        frame.extend(33_u32.to_be_bytes());
        frame.extend([1; 33]);
        for byte in frame {
            if stream.write_all(&[byte]).is_err() {
                return;
            }
            thread::sleep(Duration::from_millis(150));
        }
    });
    assert!(matches!(theirs, Err(Error::Setup(SetupError::TimedOut { .. }))), "{theirs:?}");
    assert!(start.elapsed() < PATIENCE);
}

#[test]
fn a_long_handshake_message_is_not_believed() {
    let policy = Policy::new(&[]);
    let (_stream, theirs) = against(&policy, |address| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"BWLN\x01\x04\x00\x00\xff\xff").unwrap();
        stream
    });
    assert!(matches!(theirs, Err(Error::Setup(SetupError::Invalid(_)))), "{theirs:?}");
}
