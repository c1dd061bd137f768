//! Chooses the lane that the calling thread drives when it polls a queue of several lanes.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use bowline_failover::mirror::Turn;

/// After this many consecutive posts to another lane, a thread has switched to that lane. A thread
/// that posts to all lanes in turn stays where it is, because a lane that is driven by one thread
/// and then by another waits in between.
const POSTS_TO_MOVE: u32 = 64;

/// The lane that a thread works on, determined by where it posts.
#[derive(Clone, Copy, Default)]
struct Habit {
    home: Option<usize>,
    /// The lane of the last post, and the number of consecutive posts to it.
    last: usize,
    posts: u32,
}

impl Habit {
    fn posted(&mut self, lane: usize) {
        self.posts = if self.last == lane { self.posts.saturating_add(1) } else { 1 };
        self.last = lane;
        if self.home.is_none() || self.posts >= POSTS_TO_MOVE {
            self.home = Some(lane);
        }
    }
}

thread_local! {
    static HABIT: Cell<Habit> = const {
        Cell::new(Habit { home: None, last: 0, posts: 0 })
    };
    static OTHERS_FIRST: Cell<bool> = const { Cell::new(false) };
}

/// Records that the calling thread posts to a queue pair of a lane.
#[inline]
pub(crate) fn posted(lane: usize) {
    let mut habit = HABIT.get();
    habit.posted(lane);
    HABIT.set(habit);
}

/// The lane that the calling thread should poll next.
pub(crate) fn turn() -> Turn {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static THREAD: usize = THREADS.fetch_add(1, Ordering::Relaxed);
    }
    let others_first = OTHERS_FIRST.get();
    OTHERS_FIRST.set(!others_first);
    Turn { home: HABIT.get().home, thread: THREAD.with(|thread| *thread), others_first }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_at_home_where_it_posts_and_does_not_waver() {
        let mut habit = Habit::default();
        habit.posted(3);
        assert_eq!(habit.home, Some(3), "at once, if it has none");
        (0..1000).for_each(|post| habit.posted(post % 8));
        assert_eq!(habit.home, Some(3));
        (0..POSTS_TO_MOVE).for_each(|_| habit.posted(5));
        assert_eq!(habit.home, Some(5));
    }
}
