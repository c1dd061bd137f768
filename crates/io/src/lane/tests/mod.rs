//! Lanes with real engines, over loopback and in memory.

mod faults;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bowline_nic::{
    Access, Buffer, Completion, Connect, CqId, Event, MrKey, Mtu, Nic, NicConfig, QpInit, QpType,
    Region, Remote, SendOp, SendWr, Sge, Time, WcStatus,
};
use bowline_wire::{Psn, Qpn};

use super::{ChannelClosed, CqNotify, EventChannel, EventSink, Lane, LaneConfig, LaneError};
use crate::fault::LinkState;
use crate::memory_port::MemoryHub;
use crate::port::Port;
use crate::testing::{Narrow, fresh_addr};
use crate::udp::{UdpConfig, UdpPort};

const LEN: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(5);

/// One end: a lane with a QP and a buffer.
struct End {
    lane: Arc<Lane>,
    addr: IpAddr,
    buffer: Arc<Buffer>,
    key: MrKey,
    cq: CqId,
    qpn: Qpn,
    channel: Arc<EventChannel<u64>>,
    events: Arc<EventChannel<Event>>,
}

impl End {
    fn new(port: Box<dyn Port>, peer_udp_port: u16, name: &str) -> End {
        let caps = port.caps();
        let mut config = NicConfig::new(caps.addr, [7; 32]);
        config.udp_port = caps.udp_port;
        config.peer_udp_port = peer_udp_port;
        let nic = Nic::new(config).expect("the defaults are right");
        let lane_config = LaneConfig { name: name.to_owned(), ..LaneConfig::default() };
        let events = Arc::new(EventChannel::new(64).expect("a descriptor is to be had"));
        let sink = Arc::clone(&events) as Arc<dyn EventSink>;
        let lane = Lane::start(nic, port, lane_config, sink).expect("threads can be started");
        let buffer = Buffer::new(LEN);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let region = Region::owned(Arc::clone(&buffer));
        let iova = buffer.addr();
        let (key, cq, qpn) = lane
            .with(|nic, _| {
                let pd = nic.alloc_pd().expect("the first");
                let key = nic.register(pd, region, iova, access).expect("the first");
                let cq = nic.create_cq(256).expect("the first");
                let mut init = QpInit::new(QpType::Rc, pd, cq);
                init.max_send_wr = 128;
                (key, cq, nic.create_qp(&init).expect("the first"))
            })
            .expect("the lane lives");
        let channel = Arc::new(EventChannel::new(16).expect("descriptors are left"));
        lane.notify_cq(cq, CqNotify::new(Arc::clone(&channel), 77)).expect("the lane lives");
        End { lane, addr: caps.addr, buffer, key, cq, qpn, channel, events }
    }

    fn connect(&self, peer: IpAddr, peer_qpn: Qpn) {
        self.connect_with(peer, peer_qpn, 12);
    }

    /// Connects with this timeout, of which four pass before the QP gives up.
    fn connect_with(&self, peer: IpAddr, peer_qpn: Qpn, timeout: u8) {
        let connect = Connect {
            path_mtu: Mtu::B4096,
            rq_psn: Psn::new(1),
            sq_psn: Psn::new(1),
            max_dest_rd_atomic: 4,
            max_rd_atomic: 4,
            timeout,
            retry_count: 3,
            rnr_retry: 3,
            ..Connect::new(peer, peer_qpn)
        };
        let connected = self.lane.with(|nic, now| nic.connect(now, self.qpn, &connect));
        connected.expect("the lane lives").expect("the usual way to RTS");
    }

    fn write(&self, to: &End, wr_id: u64, len: usize) {
        let sges = [Sge::new(self.key, self.buffer.addr(), len as u32)];
        let remote = Remote { addr: to.buffer.addr(), rkey: to.key.0 };
        self.lane
            .post(|nic, now| {
                let wr = SendWr::new(wr_id, SendOp::Write(remote), &sges);
                nic.post_send(now, self.qpn, &wr).expect("the queue has room");
            })
            .expect("the lane lives");
    }

    /// Polls for completions, driving the lane.
    fn poll(&self) -> Vec<Completion> {
        let mut out = [Completion::default(); 32];
        let count = self
            .lane
            .poll(|nic, _| nic.poll_cq(self.cq, &mut out).expect("it exists"))
            .expect("the lane lives");
        out[..count].to_vec()
    }

    /// Polls until there are `count` completions.
    fn poll_for(&self, count: usize) -> Vec<Completion> {
        let start = Instant::now();
        let mut all = Vec::new();
        while all.len() < count {
            assert!(start.elapsed() < PATIENCE, "{} of {count} completions", all.len());
            all.extend(self.poll());
        }
        all
    }

    /// Sleeps until there are `count` completions.
    fn sleep_for(&self, count: usize) -> Vec<Completion> {
        let mut all = Vec::new();
        loop {
            let mut out = [Completion::default(); 32];
            let got = self
                .lane
                .with(|nic, _| {
                    nic.arm_cq(self.cq, false).expect("it exists");
                    nic.poll_cq(self.cq, &mut out).expect("it exists")
                })
                .expect("the lane lives");
            all.extend_from_slice(&out[..got]);
            if all.len() >= count {
                return all;
            }
            let token = self.channel.wait(Some(PATIENCE)).expect("the lane lives");
            assert_eq!(token, Some(77), "{} of {count} completions", all.len());
        }
    }
}

fn connect(a: &End, b: &End) {
    a.connect(b.addr, b.qpn);
    b.connect(a.addr, a.qpn);
}

fn udp_port() -> UdpPort {
    let mut config = UdpConfig::new(fresh_addr());
    config.udp_port = 14_793;
    config.recv_slots = 4;
    UdpPort::open(&config).expect("loopback can be bound")
}

fn udp_pair(names: [&str; 2]) -> [End; 2] {
    let ends = names.map(|name| End::new(Box::new(udp_port()), 14_793, name));
    connect(&ends[0], &ends[1]);
    ends
}

fn all_succeeded(completions: &[Completion]) -> bool {
    completions.iter().all(|c| c.status == WcStatus::Success)
}

/// Nanoseconds that the thread with this name has run. Names are unique among the tests.
fn thread_cpu_ns(name: &str) -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("proc is mounted");
    for task in tasks.map_while(Result::ok) {
        let read = |file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        if read("comm").trim() == name {
            let stat = read("schedstat");
            return stat.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0);
        }
    }
    panic!("no thread {name}");
}

#[test]
fn a_poller_writes_to_an_end_that_never_polls() {
    let [a, b] = udp_pair(["t-poll-a", "t-poll-b"]);
    a.buffer.fill(0, LEN, 0x5a);
    for i in 0..8 {
        a.write(&b, i, LEN);
    }
    let done = a.poll_for(8);
    assert!(all_succeeded(&done), "{done:?}");
    assert_eq!(b.buffer.to_vec(LEN - 8, 8), [0x5a; 8]);
    let (nic, port) = b.lane.counters().expect("the lane lives");
    assert_eq!(nic.drop_icrc, 0, "{nic:?}");
    assert!(port.rx_frames >= 8 * 256);
}

#[test]
fn nobody_polls_and_all_arrives() {
    let [a, b] = udp_pair(["t-sleep-a", "t-sleep-b"]);
    a.buffer.fill(0, LEN, 0xa5);
    for round in 0..5 {
        (0..10).for_each(|i| a.write(&b, round * 10 + i, 100_000));
        assert!(all_succeeded(&a.sleep_for(10)));
    }
    assert_eq!(b.buffer.to_vec(99_992, 8), [0xa5; 8]);
}

#[test]
fn a_post_that_is_never_followed_by_a_poll_leaves_soon() {
    let [a, b] = udp_pair(["t-post-a", "t-post-b"]);
    // Polled a moment ago: the lane's thread naps and posts may wait for each other.
    a.poll();
    a.buffer.store_u64(0, 42);
    (0..20).for_each(|i| a.write(&b, i, 8));
    let start = Instant::now();
    while b.buffer.load_u64(0) != 42 {
        assert!(start.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
    assert!(all_succeeded(&a.sleep_for(20)));
}

#[test]
fn timers_fire_without_anybody_calling() {
    let hub = MemoryHub::new();
    let addr = |i: u8| IpAddr::from([10, 0, 0, i]);
    let port = |i| hub.port(addr(i), 4791, 1024).expect("nobody is there");
    let a = End::new(Box::new(port(1)), 4791, "t-timer-a");
    let b = End::new(Box::new(port(2)), 4791, "t-timer-b");
    a.connect(addr(9), b.qpn);
    // To an unused address: 4 tries of 17 ms each.
    a.write(&b, 1, 100);
    let done = a.sleep_for(1);
    assert_eq!(done[0].status, WcStatus::RetryExcErr);
}

#[test]
fn an_idle_lane_costs_nothing() {
    let [a, b] = udp_pair(["t-idle-a", "t-idle-b"]);
    a.write(&b, 1, 100_000);
    a.poll_for(1);
    std::thread::sleep(Duration::from_millis(50));
    let before = ["t-idle-a", "t-idle-b"].map(thread_cpu_ns);
    std::thread::sleep(Duration::from_millis(300));
    let after = ["t-idle-a", "t-idle-b"].map(thread_cpu_ns);
    for (before, after) in before.iter().zip(after) {
        assert!(after - before < 3_000_000, "{} us in 300 ms", (after - before) / 1000);
    }
}

#[test]
fn the_lane_thread_stays_away_while_the_application_polls() {
    let [a, b] = udp_pair(["t-away-a", "t-away-b"]);
    let start = Instant::now();
    let (mut before, mut posted, mut done) = (0, 0, 0);
    while start.elapsed() < Duration::from_millis(300) {
        if before == 0 && start.elapsed() > Duration::from_millis(50) {
            before = thread_cpu_ns("t-away-a");
        }
        if posted - done < 4 {
            a.write(&b, posted, 50_000);
            posted += 1;
        }
        done += a.poll().len() as u64;
    }
    let ran = thread_cpu_ns("t-away-a") - before;
    assert!(done > 10);
    // A thread that is descheduled for long stops polling, and the lane rightly steps in; on a
    // machine that is busy with other tests this happens now and then.
    assert!(ran < 125_000_000, "the lane's thread ran {} us of 250 ms", ran / 1000);
}

#[test]
fn whoever_is_long_at_work_is_there() {
    let hub = MemoryHub::new();
    let port = hub.port(IpAddr::from([10, 0, 0, 1]), 4791, 1024).expect("nobody is there");
    let end = End::new(Box::new(port), 4791, "t-presence");
    let shared = &*end.lane.shared;
    let later = |ms: u64| shared.now().plus_nanos(ms * 1_000_000);
    let attended_meanwhile = || shared.is_attended(later(1000));
    // A post by itself does not count as polling.
    assert!(!end.lane.post(|_, _| attended_meanwhile()).expect("the lane lives"));
    assert!(end.lane.poll(|_, _| attended_meanwhile()).expect("the lane lives"));
    assert!(!shared.is_attended(later(1000)));
    // A post between polls does, unless this thread has lost its core in between; but not for long
    // without a poll.
    let start = Instant::now();
    let mut counts = false;
    while !counts {
        assert!(start.elapsed() < PATIENCE, "posts between polls do not count");
        end.poll();
        counts = end.lane.post(|_, _| attended_meanwhile()).expect("the lane lives");
    }
    while end.lane.post(|_, _| attended_meanwhile()).expect("the lane lives") {
        assert!(start.elapsed() < PATIENCE, "posts alone keep the thread away");
    }
    end.lane.stop_polling();
    assert!(!shared.is_attended(shared.now()));
}

#[test]
fn a_call_that_has_waited_is_not_told_the_time_from_before() {
    let hub = MemoryHub::new();
    let port = hub.port(IpAddr::from([10, 0, 0, 1]), 4791, 1024).expect("nobody is there");
    let End { lane, .. } = End::new(Box::new(port), 4791, "t-waited");
    type Call = fn(&Lane) -> Result<Time, LaneError>;
    let calls: [Call; 3] = [
        |lane| lane.poll(|_, now| now),
        |lane| lane.with(|_, now| now),
        |lane| lane.collect(|_, now| now),
    ];
    for (number, call) in calls.into_iter().enumerate() {
        let is_held = std::sync::Barrier::new(2);
        let hold = |_: &mut Nic, _| {
            is_held.wait();
            std::thread::sleep(Duration::from_millis(30));
            lane.shared.now()
        };
        std::thread::scope(|scope| {
            let holder = scope.spawn(|| lane.with(hold));
            is_held.wait();
            let told = call(&lane).expect("the lane lives");
            let until = holder.join().expect("it only sleeps").expect("the lane lives");
            assert!(told >= until, "call {number}: {told:?}, but waited until {until:?}");
        });
    }
}

#[test]
fn a_turn_does_not_begin_before_the_last_one_ended() {
    let hub = MemoryHub::new();
    let port = hub.port(IpAddr::from([10, 0, 0, 1]), 4791, 1024).expect("nobody is there");
    let End { lane, .. } = End::new(Box::new(port), 4791, "t-stale");
    let pause = || std::thread::sleep(Duration::from_millis(5));
    let before_lock = lane.shared.now();
    let mut engine = lane.shared.lock_contended().expect("the lane lives");
    pause();
    let other_turn = lane.shared.now();
    assert_eq!(engine.advance(other_turn), other_turn);
    pause();
    let begins = engine.advance(before_lock);
    assert!(begins >= other_turn.plus_nanos(5_000_000), "{begins:?} after {other_turn:?}");
}

#[test]
fn several_threads_share_a_lane() {
    let [a, b] = udp_pair(["t-many-a", "t-many-b"]);
    let done = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (a, b, done) = (&a, &b, &done);
            scope.spawn(move || {
                let start = Instant::now();
                (0..10).for_each(|i| a.write(b, thread * 10 + i, 20_000));
                while done.load(Ordering::Relaxed) < 40 {
                    assert!(start.elapsed() < PATIENCE);
                    done.fetch_add(a.poll().len(), Ordering::Relaxed);
                }
            });
        }
    });
}

#[test]
fn a_panic_under_the_lock_is_an_error_for_everybody_else() {
    let [a, _b] = udp_pair(["t-panic-a", "t-panic-b"]);
    let lane = Arc::clone(&a.lane);
    let panicked = std::thread::spawn(move || lane.with(|_, _| panic!("on purpose"))).join();
    assert!(panicked.is_err());
    assert!(matches!(a.lane.with(|_, _| ()), Err(LaneError::Dead { .. })));
    assert!(matches!(a.lane.poll(|_, _| ()), Err(LaneError::Dead { .. })));
    assert_eq!(a.channel.wait(Some(PATIENCE)), Err(ChannelClosed));
    assert_eq!(a.events.wait(Some(PATIENCE)), Err(ChannelClosed));
}

#[test]
fn after_shutdown_calls_say_so() {
    let [a, _b] = udp_pair(["t-shut-a", "t-shut-b"]);
    a.lane.shutdown();
    a.lane.shutdown();
    let error = a.lane.with(|_, _| ()).expect_err("it has ended");
    assert!(error.to_string().contains("shut down"), "{error}");
    assert_eq!(a.channel.try_next(), Err(ChannelClosed));
}

#[test]
fn what_a_full_port_cannot_take_waits() {
    let hub = MemoryHub::new();
    let [a, b] = [1, 2].map(|i: u8| {
        let inner = hub.port([10, 1, 0, i].into(), 4791, 4096).expect("nobody is there");
        End::new(Box::new(Narrow::new(inner)), 4791, &format!("t-narrow-{i}"))
    });
    connect(&a, &b);
    a.buffer.fill(0, LEN, 0x77);
    a.write(&b, 1, LEN);
    assert!(all_succeeded(&a.sleep_for(1)));
    assert_eq!(b.buffer.to_vec(LEN - 8, 8), [0x77; 8]);
}

#[test]
fn a_port_that_breaks_is_a_link_that_is_down_and_the_lane_goes_on() {
    let hub = MemoryHub::new();
    let [a, b] = [1, 2].map(|i: u8| {
        let port = hub.port([10, 2, 0, i].into(), 4791, 4096).expect("nobody is there");
        End::new(Box::new(port), 4791, &format!("t-broken-{i}"))
    });
    a.connect_with(b.addr, b.qpn, 8);
    b.connect_with(a.addr, a.qpn, 8);
    a.write(&b, 1, 100);
    assert!(all_succeeded(&a.sleep_for(1)));
    assert_eq!((a.lane.link(), a.lane.port_failure()), (LinkState::Up, None));

    hub.break_ports(a.addr, None);
    a.write(&b, 2, 100);
    let done = a.sleep_for(1);
    assert_eq!(done[0].status, WcStatus::RetryExcErr);
    assert_eq!(a.lane.link(), LinkState::Down);
    assert!(a.lane.port_failure().is_some_and(|why| why.contains("on purpose")));
    a.lane.with(|_, _| ()).expect("the lane goes on without its port");
}
