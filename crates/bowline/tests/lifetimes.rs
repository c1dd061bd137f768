//! Handles can be dropped in any order, cloned and sent to other threads.

mod common;

use bowline::{AddressVector, Cq, Device, Error, Mr, Pd, Qp, QpType, Srq, UdDest};
use common::{ALL, End, PATIENCE, pair, poll_one, random_addr};

#[test]
fn handles_can_be_shared_between_threads() {
    fn check<T: Send + Sync + Clone + 'static>() {}
    check::<Device>();
    check::<Pd>();
    check::<Mr>();
    check::<Cq>();
    check::<Srq>();
    check::<Qp>();
}

#[test]
fn every_drop_order_is_clean() {
    // Six objects of one device; drop them in all 720 orders.
    let mut order = [0, 1, 2, 3, 4, 5];
    let addr = random_addr();
    let device = Device::builder(addr).open().unwrap();
    permute(&mut order, 0, &mut |order| {
        let device = device.clone();
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(4).unwrap();
        let mr = pd.register(64, ALL).unwrap();
        let srq = pd.create_srq(4, 1).unwrap();
        let qp = pd.qp(QpType::Rc, &cq).srq(&srq).build().unwrap();
        let mut objects: [Option<Box<dyn std::any::Any>>; 6] = [
            Some(Box::new(device)),
            Some(Box::new(pd)),
            Some(Box::new(cq)),
            Some(Box::new(mr)),
            Some(Box::new(srq)),
            Some(Box::new(qp)),
        ];
        for i in order {
            objects[*i] = None;
        }
    });
    // With everything gone the address is free again, and nothing was left behind in the NIC.
    let small = drop_and_reopen(device, addr);
    for _ in 0..10 {
        let pd = small.alloc_pd().unwrap();
        let cq = small.create_cq(4).unwrap();
        pd.qp(QpType::Rc, &cq).build().unwrap();
    }
}

fn drop_and_reopen(device: Device, addr: std::net::IpAddr) -> Device {
    drop(device);
    Device::builder(addr).max_qps(1).open().unwrap()
}

fn permute(order: &mut [usize; 6], at: usize, f: &mut impl FnMut(&[usize; 6])) {
    if at == order.len() {
        return f(order);
    }
    for i in at..order.len() {
        order.swap(at, i);
        permute(order, at + 1, f);
        order.swap(at, i);
    }
}

#[test]
fn the_memory_outlives_its_registration() {
    let (a, b) = pair(QpType::Rc);
    let mr = b.pd.register(64, ALL).unwrap();
    let (buffer, remote) = (mr.buffer().clone(), mr.remote());
    a.qp.write(1, &a.mr, 0..8, remote).unwrap();
    poll_one(&a.cq);
    drop(mr);
    // The key is gone: the peer is refused, and the buffer is untouched.
    a.mr.fill(0, 8, 0xff);
    a.qp.write(2, &a.mr, 0..8, remote).unwrap();
    assert!(matches!(a.cq.next(PATIENCE), Err(Error::Completion(_))));
    assert_eq!(buffer.to_vec(0, 8), [0; 8]);
}

#[test]
fn a_queue_pair_in_use_may_be_dropped() {
    let (a, b) = pair(QpType::Rc);
    for n in 0..32 {
        a.qp.write(n, &a.mr, 0..1 << 20, b.remote()).unwrap();
    }
    let End { qp, mr, cq, pd, device } = a;
    drop((mr, qp));
    drop((device, pd));
    // The queue is still there to be asked, and has nothing that hangs.
    cq.poll(&mut [bowline::Completion::default(); 64]).unwrap();
}

#[test]
fn two_devices_share_nothing_but_the_process() {
    let (a, b) = (End::new(QpType::Ud), End::new(QpType::Ud));
    assert_ne!(a.device.addr(), b.device.addr());
    a.qp.activate().unwrap();
    // A datagram with a wrong key is dropped by the other device and counted there.
    let to = UdDest { av: AddressVector::new(b.device.addr()), qpn: b.qp.qpn(), qkey: 0xbad };
    b.qp.activate().unwrap();
    b.qp.recv(0, &b.mr, 0..4096).unwrap();
    a.qp.send_to(1, &a.mr, 0..8, to).unwrap();
    let deadline = std::time::Instant::now() + PATIENCE;
    while b.device.counters().unwrap().drop_qkey == 0 {
        assert!(std::time::Instant::now() < deadline);
        std::thread::yield_now();
    }
}

#[test]
fn wrong_addresses_are_explained() {
    let error = Device::open("not an address").unwrap_err().to_string();
    assert!(error.contains("no IP address"), "{error}");
    let error = Device::open("0.0.0.0").unwrap_err().to_string();
    assert!(error.contains("NIC"), "{error}");
    let error = Device::open("192.0.2.1").unwrap_err().to_string();
    assert!(error.contains("ip addr"), "{error}");
}

#[test]
fn a_region_ends_when_told_whoever_holds_it() {
    let device = Device::builder(random_addr()).open().unwrap();
    let pd = device.alloc_pd().unwrap();
    let (mr, clone) = {
        let mr = pd.register(64, ALL).unwrap();
        (mr.clone(), mr)
    };
    mr.deregister().unwrap();
    // Its key may be another's by now, which a second end must not touch.
    let others: Vec<Mr> = (0..8).map(|_| pd.register(64, ALL).unwrap()).collect();
    clone.deregister().unwrap();
    drop((mr, clone));
    for other in others {
        other.deregister().unwrap();
    }
}
