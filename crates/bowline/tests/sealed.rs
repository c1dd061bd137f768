//! Sealed queue pairs over sockets: the channel agrees, the packets are secret, and a wrong key is
//! reported.

mod common;

use std::net::SocketAddr;
use std::time::Duration;

use bowline::{
    Access, Channel, Connector, Device, Error, FecMode, Listener, Mr, Qp, QpType, ReliableConfig,
    ReliableQp, SealRole, SetupError, WriteOptions,
};

const KEY: [u8; 32] = [7; 32];
const PATIENCE: Duration = Duration::from_secs(20);
const TEXT: &[u8] = b"what nobody on the path may read, neither here nor there";

/// Two channels of one connection.
fn channels() -> (Channel, Channel) {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let client = std::thread::spawn(move || Connector::new().connect(address).unwrap());
    let server = listener.accept_timeout(PATIENCE).unwrap();
    (client.join().unwrap(), server)
}

/// Runs both ends, each in a thread of its own.
fn both<A: Send + 'static, B: Send>(
    one: impl FnOnce() -> A + Send + 'static,
    other: impl FnOnce() -> B,
) -> (A, B) {
    let one = std::thread::spawn(one);
    let other = other();
    (one.join().unwrap(), other)
}

fn seal_both(
    mut a: Channel,
    mut b: Channel,
    keys: [[u8; 32]; 2],
) -> [(Channel, Result<(), Error>); 2] {
    let (a, b) = both(
        move || {
            let done = a.seal(&keys[0], SealRole::Initiator);
            (a, done)
        },
        move || {
            let done = b.seal(&keys[1], SealRole::Responder);
            (b, done)
        },
    );
    [a, b]
}

fn end(device: &Device, qp_type: QpType) -> (Qp, Mr, bowline::Cq) {
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let mr = pd.register(1 << 20, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    (pd.qp(qp_type, &cq).build().unwrap(), mr, cq)
}

fn open(capture: Option<&std::path::Path>) -> Device {
    let mut builder = Device::builder(common::random_addr());
    if let Some(file) = capture {
        builder = builder.pcap(file);
    }
    builder.open().unwrap()
}

#[test]
fn a_capture_of_a_sealed_write_has_no_plaintext_and_one_of_an_unsealed_write_has() {
    for is_sealed in [false, true] {
        let name = format!("bowline-sealed-{}-{is_sealed}.pcap", std::process::id());
        let capture = std::env::temp_dir().join(name);
        let (a, b) = channels();
        let (mut a, mut b) = if is_sealed {
            let [(a, one), (b, other)] = seal_both(a, b, [KEY, KEY]);
            one.and(other).unwrap();
            (a, b)
        } else {
            (a, b)
        };
        let [mine, peers] = [open(Some(&capture)), open(None)];
        let ((qp, mr, cq), (peer, offered, _peer_cq)) =
            (end(&mine, QpType::Rc), end(&peers, QpType::Rc));
        let remote = offered.remote();
        let (connected, there) =
            both(move || b.connect(&peer, &[remote]).map(|_| peer), || a.connect(&qp, &[]));
        let (peer, there) = (connected.unwrap(), there.unwrap());
        assert_eq!([qp.is_sealed().unwrap(), peer.is_sealed().unwrap()], [is_sealed; 2]);
        mr.write_at(0, TEXT);
        qp.write(1, &mr, 0..100_000, there.regions[0]).unwrap();
        cq.next(PATIENCE).unwrap();
        assert_eq!(offered.to_vec(0, TEXT.len()), TEXT);
        drop((qp, mr, cq, mine));
        let bytes = std::fs::read(&capture).unwrap();
        let _ = std::fs::remove_file(&capture);
        assert!(bytes.len() > 100_000, "{} bytes were captured", bytes.len());
        let readable = bytes.windows(TEXT.len()).any(|part| part == TEXT);
        assert_eq!(readable, !is_sealed);
    }
}

#[test]
fn another_key_and_a_peer_that_does_not_seal_are_told() {
    let (a, b) = channels();
    for (_, done) in seal_both(a, b, [KEY, [8; 32]]) {
        assert!(matches!(done, Err(Error::Setup(SetupError::WrongSecret))), "{done:?}");
    }
    let (mut a, mut b) = channels();
    b.send(b"something else").unwrap();
    let done = a.seal(&KEY, SealRole::Initiator);
    assert!(matches!(done, Err(Error::Setup(SetupError::Unsealed))), "{done:?}");
}

#[test]
fn a_datagram_queue_pair_is_refused_rather_than_left_in_the_clear() {
    let (a, b) = channels();
    let [(mut a, one), (mut b, other)] = seal_both(a, b, [KEY, KEY]);
    one.and(other).unwrap();
    let device = open(None);
    let (qp, _mr, _cq) = end(&device, QpType::Ud);
    let (peer, _peer_mr, _peer_cq) = end(&device, QpType::Ud);
    let (there, here) =
        both(move || b.exchange(&peer, &[]).map(|_| ()), || a.exchange(&qp, &[]).map(|_| ()));
    assert!(there.is_err() && here.is_err());
}

#[test]
fn reliable_messages_arrive_sealed_over_a_link_that_loses() {
    let (a, b) = channels();
    let [(mut a, one), (mut b, other)] = seal_both(a, b, [KEY, KEY]);
    one.and(other).unwrap();
    let link = "loss=1%,reorder=1%,duplicate=1%,delay=50us,seed=5";
    let devices = [0, 1].map(|_| {
        let builder = Device::builder(common::random_addr()).link(link.parse().unwrap());
        builder.fec(FecMode::Off).open().unwrap()
    });
    let [from, to] = devices;
    let receiver = std::thread::spawn(move || {
        let pd = to.alloc_pd().unwrap();
        let mr = pd.register(1 << 20, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let qp = ReliableQp::new(&pd, &ReliableConfig::default()).unwrap();
        qp.connect_over(&mut b).unwrap();
        qp.recv(&mr, 0..1 << 20).unwrap();
        qp.next(PATIENCE).unwrap();
        // It stays until the sender has heard of it: what it says may be lost, too.
        (mr.to_vec(0, TEXT.len()), qp, to)
    });
    let pd = from.alloc_pd().unwrap();
    let mr = pd.register(1 << 20, Access::LOCAL_WRITE).unwrap();
    mr.write_at(0, TEXT);
    let qp = ReliableQp::new(&pd, &ReliableConfig::default()).unwrap();
    qp.connect_over(&mut a).unwrap();
    let scheme = qp.scheme("sr-nack").unwrap();
    qp.write(&mr, 0..1 << 20, WriteOptions { scheme, imm: None }).unwrap();
    qp.next(PATIENCE).unwrap();
    let (bytes, _qp, _device) = receiver.join().unwrap();
    assert_eq!(bytes, TEXT);
}
