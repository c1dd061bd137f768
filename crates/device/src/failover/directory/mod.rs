//! Finds peers through the store. A separate thread talks to the store.
//!
//! A store may be slow, down or gone. This delays only the setup of backups. Orders are queued here
//! and carried out when the store answers, in any order, so that two ends that wait for each
//! other's entries never block each other.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bowline_failover::Life;
use bowline_io::{EventChannel, spawn_background};
use bowline_store::{Key, Store, StoreError};

use crate::Log;

/// How long an entry lives without a refresh, and how often it is refreshed.
const TTL: Duration = Duration::from_secs(30);
const REFRESH: Duration = Duration::from_secs(10);
/// How often to check that the store still has our entries. It may have been restarted empty or
/// removed, and peers that connect now should not have to wait for the next refresh.
const CHECK: Duration = Duration::from_secs(1);
/// Delay before asking again for a missing entry: at first, and at most.
const ASK_MIN: Duration = Duration::from_millis(1);
const ASK_MAX: Duration = Duration::from_millis(500);
/// Delays after which a found entry is read again. It may have been left behind by an earlier
/// process that had the same number, before the peer's own entry was stored.
const LOOK_AGAIN: [Duration; 3] =
    [Duration::from_millis(5), Duration::from_millis(100), Duration::from_secs(1)];
/// How often to read an entry that may change at any time, and the minimum time per read. With many
/// such entries, each is read less often, so that the load on the store is bounded.
const WATCH: Duration = Duration::from_secs(1);
const WATCH_EACH: Duration = Duration::from_millis(5);
/// How long a caller may have to wait for the store.
const SYNC_PATIENCE: Duration = Duration::from_millis(100);
/// Delay before retrying a store that is down: at first, and at most.
const DOWN_MIN: Duration = Duration::from_millis(50);
const DOWN_MAX: Duration = Duration::from_secs(2);

/// Entries that were found, until the supervisor's thread takes them.
type Found = Mutex<Vec<(Life, Vec<u8>)>>;

enum Order {
    Put(Life, Key, Vec<u8>),
    Remove(Key),
    /// The flag says whether to keep watching the entry once it is found.
    Want(Life, Key, bool),
    Forget(Life),
    /// Reports when all earlier orders have been carried out or tried.
    Sync(Sender<()>),
    Stop,
}

/// The connection to the store's thread.
pub struct Directory {
    orders: Mutex<Sender<Order>>,
    found: Arc<Found>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Directory {
    /// The token that announces a found entry.
    pub const FOUND: u64 = 1;

    /// Starts the thread. It announces what it finds by [`Directory::FOUND`] in `inbox`.
    pub fn start(
        store: Box<dyn Store>,
        inbox: Arc<EventChannel<u64>>,
        log: Log,
    ) -> io::Result<Directory> {
        let (orders, to_do) = channel();
        let found = Arc::default();
        let worker = StoreWorker {
            store,
            log,
            inbox,
            found: Arc::clone(&found),
            own: HashMap::new(),
            gone: Vec::new(),
            wanted: HashMap::new(),
            waiting: Vec::new(),
            check: Instant::now(),
            down: None,
        };
        let thread = spawn_background("bowline-store", move || worker.work(&to_do))?;
        Ok(Directory { orders: Mutex::new(orders), found, thread: Mutex::new(Some(thread)) })
    }

    /// Stores an entry of this process, and keeps it alive.
    pub fn put(&self, who: Life, key: Key, value: Vec<u8>) {
        self.order(Order::Put(who, key, value));
    }

    /// Removes an entry of this process.
    pub fn remove(&self, key: Key) {
        self.order(Order::Remove(key));
    }

    /// Looks for a peer's entry until it is found.
    pub fn want(&self, who: Life, key: Key) {
        self.order(Order::Want(who, key, false));
    }

    /// Looks for a peer's entry, and reports each change until it is forgotten.
    pub fn watch(&self, who: Life, key: Key) {
        self.order(Order::Want(who, key, true));
    }

    /// Stops looking for an entry.
    pub fn forget(&self, who: Life) {
        self.order(Order::Forget(who));
    }

    /// Waits until the store has received all orders so far, but not for a slow store.
    pub fn sync(&self) {
        let (done, wait) = channel();
        self.order(Order::Sync(done));
        // A store that is down delays only backups.
        let _ = wait.recv_timeout(SYNC_PATIENCE);
    }

    /// The entries found since the last call.
    pub fn found(&self) -> Vec<(Life, Vec<u8>)> {
        std::mem::take(&mut *self.found.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Removes all entries, if the store answers, and stops the thread.
    pub fn shutdown(&self) {
        self.order(Order::Stop);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // If the thread panicked, no entries are stored or found any more; peers time out.
            let _ = thread.join();
        }
    }

    fn order(&self, order: Order) {
        // Once the thread has ended, nobody carries out or misses the order.
        let _ = self.orders.lock().unwrap_or_else(PoisonError::into_inner).send(order);
    }
}

/// The state of the store's thread.
struct StoreWorker {
    store: Box<dyn Store>,
    log: Log,
    inbox: Arc<EventChannel<u64>>,
    found: Arc<Found>,
    own: HashMap<Key, Own>,
    /// Own entries to remove.
    gone: Vec<Key>,
    wanted: HashMap<Life, Wanted>,
    waiting: Vec<Sender<()>>,
    /// When to check whether own entries are still stored.
    check: Instant,
    /// Set while the store does not answer.
    down: Option<Down>,
}

struct Own {
    who: Life,
    value: Vec<u8>,
    due: Instant,
    state: OwnState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum OwnState {
    /// The entry has not been stored yet.
    New,
    /// The store has the entry.
    Stored,
    /// The store rejects the entry, and this has been logged.
    Refused,
}

struct Wanted {
    key: Key,
    due: Instant,
    delay: Duration,
    found: Option<Vec<u8>>,
    looks: usize,
    /// The entry is read for as long as somebody wants it.
    is_watched: bool,
    /// It has been logged that the entry cannot be read.
    told: bool,
}

impl Wanted {
    /// The entry is missing: asks again later, with an increasing delay.
    fn again(&mut self, now: Instant) {
        self.due = now + self.delay;
        self.delay = (self.delay * 2).min(ASK_MAX);
    }
}

struct Down {
    until: Instant,
    delay: Duration,
}

impl StoreWorker {
    fn work(mut self, orders: &Receiver<Order>) {
        loop {
            let next = match self.due() {
                None => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(due) => orders.recv_timeout(due.saturating_duration_since(Instant::now())),
            };
            let mut next = match next {
                Ok(order) => Some(order),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return self.leave(),
            };
            // Take all pending orders first, before one of them makes us wait for the store.
            while let Some(order) = next {
                if matches!(order, Order::Stop) {
                    return self.leave();
                }
                self.note(order);
                next = orders.try_recv().ok();
            }
            self.carry_out();
            for done in self.waiting.drain(..) {
                // The caller may have given up waiting.
                let _ = done.send(());
            }
        }
    }

    fn note(&mut self, order: Order) {
        let due = Instant::now();
        match order {
            Order::Put(who, key, value) => {
                self.gone.retain(|gone| *gone != key);
                self.own.insert(key, Own { who, value, due, state: OwnState::New });
            }
            Order::Remove(key) => {
                self.own.remove(&key);
                self.gone.push(key);
            }
            Order::Want(who, key, is_watched) => {
                let (delay, found) = (ASK_MIN, None);
                let wanted = Wanted { key, due, delay, found, looks: 0, is_watched, told: false };
                self.wanted.insert(who, wanted);
            }
            Order::Forget(who) => {
                self.wanted.remove(&who);
            }
            Order::Sync(done) => self.waiting.push(done),
            Order::Stop => {}
        }
    }

    /// When there is something to do.
    fn due(&self) -> Option<Instant> {
        let gone = self.gone.first().map(|_| Instant::now());
        let own = self.own.values().map(|own| own.due.min(self.check)).min();
        let wanted = self.wanted.values().map(|wanted| wanted.due).min();
        let due = [gone, own, wanted].into_iter().flatten().min()?;
        Some(self.down.as_ref().map_or(due, |down| due.max(down.until)))
    }

    /// Does what is due, until the store fails.
    fn carry_out(&mut self) {
        let now = Instant::now();
        if self.down.as_ref().is_some_and(|down| now < down.until) {
            return;
        }
        if self.down.is_some() {
            // It may come back without its entries.
            self.put_all_again(now);
        }
        let done = self
            .check(now)
            .and_then(|()| self.put_own(now))
            .and_then(|()| self.ask(now))
            .and_then(|()| self.take_back());
        match done {
            Ok(()) => {
                if self.down.take().is_some() {
                    self.log.warn("failover: the store answers again");
                }
            }
            Err(error) => self.failed(&error),
        }
    }

    fn failed(&mut self, error: &StoreError) {
        let delay = match &self.down {
            Some(down) => (down.delay * 2).min(DOWN_MAX),
            None => {
                self.log.warn(&format!(
                    "failover: {error}; connections keep their current backups, and get new ones \
                     when it answers again"
                ));
                DOWN_MIN
            }
        };
        self.down = Some(Down { until: Instant::now() + delay, delay });
    }

    /// Checks whether the store still has one of our entries, which stands for all.
    fn check(&mut self, now: Instant) -> Result<(), StoreError> {
        if now < self.check {
            return Ok(());
        }
        let stored = |own: &Own| own.state == OwnState::Stored && own.due > now;
        if let Some((key, own)) = self.own.iter().find(|(_, own)| stored(own)) {
            match self.store.get(key) {
                Ok(Some(value)) if value == own.value => {}
                Err(error) if error.is_transient() => return Err(error),
                _ => {
                    self.log.warn(
                        "failover: the store has lost the entries of this process (was it \
                         restarted or emptied?); storing them again",
                    );
                    self.put_all_again(now);
                }
            }
        }
        self.check = now + CHECK;
        Ok(())
    }

    fn put_all_again(&mut self, now: Instant) {
        self.own.values_mut().for_each(|own| own.due = now);
    }

    fn put_own(&mut self, now: Instant) -> Result<(), StoreError> {
        for (key, own) in self.own.iter_mut().filter(|(_, own)| own.due <= now) {
            own.state = match self.store.put(key, &own.value, TTL) {
                Ok(()) => OwnState::Stored,
                // The problem concerns one key, not the store, so the other entries continue.
                Err(error) if !error.is_transient() => {
                    if own.state != OwnState::Refused {
                        self.log.warn(&format!(
                            "failover: {error}. Until then QP {} has no backup",
                            own.who.qpn
                        ));
                    }
                    OwnState::Refused
                }
                Err(error) => return Err(error),
            };
            own.due = now + REFRESH;
        }
        Ok(())
    }

    fn ask(&mut self, now: Instant) -> Result<(), StoreError> {
        let refused = |own: &&Own| own.state == OwnState::Refused;
        let refused: HashSet<Life> = self.own.values().filter(refused).map(|own| own.who).collect();
        let watched = self.wanted.values().filter(|wanted| wanted.is_watched).count();
        let watch =
            WATCH.max(WATCH_EACH.saturating_mul(u32::try_from(watched).unwrap_or(u32::MAX)));
        for (who, wanted) in self.wanted.iter_mut().filter(|(_, wanted)| wanted.due <= now) {
            if refused.contains(who) {
                // If another job has our entry's name, we would find that job's peer, and our own
                // peer could not find us.
                wanted.again(now);
                continue;
            }
            match self.store.get(&wanted.key) {
                Ok(None) => wanted.again(now),
                Ok(Some(value)) => {
                    if wanted.found.as_ref() != Some(&value) {
                        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
                        found.push((*who, value.clone()));
                        wanted.found = Some(value);
                        self.inbox.push(Directory::FOUND);
                    }
                    // The entry is removed below if this was the last read.
                    wanted.due = now + LOOK_AGAIN.get(wanted.looks).copied().unwrap_or(watch);
                    wanted.looks += 1;
                }
                Err(error) if !error.is_transient() => {
                    if !wanted.told {
                        self.log.warn(&format!("failover: {error}"));
                        wanted.told = true;
                    }
                    wanted.again(now);
                }
                Err(error) => return Err(error),
            }
        }
        self.wanted.retain(|_, wanted| wanted.is_watched || wanted.looks <= LOOK_AGAIN.len());
        Ok(())
    }

    fn take_back(&mut self) -> Result<(), StoreError> {
        while let Some(key) = self.gone.last() {
            match self.store.remove(key) {
                Err(error) if error.is_transient() => return Err(error),
                // An entry that the store refuses to remove expires.
                _ => _ = self.gone.pop(),
            }
        }
        Ok(())
    }

    /// Removes all entries. Stops at the first failure, because they expire anyway.
    fn leave(mut self) {
        if self.down.is_none() {
            self.gone.extend(self.own.drain().map(|(key, _)| key));
            let _ = self.take_back();
        }
    }
}
