//! Runs failover: the threads, the clock and the store around a [`Supervisor`].

mod account;
mod directory;
mod driver;
mod keys;

use std::collections::HashMap;
use std::iter;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use bowline_failover::mirror::{Engines, Qp};
use bowline_failover::{Config, Entry, Life, Mode, Report, Supervisor};
use bowline_io::{CqNotify, EventChannel, spawn_background};
use bowline_nic::{CqId, Time};
use bowline_store::{Key, StoreError};
use bowline_wire::Qpn;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

pub use account::{Account, Tally, describe};
pub use directory::Directory;
use driver::Token;
pub use keys::region_key;

use crate::engines::LaneEngines;
use crate::{BackupSpec, DeviceError, Log, random_bytes};

/// Maximum number of pending tokens for the supervisor's thread: more than there can be
/// connections.
const MAX_TOKENS: usize = 1 << 20;

/// Keeps the reliable connections of a device alive.
///
/// One thread runs the supervisor, and nothing that could make it wait. Another one talks to the
/// store.
pub(crate) struct Failover {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// State shared by the program's threads and the supervisor's.
struct Shared {
    mode: Mode,
    engines: Arc<LaneEngines>,
    /// Connections on the backup rail.
    away: AtomicUsize,
    core: Arc<Mutex<Core>>,
    /// Completion queues that threads may wait for.
    cqs: Mutex<HashMap<CqId, CqNotify>>,
    /// Wakes the supervisor's thread.
    inbox: Arc<EventChannel<u64>>,
    directory: Directory,
    log: Log,
    stopping: AtomicBool,
}

/// The supervisor and its state, under one lock. A thread that holds it may take a lane's lock, but
/// never the other way round.
struct Core {
    supervisor: Supervisor,
    tally: Tally,
    keys: keys::PeerKeys,
    random: ChaCha20Rng,
    /// The number of moves for which sleeping threads have been woken.
    moves_seen: u64,
}

/// Prevents connections from moving.
pub(crate) struct Held<'a>(#[expect(dead_code, reason = "held for its lock")] MutexGuard<'a, Core>);

/// The store key of a queue pair's entry.
pub fn queue_pair_key(addr: IpAddr, qpn: Qpn) -> Result<Key, StoreError> {
    Key::new(format!("qp/{addr}/{:06x}", qpn.get()))
}

impl Failover {
    /// Starts to supervise the connections between the two rails.
    pub(crate) fn start(
        engines: &Arc<LaneEngines>,
        spec: &BackupSpec,
        log: Log,
    ) -> Result<Failover, DeviceError> {
        let url = spec.store_url.clone().unwrap_or_else(bowline_store::default_url);
        let store = bowline_store::open(&url, &spec.job)?;
        let inbox = EventChannel::new(MAX_TOKENS).map_err(DeviceError::system("make a channel"))?;
        let inbox = Arc::new(inbox);
        let seed = random_bytes().map_err(DeviceError::system("read randomness"))?;
        let mut random = ChaCha20Rng::from_seed(seed);
        let supervisor = engines.supervisor(|| Config::new(spec.mode, random.next_u32()))?;
        for (at, cq) in supervisor.control_cqs() {
            let lane = engines.lane(at);
            lane.notify_cq(cq, CqNotify::new(Arc::clone(&inbox), Token::Control.encode()))?;
            lane.watch_paths(Arc::clone(&inbox), Token::path_tag(engines.layout(), at))?;
        }
        let directory = Directory::start(store, Arc::clone(&inbox), log.clone())
            .map_err(DeviceError::system("start a thread"))?;
        let (tally, keys) = (Tally::default(), keys::PeerKeys::default());
        let core = Core { supervisor, tally, keys, random, moves_seen: 0 };
        let core = Arc::new(Mutex::new(core));
        let for_waiters = Arc::clone(&core);
        engines.wait_for_moves_by(move || drop(lock(&for_waiters)));
        let shared = Arc::new(Shared {
            mode: spec.mode,
            engines: Arc::clone(engines),
            away: AtomicUsize::new(0),
            core,
            cqs: Mutex::default(),
            inbox,
            directory,
            log,
            stopping: AtomicBool::new(false),
        });
        let for_thread = Arc::clone(&shared);
        let thread = spawn_background("bowline-failover", move || driver::run(&for_thread))
            .map_err(DeviceError::system("start a thread"))?;
        Ok(Failover { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Whether any connection is on the backup rail.
    #[inline]
    pub(crate) fn is_split(&self) -> bool {
        // Not relaxed: a thread that arms a queue must not miss a move that saw the queue unarmed.
        self.shared.away.load(Ordering::SeqCst) != 0
    }

    /// The account of what has happened so far.
    pub(crate) fn account(&self) -> Account {
        let core = self.shared.core();
        let count = core.supervisor.count();
        core.tally.account(self.shared.mode, count, core.supervisor.away())
    }

    /// Prevents connections from moving while the result lives.
    pub(crate) fn hold(&self) -> Held<'_> {
        Held(self.shared.core())
    }

    /// Supervises a queue pair from now on, and tells peers about its spare.
    pub(crate) fn begin(&self, qp: &Qp) {
        self.shared.begin(&mut self.shared.core(), qp);
    }

    /// The queue pair is connected: looks for its peer's backup.
    pub(crate) fn connected(&self, qp: &Qp, peer: IpAddr, peer_qpn: Qpn) {
        let life = self.shared.core().supervisor.life_of(qp.qpn());
        if let (Some(life), Ok(key)) = (life, queue_pair_key(peer, peer_qpn)) {
            self.shared.directory.want(life, key);
        }
    }

    /// Moves a queue pair back to the default rail and forgets it, before the program fails or
    /// destroys it.
    pub(crate) fn end(&self, qp: &Qp) {
        self.shared.end(&mut self.shared.core(), qp);
    }

    /// Like [`Failover::end`], before the program resets the queue pair. It may be connected again.
    pub(crate) fn reset(&self, qp: &Qp) {
        let mut core = self.shared.core();
        self.shared.end(&mut core, qp);
        self.shared.begin(&mut core, qp);
        drop(core);
        // The peer may soon look for the entry, and must not find the old one.
        self.shared.directory.sync();
    }

    pub(crate) fn watch_cq(&self, cq: CqId, notify: CqNotify) {
        self.shared.cqs().insert(cq, notify);
    }

    pub(crate) fn unwatch_cq(&self, cq: CqId) {
        self.shared.cqs().remove(&cq);
    }

    /// Stops failover: connections stay where they are, and the entries are removed from the store.
    pub(crate) fn shutdown(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.inbox.push(Token::Wake.encode());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // If the thread panicked, failover has ended already.
            let _ = thread.join();
        }
        self.shared.directory.shutdown();
    }
}

fn lock(core: &Mutex<Core>) -> MutexGuard<'_, Core> {
    core.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn core(&self) -> MutexGuard<'_, Core> {
        lock(&self.core)
    }

    fn cqs(&self) -> MutexGuard<'_, HashMap<CqId, CqNotify>> {
        self.cqs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The supervisor's clock.
    fn now(&self) -> Time {
        self.engines.all()[0].now()
    }

    /// Calls the supervisor, and handles the consequences.
    fn supervise<R>(
        &self,
        core: &mut Core,
        call: impl FnOnce(&mut Supervisor, Time, &LaneEngines) -> R,
    ) -> R {
        let result = call(&mut core.supervisor, self.now(), &self.engines);
        // This must precede the check for sleeping threads: see `mirror::Cq::arm`.
        self.away.store(core.supervisor.away(), Ordering::SeqCst);
        let moves = core.supervisor.moves();
        if std::mem::replace(&mut core.moves_seen, moves) != moves {
            // A sleeping thread's completion may arrive on the other rail, which it has not armed.
            self.cqs().values().for_each(CqNotify::raise);
        }
        let reports: Vec<Report> = iter::from_fn(|| core.supervisor.poll_report()).collect();
        for line in account::describe(&reports) {
            self.log.warn(&line);
        }
        reports.into_iter().for_each(|report| core.tally.enter(report));
        result
    }

    /// Registers a queue pair with its agent, and publishes it to peers.
    fn begin(&self, core: &mut Core, qp: &Qp) {
        let token = u128::from(core.random.next_u64()) << 64 | u128::from(core.random.next_u64());
        if let (Some((life, entry)), Ok(key)) = (core.supervisor.add(qp, token), self.own_key(qp)) {
            self.directory.put(life, key, entry.encode());
        }
    }

    /// Moves a queue pair back to the default rail and forgets it.
    fn end(&self, core: &mut Core, qp: &Qp) {
        let ended = self.supervise(core, |supervisor, _, engines| supervisor.remove(engines, qp));
        let Some(life) = ended else { return };
        self.directory.forget(life);
        if let Ok(key) = self.own_key(qp) {
            self.directory.remove(key);
        }
    }

    fn own_key(&self, qp: &Qp) -> Result<Key, StoreError> {
        queue_pair_key(self.engines.all()[0].port_caps().addr, qp.qpn())
    }

    /// Handles a connection's peer that was found in the store.
    fn peer_found(&self, who: Life, entry: &Entry) {
        let core = &mut self.core();
        let found = self
            .supervise(core, |supervisor, _, engines| supervisor.peer_found(engines, who, entry));
        match found {
            Ok(true) => {
                let (qpn, addr) = (who.qpn, entry.addrs[1]);
                self.log.info(&format!("failover: QP {qpn} has a backup, to {addr}"));
            }
            Ok(false) => {}
            Err(error) => {
                self.log.warn(&format!("failover: QP {} has no backup: {error}", who.qpn));
            }
        }
    }
}
