//! The two lanes and what holds them together.

use std::iter;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use bowline_failover::{Agent, Config, Mode, Rail, Report};
use bowline_io::{Channel, Lane, LinkState, spawn_background};
use bowline_nic::{Nic, Time};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::books::{self, Account, Books};
use crate::connection::Links;
use crate::directory::Directory;
use crate::driver::{self, Token};
use crate::error::RailsError;
use crate::log::Log;
use crate::objects::Tables;

/// Tokens that can wait for the agent's thread: more than there can be connections.
const MAX_TOKENS: usize = 1 << 20;

/// How connections are kept alive.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which of the two ways to move a connection.
    pub mode: Mode,
    /// Where peers find each other's backups, as [`bowline_store::open`] takes it.
    pub store_url: String,
    /// The job that peers belong to.
    pub job: String,
    /// Randomness for the tokens that messages between agents carry.
    pub seed: [u8; 32],
    /// Where messages go.
    pub log: Log,
}

/// Two lanes as one. See the crate's documentation.
pub struct Rails {
    pub(crate) shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the program's threads and the agent's share.
pub(crate) struct Shared {
    pub(crate) mode: Mode,
    pub(crate) lanes: [Arc<Lane>; 2],
    /// Connections on the backup lane.
    away: AtomicUsize,
    core: Mutex<Core>,
    pub(crate) tables: Mutex<Tables>,
    /// What wakes the agent's thread.
    pub(crate) inbox: Arc<Channel<u64>>,
    pub(crate) directory: Directory,
    pub(crate) log: Log,
    pub(crate) stopping: AtomicBool,
    epoch: Instant,
}

/// The agent and what belongs to it, under one lock. Whoever has it may take a lane's lock, never the
/// other way round.
pub(crate) struct Core {
    pub(crate) agent: Agent,
    pub(crate) links: Links,
    pub(crate) books: Books,
    pub(crate) random: ChaCha20Rng,
    /// Moves that sleepers have been woken for.
    moves_seen: u64,
}

/// The lanes as the agent sees them.
pub(crate) struct LanePair<'a>(pub(crate) &'a [Arc<Lane>; 2]);

impl bowline_failover::Rails for LanePair<'_> {
    fn with(&mut self, rail: Rail, f: &mut dyn FnMut(&mut Nic, Time)) {
        // A lane that has ended takes its connections along; there is nothing to be done about it.
        let _ = self.0[rail.index()].with(|nic, now| f(nic, now));
    }
}

impl Rails {
    /// Makes one of two lanes, of which the first is the one that the program knows.
    pub fn start(lanes: [Arc<Lane>; 2], options: Options) -> Result<Rails, RailsError> {
        let store = bowline_store::open(&options.store_url, &options.job)?;
        let inbox = Arc::new(Channel::new(MAX_TOKENS)?);
        let mut random = ChaCha20Rng::from_seed(options.seed);
        let config = Config::new(options.mode, random.next_u32());
        let agent = Agent::new(config, &mut LanePair(&lanes))?;
        for (rail, cq) in Rail::ALL.into_iter().zip(agent.control_cqs()) {
            let lane = &lanes[rail.index()];
            lane.notify_cq(cq, Arc::clone(&inbox), Token::Control.encode())?;
            lane.watch_paths(Arc::clone(&inbox), Token::path_tag(rail))?;
        }
        let directory = Directory::start(store, Arc::clone(&inbox), options.log.clone())?;
        let core =
            Core { agent, links: Links::default(), books: Books::default(), random, moves_seen: 0 };
        let shared = Arc::new(Shared {
            mode: options.mode,
            lanes,
            away: AtomicUsize::new(0),
            core: Mutex::new(core),
            tables: Mutex::default(),
            inbox,
            directory,
            log: options.log,
            stopping: AtomicBool::new(false),
            epoch: Instant::now(),
        });
        let for_thread = Arc::clone(&shared);
        let thread = spawn_background("bowline-failover", move || driver::run(&for_thread))?;
        Ok(Rails { shared, thread: Mutex::new(Some(thread)) })
    }

    /// One of the lanes.
    #[inline]
    pub fn lane(&self, rail: Rail) -> &Arc<Lane> {
        &self.shared.lanes[rail.index()]
    }

    /// Whether the link works: one of the two is enough, since connections move.
    pub fn link(&self) -> LinkState {
        let is_up = |lane: &Arc<Lane>| lane.link() == LinkState::Up;
        if self.shared.lanes.iter().any(is_up) { LinkState::Up } else { LinkState::Down }
    }

    /// Whether some connection is on the backup lane.
    #[inline]
    pub fn is_split(&self) -> bool {
        self.shared.away.load(Ordering::Relaxed) != 0
    }

    /// The clock by which reports tell when things happened.
    pub fn now(&self) -> Time {
        self.shared.now()
    }

    /// What has happened so far.
    pub fn account(&self) -> Account {
        let core = self.shared.core();
        core.books.account(self.shared.mode, core.links.count(), self.shared.away())
    }

    /// Ends failover, and both lanes: connections are where they are, and entries leave the store.
    pub fn shutdown(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.inbox.push(Token::Wake.encode());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic there has ended failover already.
            let _ = thread.join();
        }
        self.shared.directory.shutdown();
        for lane in &self.shared.lanes {
            lane.shutdown();
        }
    }
}

impl Drop for Rails {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl Shared {
    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn away(&self) -> usize {
        self.away.load(Ordering::SeqCst)
    }

    /// The clock that the agent goes by.
    pub(crate) fn now(&self) -> Time {
        Time::from_nanos(u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Calls the agent, and sees to what follows from it.
    pub(crate) fn agent<R>(
        &self,
        core: &mut Core,
        call: impl FnOnce(&mut Agent, Time, &mut LanePair<'_>) -> R,
    ) -> R {
        let result = call(&mut core.agent, self.now(), &mut LanePair(&self.lanes));
        self.settle(core);
        result
    }

    /// Sees to what follows from calls of the agent.
    pub(crate) fn settle(&self, core: &mut Core) {
        // Before sleepers are looked at: see `CqMirror::arm`.
        self.away.store(core.agent.away(), Ordering::SeqCst);
        let moves = core.agent.moves();
        if moves != core.moves_seen {
            core.moves_seen = moves;
            let tables = self.tables();
            // Receives first: the peer may send as soon as it hears of the move.
            for srq in tables.srqs() {
                // What does not fit is seen to by the agent's thread.
                srq.balance(self, &core.links);
            }
            for cq in tables.cqs() {
                cq.wake();
            }
        }
        let reports: Vec<Report> = iter::from_fn(|| core.agent.poll_report()).collect();
        for line in books::describe(&reports) {
            self.log.warn(&line);
        }
        reports.into_iter().for_each(|report| core.books.enter(report));
    }
}
