//! Counters of shims, for people and controllers to read at run time.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! fec_counters {
    ($($(#[doc = $help:literal])+ $field:ident,)*) => {
        /// Counters that any number of shims share. Packets in order are not counted, so that
        /// counting costs nothing on a clean link.
        #[derive(Debug, Default)]
        pub struct FecCounters {
            $(pub(crate) $field: AtomicU64,)*
        }

        /// The counters at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct FecSnapshot {
            $($(#[doc = $help])+ pub $field: u64,)*
        }

        impl FecCounters {
            /// Their values now.
            pub fn snapshot(&self) -> FecSnapshot {
                FecSnapshot { $($field: self.$field.load(Ordering::Relaxed),)* }
            }
        }

        impl FecSnapshot {
            /// Every counter: name, help, value.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$((stringify!($field), concat!($($help),+), self.$field)),*].into_iter()
            }

            /// Adds another's.
            pub fn merge(&mut self, other: &FecSnapshot) {
                $(self.$field += other.$field;)*
            }
        }
    };
}

fec_counters! {
    /// Repair packets sent.
    repairs_sent,
    /// Repair packets received.
    repairs_received,
    /// Lost packets restored.
    recovered,
    /// Lost packets that could not be restored: left to the transport.
    unrecoverable,
    /// Repair packets that nothing was missing for.
    wasted,
    /// Repair packets of a block that the receiver had not followed from its beginning.
    misaligned,
    /// Repair packets refused: their numbers or what they restored made no sense.
    rejected,
    /// Packets that arrived out of order and were held back.
    held,
    /// Times that held packets were handed on with the gap before them.
    given_up,
    /// Blocks that went without repairs because the pool was empty.
    unprotected,
    /// Times that a controller chose another code.
    changes,
    /// Connections whose peer has the shim too.
    peers_found,
}

/// One more.
#[inline]
pub(crate) fn bump(counter: &AtomicU64) {
    add(counter, 1);
}

#[inline]
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
