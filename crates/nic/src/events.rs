//! Asynchronous events: bounded, so that an application that never polls costs no memory.

use std::collections::VecDeque;

use crate::counters::Counters;
use crate::types::Event;

#[derive(Debug)]
pub(crate) struct EventQueue {
    queue: VecDeque<Event>,
    max: usize,
}

impl EventQueue {
    pub(crate) fn new(max: u32) -> EventQueue {
        EventQueue { queue: VecDeque::new(), max: max as usize }
    }

    pub(crate) fn push(&mut self, event: Event, counters: &mut Counters) {
        if self.queue.len() >= self.max {
            counters.events_lost += 1;
            return;
        }
        self.queue.push_back(event);
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Event> {
        self.queue.pop_front()
    }
}
