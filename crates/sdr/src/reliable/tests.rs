use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use bowline_nic::{AddressVector, BbrParams, Mtu, RateControl};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::testing::{BUFFER, End, Frame, addr};
use crate::{ImmLayout, SdrConfig, Transport};

/// What a wire does to frames.
#[derive(Clone, Copy, Debug)]
struct Wire {
    delay_ns: u64,
    jitter_ns: u64,
    loss: f64,
    duplicate: f64,
}

/// Two reliable QPs and a wire between them, on virtual time.
struct World {
    ends: [End; 2],
    qps: Vec<ReliableQp>,
    wire: Wire,
    rng: ChaCha8Rng,
    now: Time,
    in_flight: BinaryHeap<Reverse<(Time, u64)>>,
    frames: BTreeMap<u64, Frame>,
    next_frame: u64,
    events: [Vec<ReliableEvent>; 2],
    /// So many of the sender's next control messages are lost.
    lost_control: u32,
    /// Control messages that the sender has sent.
    sent_control: u32,
}

impl World {
    fn new(config: &ReliableConfig, wire: Wire, seed: u64) -> World {
        let mut ends = [End::new(0), End::new(1)];
        let mut qps: Vec<ReliableQp> =
            ends.iter_mut().map(|e| ReliableQp::new(&mut e.nic, e.pd, config).unwrap()).collect();
        let infos: Vec<_> =
            qps.iter().map(|qp| ReliableInfo::from_bytes(&qp.info().to_bytes()).unwrap()).collect();
        let now = Time::from_micros(1);
        for i in 0..2 {
            let av = AddressVector::new(addr(1 - i));
            qps[i].connect(&mut ends[i].nic, now, av, &infos[1 - i]).unwrap();
        }
        World {
            ends,
            qps,
            wire,
            rng: ChaCha8Rng::seed_from_u64(seed),
            now,
            in_flight: BinaryHeap::new(),
            frames: BTreeMap::new(),
            next_frame: 0,
            events: [const { Vec::new() }; 2],
            lost_control: 0,
            sent_control: 0,
        }
    }

    fn send(&mut self, frame: Frame) {
        if frame.to == 1 && !frame.is_data() {
            self.sent_control += 1;
            if self.lost_control > 0 {
                self.lost_control -= 1;
                return;
            }
        }
        let copies = 1 + u32::from(self.rng.random_bool(self.wire.duplicate));
        for _ in 0..copies {
            if self.rng.random_bool(self.wire.loss) {
                continue;
            }
            let jitter = self.rng.random_range(0..=self.wire.jitter_ns);
            let at = self.now.plus_nanos(self.wire.delay_ns + jitter);
            self.in_flight.push(Reverse((at, self.next_frame)));
            self.frames.insert(self.next_frame, frame.clone());
            self.next_frame += 1;
        }
    }

    fn settle(&mut self, i: usize) {
        let mut frames = VecDeque::new();
        loop {
            self.qps[i].drive(&mut self.ends[i].nic, self.now);
            let before = frames.len();
            self.ends[i].transmit(self.now, 1 - i, &mut frames);
            while let Some(event) = self.qps[i].poll_event() {
                self.events[i].push(event);
            }
            if frames.len() == before {
                break;
            }
        }
        frames.into_iter().for_each(|frame| self.send(frame));
    }

    /// Runs until `done`, or for a minute of virtual time.
    fn run(&mut self, done: impl Fn(&World) -> bool) {
        let deadline = self.now.plus_nanos(60_000_000_000);
        for i in 0..2 {
            self.settle(i);
        }
        while !done(self) {
            let timers = (0..2).filter_map(|i| {
                let times = [self.ends[i].nic.poll_timeout(), self.qps[i].poll_timeout()];
                Some((times.into_iter().flatten().min()?, i))
            });
            let timer = timers.min();
            let arrival = self.in_flight.peek().map(|Reverse((at, _))| *at);
            match (arrival, timer) {
                (Some(at), timer) if timer.is_none_or(|(t, _)| at <= t) => {
                    let Reverse((_, id)) = self.in_flight.pop().unwrap();
                    self.now = self.now.max(at);
                    let frame = self.frames.remove(&id).unwrap();
                    let nic = &mut self.ends[frame.to].nic;
                    nic.handle_frame(self.now, &frame.meta, &frame.bytes);
                    self.settle(frame.to);
                }
                (_, Some((at, i))) => {
                    self.now = self.now.max(at);
                    self.ends[i].nic.handle_timeout(self.now);
                    self.settle(i);
                }
                _ => panic!("nothing more will happen: {:?}", self.events),
            }
            assert!(self.now < deadline, "{:?} after a minute", self.events);
        }
    }

    fn recv(&mut self, at: u64, capacity: u64) -> RecvId {
        let (now, buffer) = (self.now, self.ends[1].at(at));
        self.qps[1].recv(&mut self.ends[1].nic, now, buffer, capacity).unwrap()
    }

    fn write(&mut self, at: u64, len: u64, options: WriteOptions) -> WriteId {
        let (now, source) = (self.now, self.ends[0].at(at));
        self.qps[0].write(&mut self.ends[0].nic, now, source, len, options).unwrap()
    }
}

fn config() -> ReliableConfig {
    let sdr = SdrConfig {
        mtu: Mtu::B256,
        chunk_bytes: 1024,
        layout: ImmLayout::new(8, 20, 4).unwrap(),
        lateness_ns: Some(0),
        ..SdrConfig::default()
    };
    ReliableConfig { sdr, max_write: 100_000, k: 8, m: 3, ..ReliableConfig::default() }
}

const WIRE: Wire = Wire { delay_ns: 1_000_000, jitter_ns: 0, loss: 0.0, duplicate: 0.0 };

/// Writes messages of all lengths over a wire, several at a time, and checks every byte.
fn transfer(scheme: &str, wire: Wire, seed: u64) -> World {
    transfer_over(Transport::Uc, scheme, wire, seed)
}

fn transfer_over(transport: Transport, scheme: &str, wire: Wire, seed: u64) -> World {
    let mut config = config();
    config.sdr.transport = transport;
    let scheme = config.scheme(scheme).unwrap();
    let mut world = World::new(&config, wire, seed);
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0xda7a);
    let mut bytes = vec![0; BUFFER];
    rng.fill_bytes(&mut bytes);
    world.ends[0].buffer.write_at(0, &bytes);
    let mut sent = Vec::new();
    for round in 0..6u32 {
        let at = u64::from(round) * 200_000;
        let len = [0, 1, 255, 1_024, 9_000, 100_000][round as usize];
        let capacity = if rng.random_bool(0.5) { len } else { 100_000 };
        let imm = rng.random_bool(0.5).then_some(round);
        // Either end may be first.
        if rng.random_bool(0.5) {
            world.recv(at, capacity);
            world.write(at, len, WriteOptions { scheme, imm });
        } else {
            world.write(at, len, WriteOptions { scheme, imm });
            world.recv(at, capacity);
        }
        sent.push((at, len, imm));
    }
    world.run(|world| world.events.iter().all(|events| events.len() == 6));
    for (i, (at, len, imm)) in sent.iter().enumerate() {
        let got = world.ends[1].buffer.to_vec(*at as usize, *len as usize);
        assert!(got == bytes[*at as usize..][..*len as usize], "seed {seed}: message {i}");
        let beyond = world.ends[1].buffer.to_vec((at + len) as usize, 1_000);
        assert!(beyond.iter().all(|b| *b == 0), "seed {seed}: beyond message {i}");
        let id = i as u64;
        let received =
            ReliableEvent::Received { id: RecvId(id), len: *len, imm: *imm, result: Ok(()) };
        assert!(world.events[1].contains(&received), "seed {seed}: {received:?}");
        let written = ReliableEvent::Written { id: WriteId(id), result: Ok(()) };
        assert!(world.events[0].contains(&written), "seed {seed}: {written:?}");
    }
    world
}

#[test]
fn a_clean_wire_costs_nothing() {
    for scheme in ["sr-rto", "sr-nack", "ec-mds", "ec-xor"] {
        let world = transfer(scheme, WIRE, 1);
        let stats = world.qps[0].stats();
        assert_eq!(stats.chunks_resent, 0, "{scheme}");
        assert_eq!(world.qps[1].stats().chunks_recovered, 0, "{scheme}");
    }
}

#[test]
fn every_scheme_survives_loss_reordering_and_duplicates() {
    for scheme in ["sr-rto", "sr-nack", "ec-mds", "ec-xor"] {
        for seed in 0..12 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let wire = Wire {
                delay_ns: rng.random_range(1_000..20_000_000),
                jitter_ns: if rng.random_bool(0.5) { 3_000_000 } else { 0 },
                loss: [0.001, 0.02, 0.2, 0.5][rng.random_range(0..4)],
                duplicate: if rng.random_bool(0.5) { 0.1 } else { 0.0 },
            };
            transfer(scheme, wire, seed);
        }
    }
}

#[test]
fn every_scheme_survives_loss_over_datagrams() {
    for scheme in ["sr-rto", "sr-nack", "ec-mds", "ec-xor"] {
        for (seed, loss) in [0.0, 0.02, 0.2].into_iter().enumerate() {
            let wire = Wire { loss, jitter_ns: 500_000, duplicate: 0.05, ..WIRE };
            let world = transfer_over(Transport::Ud, scheme, wire, seed as u64);
            assert_eq!(world.qps[1].sdr.landing_stats().refused, 0, "{scheme}");
        }
    }
}

#[test]
fn coding_recovers_without_sending_again() {
    let (mut recovered, mut resent) = (0, 0);
    for seed in 0..8 {
        let world = transfer("ec-mds", Wire { loss: 0.01, ..WIRE }, seed);
        recovered += world.qps[1].stats().chunks_recovered;
        resent += world.qps[0].stats().chunks_resent;
    }
    assert!(recovered > 20, "{recovered}");
    assert!(resent * 10 < recovered, "{resent} sent again, {recovered} recovered");
}

#[test]
fn messages_go_on_for_ever() {
    let config = config();
    let mut world = World::new(&config, Wire { loss: 0.05, ..WIRE }, 9);
    // IDs and generations wrap around many times.
    for round in 0..150usize {
        let scheme = round % config.schemes.len();
        world.recv(0, 5_000);
        world.write(0, 5_000, WriteOptions { scheme, imm: None });
        world.run(|world| world.events.iter().all(|events| events.len() == round + 1));
    }
    let failed = world.events[0]
        .iter()
        .any(|event| matches!(event, ReliableEvent::Written { result: Err(_), .. }));
    assert!(!failed);
    let path = world.qps[0].path();
    assert!((path.loss - 0.05).abs() < 0.03, "{path:?}");
    assert!(path.rtt_ns.is_some_and(|rtt| rtt < 2_500_000), "{path:?}");
}

#[test]
fn a_message_that_is_too_long_is_refused_at_both_ends() {
    let mut world = World::new(&config(), WIRE, 1);
    world.recv(0, 1_000);
    world.write(0, 1_001, WriteOptions::default());
    world.run(|world| world.events.iter().all(|events| events.len() == 1));
    let ReliableEvent::Received { result, .. } = world.events[1][0] else { panic!() };
    assert_eq!(result, Err(Failure::TooLong));
    let ReliableEvent::Written { result, .. } = world.events[0][0] else { panic!() };
    assert_eq!(result, Err(Failure::Aborted));
    // The next message is not affected.
    world.recv(0, 1_000);
    world.write(0, 1_000, WriteOptions::default());
    world.run(|world| world.events.iter().all(|events| events.len() == 2));
    assert!(matches!(world.events[0][1], ReliableEvent::Written { result: Ok(()), .. }));
}

/// A lost notice is repeated: what failed at one end does not succeed at the other.
#[test]
fn a_lost_refusal_does_not_read_as_success() {
    let mut world = World::new(&config(), WIRE, 1);
    world.recv(0, 1_000);
    world.write(0, 1_001, WriteOptions::default());
    world.run(|world| !world.events[1].is_empty());
    // The refusal is on its way.
    world.in_flight.clear();
    world.run(|world| !world.events[0].is_empty());
    let ReliableEvent::Written { result, .. } = world.events[0][0] else { panic!() };
    assert_eq!(result, Err(Failure::Aborted));
}

/// A receive for which nothing has come ends with the write, although the notice was lost.
#[test]
fn a_lost_abort_is_said_again() {
    let config = ReliableConfig { timeout_ns: 500_000_000, ..config() };
    let mut world = World::new(&config, WIRE, 1);
    world.recv(0, 50_000);
    world.run(|world| world.in_flight.is_empty());
    world.wire.loss = 1.0;
    world.write(0, 50_000, WriteOptions::default());
    world.run(|world| world.events[0].len() == 1);
    assert!(world.events[1].is_empty());
    world.wire.loss = 0.0;
    world.run(|world| world.events[1].len() == 1);
    let ReliableEvent::Received { result, .. } = world.events[1][0] else { panic!() };
    assert_eq!(result, Err(Failure::Aborted));
    world.run(|world| world.qps.iter().all(|qp| qp.poll_timeout().is_none()));
}

/// IDs wrap around while the sender does not know that a message is complete, and retransmits it.
#[test]
fn what_is_sent_again_lands_in_no_newer_message() {
    let layout = ImmLayout::new(2, 28, 2).unwrap();
    let sdr = SdrConfig { layout, generations: 1, ..config().sdr };
    let config = ReliableConfig { sdr, max_write: 5_000, m: 0, ..config() };
    let mut world = World::new(&config, WIRE, 1);
    world.ends[0].buffer.fill(0, 5_000, 0x11);
    for at in 0..4 {
        world.recv(at * 10_000, 5_000);
    }
    world.write(0, 5_000, WriteOptions { scheme: 1, imm: None });
    world.run(|world| world.events[1].len() == 1);
    // The confirmation does not reach the sender, which retransmits the message.
    world.in_flight.clear();
    let now = world.now;
    assert_eq!(world.qps[1].recv_room(now), Err(SdrError::Quarantined));
    world.run(|world| world.events[0].len() == 1);
    // The sender's next message says that it is done with it.
    world.write(0, 5_000, WriteOptions::default());
    world.run(|world| world.events[0].len() == 2);
    let now = world.now;
    assert_eq!(world.qps[1].recv_room(now), Ok(()));
}

/// Retransmission takes longer than the timeout that triggers it; still the receiver learns what is
/// being sent.
#[test]
fn a_slow_sender_does_not_drown_its_own_reminder() {
    let sdr = SdrConfig { rate_bps: Some(20_000_000), ..config().sdr };
    let config = ReliableConfig { sdr, ..config() };
    let mut world = World::new(&config, WIRE, 1);
    world.recv(0, 100_000);
    world.run(|world| world.in_flight.is_empty());
    world.wire.loss = 1.0;
    world.write(0, 100_000, WriteOptions { scheme: 1, imm: None });
    for i in 0..2 {
        world.settle(i);
    }
    // Everything announced at first is lost.
    world.wire.loss = 0.0;
    world.run(|world| world.events.iter().all(|events| events.len() == 1));
    assert!(world.now < Time::from_millis(200), "{}", world.now);
}

/// A receiver that does not know that a message has begun acknowledges none of it. It is told again
/// before the sender takes that for loss, and not only when the end of the message has left.
#[test]
fn a_lost_beginning_is_said_again_while_the_message_is_sent() {
    for delay_ns in [100_000, 1_000_000, 20_000_000] {
        let sdr = SdrConfig { rate_bps: Some(2_000_000), ..config().sdr };
        let config = ReliableConfig { sdr, ..config() };
        for scheme in ["sr-rto", "sr-nack"] {
            let mut world = World::new(&config, Wire { delay_ns, ..WIRE }, 1);
            let scheme = config.scheme(scheme).unwrap();
            world.recv(0, 100_000);
            world.run(|world| world.in_flight.is_empty());
            world.lost_control = 1;
            let start = world.now;
            world.write(0, 100_000, WriteOptions { scheme, imm: None });
            world.run(|world| world.events.iter().all(|events| events.len() == 1));
            assert_eq!(world.lost_control, 0);
            assert_eq!(world.qps[0].stats().chunks_resent, 0, "{delay_ns}");
            // The bytes take 400 ms, and their headers an eighth of that.
            let nanos = world.now.nanos_since(start);
            assert!(nanos < 460_000_000 + 2 * delay_ns, "{delay_ns}: {nanos}");
        }
    }
}

/// When all of a message has left, a receiver asks for what it lacks each round trip. If it does
/// not, it lacks nothing, and its notice was lost.
#[test]
fn a_lost_notice_of_the_end_costs_two_and_a_half_round_trips() {
    const RTT_NS: u64 = 40_000_000;
    let sdr = SdrConfig { rate_bps: Some(8_000_000), ..config().sdr };
    let config = ReliableConfig { sdr, ..config() };
    let scheme = config.scheme("sr-nack").unwrap();
    let mut world = World::new(&config, Wire { delay_ns: RTT_NS / 2, ..WIRE }, 1);
    world.recv(0, 100_000);
    world.run(|world| world.in_flight.is_empty());
    world.write(0, 100_000, WriteOptions { scheme, imm: None });
    world.run(|world| world.events[1].len() == 1);
    world.in_flight.clear();
    let start = world.now;
    world.run(|world| world.events[0].len() == 1);
    let nanos = world.now.nanos_since(start);
    assert!(nanos <= RTT_NS / 2 * 5, "{nanos}");
}

/// A receiver of erasure codes says nothing while all goes well: it is asked a few times.
#[test]
fn a_silent_receiver_is_asked_ever_more_rarely() {
    let sdr = SdrConfig { rate_bps: Some(1_000_000), ..config().sdr };
    let config = ReliableConfig { sdr, ..config() };
    let scheme = config.scheme("ec-mds").unwrap();
    let mut world = World::new(&config, WIRE, 1);
    world.recv(0, 100_000);
    world.run(|world| world.in_flight.is_empty());
    world.sent_control = 0;
    world.write(0, 100_000, WriteOptions { scheme, imm: None });
    world.run(|world| world.events.iter().all(|events| events.len() == 1));
    assert_eq!(world.qps[0].stats().chunks_resent, 0);
    assert!(world.sent_control < 12, "{} in a second", world.sent_control);
}

#[test]
fn a_dead_peer_is_noticed() {
    let config = ReliableConfig { timeout_ns: 2_000_000_000, ..config() };
    let mut world = World::new(&config, WIRE, 1);
    world.recv(0, 50_000);
    world.run(|world| world.in_flight.is_empty());
    world.wire.loss = 1.0;
    world.write(0, 50_000, WriteOptions::default());
    world.run(|world| world.events[0].len() == 1);
    let ReliableEvent::Written { result, .. } = world.events[0][0] else { panic!() };
    assert_eq!(result, Err(Failure::TimedOut));
}

/// Reports stop: what was posted must still leave, or the write would never be over.
#[test]
fn a_dead_peer_is_noticed_although_the_window_is_full() {
    let bbr = BbrParams { initial_window_bytes: 2_048, ..BbrParams::default() };
    let mut config = ReliableConfig { timeout_ns: 2_000_000_000, ..config() };
    config.sdr.congestion = Some(RateControl::Bbr(bbr));
    let mut world = World::new(&config, WIRE, 1);
    world.recv(0, 50_000);
    world.run(|world| world.in_flight.is_empty());
    world.wire.loss = 1.0;
    world.write(0, 50_000, WriteOptions::default());
    world.run(|world| world.events[0].len() == 1);
    let ReliableEvent::Written { result, .. } = world.events[0][0] else { panic!() };
    assert_eq!(result, Err(Failure::TimedOut));
}

#[test]
fn rubbish_on_the_control_channel_does_no_harm() {
    let mut world = World::new(&config(), WIRE, 5);
    world.recv(0, 50_000);
    world.write(0, 50_000, WriteOptions { scheme: 2, imm: None });
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    for _ in 0..300 {
        for i in 0..2 {
            let mut bytes = vec![0; rng.random_range(0..60)];
            rng.fill_bytes(&mut bytes);
            // Kinds that mean something, and small numbers.
            if let Some(kind) = bytes.first_mut() {
                *kind %= 3;
            }
            if let Some(id) = bytes.get_mut(1..9) {
                id.fill(0);
            }
            let now = world.now;
            world.qps[i].sdr.send_control(&mut world.ends[i].nic, now, &bytes);
        }
        world.settle(0);
        world.settle(1);
    }
    world.run(|world| world.events.iter().all(|events| !events.is_empty()));
}

#[test]
fn parameters_are_checked() {
    let cases = [
        ReliableConfig { k: 0, ..config() },
        ReliableConfig { k: 250, m: 10, ..config() },
        ReliableConfig { max_write: 1 << 40, ..config() },
        ReliableConfig { max_write: 0, ..config() },
        ReliableConfig { schemes: Vec::new(), ..config() },
        ReliableConfig { k: u32::MAX, m: 1, ..config() },
        ReliableConfig { max_write: u64::MAX, ..config() },
        ReliableConfig { sdr: SdrConfig { chunk_bytes: 0, ..config().sdr }, ..config() },
    ];
    for config in cases {
        let error = config.check().unwrap_err().to_string();
        assert!(error.len() > 20, "{error}");
    }
}

/// A refused receive takes no place: the two ends still agree on the count.
#[test]
fn refused_calls_leave_nothing_behind() {
    let mut world = World::new(&config(), WIRE, 4);
    let now = world.now;
    let end = &mut world.ends[1];
    // The first groups fit the region, the last do not.
    for addr in [BUFFER as u64 - 50_000, u64::MAX - 10] {
        let buffer = end.at(addr);
        let refused = world.qps[1].recv(&mut end.nic, now, buffer, 100_000);
        assert!(matches!(refused, Err(SdrError::Nic(_))), "{refused:?}");
    }
    let mut lonely = ReliableQp::new(&mut end.nic, end.pd, &config()).unwrap();
    let ec = WriteOptions { scheme: config().scheme("ec-mds").unwrap(), imm: None };
    let source = end.at(0);
    let refused = lonely.write(&mut end.nic, now, source, 1_000, ec);
    assert_eq!(refused, Err(SdrError::NotConnected));
    world.recv(0, 5_000);
    world.write(0, 5_000, ec);
    world.run(|world| world.events.iter().all(|events| events.len() == 1));
    assert!(matches!(world.events[0][0], ReliableEvent::Written { result: Ok(()), .. }));
}

#[test]
fn writes_ahead_of_the_peer_are_bounded() {
    let mut world = World::new(&config(), WIRE, 4);
    let (now, source) = (world.now, world.ends[0].at(0));
    let nic = &mut world.ends[0].nic;
    let mut posted = 0u32;
    let refused = loop {
        match world.qps[0].write(nic, now, source, 0, WriteOptions::default()) {
            Ok(_) => posted += 1,
            Err(error) => break error,
        }
        assert!(posted < 1 << 16, "there is no end");
    };
    assert!(matches!(refused, SdrError::Full { .. }), "{refused}");
}

/// A peer's estimate of its message's duration must not overflow a clock.
#[test]
fn an_absurd_wire_time_does_no_harm() {
    let mut world = World::new(&config(), Wire { loss: 0.1, ..WIRE }, 6);
    world.recv(0, 50_000);
    let scheme = config().scheme("ec-mds").unwrap();
    world.write(0, 50_000, WriteOptions { scheme, imm: None });
    world.qps[0].outgoing[0].as_mut().unwrap().begin.wire_ns = u64::MAX;
    world.run(|world| world.events.iter().all(|events| !events.is_empty()));
}

/// The owner of a message may write it meanwhile: the bytes are then torn, but nothing fails,
/// nothing lands elsewhere, and every packet matches its ICRC.
#[test]
fn a_message_that_its_owner_writes_is_torn_at_worst() {
    use std::sync::atomic::{AtomicBool, Ordering};
    for scheme in ["sr-nack", "ec-mds", "ec-xor"] {
        let wire = Wire { loss: 0.05, ..WIRE };
        let config = config();
        let options = WriteOptions { scheme: config.scheme(scheme).unwrap(), imm: None };
        let mut world = World::new(&config, wire, 7);
        let source = world.ends[0].buffer.clone();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut value = 0;
                while !stop.load(Ordering::Relaxed) {
                    value = value % 255 + 1;
                    source.fill(0, 100_000, value);
                }
            });
            for _ in 0..4 {
                world.recv(0, 100_000);
                world.write(0, 99_001, options);
            }
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                world.run(|world| world.events.iter().all(|events| events.len() == 4));
            }));
            stop.store(true, Ordering::Relaxed);
            done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
        for events in &world.events {
            let ok = |event: &ReliableEvent| match event {
                ReliableEvent::Written { result, .. } => result.is_ok(),
                ReliableEvent::Received { result, len, .. } => result.is_ok() && *len == 99_001,
            };
            assert!(events.iter().all(ok), "{scheme}: {events:?}");
        }
        for end in &world.ends {
            assert_eq!(end.nic.counters().drop_icrc, 0, "{scheme}");
        }
        let beyond = world.ends[1].buffer.to_vec(99_001, 1_000);
        assert!(beyond.iter().all(|byte| *byte == 0), "{scheme}: beyond the message");
    }
}
