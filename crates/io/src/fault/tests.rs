//! Faults by their text, by the clock, and on ports in memory.

use std::time::{Duration, Instant};

use bowline_nic::{Time, TxBatch};
use bowline_wire::{Bth, FlowKey};

use super::plan::{Effects, Plan};
use super::*;
use crate::memory_port::{MemoryHub, MemoryPort};
use crate::port::Port;
use crate::testing::{Narrow, icrc_is_right, push_packets};

fn request(text: &str) -> FaultRequest {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

#[test]
fn requests_go_through_their_text() {
    for text in [
        "down",
        "up",
        "clear",
        "flap=200ms",
        "flap=1.5s",
        "loss=0.01",
        "loss=ge(0.01,0.2,1,0),seed=7",
        "blackhole=in",
        "blackhole=out",
        "down for 5s",
        "loss=0.5 for 100ms",
    ] {
        assert_eq!(request(text).to_string(), text);
    }
    assert_eq!(request("loss=1%").to_string(), "loss=0.01");
}

#[test]
fn what_is_no_request_says_what_one_is() {
    for (bad, hint) in [
        ("", "write down"),
        ("sideways", "write down"),
        ("down=1", "write down"),
        ("flap", "write down"),
        ("flap=0ms", "1ms"),
        ("flap=soon", "duration"),
        ("loss=200%", "probability"),
        ("loss=1%,delay=1ms", "loss and seed"),
        ("blackhole=up", "write down"),
        ("down for", "write down"),
        ("down for ever", "duration"),
        ("up for 5s", "for good"),
        ("clear for 5s", "for good"),
    ] {
        let error = bad.parse::<FaultRequest>().unwrap_err().to_string();
        assert!(error.contains(hint), "{bad}: {error}");
    }
}

#[test]
fn kinds_of_faults_add_up_and_end_each_on_its_own() {
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let mut plan = Plan::default();
    plan.apply(&request("down for 100ms"), at(0));
    plan.apply(&request("blackhole=in"), at(0));
    plan.apply(&request("loss=1% for 300ms"), at(0));
    assert_eq!(plan.list(at(40)).len(), 3);
    let early = plan.effects(at(50));
    assert!(early.down && early.drop_in && early.drop_out && early.loss.is_some());
    assert_eq!(early.until, Some(at(100)));
    let later = plan.effects(at(150));
    assert!(!later.down && later.drop_in && !later.drop_out && later.loss.is_some());
    assert_eq!(later.until, Some(at(300)));
    plan.apply(&request("loss=0"), at(200));
    plan.apply(&request("down"), at(200));
    plan.apply(&request("up"), at(210));
    let left = Effects { drop_in: true, ..Effects::default() };
    assert_eq!(plan.effects(at(400)), left);
    plan.apply(&request("clear"), at(400));
    assert!(plan.is_empty());
}

#[test]
fn a_flapping_link_is_down_first_and_turns_on_time() {
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let mut plan = Plan::default();
    plan.apply(&request("flap=200ms for 1s"), at(0));
    for (ms, down, until) in
        [(0, true, 200), (199, true, 200), (200, false, 400), (399, false, 400), (900, true, 1000)]
    {
        let effects = plan.effects(at(ms));
        assert_eq!((effects.down, effects.until), (down, Some(at(until))), "{ms}");
    }
    assert_eq!(plan.effects(at(1000)), Effects::default());
    plan.expire(at(1000));
    assert!(plan.is_empty());
}

const UDP_PORT: u16 = 4791;

/// Two ports of a hub, the first of which can fail.
struct Pair<P> {
    a: FaultPort<P>,
    b: MemoryPort,
    sent: u32,
}

fn pair<P: Port>(wrap: impl Fn(MemoryPort) -> P) -> Pair<P> {
    let hub = MemoryHub::new();
    let port = |i: u8| hub.port([10, 2, 0, i].into(), UDP_PORT, 1 << 16).unwrap();
    Pair { a: FaultPort::new(wrap(port(1))), b: port(2), sent: 0 }
}

impl<P: Port> Pair<P> {
    fn apply(&self, text: &str) {
        self.a.faults().unwrap().apply(&request(text));
    }

    /// A batch of `count` packets between two of the ports; returns the batch's sender's key.
    fn batch(&mut self, from_a: bool, count: usize) -> TxBatch {
        let (caps, dst) =
            if from_a { (self.a.caps(), self.b.caps()) } else { (self.b.caps(), self.a.caps()) };
        let key = FlowKey { src: caps.addr, dst: dst.addr, src_port: UDP_PORT, dst_port: UDP_PORT };
        let mut batch = TxBatch::new(caps.tx, count);
        push_packets(&mut batch, &key, 7, self.sent, &vec![64; count]);
        self.sent += count as u32;
        batch
    }

    /// Sends from a to b until all are taken, and returns the PSNs that arrive.
    fn out(&mut self, count: usize) -> Vec<u32> {
        let batch = self.batch(true, count);
        let (mut from, mut tries) = (0, 0);
        while from < batch.bursts().len() {
            from += self.a.send(Time::ZERO, &batch, from).unwrap();
            tries += 1;
            assert!(tries < 1000);
        }
        for _ in 0..8 {
            self.a.flush(Time::ZERO).unwrap();
        }
        received(&mut self.b)
    }

    /// Sends from b to a, and returns the PSNs that arrive.
    fn inward(&mut self, count: usize) -> Vec<u32> {
        let batch = self.batch(false, count);
        assert_eq!(self.b.send(Time::ZERO, &batch, 0).unwrap(), batch.bursts().len());
        received(&mut self.a)
    }
}

fn received(port: &mut impl Port) -> Vec<u32> {
    let mut psns = Vec::new();
    let mut sink = |meta: &_, frame: &[u8]| {
        assert!(icrc_is_right(meta, UDP_PORT, frame));
        psns.push(Bth::parse(frame.first_chunk().unwrap()).psn.get());
    };
    while port.recv(Time::ZERO, &mut sink).unwrap() > 0 {}
    psns
}

#[test]
fn without_faults_everything_passes_as_it_is() {
    let mut pair = pair(|port| port);
    assert_eq!(pair.out(100), (0..100).collect::<Vec<u32>>());
    assert_eq!(pair.inward(100), (100..200).collect::<Vec<u32>>());
    assert_eq!(pair.a.poll_timeout(), None);
}

#[test]
fn each_direction_is_dropped_when_it_should_be() {
    let mut pair = pair(|port| port);
    for (text, out, inward) in [
        ("down", 0, 0),
        ("up", 10, 10),
        ("blackhole=out", 0, 10),
        ("blackhole=in", 0, 0),
        ("clear", 10, 10),
        ("blackhole=in", 10, 0),
    ] {
        pair.apply(text);
        assert_eq!((pair.out(10).len(), pair.inward(10).len()), (out, inward), "{text}");
    }
    let counters = pair.a.counters();
    assert_eq!((counters.fault_dropped_in, counters.fault_dropped_out), (30, 30));
}

#[test]
fn loss_is_drawn_for_each_packet_by_the_seed() {
    let runs = ["loss=10%,seed=1", "loss=10%,seed=1", "loss=10%,seed=2"].map(|text| {
        let mut pair = pair(|port| port);
        pair.apply(text);
        let all: Vec<_> = (0..50).flat_map(|_| pair.out(200)).collect();
        let inward: Vec<_> = (0..50).flat_map(|_| pair.inward(200)).collect();
        for count in [all.len(), inward.len()] {
            assert!((8800..9200).contains(&count), "{count} of 10000");
        }
        let counters = pair.a.counters();
        assert_eq!(counters.fault_dropped_out as usize, 10_000 - all.len());
        assert_eq!(counters.fault_dropped_in as usize, 10_000 - inward.len());
        all
    });
    assert_eq!(runs[0], runs[1]);
    assert_ne!(runs[0], runs[2]);
}

#[test]
fn what_a_full_port_cannot_take_waits_in_order_or_goes_down_with_the_link() {
    let mut pair = pair(Narrow::new);
    pair.apply("loss=20%,seed=3");
    let mut arrived: Vec<u32> = (0..20).flat_map(|_| pair.out(512)).collect();
    pair.apply("clear");
    // What was left over is sent before anything else.
    while pair.a.poll_timeout().is_some() {
        pair.a.flush(Time::ZERO).unwrap();
    }
    arrived.extend(pair.out(512));
    arrived.extend(received(&mut pair.b));
    assert!(arrived.is_sorted());
    assert_eq!(arrived.len() as u64 + pair.a.counters().fault_dropped_out, 21 * 512);

    pair.apply("loss=1%");
    let batch = pair.batch(true, 512);
    pair.a.send(Time::ZERO, &batch, 0).unwrap();
    assert!(pair.a.poll_timeout().is_some(), "something waits");
    pair.apply("down");
    assert_eq!(pair.out(10), received(&mut pair.b));
    assert_eq!(pair.a.poll_timeout(), None, "nothing waits any more");
}
