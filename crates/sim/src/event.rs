//! Events in order of time.

use core::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use bowline_nic::Time;

use crate::net::{LinkId, NodeId};
use crate::packet::PacketId;
use crate::wheel::Wheel;
use crate::world::{HostId, NicId};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// A packet reaches the end of a link.
    Arrive {
        link: LinkId,
        packet: PacketId,
    },
    /// A link with a queue in front of it can take the next packet.
    Depart {
        link: LinkId,
    },
    /// A pause frame takes effect on the sender of a link.
    Pause {
        link: LinkId,
        class: u8,
        is_on: bool,
    },
    /// A switch asked to be called.
    SwitchTimeout {
        node: NodeId,
    },
    Timeout {
        nic: NicId,
    },
    Gather {
        host: HostId,
    },
    Resume {
        host: HostId,
    },
    Wake {
        token: u64,
    },
}

/// An entry of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Entry {
    One(Event),
    /// The first of the packets on a link.
    FirstOf(LinkId),
}

/// The queue of events.
///
/// Nearly all events are packet arrivals, and those of one link are in order. So each link has its
/// own queue, of which only the first packet waits here: this queue scales with the network, not
/// with the number of packets in flight. Events within microseconds are in a wheel, the rest in a
/// heap.
///
/// The order of simultaneous events is deterministic, but not always the order of insertion; only
/// packets of one link keep theirs.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    near: Wheel<Entry>,
    /// With an increasing number, so that equal times have an order.
    far: BinaryHeap<Reverse<(Time, u64, Entry)>>,
    /// Packets on each link, in the order of their arrival.
    flights: Vec<VecDeque<(Time, PacketId)>>,
    count: u64,
}

impl EventQueue {
    /// Schedules an event, not before the time of the last one that was popped.
    pub(crate) fn push(&mut self, at: Time, event: Event) {
        self.wait(at, Entry::One(event));
    }

    /// A packet arrives over a link, not before any earlier one passed to this function.
    #[inline]
    pub(crate) fn push_in_order(&mut self, at: Time, link: LinkId, packet: PacketId) {
        let index = link.0 as usize;
        if index >= self.flights.len() {
            self.flights.resize_with(index + 1, VecDeque::new);
        }
        let flight = &mut self.flights[index];
        debug_assert!(flight.back().is_none_or(|(last, _)| *last <= at), "a link keeps the order");
        let is_first = flight.is_empty();
        flight.push_back((at, packet));
        if is_first {
            self.wait(at, Entry::FirstOf(link));
        }
    }

    #[inline]
    fn wait(&mut self, at: Time, entry: Entry) {
        if !self.near.insert(at, entry) {
            self.count += 1;
            self.far.push(Reverse((at, self.count, entry)));
        }
    }

    /// The next event, unless it is later than `deadline`.
    #[inline]
    pub(crate) fn pop_until(&mut self, deadline: Time) -> Option<(Time, Event)> {
        let near = self.near.first();
        let far = self.far.peek().map_or(Time::NEVER, |Reverse((at, ..))| *at);
        let at = near.min(far);
        if at > deadline {
            return None;
        }
        let entry = if near < far {
            self.near.pop()?
        } else {
            self.near.advance(at);
            self.far.pop().map(|Reverse((.., entry))| entry)?
        };
        Some((at, self.event(entry)))
    }

    #[inline]
    fn event(&mut self, entry: Entry) -> Event {
        let link = match entry {
            Entry::One(event) => return event,
            Entry::FirstOf(link) => link,
        };
        let flight = &mut self.flights[link.0 as usize];
        let (_, packet) = flight.pop_front().expect("links that wait have packets");
        if let Some((at, _)) = flight.front().copied() {
            self.wait(at, entry);
        }
        Event::Arrive { link, packet }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Packet, PacketStore};
    use crate::rng::SimRng;

    /// Events at random times, from nanoseconds to milliseconds away, while others are handled.
    #[test]
    fn events_come_by_time_and_packets_of_a_link_in_order() {
        let rng = &mut SimRng::new(5, 0);
        let (mut queue, mut store) = (EventQueue::default(), PacketStore::default());
        let mut last = [Time::ZERO; 4];
        let mut waiting: Vec<(Time, Event)> = Vec::new();
        let mut now = Time::ZERO;
        for number in 0..20_000 {
            let reach = rng.pick(&[3, 500, 9_000, 3_000_000]);
            let at = now.plus_nanos(rng.below(reach));
            let event = if rng.percent(50) {
                queue.push(at, Event::Wake { token: number });
                (at, Event::Wake { token: number })
            } else {
                let link = LinkId(rng.below(4) as u32);
                let at = at.max(last[link.0 as usize]);
                last[link.0 as usize] = at;
                let packet = store.insert(Packet::for_tests());
                queue.push_in_order(at, link, packet);
                (at, Event::Arrive { link, packet })
            };
            waiting.push(event);
            while waiting.len() > if number < 19_999 { 300 } else { 0 } {
                let first = waiting.iter().map(|(at, _)| *at).min().expect("some wait");
                let before = first.as_nanos().checked_sub(1).map(Time::from_nanos);
                assert_eq!(before.and_then(|before| queue.pop_until(before)), None);
                let popped = queue.pop_until(first).expect("it is due");
                let place = waiting.iter().position(|w| *w == popped).expect("it was asked for");
                if let (_, Event::Arrive { link, .. }) = popped {
                    let of_link =
                        |e: &Event| matches!(e, Event::Arrive { link: l, .. } if *l == link);
                    assert!(!waiting[..place].iter().any(|(_, e)| of_link(e)), "out of order");
                }
                waiting.remove(place);
                now = first;
            }
        }
        assert_eq!(queue.pop_until(Time::NEVER), None);
    }
}
