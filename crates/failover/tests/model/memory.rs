//! What the peer's requests have done to an end, and whether its program was harmed.

use crate::scope::{Kind, MAX_REQUESTS};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Memory {
    /// How often each of the peer's requests was executed; two stands for more.
    runs: [u8; MAX_REQUESTS],
    /// Number of two-sided messages received.
    pub(crate) received: u8,
    /// A request was executed before an earlier one.
    pub(crate) inverted: bool,
    /// A message landed in a receive that was meant for another one, or together with half of
    /// another one.
    pub(crate) misplaced: bool,
    /// A request wrote to memory that the program had reused.
    pub(crate) overwritten: bool,
}

impl Memory {
    pub(crate) fn runs(&self, number: usize) -> u8 {
        self.runs[number]
    }

    pub(crate) fn carry_out(&mut self, requests: &[Kind], number: usize) {
        let kind = requests[number];
        self.overwritten |= kind.writes() && self.is_noticed(requests, number);
        self.inverted |= self.runs[..number].contains(&0);
        self.runs[number] = 2.min(self.runs[number] + 1);
        if kind.is_two_sided() {
            let place = requests[..number].iter().filter(|kind| kind.is_two_sided()).count();
            self.misplaced |= usize::from(self.received) != place;
            self.received += 1;
        }
    }

    /// Whether the program knows that this data has arrived. It reuses the memory at that moment: a
    /// program that waits longer can only be harmed less.
    fn is_noticed(&self, requests: &[Kind], number: usize) -> bool {
        (number..requests.len()).any(|later| requests[later].notifies() && self.runs[later] > 0)
    }
}
