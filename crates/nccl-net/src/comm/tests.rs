//! Ends of connections over scripted transports, and peers that lie.

use std::sync::{Arc, Mutex};

use bowline::Device;

use super::*;
use crate::abi;
use crate::devices::OpenNic;
use crate::link::{Job, Offer, Place, RecvEvent, RecvLink, SendEvent, SendLink};

/// What a transport has been told, and what it should report.
#[derive(Default)]
struct Script {
    sent: Vec<Job>,
    offered: Vec<(u64, usize)>,
    send_events: Vec<SendEvent>,
    recv_events: Vec<RecvEvent>,
    failure: Option<Trouble>,
}

#[derive(Clone, Default)]
struct Played(Arc<Mutex<Script>>);

impl Played {
    fn with<R>(&self, f: impl FnOnce(&mut Script) -> R) -> R {
        f(&mut self.0.lock().unwrap())
    }

    fn offer(&self, number: u64, tag: i32, len: u64) {
        let offer = Offer { number, tag, len, addr: 0, rkey: 0 };
        self.with(|script| script.send_events.push(SendEvent::Offered(offer)));
    }

    fn arrive(&self, number: u64, len: u64) {
        self.with(|script| script.recv_events.push(RecvEvent::Arrived { number, len }));
    }
}

impl SendLink for Played {
    fn send(&mut self, job: Job) -> Result<(), Trouble> {
        self.with(|script| script.sent.push(job));
        Ok(())
    }

    fn poll(&mut self, events: &mut Vec<SendEvent>) -> Result<(), Trouble> {
        self.with(|script| {
            events.append(&mut script.send_events);
            script.failure.clone().map_or(Ok(()), Err)
        })
    }
}

impl RecvLink for Played {
    fn offer(&mut self, first: u64, places: &[Place]) -> Result<(), Trouble> {
        self.with(|script| script.offered.push((first, places.len())));
        Ok(())
    }

    fn poll(&mut self, events: &mut Vec<RecvEvent>) -> Result<(), Trouble> {
        self.with(|script| {
            events.append(&mut script.recv_events);
            script.failure.clone().map_or(Ok(()), Err)
        })
    }

    fn is_quiet(&mut self) -> Result<bool, Trouble> {
        Ok(true)
    }
}

fn nic(host: u8) -> (Arc<OpenNic>, Pd) {
    let device = Device::open(&format!("127.93.8.{host}")).unwrap();
    let pd = device.alloc_pd().unwrap();
    (Arc::new(OpenNic { device }), pd)
}

fn sender(host: u8) -> (Sender, Played) {
    let (played, (nic, pd)) = (Played::default(), nic(host));
    (Sender::new(nic, pd, Box::new(played.clone()), Peer::new(None)), played)
}

fn receiver(host: u8) -> (Receiver, Played) {
    let (played, (nic, pd)) = (Played::default(), nic(host));
    (Receiver::new(nic, pd, Box::new(played.clone()), Peer::new(None)), played)
}

fn wish(tag: i32) -> Wish {
    Wish { addr: 0, len: 0, tag, memory: 0 }
}

fn status<T: std::fmt::Debug>(result: Result<T, Trouble>) -> i32 {
    result.unwrap_err().status
}

#[test]
fn sends_take_the_oldest_offer_of_their_tag() {
    let (mut sender, played) = sender(1);
    assert_eq!(sender.send(0, 0, 5, 0).unwrap(), None, "nothing is offered");
    for (number, tag) in [(0, 4), (1, 5), (2, 5)] {
        played.offer(number, tag, 9);
    }
    let requests: Vec<_> = [5, 5, 4].map(|tag| sender.send(0, 0, tag, 0).unwrap().unwrap()).into();
    assert_eq!(sender.send(0, 0, 5, 0).unwrap(), None, "all of that tag are taken");
    let numbers =
        played.with(|script| script.sent.iter().map(|j| j.offer.number).collect::<Vec<_>>());
    assert_eq!(numbers, [1, 2, 0]);
    played.with(|script| script.send_events.push(SendEvent::Done(2)));
    assert_eq!(sender.test(requests[0]).unwrap(), None);
    assert_eq!(sender.test(requests[1]).unwrap(), Some(0));
    assert_eq!(status(sender.test(requests[1])), abi::INVALID_ARGUMENT, "it is over");
}

#[test]
fn a_send_longer_than_its_receive_is_refused_and_nothing_else() {
    let (mut sender, played) = sender(2);
    let memory = [0_u8; 64];
    let addr = memory.as_ptr().expose_provenance();
    // SAFETY: the array outlives the connection.
    let number = unsafe { sender.register(addr, 64) }.unwrap();
    played.offer(0, 1, 8);
    assert_eq!(status(sender.send(addr, 9, 1, number)), abi::INVALID_ARGUMENT);
    assert_eq!(status(sender.send(addr + 60, 8, 1, number)), abi::INVALID_ARGUMENT);
    assert!(sender.send(addr, 8, 1, number).unwrap().is_some());
    sender.close();
}

#[test]
fn offers_that_cannot_be_end_the_connection() {
    for numbers in [vec![1], vec![0, 0], vec![0, 2], (0..MAX_OFFERS as u64 + 1).collect()] {
        let (mut sender, played) = sender(3);
        numbers.iter().for_each(|number| played.offer(*number, 1, 8));
        assert_eq!(status(sender.send(0, 0, 1, 0)), abi::REMOTE_ERROR, "{}", numbers.len());
        assert_eq!(status(sender.send(0, 0, 1, 0)), abi::REMOTE_ERROR, "and stays so");
    }
}

#[test]
fn what_a_peer_said_it_has_is_done_when_it_leaves() {
    let (mut sender, played) = sender(4);
    (0..3).for_each(|number| played.offer(number, 1, 8));
    let requests: Vec<_> = (0..2).map(|_| sender.send(0, 0, 1, 0).unwrap().unwrap()).collect();
    sender.peer_mut().leave(Some(1));
    assert_eq!(status(sender.test(requests[1])), abi::REMOTE_ERROR, "the second it has not");
    assert_eq!(sender.test(requests[0]).unwrap(), Some(0));
}

#[test]
fn who_leaves_without_a_word_has_nothing() {
    let (mut sender, played) = sender(5);
    played.offer(0, 1, 8);
    let request = sender.send(0, 0, 1, 0).unwrap().unwrap();
    sender.peer_mut().leave(None);
    assert_eq!(status(sender.test(request)), abi::REMOTE_ERROR);
    let (mut receiver, _) = receiver(6);
    let request = receiver.recv(&[wish(1)]).unwrap().unwrap();
    receiver.peer_mut().leave(None);
    assert_eq!(status(receiver.test(request)), abi::REMOTE_ERROR);
    assert_eq!(status(receiver.recv(&[wish(1)])), abi::REMOTE_ERROR);
}

#[test]
fn what_came_before_the_peer_left_counts() {
    let (mut receiver, played) = receiver(7);
    let request = receiver.recv(&[wish(1), wish(2)]).unwrap().unwrap();
    receiver.peer_mut().leave(None);
    played.arrive(1, 0);
    played.arrive(0, 0);
    assert_eq!(receiver.test(request).unwrap().unwrap().count, 2);
}

#[test]
fn messages_without_a_receive_or_too_long_end_the_connection() {
    for (number, len) in [(1, 0), (0, 1), (u64::MAX, 0)] {
        let (mut receiver, played) = receiver(8);
        let request = receiver.recv(&[wish(1)]).unwrap().unwrap();
        played.arrive(number, len);
        assert_eq!(status(receiver.test(request)), abi::REMOTE_ERROR, "{number} of {len}");
        assert_eq!(status(receiver.recv(&[wish(1)])), abi::REMOTE_ERROR);
    }
}

#[test]
fn requests_are_bounded_and_numbered() {
    let (mut receiver, played) = receiver(9);
    let requests: Vec<_> = (0..MAX_REQUESTS).map(|_| receiver.recv(&[wish(1)]).unwrap()).collect();
    assert!(requests.iter().all(Option::is_some));
    assert_eq!(receiver.recv(&[wish(1)]).unwrap(), None);
    played.arrive(5, 0);
    assert_eq!(receiver.test(requests[5].unwrap()).unwrap().unwrap().lens[0], 0);
    assert!(receiver.recv(&[wish(1); MAX_GROUP]).unwrap().is_some());
    let last = played.with(|script| script.offered.last().copied());
    assert_eq!(last, Some((MAX_REQUESTS as u64, MAX_GROUP)));
    assert_eq!(status(receiver.recv(&[])), abi::INVALID_ARGUMENT);
    assert_eq!(status(receiver.recv(&[wish(1); MAX_GROUP + 1])), abi::INVALID_ARGUMENT);
}

#[test]
fn memory_that_goes_under_a_receive_ends_the_connection() {
    let (mut receiver, played) = receiver(10);
    let memory = [0_u8; 64];
    let addr = memory.as_ptr().expose_provenance();
    // SAFETY: the array outlives the connection.
    let number = unsafe { receiver.register(addr, 64) }.unwrap();
    let wish = Wish { addr: addr + 8, len: 8, tag: 1, memory: number };
    let request = receiver.recv(&[wish]).unwrap().unwrap();
    receiver.deregister(number).unwrap();
    assert_eq!(status(receiver.test(request)), abi::INVALID_USAGE);
    played.arrive(0, 8);
    assert_eq!(status(receiver.recv(&[wish])), abi::INVALID_USAGE);
    assert_eq!(status(receiver.deregister(number)), abi::INVALID_ARGUMENT, "once");
}

#[test]
fn a_transport_that_fails_fails_every_request() {
    let (mut receiver, played) = receiver(11);
    let request = receiver.recv(&[wish(1)]).unwrap().unwrap();
    played.with(|script| script.failure = Some(Trouble::remote("retries exceeded")));
    // The message has already been logged, once.
    assert_eq!(receiver.test(request).unwrap_err(), Trouble::remote(""));
    played.with(|script| script.failure = Some(Trouble::system("and so on")));
    assert_eq!(receiver.test(request).unwrap_err(), Trouble::remote(""), "the first counts");
}
