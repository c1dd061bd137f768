//! Congestion control over real sockets: a link that marks, and one of unknown rate.

mod common;

use std::thread;

use bowline::{
    Access, Connector, Device, LinkProfile, Listener, QpType, ReliableConfig, ReliableQp,
    WriteOptions,
};
use common::PATIENCE;

const BYTES: usize = 4 << 20;

/// A queue of an impaired port marks packets, the peer answers with CNPs, and DCQCN slows down.
#[test]
fn dcqcn_hears_of_marks_over_sockets() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (done, wait) = std::sync::mpsc::channel::<()>();
    let server = thread::spawn(move || {
        let device = Device::builder(common::random_addr()).open().unwrap();
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(16).unwrap());
        let qp = pd.qp(QpType::Rc, &cq).build().unwrap();
        let mr = pd.register(BYTES, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        listener.accept_timeout(PATIENCE).unwrap().connect(&qp, &[mr.remote()]).unwrap();
        let _ = wait.recv();
        device.counters().unwrap().tx_cnps
    });
    let link: LinkProfile = "rate=400Mbps,ecn=red(20kB,200kB,100%)".parse().unwrap();
    let device = Device::builder(common::random_addr())
        .link(link)
        .congestion_control("dcqcn:1Gbps".parse().unwrap())
        .open()
        .unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(16).unwrap());
    let qp = pd.qp(QpType::Rc, &cq).build().unwrap();
    let mr = pd.register(BYTES, Access::empty()).unwrap();
    let peer = Connector::new().connect(address).unwrap().connect(&qp, &[]).unwrap();
    qp.write(1, &mr, 0..BYTES, peer.regions[0]).unwrap();
    cq.next(PATIENCE).unwrap();
    assert!(device.port_counters().unwrap().impair_marked > 0, "the queue was full of packets");
    assert!(device.counters().unwrap().rx_cnps > 0, "the peer has said so");
    drop(done);
    assert!(server.join().unwrap() > 0);
}

/// A message over a link that drops what is sent too fast, with a controller and no rate.
#[test]
fn messages_get_through_a_narrow_link_at_its_rate() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let pd = Device::builder(common::random_addr()).open().unwrap().alloc_pd().unwrap();
        let mr = pd.register(BYTES, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let qp = ReliableQp::new(&pd, &ReliableConfig::default()).unwrap();
        qp.connect_over(&mut listener.accept_timeout(PATIENCE).unwrap()).unwrap();
        qp.recv(&mr, 0..BYTES).unwrap();
        qp.next(6 * PATIENCE).unwrap();
        mr.to_vec(BYTES - 8, 8)
    });
    let link: LinkProfile = "rate=200Mbps,delay=5ms,queue=1bdp".parse().unwrap();
    let device = Device::builder(common::random_addr())
        .link(link)
        .congestion_control("bbr".parse().unwrap())
        .open()
        .unwrap();
    let pd = device.alloc_pd().unwrap();
    let mr = pd.register(BYTES, Access::LOCAL_WRITE).unwrap();
    mr.write_at(BYTES - 8, b"the end!");
    let qp = ReliableQp::new(&pd, &ReliableConfig::default()).unwrap();
    qp.connect_over(&mut Connector::new().connect(address).unwrap()).unwrap();
    qp.write(&mr, 0..BYTES, WriteOptions::default()).unwrap();
    qp.next(6 * PATIENCE).unwrap();
    assert_eq!(server.join().unwrap(), b"the end!");
    let counters = device.port_counters().unwrap();
    // 1024 packets of 4 KiB: without control four in five would find the queue full.
    assert!(counters.impair_queue_full < 400, "{counters:?}");
}
