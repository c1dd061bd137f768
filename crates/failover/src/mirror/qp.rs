//! Queue pairs: where they are, and how calls follow one that moves.

use std::sync::atomic::{AtomicU8, Ordering};

use bowline_nic::{ControlError, Nic, QpInit, Time};
use bowline_wire::Qpn;

use super::{Cq, Engines, MirrorError, Pd, Place, Srq, pd, srq};
use crate::rail::Rail;

/// How often to look for a connection on both rails before giving up. Each look waits for a move in
/// progress, so it is rare to need more than one.
const MAX_LOOKS: usize = 64;

/// The objects that a queue pair uses.
#[derive(Clone, Copy, Debug)]
pub struct QpParts<'a> {
    /// Its protection domain.
    pub pd: &'a Pd,
    /// Where its sends complete.
    pub send_cq: &'a Cq,
    /// Where its receives complete.
    pub recv_cq: &'a Cq,
    /// Where its receives come from, if it has no receive queue of its own.
    pub srq: Option<&'a Srq>,
}

impl QpParts<'_> {
    /// The attributes for an engine, with its identifiers of these objects.
    fn at(&self, at: Place, init: &QpInit) -> QpInit {
        QpInit {
            pd: self.pd.id(at),
            send_cq: self.send_cq.id(at),
            recv_cq: self.recv_cq.id(at),
            srq: self.srq.map(|srq| srq.id(at)),
            ..*init
        }
    }

    fn hold(&self, lane: usize) -> Result<(), ControlError> {
        self.pd.users.hold(pd::WHAT)?;
        let held = self.send_cq.hold(lane).and_then(|()| {
            let more = self.recv_cq.hold(lane).and_then(|()| match self.srq {
                Some(srq) => srq.users.hold(srq::WHAT).inspect_err(|_| self.recv_cq.release(lane)),
                None => Ok(()),
            });
            more.inspect_err(|_| self.send_cq.release(lane))
        });
        held.inspect_err(|_| self.pd.users.release())
    }

    fn release(&self, lane: usize) {
        if let Some(srq) = self.srq {
            srq.users.release();
        }
        self.recv_cq.release(lane);
        self.send_cq.release(lane);
        self.pd.users.release();
    }
}

/// A queue pair on a lane of the default rail and, if it can move, its spare on the same lane of
/// the backup rail.
#[derive(Debug)]
pub struct Qp {
    lane: usize,
    qpn: Qpn,
    spare: Option<Qpn>,
    /// The index of the rail where its queues were last seen.
    seen: AtomicU8,
}

impl Qp {
    /// Creates a queue pair on a lane, with a spare if it `moves`. The identifiers in `init` are
    /// replaced by those of `parts`.
    pub fn create<E: Engines>(
        engines: &E,
        lane: usize,
        parts: &QpParts<'_>,
        init: &QpInit,
        moves: bool,
    ) -> Result<Qp, MirrorError<E::Error>> {
        parts.hold(lane)?;
        let made = Qp::make(engines, lane, parts, init, moves);
        let qp = made.inspect_err(|_| parts.release(lane))?;
        let mut cqs = [parts.send_cq, parts.recv_cq].into_iter();
        if let Err(error) = cqs.try_for_each(|cq| cq.joined(engines, lane)) {
            // An engine that has ended has nothing to undo.
            let _ = qp.destroy(engines, parts);
            return Err(MirrorError::Engine(error));
        }
        Ok(qp)
    }

    fn make<E: Engines>(
        engines: &E,
        lane: usize,
        parts: &QpParts<'_>,
        init: &QpInit,
        moves: bool,
    ) -> Result<Qp, MirrorError<E::Error>> {
        let home = Place::lane(lane);
        let wanted = parts.at(home, init);
        let qpn =
            engines.with(home, |nic, _| nic.create_qp(&wanted)).map_err(MirrorError::Engine)??;
        let mut spare = None;
        if moves && engines.layout().backed {
            let at = Place { rail: Rail::Backup, lane };
            let wanted = parts.at(at, init);
            let made = match engines.with(at, |nic, _| nic.create_spare_qp(&wanted)) {
                Ok(made) => made.map_err(MirrorError::Control),
                Err(error) => Err(MirrorError::Engine(error)),
            };
            let undo = || engines.with(home, |nic, _| nic.destroy_qp(qpn));
            spare = Some(made.inspect_err(|_| _ = undo())?);
        }
        Ok(Qp { lane, qpn, spare, seen: AtomicU8::new(0) })
    }

    /// The number that the program knows: the one on the default rail.
    #[inline]
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// The number of its spare.
    pub fn spare(&self) -> Option<Qpn> {
        self.spare
    }

    /// Its lane.
    pub fn lane(&self) -> usize {
        self.lane
    }

    /// Its engine and number on a rail. Without a spare, those on the default rail.
    #[inline]
    pub fn on(&self, rail: Rail) -> (Place, Qpn) {
        match (rail, self.spare) {
            (Rail::Backup, Some(spare)) => (Place { rail, lane: self.lane }, spare),
            _ => (Place::lane(self.lane), self.qpn),
        }
    }

    #[inline]
    fn rail(&self) -> Rail {
        Rail::ALL[usize::from(self.seen.load(Ordering::Relaxed) & 1)]
    }

    /// Records that it is on a rail.
    pub fn seen_on(&self, rail: Rail) {
        self.seen.store(rail.index() as u8, Ordering::Relaxed);
    }

    /// Posts through `post`, which gets the number to post to. If `post` returns `None`, for
    /// [`PostError::Away`](bowline_nic::PostError::Away), it is called again on the rail that the
    /// connection moved to.
    ///
    /// `None` if the connection is on no rail, which happens only if an engine has ended.
    #[inline]
    pub fn post<E: Engines, R>(
        &self,
        engines: &E,
        mut post: impl FnMut(&mut Nic, Time, Qpn) -> Option<R>,
    ) -> Result<Option<R>, E::Error> {
        let (at, qpn) = self.on(self.rail());
        match engines.post(at, |nic, now| post(nic, now, qpn))? {
            None if self.spare.is_some() => self.post_elsewhere(engines, &mut post),
            done => Ok(done),
        }
    }

    #[cold]
    fn post_elsewhere<E: Engines, R>(
        &self,
        engines: &E,
        post: &mut dyn FnMut(&mut Nic, Time, Qpn) -> Option<R>,
    ) -> Result<Option<R>, E::Error> {
        for look in 0..MAX_LOOKS {
            let rail = self.rail().other();
            self.seen_on(rail);
            let (at, qpn) = self.on(rail);
            let done = engines.post(at, |nic, now| post(nic, now, qpn))?;
            if done.is_some() {
                return Ok(done);
            }
            if look % 2 == 1 {
                // It is on neither rail, so it is moving.
                engines.wait_for_moves();
            }
        }
        Ok(None)
    }

    /// Calls the engine that has its queues, with its number there. The caller must prevent it from
    /// moving meanwhile.
    pub fn control<E: Engines, R>(
        &self,
        engines: &E,
        verb: impl FnOnce(&mut Nic, Time, Qpn) -> R,
    ) -> Result<R, E::Error> {
        let (at, qpn) = self.on(self.home(engines)?);
        engines.with(at, |nic, now| verb(nic, now, qpn))
    }

    /// The rail that has its queues.
    pub fn home<E: Engines>(&self, engines: &E) -> Result<Rail, E::Error> {
        if self.spare.is_none() {
            return Ok(Rail::Default);
        }
        let away = engines.with(Place::lane(self.lane), |nic, _| nic.is_away(self.qpn))?;
        Ok(if away { Rail::Backup } else { Rail::Default })
    }

    /// Destroys the queue pair and its spare. If it is on the backup rail, it must be moved back
    /// first.
    pub fn destroy<E: Engines>(
        &self,
        engines: &E,
        parts: &QpParts<'_>,
    ) -> Result<(), MirrorError<E::Error>> {
        if self.spare.is_some() {
            let (at, spare) = self.on(Rail::Backup);
            // If this fails on the backup, the spare remains until the device is closed.
            let _ = engines.with(at, |nic, _| nic.destroy_qp(spare));
        }
        let home = Place::lane(self.lane);
        engines.with(home, |nic, _| nic.destroy_qp(self.qpn)).map_err(MirrorError::Engine)??;
        parts.release(self.lane);
        Ok(())
    }
}
