//! Tests a receiver against misbehaving senders.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use bowline::{Connector, Listener, WriteOptions};

use super::args::{NicOptions, RecvArgs};
use super::control::Control;
use super::dir::Dir;
use super::filter::Filter;
use super::message::{Entry, Hello, Kind, Message, Offer, Timestamp, VERSION, Welcome};
use super::report::Report;
use super::session::{Agreed, Nic, SLOTS, Session, Speed};
use super::{Failure, receiver};
use crate::nic_name::NicName;

struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        let name = format!("bowline-unit-{:x}", RandomState::new().hash_one(0));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(path.join("inner")).unwrap();
        Scratch(path)
    }

    fn inner(&self) -> PathBuf {
        self.0.join("inner")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn random_addr() -> std::net::IpAddr {
    let [a, b, c, ..] = RandomState::new().hash_one(0).to_le_bytes();
    [127, a.max(1), b, c.clamp(1, 254)].into()
}

/// Runs a receiver into `dir`, and `sender` against it once they are connected.
fn against(dir: &Path, sender: impl FnOnce(&Session, &Control)) -> Result<Report, Failure> {
    against_impatient(dir, Duration::from_secs(60), sender)
}

/// The same with a receiver of limited patience.
fn against_impatient(
    dir: &Path,
    patience: Duration,
    sender: impl FnOnce(&Session, &Control),
) -> Result<Report, Failure> {
    let device = random_addr();
    let listener = Listener::bind((device, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let args = recv_args(dir, device);
    thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let dir = Dir::open(&args.dir, args.rights())?;
            let channel = listener.accept_timeout(Duration::from_secs(10))?;
            receiver::receive(&args, &dir, channel, patience)
        });
        let mut channel = Connector::new().connect(address).unwrap();
        let nic = Nic::open(&NicName::Addr(random_addr()), &NicOptions::default(), None).unwrap();
        let (mtu, lanes) = (nic.mtu_bytes(), nic.lanes());
        let segment_bytes = 16 << 20;
        let hello = Hello { mtu, lanes, segment_bytes, ..hello() };
        channel.send(&postcard::to_stdvec(&hello).unwrap()).unwrap();
        let welcome: Result<Welcome, String> =
            postcard::from_bytes(&channel.recv().unwrap()).unwrap();
        let Welcome { mtu, lanes, .. } = welcome.unwrap();
        let agreed = Agreed { mtu_bytes: mtu, lanes, scheme: "sr-nack", segment_bytes };
        let session = nic.connect(&mut channel, agreed, Speed::default()).unwrap();
        let control = Control::start(channel, "receiver", None).unwrap();
        sender(&session, &control);
        control.close(&Ok(()));
        receiver.join().unwrap()
    })
}

fn hello() -> Hello {
    Hello {
        version: VERSION,
        scheme: "sr-nack".to_owned(),
        mtu: 1024,
        lanes: 1,
        segment_bytes: 1024,
        dry_run: false,
        delete: false,
        filter: Filter::default(),
        group: false,
        offer: None,
        entries: vec![],
        has_more_entries: true,
    }
}

/// A receiver's response to a greeting.
fn answer_to(greeting: &[u8]) -> Result<Welcome, String> {
    let (scratch, device) = (Scratch::new(), random_addr());
    let listener = Listener::bind((device, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let args = recv_args(&scratch.inner(), device);
    thread::scope(|scope| {
        scope.spawn(|| {
            let dir = Dir::open(&args.dir, args.rights()).unwrap();
            let channel = listener.accept_timeout(Duration::from_secs(10)).unwrap();
            let _ = receiver::receive(&args, &dir, channel, Duration::from_secs(10));
        });
        let mut channel = Connector::new().connect(address).unwrap();
        channel.send(greeting).unwrap();
        postcard::from_bytes(&channel.recv().unwrap()).unwrap()
    })
}

fn recv_args(dir: &Path, device: std::net::IpAddr) -> RecvArgs {
    RecvArgs {
        dir: dir.to_owned(),
        code: false,
        remember: false,
        insecure: false,
        device: Some(NicName::Addr(device)),
        port: 0,
        once: true,
        overwrite: false,
        delete: false,
        owner: false,
        xattrs: false,
        opening: NicOptions::default(),
        shown: Default::default(),
    }
}

fn file(path: &[u8], bytes: u64) -> Entry {
    let (kind, mtime) = (Kind::File { bytes, sparse: false }, Timestamp::default());
    Entry { path: path.to_vec(), kind, mode: 0o644, mtime, owner: None, xattrs: vec![] }
}

/// Lists entries, and waits for the receiver to claim what it has.
fn list(control: &Control, entries: &[Entry]) {
    control.send(Message::Entries(entries.to_vec()));
    control.send(Message::EndOfEntries);
}

/// Sends both files as segment 0, which a receiver that has neither expects.
fn send_segment(session: &Session, control: &Control, sent: [&[u8]; 2], hashed: [&[u8]; 2]) {
    let hashes = hashed.map(|bytes| *blake3::hash(bytes).as_bytes()).to_vec();
    control.send(Message::Hashes { segment: 0, hashes, unread: vec![] });
    let bytes = sent.concat();
    session.mr.write_at(0, &bytes);
    let options = WriteOptions { scheme: 0, imm: Some(0) };
    session.qp.write(&session.mr, 0..bytes.len(), options).unwrap();
    session.qp.next(Duration::from_secs(10)).unwrap();
}

fn begin(control: &Control, files: [&[u8]; 2]) {
    list(control, &[file(b"a", files[0].len() as u64), file(b"b", files[1].len() as u64)]);
    assert_eq!(control.hear().unwrap(), Message::EndOfClaims);
    assert!(matches!(control.hear().unwrap(), Message::Ready { .. }));
}

#[test]
fn a_damaged_segment_is_asked_for_once_more() {
    let scratch = Scratch::new();
    let (a, b) = (vec![1; 100_000], vec![2; 70_000]);
    let mut damaged = b.clone();
    damaged[69_999] ^= 1;
    let report = against(&scratch.inner(), |session, control| {
        begin(control, [&a, &b]);
        send_segment(session, control, [&a, &damaged], [&a, &b]);
        assert_eq!(control.hear().unwrap(), Message::Again { segment: 0 });
        assert!(!scratch.inner().join("b").exists(), "what is damaged has no name");
        send_segment(session, control, [&a, &b], [&a, &b]);
        assert!(matches!(control.hear().unwrap(), Message::Complete { .. }));
        control.send(Message::Agreed);
    });
    assert_eq!(report.unwrap().segments_again, 1);
    assert_eq!(fs::read(scratch.inner().join("a")).unwrap(), a);
    assert_eq!(fs::read(scratch.inner().join("b")).unwrap(), b);
}

#[test]
fn a_segment_that_stays_damaged_is_an_error() {
    let scratch = Scratch::new();
    let (a, b) = (vec![1; 10], vec![2; 10]);
    let report = against(&scratch.inner(), |session, control| {
        begin(control, [&a, &b]);
        send_segment(session, control, [&a, &a], [&a, &b]);
        assert_eq!(control.hear().unwrap(), Message::Again { segment: 0 });
        send_segment(session, control, [&a, &a], [&a, &b]);
        let heard = control.hear().unwrap_err().to_string();
        assert!(heard.contains("a part of b arrived damaged twice"), "{heard}");
    });
    assert!(report.unwrap_err().to_string().contains("damaged twice"));
    assert!(!scratch.inner().join("b").exists());
}

#[test]
fn a_sender_that_only_says_it_is_alive_is_given_up() {
    type Idle = fn(&Session, &Control);
    let idle: [Idle; 3] = [
        |_, _| {},
        // The sender never says which claims hold.
        |_, control| list(control, &[file(b"a", 1000)]),
        // The sender sends hashes but no data.
        |_, control| {
            begin(control, [&[1; 10], &[2; 10]]);
            control.send(Message::Hashes { segment: 0, hashes: vec![[0; 32]; 2], unread: vec![] });
        },
    ];
    for idle in idle {
        let scratch = Scratch::new();
        let start = Instant::now();
        // Longer than the interval of keep-alive messages.
        let patience = Duration::from_secs(3);
        let report = against_impatient(&scratch.inner(), patience, |session, control| {
            idle(session, control);
            // Wait until the receiver gives up; `Control` sends keep-alives meanwhile.
            while control.hear().is_ok() {}
        });
        let error = report.unwrap_err().to_string();
        assert!(error.contains("no progress"), "{error}");
        assert!(start.elapsed() >= patience, "{:?}", start.elapsed());
    }
}

#[test]
fn directories_that_exist_keep_their_permissions() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new();
    let old = scratch.inner().join("old");
    fs::create_dir(&old).unwrap();
    fs::set_permissions(&old, fs::Permissions::from_mode(0o700)).unwrap();
    let directory = |path: &[u8]| Entry { kind: Kind::Directory, mode: 0o777, ..file(path, 0) };
    let before = fs::metadata(&old).unwrap().modified().unwrap();
    let report = against(&scratch.inner(), |_, control| {
        list(control, &[directory(b"old"), directory(b"new")]);
        assert_eq!(control.hear().unwrap(), Message::EndOfClaims);
        assert!(matches!(control.hear().unwrap(), Message::Ready { .. }));
        assert!(matches!(control.hear().unwrap(), Message::Complete { .. }));
        control.send(Message::Agreed);
    });
    report.unwrap();
    let mode =
        |name: &str| fs::metadata(scratch.inner().join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("old"), mode("new")), (0o700, 0o777));
    assert_eq!(fs::metadata(&old).unwrap().modified().unwrap(), before);
}

#[test]
fn nothing_leads_out_of_the_directory() {
    let paths: [&[u8]; 6] =
        [b"../escaped", b"/tmp/escaped", b"a/../../escaped", b"..", b"a\0b", b"a.bowline-state"];
    for path in paths {
        let scratch = Scratch::new();
        let report = against(&scratch.inner(), |_, control| {
            list(control, &[file(path, 0)]);
            let heard = control.hear().unwrap_err().to_string();
            assert!(heard.contains("is refused"), "{heard}");
        });
        assert!(report.is_err());
        assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1);
        assert_eq!(fs::read_dir(scratch.inner()).unwrap().count(), 0);
    }
}

#[test]
fn impossible_lists_are_refused() {
    let twice = [file(b"a", 0), file(b"a", 0)];
    let huge = [file(b"a", 1 << 55)];
    let beyond = [file(b"a", u64::MAX)];
    let cases =
        [(&twice[..], "occurs twice"), (&huge, "not enough space"), (&beyond, "for one transfer")];
    for (entries, expected) in cases {
        let scratch = Scratch::new();
        let report = against(&scratch.inner(), |_, control| {
            list(control, entries);
            while control.hear().is_ok() {}
        });
        let error = report.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn another_version_is_refused_whatever_else_it_says() {
    for rest in [&[][..], &[0xff; 40]] {
        let greeting = [&postcard::to_stdvec(&(VERSION - 1)).unwrap(), rest].concat();
        let why = answer_to(&greeting).unwrap_err();
        let expected = format!("version {VERSION}, this sender's {}", VERSION - 1);
        assert!(why.contains(&expected), "{why}");
    }
}

#[test]
fn an_offer_that_makes_no_sense_is_refused() {
    for info in [vec![], vec![6; 100]] {
        let offer = Some(Offer { addr: random_addr(), info });
        let greeting = postcard::to_stdvec(&Hello { offer, ..hello() }).unwrap();
        assert!(answer_to(&greeting).is_err());
    }
}

#[test]
fn without_an_offer_that_fits_there_is_none_in_return() {
    let device = random_addr();
    let nic = Nic::open(&NicName::Addr(device), &NicOptions::default(), None).unwrap();
    let agreed = Agreed { mtu_bytes: 1024, lanes: 1, scheme: "sr-nack", segment_bytes: 1024 };
    let session = nic.make(agreed, Speed::default()).unwrap();
    let offer = Some(nic.offer(&session).unwrap());
    let fitting = Hello { offer, ..hello() };
    for (hello, fits) in [
        (fitting.clone(), true),
        (Hello { lanes: u16::MAX, ..fitting.clone() }, false),
        (Hello { offer: None, ..fitting }, false),
    ] {
        let welcome = answer_to(&postcard::to_stdvec(&hello).unwrap()).unwrap();
        assert_eq!(welcome.offer.is_some(), fits, "{} lanes", hello.lanes);
    }
}

/// Message numbers are used in order: a segment that seven others have overtaken keeps its number
/// from being reused.
#[test]
fn a_slot_without_a_number_waits() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let open = || Nic::open(&NicName::Addr(random_addr()), &NicOptions::default(), None).unwrap();
    let agreed = Agreed { mtu_bytes: 1024, lanes: 1, scheme: "sr-nack", segment_bytes: 16 << 20 };
    let sender = thread::spawn(move || {
        let mut channel = Connector::new().connect(at).unwrap();
        let nic = open();
        let session = nic.connect(&mut channel, agreed, Speed::default()).unwrap();
        (nic, session)
    });
    let mut channel = listener.accept().unwrap();
    let nic = open();
    let session = nic.connect(&mut channel, agreed, Speed::default()).unwrap();
    let _sender = sender.join().unwrap();
    for slot in 0..SLOTS {
        assert!(session.post(slot).unwrap().is_some(), "slot {slot}");
    }
    assert!(session.post(0).unwrap().is_none());
}
