//! A 64-bit word that threads or processes share: the standard library's, or a model checker's
//! instead.

use std::sync::atomic::{AtomicU64, Ordering};

/// The operations that the protocols between threads need.
pub(crate) trait Word {
    fn new(value: u64) -> Self;
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    fn swap(&self, value: u64, order: Ordering) -> u64;
    fn fetch_add(&self, value: u64, order: Ordering) -> u64;
    fn fetch_sub(&self, value: u64, order: Ordering) -> u64;
    /// Orders everything before it against everything after it.
    fn full_fence();
}

macro_rules! impl_word {
    ($word:ty, $fence:path) => {
        impl Word for $word {
            #[inline]
            fn new(value: u64) -> Self {
                <$word>::new(value)
            }

            #[inline]
            fn load(&self, order: Ordering) -> u64 {
                self.load(order)
            }

            #[inline]
            fn store(&self, value: u64, order: Ordering) {
                self.store(value, order);
            }

            #[inline]
            fn swap(&self, value: u64, order: Ordering) -> u64 {
                self.swap(value, order)
            }

            #[inline]
            fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
                self.fetch_add(value, order)
            }

            #[inline]
            fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
                self.fetch_sub(value, order)
            }

            #[inline]
            fn full_fence() {
                $fence(Ordering::SeqCst);
            }
        }
    };
}

impl_word!(AtomicU64, std::sync::atomic::fence);
#[cfg(test)]
impl_word!(loom::sync::atomic::AtomicU64, loom::sync::atomic::fence);
