//! The paper's impossibility result: without the receiver's state, retransmitting unacknowledged
//! requests does harm, except for plain writes and READs.

use crate::check::{fails, holds};
use crate::properties::{FRESH, ONCE, RECEIVES};
use crate::scope::Kind::{FetchAdd, FlagWrite, LongSend, Read, Send, Write, WriteImm};
use crate::scope::{Mode, Scope};

/// Lemma C.2.
#[test]
fn retried_atomic_is_carried_out_twice() {
    fails(Scope::new(Mode::OpaqueRetry, &[FetchAdd]), ONCE);
}

/// Lemma C.4.
#[test]
fn retried_send_takes_a_second_receive() {
    fails(Scope::new(Mode::OpaqueRetry, &[Send, Send]), RECEIVES);
    fails(Scope::new(Mode::OpaqueRetry, &[LongSend]), RECEIVES);
    fails(Scope::new(Mode::OpaqueRetry, &[WriteImm]), ONCE);
}

/// Lemma C.5: a flag in the data, and a flag in a separate write.
#[test]
fn retried_write_hits_memory_in_use() {
    fails(Scope::new(Mode::OpaqueRetry, &[FlagWrite]), FRESH);
    fails(Scope::new(Mode::OpaqueRetry, &[Write, FlagWrite]), FRESH);
}

/// What makes failover possible at all (section 3.2).
#[test]
fn bulk_data_may_be_retried() {
    holds(Scope { faults: 2, ..Scope::new(Mode::OpaqueRetry, &[Write, Read]) });
}
