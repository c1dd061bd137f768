//! A device that the program has opened, and everything behind it: the second device, the agent,
//! the store.

use core::ffi::c_uint;
use core::net::IpAddr;
use std::collections::{HashMap, HashSet};
use std::iter;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bowline_device::{
    Account, Directory, Log, Tally, describe, queue_pair_key, random_bytes, region_key,
};
use bowline_failover::{Agent, Config, ConnectionId, Entry, Life, Mode, Rail, Report};
use bowline_ibverbs::{Context, Library, VerbsName, VerbsNic, address};
use bowline_io::{EventChannel, spawn_background};
use bowline_nic::{AddressVector, NicConfig, Payload, Rnic, SendOp, SendWr, Time, UdDest};
use bowline_store::Key;
use bowline_verbs_types::{ibv_ah_attr, ibv_context, ibv_gid_entry, ibv_mr, ibv_pd};
use bowline_wire::Qpn;

use crate::aside::Aside;
use crate::cq::{NotifyCq, PollCq};
use crate::qp::{PeerKeys, PostRecv, PostSend, Qp, is_path_failure};
use crate::rails::{HwRails, Nics};
use crate::shadow::Shadow;
use crate::{log, report, verbs};

/// Maximum number of tokens queued for the agent's thread.
const MAX_TOKENS: usize = 1 << 16;
/// Maximum number of peers' memory keys that are watched in the store.
const MAX_KEYS: usize = 1 << 16;
/// How often to check whether ports are up.
const LINK_PERIOD: Duration = Duration::from_millis(10);
/// Asynchronous events of the agent's contexts that are kept. Nothing reads them.
const MAX_EVENTS: usize = 16;
/// How long the peer may take to answer: devices are slower than engines.
const GIVE_UP_NS: u64 = 5_000_000_000;
/// How long to drain before a peer's return is called off for the first time.
const DRAIN_NS: u64 = 2_000_000_000;
/// How long a peer that is asked to drain may be silent.
const DRAIN_SILENCE_NS: u64 = 4_000_000_000;

const WAKE: u64 = 0;
const PATH_FAILED: u64 = 1 << 32;
const BROKEN: u64 = 1 << 40;
/// Marks the life number of a lookup for one of a peer's memory keys. Other lookups have the life
/// of a queue pair there.
const KEY_LIFE: u64 = 1 << 63;

/// The functions of a provider that are called on the data path.
pub(crate) struct Provider {
    pub(crate) post_send: PostSend,
    pub(crate) post_recv: PostRecv,
    pub(crate) poll_cq: PollCq,
    pub(crate) notify_cq: NotifyCq,
}

impl Provider {
    /// # Safety
    /// The context is open.
    unsafe fn of(context: *mut ibv_context) -> Provider {
        // SAFETY: upheld by the caller; every provider has these.
        let ops = unsafe { &(*context).ops };
        Provider {
            post_send: ops.post_send,
            post_recv: ops.post_recv,
            poll_cq: ops.poll_cq,
            notify_cq: ops.req_notify_cq,
        }
    }
}

/// A device that the program has opened.
pub(crate) struct Session {
    pub(crate) library: &'static Library,
    /// The program's own context.
    own: *mut ibv_context,
    /// Our contexts on both devices: for the agent, and on the second also for all counterparts.
    pub(crate) contexts: [Arc<Context>; 2],
    pub(crate) providers: [Provider; 2],
    pub(crate) aside: Aside,
    /// Warnings that need not be repeated.
    pub(crate) told: Mutex<HashSet<&'static str>>,
    core: Mutex<Core>,
    qps: RwLock<HashMap<(Rail, u32), Arc<Qp>>>,
    /// Keys on the second device, of the program's memory and of the peers'.
    lkeys: RwLock<HashMap<u32, u32>>,
    rkeys: RwLock<HashMap<(IpAddr, u32), u32>>,
    /// Peers' keys that have been looked up, by the number of the lookup.
    asked: Mutex<HashMap<(IpAddr, u32), u64>>,
    asks: AtomicU64,
    pub(crate) pds: Mutex<HashMap<usize, *mut ibv_pd>>,
    pub(crate) mrs: Mutex<HashMap<usize, ShadowMr>>,
    inbox: Arc<EventChannel<u64>>,
    directory: Directory,
    pub(crate) shadow: Shadow,
    pub(crate) log: Log,
    started: Instant,
    stopping: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A region on the second device.
pub(crate) struct ShadowMr {
    pub(crate) raw: *mut ibv_mr,
    pub(crate) lkey: u32,
    pub(crate) access: u32,
    pub(crate) key: Option<Key>,
}

/// The agent and the data that it works with, under one lock.
pub(crate) struct Core {
    agent: Agent,
    nics: Nics,
    tally: Tally,
    watched: HashMap<u32, Watched>,
    lives: u64,
    up: [bool; 2],
}

struct Watched {
    connection: ConnectionId,
    life: Life,
    key: Option<Key>,
    ready: bool,
}

// SAFETY: verbs objects may be used from any thread, and from several at once.
unsafe impl Send for Session {}
// SAFETY: as above.
unsafe impl Sync for Session {}

fn sessions() -> MutexGuard<'static, HashMap<usize, Arc<Session>>> {
    static SESSIONS: OnceLock<Mutex<HashMap<usize, Arc<Session>>>> = OnceLock::new();
    SESSIONS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// The session of a context of the program.
pub(crate) fn of(context: *mut ibv_context) -> Option<Arc<Session>> {
    sessions().get(&(context as usize)).cloned()
}

/// All open sessions.
pub(crate) fn all() -> Vec<Arc<Session>> {
    sessions().values().cloned().collect()
}

/// The two devices that `BOWLINE_HARDWARE` names, as in `rxe0,rxe1`.
fn named() -> Option<(String, String)> {
    let text = std::env::var("BOWLINE_HARDWARE").ok()?;
    let (first, second) = text.split_once(',')?;
    Some((first.to_owned(), second.to_owned()))
}

/// The program has opened a device. If it is the one that has a backup, creates a session for it.
pub(crate) fn opened(library: &'static Library, own: *mut ibv_context, name: &str) {
    let Some((first, second)) = named().filter(|(first, _)| first == name) else { return };
    let log = log::log();
    match Session::start(library, own, [&first, &second], log.clone()) {
        Ok(session) => {
            verbs::QPS.prepare();
            verbs::CQS.prepare();
            sessions().insert(own as usize, Arc::clone(&session));
            // SAFETY: the program does not have the context yet, so no thread calls through it.
            unsafe {
                session.aside.stand_before(own);
                (*own).ops.post_send = verbs::post_send;
                (*own).ops.post_recv = verbs::post_recv;
                (*own).ops.poll_cq = verbs::poll_cq;
                (*own).ops.req_notify_cq = verbs::req_notify_cq;
            }
            report::prepare();
        }
        Err(why) => log.warn(&format!(
            "failover: {second} cannot be the backup of {first}: {why}; the program runs without"
        )),
    }
}

/// The program closes a device.
pub(crate) fn closing(own: *mut ibv_context) {
    let session = sessions().remove(&(own as usize));
    if let Some(session) = session {
        report::add(session.report());
        session.shut_down();
    }
}

/// Opens a device a second time, for the agent.
fn open(name: &str, inbox: &Arc<EventChannel<u64>>) -> Result<(Arc<Context>, VerbsNic), String> {
    let name: VerbsName = format!("verbs:{name}").parse().map_err(|error| format!("{error}"))?;
    let events = EventChannel::new(MAX_EVENTS).map_err(|error| error.to_string())?;
    let context = Context::open(&name, Arc::new(events)).map_err(|error| error.to_string())?;
    let config = NicConfig::new(context.caps().addr, [0; 32]);
    let nic = VerbsNic::new(&context, config, Arc::clone(inbox));
    nic.map(|nic| (context, nic)).map_err(|error| error.to_string())
}

impl Session {
    fn start(
        library: &'static Library,
        own: *mut ibv_context,
        names: [&str; 2],
        log: Log,
    ) -> Result<Arc<Session>, String> {
        let inbox = EventChannel::new(MAX_TOKENS).map_err(|error| error.to_string())?;
        let inbox = Arc::new(inbox);
        let (first, first_nic) = open(names[0], &inbox)?;
        let (second, second_nic) = open(names[1], &inbox)?;
        let contexts = [first, second];
        let url = std::env::var("BOWLINE_STORE").unwrap_or_else(|_| bowline_store::default_url());
        let job = std::env::var("BOWLINE_JOB").unwrap_or_else(|_| "default".to_owned());
        let store = bowline_store::open(&url, &job).map_err(|error| error.to_string())?;
        let directory = Directory::start(store, Arc::clone(&inbox), log.clone())
            .map_err(|error| error.to_string())?;
        let qkey = random_bytes().map(u32::from_ne_bytes).map_err(|error| error.to_string())?;
        let mut config = Config::new(Mode::Shift, qkey);
        (config.give_up_ns, config.drain_ns) = (GIVE_UP_NS, DRAIN_NS);
        config.drain_silence_ns = DRAIN_SILENCE_NS;
        config.keys_differ = true;
        let mut nics = Nics { nics: [first_nic, second_nic], pds: Vec::new() };
        let agent = {
            let none = RwLock::default();
            let mut rails =
                HwRails { contexts: &contexts, qps: &none, nics: &mut nics, now: Time::ZERO };
            Agent::new(config, &mut rails).map_err(|error| error.to_string())?
        };
        // SAFETY: both are open.
        let (providers, aside) =
            unsafe { ([Provider::of(own), Provider::of(contexts[1].raw())], Aside::of(own)) };
        let core = Core {
            agent,
            nics,
            tally: Tally::default(),
            watched: HashMap::new(),
            lives: 0,
            up: [true; 2],
        };
        let session = Arc::new(Session {
            library,
            own,
            contexts,
            providers,
            aside,
            told: Mutex::default(),
            core: Mutex::new(core),
            qps: RwLock::default(),
            lkeys: RwLock::default(),
            rkeys: RwLock::default(),
            asked: Mutex::default(),
            asks: AtomicU64::new(0),
            pds: Mutex::default(),
            mrs: Mutex::default(),
            inbox,
            directory,
            shadow: Shadow::default(),
            log,
            started: Instant::now(),
            stopping: AtomicBool::new(false),
            thread: Mutex::default(),
        });
        session.shadow.start(&session).map_err(|error| error.to_string())?;
        let for_thread = Arc::downgrade(&session);
        let thread = spawn_background("bowline-shift", move || live(&for_thread))
            .map_err(|error| error.to_string())?;
        *session.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(session)
    }

    fn now(&self) -> Time {
        Time::from_nanos(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the agent's thread.
    pub(crate) fn wake(&self) {
        self.inbox.push(WAKE);
    }

    /// A queue pair got no answer, and is held.
    pub(crate) fn path_failed(&self, rail: Rail, qpn: Qpn) {
        let tag = PATH_FAILED * (rail.index() as u64 + 1);
        self.inbox.push(tag | u64::from(qpn.get()));
    }

    /// A request of a queue pair on the backup has failed for good.
    pub(crate) fn broken(&self, qpn: Qpn) {
        self.inbox.push(BROKEN | u64::from(qpn.get()));
    }

    pub(crate) fn is_path_failure(&self, rail: Rail, status: c_uint) -> bool {
        is_path_failure(status, || self.contexts[rail.index()].is_up())
    }

    pub(crate) fn backup_lkey(&self, key: u32) -> Option<u32> {
        self.lkeys.read().unwrap_or_else(PoisonError::into_inner).get(&key).copied()
    }

    pub(crate) fn backup_rkey(&self, peer: IpAddr, key: u32) -> Option<u32> {
        self.rkeys.read().unwrap_or_else(PoisonError::into_inner).get(&(peer, key)).copied()
    }

    /// A region has a counterpart: publishes it for peers.
    pub(crate) fn region_made(&self, lkey: u32, rkey: u32, backup: &ibv_mr) -> Option<Key> {
        self.lkeys.write().unwrap_or_else(PoisonError::into_inner).insert(lkey, backup.lkey);
        let key = region_key(self.contexts[0].caps().addr, rkey)?;
        let who = Life { qpn: Qpn::new(0), life: KEY_LIFE };
        self.directory.put(who, key.clone(), backup.rkey.to_be_bytes().to_vec());
        self.feed();
        Some(key)
    }

    /// A region has been deregistered.
    pub(crate) fn region_gone(&self, lkey: u32, key: Option<Key>) {
        self.lkeys.write().unwrap_or_else(PoisonError::into_inner).remove(&lkey);
        if let Some(key) = key {
            self.directory.remove(key);
        }
    }

    pub(crate) fn add_qp(&self, rail: Rail, qp: &Arc<Qp>) {
        let mut qps = self.qps.write().unwrap_or_else(PoisonError::into_inner);
        qps.insert((rail, qp.qpn(rail)), Arc::clone(qp));
    }

    pub(crate) fn remove_qp(&self, qp: &Qp) {
        let mut qps = self.qps.write().unwrap_or_else(PoisonError::into_inner);
        for rail in Rail::ALL {
            qps.remove(&(rail, qp.qpn(rail)));
        }
    }

    fn qp(&self, qpn: Qpn) -> Option<Arc<Qp>> {
        let qps = self.qps.read().unwrap_or_else(PoisonError::into_inner);
        qps.get(&(Rail::Default, qpn.get())).cloned()
    }

    fn each_qp(&self) -> Vec<Arc<Qp>> {
        let qps = self.qps.read().unwrap_or_else(PoisonError::into_inner);
        qps.iter()
            .filter(|((rail, _), _)| *rail == Rail::Default)
            .map(|(_, qp)| Arc::clone(qp))
            .collect()
    }

    fn feed(&self) {
        self.each_qp().iter().for_each(|qp| qp.feed());
    }

    /// The address that the program uses for a queue pair.
    fn own_addr(&self, route: &ibv_ah_attr) -> IpAddr {
        let mut entry = ibv_gid_entry::default();
        let (port, index) = (route.port_num.max(1), route.grh.sgid_index);
        let size = size_of::<ibv_gid_entry>();
        // SAFETY: the program's open context, and an entry of that size to fill in.
        let code = unsafe {
            let query = self.library._ibv_query_gid_ex;
            query(self.own, port.into(), index.into(), &raw mut entry, 0, size)
        };
        if code == 0 { address(&entry.gid) } else { self.contexts[0].caps().addr }
    }

    /// Manages a connection whose spare exists: publishes it for peers, and looks up the peer's.
    pub(crate) fn begin(&self, qp: &Arc<Qp>) {
        let (peer, rtr) = {
            let attrs = qp.attrs();
            (attrs.peer, attrs.rtr)
        };
        let Some(((addr, peer_qpn), rtr)) = peer.zip(rtr) else { return };
        if qp.raw(Rail::Backup).is_null() {
            return;
        }
        let qpns = Rail::ALL.map(|rail| Qpn::new(qp.qpn(rail)));
        let Ok(token) = random_bytes().map(u128::from_ne_bytes) else { return };
        let own_key = queue_pair_key(self.own_addr(&rtr.route), qpns[0]).ok();
        let core = &mut *self.core();
        let connection = core.agent.add(qpns, token);
        core.lives += 1;
        let life = Life { qpn: qpns[0], life: core.lives };
        let entry = core.agent.entry(connection);
        let watched = Watched { connection, life, key: own_key.clone(), ready: false };
        core.watched.insert(qpns[0].get(), watched);
        if let (Some(key), Some(entry)) = (own_key, entry) {
            self.directory.put(life, key, entry.encode());
        }
        if let Ok(key) = queue_pair_key(addr, peer_qpn) {
            self.directory.want(life, key);
        }
    }

    /// Stops managing a connection: the program resets, fails or destroys it.
    pub(crate) fn end(&self, qp: &Qp) {
        let core = &mut *self.core();
        let Some(watched) = core.watched.remove(&qp.qpn(Rail::Default)) else { return };
        self.supervise(core, |agent, _, rails| agent.remove(rails, watched.connection));
        self.directory.forget(watched.life);
        if let Some(key) = watched.key {
            self.directory.remove(key);
        }
    }

    /// Calls the agent, then logs and records what it reports.
    fn supervise<R>(
        &self,
        core: &mut Core,
        call: impl FnOnce(&mut Agent, Time, &mut HwRails<'_>) -> R,
    ) -> R {
        let now = self.now();
        let Core { agent, nics, tally, .. } = core;
        let mut rails = HwRails { contexts: &self.contexts, qps: &self.qps, nics, now };
        let result = call(agent, now, &mut rails);
        let reports: Vec<Report> = iter::from_fn(|| agent.poll_report()).collect();
        for line in describe(&reports) {
            self.log.warn(&line);
        }
        reports.into_iter().for_each(|report| tally.enter(report));
        result
    }

    /// One turn of the agent's thread.
    fn turn(&self) {
        let timeout = {
            let core = self.core();
            let deadline = core.agent.deadline().map(|at| at - self.now());
            deadline.map_or(LINK_PERIOD, |left| left.min(LINK_PERIOD))
        };
        let mut next = self.inbox.wait(Some(timeout)).unwrap_or(None);
        let core = &mut *self.core();
        while let Some(token) = next {
            self.hear(core, token);
            next = self.inbox.try_next().unwrap_or(None);
        }
        self.look_at_ports(core);
        self.ask_for_keys();
        self.supervise(core, |agent, now, rails| agent.handle(now, rails));
        for nic in &mut core.nics.nics {
            nic.pump(self.now());
        }
    }

    fn hear(&self, core: &mut Core, token: u64) {
        let qpn = Qpn::new((token & 0xff_ffff) as u32);
        match token >> 32 << 32 {
            0 if token == Directory::FOUND => self.found(core),
            BROKEN => {
                if let Some(qp) = self.qp(qpn) {
                    qp.fail();
                }
            }
            0 => {}
            tag => {
                let rail = if tag == PATH_FAILED { Rail::Default } else { Rail::Backup };
                self.supervise(core, |agent, now, rails| agent.path_failed(now, rails, rail, qpn));
            }
        }
    }

    fn look_at_ports(&self, core: &mut Core) {
        for rail in Rail::ALL {
            let is_up = self.contexts[rail.index()].is_up();
            if std::mem::replace(&mut core.up[rail.index()], is_up) != is_up {
                self.supervise(core, |agent, now, rails| {
                    agent.port_changed(now, rails, rail, is_up);
                });
            }
        }
    }

    /// Takes the store's answers: peers, or keys of their memory.
    fn found(&self, core: &mut Core) {
        for (who, bytes) in self.directory.found() {
            if who.life & KEY_LIFE != 0 {
                self.key_found(who.life, &bytes);
                continue;
            }
            match Entry::decode(&bytes) {
                Ok(entry) => self.peer_found(core, who, &entry),
                Err(error) => self.log.warn(&format!(
                    "failover: invalid store entry for the peer of QP {} ({error}), so the QP has \
                     no backup; run the same version in all processes of the job",
                    who.qpn
                )),
            }
        }
    }

    fn key_found(&self, life: u64, bytes: &[u8]) {
        let Ok(bytes) = <[u8; 4]>::try_from(bytes) else { return };
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let key = asked.iter().find(|(_, called)| **called == life).map(|(key, _)| *key);
        drop(asked);
        if let Some(key) = key {
            let mut rkeys = self.rkeys.write().unwrap_or_else(PoisonError::into_inner);
            rkeys.insert(key, u32::from_be_bytes(bytes));
            drop(rkeys);
            self.feed();
        }
    }

    fn peer_found(&self, core: &mut Core, who: Life, entry: &Entry) {
        let watched = core.watched.get_mut(&who.qpn.get()).filter(|w| w.life == who);
        let Some(watched) = watched else { return };
        let (connection, was_ready) =
            (watched.connection, std::mem::replace(&mut watched.ready, true));
        let own = core.agent.entry(connection);
        let done = self.supervise(core, |agent, _, rails| agent.connect(rails, connection, entry));
        if let Err(error) = done {
            return self.log.warn(&format!("failover: QP {} has no backup: {error}", who.qpn));
        }
        if was_ready {
            return;
        }
        if let Some(qp) = self.qp(who.qpn) {
            qp.attrs().peer_keys = Some(match entry.keys_differ {
                true => PeerKeys::Of(entry.addrs[0]),
                false => PeerKeys::Same,
            });
        }
        self.log.info(&format!("failover: QP {} has a backup, to {}", who.qpn, entry.addrs[1]));
        // The kernel resolves an address when it is first used, so use it now rather than when its
        // link is dead. The peer's agent drops this datagram, because it is not a message.
        for rail in Rail::ALL {
            let i = rail.index();
            let (dst, qpn) = (entry.addrs[i], entry.agents[i]);
            let ud = Some(UdDest { av: AddressVector::new(dst), qpn, qkey: entry.qkey });
            let wr =
                SendWr { payload: Payload::Inline(&[0]), ud, ..SendWr::new(0, SendOp::Send, &[]) };
            if let Some(own) = &own {
                // If this fails, the only cost is time later.
                let _ = core.nics.nics[i].post_send(self.now(), own.agents[i], &wr);
            }
        }
    }

    /// Looks up peers' memory keys that requests have used for the first time. From then on they
    /// are watched, because a peer may register other memory under the same key.
    fn ask_for_keys(&self) {
        for qp in self.each_qp() {
            let (peer_keys, from) = {
                let attrs = qp.attrs();
                (attrs.peer_keys, attrs.keys_asked)
            };
            let Some(PeerKeys::Of(addr)) = peer_keys else { continue };
            let fresh = qp.rkeys_from(from);
            let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            for rkey in &fresh {
                let Some(key) = region_key(addr, *rkey) else { continue };
                if asked.len() >= MAX_KEYS || asked.contains_key(&(addr, *rkey)) {
                    continue;
                }
                let called = KEY_LIFE | (self.asks.fetch_add(1, Ordering::Relaxed) + 1);
                self.directory.watch(Life { qpn: Qpn::new(0), life: called }, key);
                asked.insert((addr, *rkey), called);
            }
            qp.attrs().keys_asked = from + fresh.len();
        }
    }

    /// What has happened so far.
    fn account(&self) -> Account {
        let core = self.core();
        let ready = core.watched.values().filter(|watched| watched.ready).count();
        core.tally.account(Mode::Shift, (core.watched.len(), ready), core.agent.away())
    }

    /// The account as one line of JSON.
    pub(crate) fn report(&self) -> String {
        let caps = self.contexts[0].caps();
        format!(
            "{{\"device\":\"{}\",\"addr\":\"{}\",\"via\":\"verbs\",\"failover\":{}}}",
            caps.name,
            caps.addr,
            self.account().to_json()
        )
    }

    /// Ends the threads, and removes entries from the store.
    pub(crate) fn shut_down(&self) {
        self.shadow.stop();
        self.stopping.store(true, Ordering::Release);
        self.wake();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic there has already ended failover.
            let _ = thread.join();
        }
        self.directory.shutdown();
    }
}

/// The agent's thread.
fn live(session: &Weak<Session>) {
    while let Some(session) = session.upgrade() {
        if session.stopping.load(Ordering::Acquire) {
            return;
        }
        session.turn();
    }
}
