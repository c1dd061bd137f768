//! SDR and collectives on verbs devices: this library's own, whose soft NICs lose packets.

mod support;

use std::sync::Once;
use std::time::{Duration, Instant};

use bowline::{
    Access, Bounds, CommOptions, CommTransport, Communicator, Connector, DataType, Device, Error,
    Failure, Listener, Mr, ReduceOp, ReliableConfig, ReliableEvent, ReliableQp, SdrConfig, SdrQp,
    SdrScheme, Tensor, WriteOptions, rendezvous,
};
use support::back_end::soft_address;

/// Nothing here takes longer, on however busy a machine.
const PATIENCE: Duration = Duration::from_secs(120);
const RIGHTS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);
const SCHEMES: [&str; 5] = ["sr-rto", "sr-nack", "ec-mds", "ec-xor", "auto"];

/// Opens a device whose packets get lost, one in fifty.
fn open(name: &str) -> Device {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: nothing else of this process reads the environment through C.
        unsafe { std::env::set_var("BOWLINE_LINK", "loss=2%") };
    });
    match name.starts_with("verbs:") {
        true => support::back_end::open(name),
        false => Device::named(name).unwrap().link("loss=2%".parse().unwrap()).open().unwrap(),
    }
}

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| ((at * 31 + seed * 7919) >> 3) as u8 ^ at as u8).collect()
}

/// Runs both ends of a connection, each in a thread.
fn ends<R: Send>(
    config: &ReliableConfig,
    [server, client]: [Device; 2],
    body: impl Fn(bool, &ReliableQp, &Mr) -> R + Sync,
) -> [R; 2] {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let run = |device: Device, is_server: bool| {
        let pd = device.alloc_pd().unwrap();
        let mr = pd.register(8 << 20, RIGHTS).unwrap();
        let qp = ReliableQp::new(&pd, config).unwrap();
        let mut channel = match is_server {
            true => listener.accept_timeout(PATIENCE).unwrap(),
            false => Connector::new().connect(address).unwrap(),
        };
        channel.set_timeout(PATIENCE);
        qp.connect_over(&mut channel).unwrap();
        let result = body(is_server, &qp, &mr);
        // What the peer has not heard yet is said again as long as this end is there.
        let _ = channel.barrier();
        result
    };
    let run = &run;
    std::thread::scope(|scope| {
        let server = scope.spawn(move || run(server, true));
        let client = scope.spawn(move || run(client, false));
        [server.join().unwrap(), client.join().unwrap()]
    })
}

/// Messages of several lengths with every scheme, from one end and then from the other.
fn all_schemes(devices: [Device; 2]) {
    const LENGTHS: [usize; 4] = [1, 4_097, 300_000, 1 << 20];
    ends(&ReliableConfig::default(), devices, |is_server, qp, mr| {
        for (round, name) in SCHEMES.iter().flat_map(|name| [(true, name), (false, name)]) {
            let scheme = qp.scheme(name).unwrap();
            for (index, len) in LENGTHS.into_iter().enumerate() {
                if round == is_server {
                    mr.write_at(0, &bytes(index, len));
                    let imm = Some(index as u32);
                    qp.write(mr, 0..len, WriteOptions { scheme, imm }).unwrap();
                    qp.next(PATIENCE).unwrap_or_else(|e| panic!("{name}, {len} bytes: {e}"));
                    continue;
                }
                mr.fill(0, len, 0xee);
                qp.recv(mr, 0..len).unwrap();
                let event = qp.next(PATIENCE).unwrap_or_else(|e| panic!("{name}, {len}: {e}"));
                let ReliableEvent::Received { len: got, imm, .. } = event else {
                    panic!("{event:?}")
                };
                assert_eq!((got, imm), (len as u64, Some(index as u32)), "{name}");
                assert_eq!(mr.to_vec(0, len), bytes(index, len), "{name}, {len} bytes");
            }
        }
        let stats = qp.stats().unwrap();
        assert!(stats.landing.packets > 1_000, "{stats:?}");
    });
}

#[test]
fn every_scheme_works_between_two_verbs_devices() {
    all_schemes([open("verbs:bl0"), open("verbs:bl1")]);
}

#[test]
fn every_scheme_works_between_a_verbs_device_and_a_soft_nic() {
    all_schemes([open("verbs:bl0"), open(&soft_address(0))]);
}

#[test]
fn a_rate_is_kept_in_software() {
    let mut config = ReliableConfig::default();
    config.sdr.rate_bps = Some(8_000_000);
    let took = ends(&config, [open("verbs:bl0"), open("verbs:bl1")], |is_server, qp, mr| {
        let started = Instant::now();
        if is_server {
            qp.recv(mr, 0..1 << 20).unwrap();
        } else {
            let scheme = qp.scheme("sr-nack").unwrap();
            qp.write(mr, 0..1 << 20, WriteOptions { scheme, imm: None }).unwrap();
        }
        qp.next(PATIENCE).unwrap();
        started.elapsed()
    });
    assert!(took[1] > Duration::from_millis(900), "{took:?} for a second's worth of bytes");
}

#[test]
fn a_peer_that_dies_ends_in_an_error() {
    let config = ReliableConfig { timeout_ns: 2_000_000_000, ..ReliableConfig::default() };
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let peer_config = config.clone();
    let peer = std::thread::spawn(move || {
        let pd = open("verbs:bl1").alloc_pd().unwrap();
        let qp = ReliableQp::new(&pd, &peer_config).unwrap();
        let mr = pd.register(1 << 20, RIGHTS).unwrap();
        let mut channel = listener.accept_timeout(PATIENCE).unwrap();
        channel.set_timeout(PATIENCE);
        qp.connect_over(&mut channel).unwrap();
        // What tells that the first is there tells of the second receive as well.
        qp.recv(&mr, 0..1 << 20).unwrap();
        qp.recv(&mr, 0..1 << 20).unwrap();
        qp.next(PATIENCE).unwrap();
        // Gone once the other end knows.
        channel.barrier().unwrap();
    });
    let pd = open("verbs:bl0").alloc_pd().unwrap();
    let mr = pd.register(1 << 20, RIGHTS).unwrap();
    let qp = ReliableQp::new(&pd, &config).unwrap();
    let mut channel = Connector::new().connect(address).unwrap();
    channel.set_timeout(PATIENCE);
    qp.connect_over(&mut channel).unwrap();
    qp.write(&mr, 0..1 << 20, WriteOptions::default()).unwrap();
    qp.next(PATIENCE).unwrap();
    channel.barrier().unwrap();
    peer.join().unwrap();
    qp.write(&mr, 0..1 << 20, WriteOptions::default()).unwrap();
    let error = qp.next(PATIENCE).unwrap_err();
    assert!(matches!(error, Error::Message(Failure::TimedOut)), "{error}");
}

#[test]
fn late_packets_of_a_message_that_was_given_up_change_nothing() {
    const LEN: usize = 256 << 10;
    let [a, b] = ["verbs:bl0", "verbs:bl1"].map(|name| {
        let device = open(name);
        let pd = device.alloc_pd().unwrap();
        let mr = pd.register(2 * LEN, RIGHTS).unwrap();
        (SdrQp::new(&pd, &SdrConfig::default()).unwrap(), mr, device.addr())
    });
    a.0.connect(b.2, &b.0.info().unwrap()).unwrap();
    b.0.connect(a.2, &a.0.info().unwrap()).unwrap();
    b.1.fill(0, 2 * LEN, 0x11);
    a.1.fill(0, LEN, 0xee);
    a.1.fill(LEN, LEN, 0x55);
    for _ in 0..6 {
        let deadline = Instant::now() + PATIENCE;
        // A message that its receiver gives up at once, and all of whose packets come late.
        let given_up = b.0.recv_post(&b.1, 0..LEN).unwrap();
        let late = a.0.send_start(LEN as u64, None).unwrap();
        b.0.recv_complete(given_up).unwrap();
        a.0.send_continue(late, 0, &a.1, 0..LEN, false).unwrap();
        a.0.send_end(late).unwrap();
        // And the next one, into the same memory.
        let receive = b.0.recv_post(&b.1, 0..LEN).unwrap();
        let message = a.0.send_start(LEN as u64, None).unwrap();
        while !b.0.recv_bitmap(receive).unwrap().iter().all(|byte| *byte == 0xff) {
            assert!(Instant::now() < deadline, "the message does not arrive");
            a.0.send_continue(message, 0, &a.1, LEN..2 * LEN, true).unwrap();
            // Long enough for most of it to leave, before it is sent again.
            std::thread::sleep(Duration::from_millis(100));
        }
        a.0.send_end(message).unwrap();
        while !(a.0.send_poll(late).unwrap() && a.0.send_poll(message).unwrap()) {
            assert!(Instant::now() < deadline, "the messages do not leave");
            std::thread::yield_now();
        }
        b.0.recv_complete(receive).unwrap();
        assert_eq!(b.1.to_vec(0, LEN), vec![0x55; LEN]);
        b.1.fill(0, LEN, 0x11);
        assert_eq!(b.1.to_vec(LEN, LEN), vec![0x11; LEN]);
    }
}

/// An allreduce of ranks on these devices.
fn allreduce(name: &str, devices: &[&str], transport: CommTransport) -> Result<(), Error> {
    let options = CommOptions {
        timeout: PATIENCE,
        setup_timeout: PATIENCE,
        chunk_bytes: 16 << 10,
        window_bytes: None,
        transport,
        multicast: false,
        bounds: Bounds::EXACT,
    };
    let dir = format!("bowline-protocols-{name}-{}", std::process::id());
    let dir = std::env::temp_dir().join(dir);
    let url = format!("file://{}", dir.display());
    let count = devices.len() as u32;
    let run = |rank: u32, device: &str| -> Result<(), Error> {
        let pd = open(device).alloc_pd()?;
        let mr = pd.register(400_000, Access::LOCAL_WRITE)?;
        let value = |rank: u32, at: u32| (at % 997 + rank * 31) as f32;
        let mine: Vec<u8> = (0..100_000).flat_map(|at| value(rank, at).to_ne_bytes()).collect();
        mr.write_at(0, &mine);
        let meeting = rendezvous::in_store(&url, "test", rank, count)?;
        let comm = Communicator::meet(&pd, meeting, options)?;
        let tensor = Tensor::new(&mr, 0..400_000, DataType::F32)?;
        comm.allreduce(&tensor, ReduceOp::Sum)?.wait()?;
        let all = mr.to_vec(0, 400_000);
        for (at, found) in (0..).zip(all.as_chunks().0) {
            let sum: f32 = (0..count).map(|rank| value(rank, at)).sum();
            assert_eq!(f32::from_ne_bytes(*found), sum, "element {at} of rank {rank}");
        }
        Ok(())
    };
    let run = &run;
    let results: Vec<_> = std::thread::scope(|scope| {
        let ranks = (0..).zip(devices).map(|(rank, device)| scope.spawn(move || run(rank, device)));
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    let _ = std::fs::remove_dir_all(dir);
    results.into_iter().collect()
}

#[test]
fn ranks_on_verbs_devices_reduce() {
    let devices = ["verbs:bl0", "verbs:bl1", "verbs:bl2"];
    allreduce("rc", &devices, CommTransport::Rc).unwrap();
    for scheme in [SdrScheme::SrNack, SdrScheme::EcMds] {
        allreduce(scheme.name(), &devices, CommTransport::Sdr(scheme)).unwrap();
    }
}

#[test]
fn ranks_on_a_verbs_device_and_on_a_soft_nic_reduce() {
    allreduce("mixed", &["verbs:bl0", &soft_address(1)], CommTransport::Rc).unwrap();
}
