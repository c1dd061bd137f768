//! Connections over real sockets: between addresses, and between the ports of several processes on
//! one address.

mod support;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bowline_cm::mad::{RejectReason, Rep, Req, Rtu, SidrReq, SidrStatus};
use bowline_cm::{CommId, Config, Ended, Event, PortSpace, ServiceId};
use bowline_device::{ConnectionEvent, Connections, Device, DeviceSpec};
use bowline_io::{Sharing, UdpConfig, UdpPort};
use bowline_wire::Qpn;
use support::{PATIENCE, fresh_addr};

const UDP_PORT: u16 = 14_797;

fn service(port: u16) -> ServiceId {
    ServiceId::of_port(PortSpace::TCP, port)
}

/// A device and its connection manager, which stand for a process.
struct Process {
    connections: Connections,
    addr: IpAddr,
    device: Arc<Device>,
}

impl Process {
    fn at(addr: IpAddr) -> Process {
        let mut spec = DeviceSpec::new("test", addr);
        spec.udp.udp_port = UDP_PORT;
        let device = spec.open().expect("the address can be used");
        let connections =
            Connections::open(&device, Config::default()).expect("queue pair 1 is free");
        Process { connections, addr, device }
    }

    fn next(&self) -> Event {
        let event = self.connections.events().wait(Some(PATIENCE)).expect("the lane lives");
        match event.expect("something happens in time") {
            ConnectionEvent::Cm(event) => event,
            other => panic!("{other:?}"),
        }
    }

    fn is_quiet(&self) -> bool {
        let event = self.connections.events().wait(Some(Duration::from_millis(50)));
        event.expect("the lane lives").is_none()
    }

    fn connect(&self, to: IpAddr, service_id: ServiceId, qpn: u32) -> CommId {
        let req = Req { service_id, local_qpn: Qpn::new(qpn), ..Req::default() };
        let done = self.connections.call(|cm, now| cm.connect(now, to, &req));
        done.expect("the lane lives").expect("there is room")
    }

    fn accept(&self, qpn: u32) -> (CommId, Req) {
        let Event::Request { id, req, .. } = self.next() else { panic!("no request") };
        let rep = Rep { local_qpn: Qpn::new(qpn), ..Rep::default() };
        let done = self.connections.call(|cm, now| cm.accept(now, id, &rep));
        done.expect("the lane lives").expect("it is pending");
        (id, *req)
    }

    fn establish(&self, id: CommId) -> Rep {
        let Event::Reply { rep, .. } = self.next() else { panic!("no reply") };
        let data = [0; Rtu::PRIVATE_LEN];
        let done = self.connections.call(|cm, now| cm.establish(now, id, &data));
        done.expect("the lane lives").expect("the reply is there");
        *rep
    }

    fn hang_up(&self, id: CommId) {
        let done = self.connections.call(|cm, now| cm.disconnect(now, id));
        done.expect("the lane lives").expect("it is in use");
    }
}

/// Connects `active` to a service of `passive`, and disconnects.
fn meet(active: &Process, passive: &Process, service_id: ServiceId) {
    let id = active.connect(passive.addr, service_id, 0x11);
    let (accepted, req) = passive.accept(0x22);
    assert_eq!((req.local_qpn, req.service_id), (Qpn::new(0x11), service_id));
    assert_eq!(active.establish(id).local_qpn, Qpn::new(0x22));
    assert!(matches!(passive.next(), Event::Established { id, .. } if id == accepted));
    active.hang_up(id);
    assert_eq!(active.next(), Event::Disconnected { id, how: Ended::ByUs });
    assert_eq!(passive.next(), Event::Disconnected { id: accepted, how: Ended::ByPeer });
    for (process, id) in [(active, id), (passive, accepted)] {
        process.connections.call(|cm, now| cm.forget(now, id)).expect("the lane lives");
    }
}

#[test]
fn two_addresses_connect_and_part() {
    let (active, passive) = (Process::at(fresh_addr()), Process::at(fresh_addr()));
    assert!(passive.connections.listen(service(1), 8).expect("the lane lives"));
    meet(&active, &passive, service(1));
    meet(&active, &passive, service(1));
}

#[test]
fn a_request_between_two_listeners_waits_for_the_second() {
    let (active, passive) = (Process::at(fresh_addr()), Process::at(fresh_addr()));
    let listen = || assert!(passive.connections.listen(service(1), 8).expect("the lane lives"));
    listen();
    passive.connections.unlisten(service(1)).expect("the lane lives");
    let id = active.connect(passive.addr, service(1), 0x11);
    assert!(active.is_quiet(), "it is held");
    listen();
    let (_, req) = passive.accept(0x22);
    assert_eq!(req.local_qpn, Qpn::new(0x11));
    active.establish(id);
    // Without a new listener, the request is refused after a while.
    passive.connections.unlisten(service(1)).expect("the lane lives");
    assert!(matches!(passive.next(), Event::Established { .. }));
    let id = active.connect(passive.addr, service(1), 0x12);
    let Event::Rejected { id: of, reason, .. } = active.next() else { panic!("not refused") };
    assert_eq!((of, reason), (id, RejectReason::INVALID_SERVICE_ID));
}

#[test]
fn a_request_between_two_devices_of_a_process_waits_for_the_second() {
    // Alone on its address, and next to another process that would answer for unclaimed services.
    for neighbours in [0, 1] {
        let addr = fresh_addr();
        let _neighbours: Vec<Process> = (0..neighbours).map(|_| Process::at(addr)).collect();
        let active = Process::at(fresh_addr());
        let passive = Process::at(addr);
        assert!(passive.connections.listen(service(1), 8).expect("the lane lives"));
        drop(passive);
        let passive = Process::at(addr);
        let id = active.connect(addr, service(1), 0x11);
        assert!(active.is_quiet(), "it is held");
        assert!(passive.connections.listen(service(1), 8).expect("the lane lives"));
        let (_, req) = passive.accept(0x22);
        assert_eq!(req.local_qpn, Qpn::new(0x11));
        active.establish(id);
    }
}

#[test]
fn another_process_may_listen_for_a_service_that_lingers() {
    let addr = fresh_addr();
    let (active, first, second) = (Process::at(fresh_addr()), Process::at(addr), Process::at(addr));
    assert!(first.connections.listen(service(1), 8).expect("the lane lives"));
    first.connections.unlisten(service(1)).expect("the lane lives");
    assert!(second.connections.listen(service(1), 8).expect("the lane lives"));
    meet(&active, &second, service(1));
    // The first process has seen the request too, but refuses nothing when its time is over.
    std::thread::sleep(Duration::from_millis(1600));
    assert!(active.is_quiet() && first.is_quiet());
}

#[test]
fn nobody_answers_for_a_process_that_opens_its_device_again() {
    let addr = fresh_addr();
    let (active, _neighbour) = (Process::at(fresh_addr()), Process::at(addr));
    let passive = Process::at(addr);
    assert!(passive.connections.listen(service(1), 8).expect("the lane lives"));
    drop(passive);
    active.connect(addr, service(1), 0x11);
    assert!(active.is_quiet(), "it will ask again");
    std::thread::sleep(Duration::from_millis(1600));
    // After that, it is refused like any other unknown service.
    active.connect(addr, service(1), 0x12);
    let Event::Rejected { reason, .. } = active.next() else { panic!("not refused") };
    assert_eq!(reason, RejectReason::INVALID_SERVICE_ID);
}

#[test]
fn a_process_that_has_stopped_cuts_nobody_off() {
    let addr = fresh_addr();
    // The first socket on the address, which nobody reads.
    let mut udp = UdpConfig::new(addr);
    udp.udp_port = UDP_PORT;
    udp.sharing = Sharing::SameUser { registry_dir: None };
    let _stopped = UdpPort::open(&udp).expect("the address can be used");
    let (active, passive) = (Process::at(fresh_addr()), Process::at(addr));
    assert!(passive.connections.listen(service(1), 8).expect("the lane lives"));
    for _ in 0..3 {
        meet(&active, &passive, service(1));
    }
}

#[test]
fn each_process_of_an_address_gets_its_own() {
    let addr = fresh_addr();
    let crowd: Vec<Process> = (0..4).map(|_| Process::at(addr)).collect();
    for (port, process) in (1..).zip(&crowd) {
        assert!(process.connections.listen(service(port), 8).expect("the lane lives"));
        assert!(!crowd[0].connections.listen(service(port), 8).expect("the lane lives"));
    }
    let stranger = Process::at(fresh_addr());
    for (port, process) in (1..).zip(&crowd) {
        meet(&stranger, process, service(port));
    }
    // They can also connect to each other.
    meet(&crowd[0], &crowd[3], service(4));
    meet(&crowd[2], &crowd[1], service(2));
    assert!(crowd.iter().all(Process::is_quiet));
}

#[test]
fn one_of_them_answers_for_nobody() {
    let addr = fresh_addr();
    let mut crowd: Vec<Process> = (0..3).map(|_| Process::at(addr)).collect();
    let stranger = Process::at(fresh_addr());
    let refused = |stranger: &Process| {
        let id = stranger.connect(addr, service(9), 0x11);
        let Event::Rejected { id: of, reason, .. } = stranger.next() else { panic!("not refused") };
        assert_eq!((of, reason), (id, RejectReason::INVALID_SERVICE_ID));
    };
    refused(&stranger);
    // The process that spoke for all is gone.
    crowd.remove(0);
    refused(&stranger);
    let req = SidrReq { service_id: service(9), ..SidrReq::default() };
    let asked = stranger.connections.call(|cm, now| cm.resolve(now, addr, &req));
    asked.expect("the lane lives").expect("there is room");
    let Event::SidrReply { rep, .. } = stranger.next() else { panic!("no answer") };
    assert_eq!(rep.status, SidrStatus::UNSUPPORTED);
}

#[test]
fn the_peer_of_a_process_that_is_gone_is_told() {
    let addr = fresh_addr();
    let (survivor, dying) = (Process::at(addr), Process::at(addr));
    assert!(dying.connections.listen(service(1), 8).expect("the lane lives"));
    let stranger = Process::at(fresh_addr());
    let id = stranger.connect(addr, service(1), 0x11);
    dying.accept(0x22);
    stranger.establish(id);
    // The process ends without notice.
    dying.device.shut_down();
    drop(dying);
    stranger.hang_up(id);
    assert_eq!(stranger.next(), Event::Disconnected { id, how: Ended::ByUs });
    // Its service is free.
    assert!(survivor.connections.listen(service(1), 8).expect("the lane lives"));
    meet(&stranger, &survivor, service(1));
}

#[test]
fn a_device_has_one_connection_manager() {
    let process = Process::at(fresh_addr());
    assert!(Connections::open(&process.device, Config::default()).is_err());
    let Process { connections, device, .. } = process;
    drop(connections);
    assert!(Connections::open(&device, Config::default()).is_ok());
}

#[test]
fn what_is_said_to_a_neighbour_is_handed_on_before_the_call_returns() {
    let addr = fresh_addr();
    let both = [Process::at(addr), Process::at(addr)];
    let handed_on =
        |process: &Process| process.device.counters().expect("the lane lives").1.handed_on;
    let mut seen = 0;
    for round in 0..40 {
        let (asks, refuses) = (&both[round % 2], &both[1 - round % 2]);
        let at = service(100 + round as u16);
        assert!(refuses.connections.listen(at, 8).expect("the lane lives"));
        let id = asks.connect(addr, at, 0x11);
        let Event::Request { id: asked, .. } = refuses.next() else { panic!("no request") };
        let before = handed_on(refuses);
        let why = [7; bowline_cm::mad::Rej::PRIVATE_LEN];
        let reason = RejectReason::CONSUMER;
        let done = refuses.connections.call(|cm, now| cm.reject(now, asked, reason, &why));
        done.expect("the lane lives").expect("it is pending");
        // The process might exit here. Only one of the two sockets receives what is sent to the
        // address.
        let after = handed_on(refuses);
        let Event::Rejected { id: of, private_data, .. } = asks.next() else {
            panic!("not refused")
        };
        assert_eq!((of, private_data[0]), (id, 7));
        if handed_on(refuses) > before {
            assert!(after > before, "round {round}: handed on later");
            seen += 1;
        }
        refuses.connections.unlisten(at).expect("the lane lives");
    }
    assert!(seen > 0, "neither has handed anything on");
}
