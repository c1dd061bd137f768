//! Queue pairs and their spares.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, Ordering};

use bowline_failover::{Entry, LinkId, Rail};
use bowline_io::{Lane, LaneError};
use bowline_nic::{Nic, QpInit, SrqId, Time};
use bowline_store::{Key, StoreError};
use bowline_wire::Qpn;
use rand_chacha::rand_core::Rng;

use crate::directory::Who;
use crate::error::RailsError;
use crate::rails::{Core, Rails, Shared};

/// How often to look on both lanes for a connection before giving up. Between two looks the agent's
/// move is waited for, so that more than one is a coincidence.
const MAX_LOOKS: usize = 64;

/// A queue pair and its spare on the backup lane.
#[derive(Debug)]
pub struct Connection {
    qpns: [Qpn; 2],
    srq: Option<SrqId>,
    /// Where the queues were last seen: an index of a rail.
    seen: AtomicU8,
}

/// What the agent's lock protects: connections by their default number.
#[derive(Default)]
pub(crate) struct Links {
    by_qpn: HashMap<Qpn, Link>,
    lives: u64,
}

struct Link {
    id: LinkId,
    /// Which life of the QP: one that is reset begins another.
    life: u64,
    /// What its peer has as a backup is known.
    ready: bool,
    srq: Option<SrqId>,
}

impl Links {
    fn insert(&mut self, connection: &Connection, id: LinkId) -> Who {
        self.lives += 1;
        let link = Link { id, life: self.lives, ready: false, srq: connection.srq };
        self.by_qpn.insert(connection.qpns[0], link);
        Who { qpn: connection.qpns[0], life: self.lives }
    }

    /// The link that an answer of the store is for, unless the QP has another life by now.
    pub(crate) fn find(&self, who: Who) -> Option<LinkId> {
        self.by_qpn.get(&who.qpn).filter(|link| link.life == who.life).map(|link| link.id)
    }

    fn who(&self, qpn: Qpn) -> Option<Who> {
        self.by_qpn.get(&qpn).map(|link| Who { qpn, life: link.life })
    }

    /// How many connections there are, and how many of them have a backup.
    pub(crate) fn count(&self) -> (usize, usize) {
        (self.by_qpn.len(), self.by_qpn.values().filter(|link| link.ready).count())
    }

    /// How many connections of a shared receive queue are at home, and how many are not.
    pub(crate) fn users_of(&self, srq: SrqId, home: &Lane) -> Result<(usize, usize), LaneError> {
        let users = || self.by_qpn.iter().filter(|(_, link)| link.srq == Some(srq));
        let away = home.with(|nic, _| users().filter(|(qpn, _)| nic.is_away(**qpn)).count())?;
        Ok((users().count() - away, away))
    }
}

impl Connection {
    /// Its numbers, on the first lane and on the backup.
    pub fn qpns(&self) -> [Qpn; 2] {
        self.qpns
    }

    fn rail(&self) -> Rail {
        Rail::ALL[usize::from(self.seen.load(Ordering::Relaxed) & 1)]
    }

    fn seen_on(&self, rail: Rail) {
        self.seen.store(rail.index() as u8, Ordering::Relaxed);
    }
}

/// The key under which a queue pair's entry is found.
fn key(addr: IpAddr, qpn: Qpn) -> Result<Key, StoreError> {
    Key::new(format!("qp/{addr}/{:06x}", qpn.get()))
}

impl Rails {
    /// Makes a spare for a reliable connection that has just been made, and tells peers of it.
    pub fn shadow_qp(&self, qpn: Qpn, init: &QpInit) -> Result<Connection, RailsError> {
        let spare_init = self.shared.tables().spare_init(init)?;
        let spare = self.lane(Rail::Backup).with(|nic, _| nic.create_spare_qp(&spare_init))??;
        let connection = Connection { qpns: [qpn, spare], srq: init.srq, seen: AtomicU8::new(0) };
        self.shared.begin(&mut self.shared.core(), &connection);
        Ok(connection)
    }

    /// The queue pair is connected: looks for what its peer has as a backup.
    pub fn connected(&self, connection: &Connection, peer: IpAddr, peer_qpn: Qpn) {
        let who = self.shared.core().links.who(connection.qpns[0]);
        if let (Some(who), Ok(key)) = (who, key(peer, peer_qpn)) {
            self.shared.directory.want(who, key);
        }
    }

    /// Ends what there is between a queue pair and its peer, before the program fails it: it is at home
    /// afterwards.
    pub fn disconnect(&self, connection: &Connection) {
        self.shared.end(&mut self.shared.core(), connection);
    }

    /// As [`Rails::disconnect`], before the program resets it: it may be connected again.
    pub fn reset(&self, connection: &Connection) {
        let mut core = self.shared.core();
        self.shared.end(&mut core, connection);
        self.shared.begin(&mut core, connection);
        drop(core);
        // The peer may be about to look for what it was before.
        self.shared.directory.sync();
    }

    /// Takes a queue pair home and destroys its spare, before the program destroys it.
    pub fn forget_qp(&self, connection: &Connection) -> Result<(), RailsError> {
        self.shared.end(&mut self.shared.core(), connection);
        Ok(self.lane(Rail::Backup).with(|nic, _| nic.destroy_qp(connection.qpns[1]))??)
    }

    /// Posts through `post`, which gets the number to post to, and gives `None` for
    /// [`PostError::Away`](bowline_nic::PostError::Away); it may be called again then.
    ///
    /// `None` if the connection is nowhere, which only a lane that has ended can bring about.
    #[inline]
    pub fn post<R>(
        &self,
        connection: &Connection,
        mut post: impl FnMut(&mut Nic, Time, Qpn) -> Option<R>,
    ) -> Result<Option<R>, LaneError> {
        let rail = connection.rail();
        let qpn = connection.qpns[rail.index()];
        match self.lane(rail).post(|nic, now| post(nic, now, qpn))? {
            None => self.post_elsewhere(connection, post),
            done => Ok(done),
        }
    }

    #[cold]
    fn post_elsewhere<R>(
        &self,
        connection: &Connection,
        mut post: impl FnMut(&mut Nic, Time, Qpn) -> Option<R>,
    ) -> Result<Option<R>, LaneError> {
        for look in 0..MAX_LOOKS {
            let rail = connection.rail().other();
            connection.seen_on(rail);
            let qpn = connection.qpns[rail.index()];
            let done = self.lane(rail).post(|nic, now| post(nic, now, qpn))?;
            if done.is_some() {
                return Ok(done);
            }
            if look % 2 == 1 {
                // On neither: the agent has it in its hands, and its lock too.
                drop(self.shared.core());
            }
        }
        Ok(None)
    }

    /// Calls the NIC that a connection is on, with its number there. The connection stays where it is
    /// meanwhile.
    pub fn control<R>(
        &self,
        connection: &Connection,
        verb: impl FnOnce(&mut Nic, Time, Qpn) -> R,
    ) -> Result<R, LaneError> {
        let _core = self.shared.core();
        let away = self.lane(Rail::Default).with(|nic, _| nic.is_away(connection.qpns[0]))?;
        let rail = if away { Rail::Backup } else { Rail::Default };
        let qpn = connection.qpns[rail.index()];
        self.lane(rail).with(|nic, now| verb(nic, now, qpn))
    }
}

impl Shared {
    /// Makes a queue pair known to the agent and to peers.
    fn begin(&self, core: &mut Core, connection: &Connection) {
        let token = u128::from(core.random.next_u64()) << 64 | u128::from(core.random.next_u64());
        let id = core.agent.add(connection.qpns, token);
        let who = core.links.insert(connection, id);
        if let (Ok(key), Some(entry)) = (self.own_key(connection), core.agent.entry(id)) {
            self.directory.put(who, key, entry.encode());
        }
    }

    /// Takes a queue pair home and forgets it.
    fn end(&self, core: &mut Core, connection: &Connection) {
        let Some(who) = core.links.who(connection.qpns[0]) else { return };
        let Some(id) = core.links.find(who) else { return };
        self.directory.forget(who);
        if let Ok(key) = self.own_key(connection) {
            self.directory.remove(key);
        }
        self.agent(core, |agent, _, rails| agent.remove(rails, id));
        core.links.by_qpn.remove(&who.qpn);
        connection.seen_on(Rail::Default);
    }

    fn own_key(&self, connection: &Connection) -> Result<Key, StoreError> {
        key(self.lanes[0].port_caps().addr, connection.qpns[0])
    }

    /// The store has found the peer of a connection.
    pub(crate) fn peer_found(&self, who: Who, entry: &Entry) {
        let core = &mut self.core();
        if let Some(id) = core.links.find(who) {
            let done = self.agent(core, |agent, _, rails| agent.connect(rails, id, entry));
            match (done, core.links.by_qpn.get_mut(&who.qpn)) {
                (Ok(()), Some(link)) if !link.ready => {
                    link.ready = true;
                    let (qpn, addr) = (who.qpn, entry.addrs[1]);
                    self.log.info(&format!("failover: QP {qpn} has a backup, to {addr}"));
                }
                (Err(error), _) => {
                    self.log.warn(&format!("failover: QP {} has no backup: {error}", who.qpn));
                }
                _ => {}
            }
        }
    }
}
