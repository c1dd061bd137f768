//! Objects over two engines in this thread, one of which can pretend to be held by another thread.

use core::convert::Infallible;
use std::cell::{Cell, RefCell};

use bowline_nic::{
    Access, Completion, ControlError, NicConfig, QpAttr, QpInit, QpState, QpType, RecvWr,
};

use super::*;

/// Two lanes, one of which may be busy.
struct TwoLanes {
    nics: [RefCell<Nic>; 2],
    busy: Cell<Option<usize>>,
}

impl TwoLanes {
    fn new() -> TwoLanes {
        let nics = [0, 1].map(|prefix| {
            let mut config = NicConfig::new([127, 0, 0, 1].into(), [prefix; 32]);
            config.qpn_prefix = prefix;
            RefCell::new(Nic::new(config).unwrap())
        });
        TwoLanes { nics, busy: Cell::new(None) }
    }
}

impl Engines for TwoLanes {
    type Error = Infallible;

    fn layout(&self) -> Layout {
        Layout { lanes: 2, backed: false }
    }

    fn with<R>(&self, at: Place, f: impl FnOnce(&mut Nic, Time) -> R) -> Result<R, Infallible> {
        Ok(f(&mut self.nics[at.lane].borrow_mut(), Time::ZERO))
    }

    fn try_poll<R>(
        &self,
        at: Place,
        f: impl FnOnce(&mut Nic, Time) -> R,
    ) -> Result<Option<R>, Infallible> {
        if self.busy.get() == Some(at.lane) {
            return Ok(None);
        }
        self.with(at, f).map(Some)
    }
}

struct Rig {
    engines: TwoLanes,
    pd: Pd,
    cq: Cq,
    qps: Vec<Qp>,
}

impl Rig {
    /// A completion queue with a queue pair on each lane, each with a receive posted.
    fn new() -> Rig {
        let engines = TwoLanes::new();
        let (pd, cq) = (Pd::create(&engines).unwrap(), Cq::create(&engines, 8).unwrap());
        let parts = QpParts { pd: &pd, send_cq: &cq, recv_cq: &cq, srq: None };
        let init = QpInit::new(QpType::Rc, pd.id(Place::lane(0)), cq.id(Place::lane(0)));
        let qps: Vec<Qp> =
            (0..2).map(|lane| Qp::create(&engines, lane, &parts, &init, false).unwrap()).collect();
        let rig = Rig { engines, pd, cq, qps };
        rig.qps.iter().for_each(|qp| {
            rig.modify(qp, QpState::Init);
            let wr = RecvWr::new(qp.lane() as u64, &[]);
            let Ok(posted) = qp.post(&rig.engines, |nic, _, qpn| Some(nic.post_recv(qpn, &wr)));
            assert_eq!(posted, Some(Ok(())));
        });
        rig
    }

    fn modify(&self, qp: &Qp, state: QpState) {
        let init = (state == QpState::Init).then_some(());
        let attr = QpAttr {
            state: Some(state),
            pkey_index: init.map(|()| 0),
            port: init.map(|()| 1),
            access: init.map(|()| Access::empty()),
            ..QpAttr::default()
        };
        let Ok(done) = qp.control(&self.engines, |nic, now, qpn| nic.modify_qp(now, qpn, &attr));
        done.unwrap();
    }

    /// Fails a lane's queue pair, which completes its receive.
    fn complete(&self, lane: usize) {
        self.modify(&self.qps[lane], QpState::Err);
    }

    /// The lanes of the completions that a thread polls.
    fn poll(&self, turn: Turn) -> Vec<u64> {
        let mut out = [Completion::default(); 8];
        let mut filled = 0;
        let count = self.cq.poll::<_, Infallible>(
            &self.engines,
            false,
            || turn,
            8,
            |nic, _, cq, room| {
                let got = nic.poll_cq(cq, &mut out[filled..filled + room]).unwrap();
                filled += got;
                Ok(got)
            },
        );
        let Ok(count) = count;
        out[..count].iter().map(|c| c.wr_id).collect()
    }
}

#[test]
fn what_a_busy_engine_has_completed_is_not_left_there() {
    // A program that polls after arming relies on this: earlier completions raise no event.
    for lane in 0..2 {
        let rig = Rig::new();
        rig.complete(lane);
        let Ok(()) = rig.cq.arm(&rig.engines, || false, false);
        rig.engines.busy.set(Some(lane));
        assert_eq!(rig.poll(Turn { thread: lane, ..Turn::default() }), [lane as u64]);
    }
}

#[test]
fn every_lane_is_collected_from_whichever_is_driven() {
    for thread in 0..2 {
        for others_first in [false, true] {
            let rig = Rig::new();
            rig.complete(0);
            rig.complete(1);
            let mut lanes = rig.poll(Turn { home: None, thread, others_first });
            lanes.sort_unstable();
            assert_eq!(lanes, [0, 1]);
            assert_eq!(rig.poll(Turn { home: None, thread, others_first }), []);
        }
    }
}

#[test]
fn one_arming_is_one_event() {
    let rig = Rig::new();
    assert!(!rig.cq.notified(), "nobody has asked");
    let Ok(()) = rig.cq.arm(&rig.engines, || false, false);
    rig.complete(0);
    rig.complete(1);
    let raised = |lane: usize| {
        let mut nic = rig.engines.nics[lane].borrow_mut();
        std::iter::from_fn(|| nic.poll_event())
            .filter(|event| matches!(event, bowline_nic::Event::CqNotify(_)))
            .count()
    };
    assert_eq!((raised(0), raised(1)), (1, 1), "both engines were armed");
    assert!(rig.cq.notified());
    assert!(!rig.cq.notified(), "and the program hears of one");
}

#[test]
fn an_object_in_use_is_destroyed_nowhere() {
    let rig = Rig::new();
    let busy = |result| matches!(result, Err(MirrorError::Control(ControlError::Busy { .. })));
    assert!(busy(rig.cq.destroy(&rig.engines)) && busy(rig.pd.destroy(&rig.engines)));
    let parts = QpParts { pd: &rig.pd, send_cq: &rig.cq, recv_cq: &rig.cq, srq: None };
    rig.qps.iter().for_each(|qp| qp.destroy(&rig.engines, &parts).unwrap());
    rig.cq.destroy(&rig.engines).unwrap();
    rig.pd.destroy(&rig.engines).unwrap();
}

/// A device with a backup whose engines must not be called.
struct Backed;

impl Engines for Backed {
    type Error = Infallible;

    fn layout(&self) -> Layout {
        Layout { lanes: 1, backed: true }
    }

    fn with<R>(&self, _: Place, _: impl FnOnce(&mut Nic, Time) -> R) -> Result<R, Infallible> {
        unreachable!("it is refused before")
    }
}

#[test]
fn windows_are_on_every_lane_under_one_key_and_on_no_backup() {
    let rig = Rig::new();
    let key = alloc_window(&rig.engines, &rig.pd).unwrap();
    for lane in 0..2 {
        let mut nic = rig.engines.nics[lane].borrow_mut();
        let taken = nic.alloc_window_as(key, rig.pd.id(Place::lane(lane)));
        assert_eq!(taken, Err(ControlError::Busy { what: "the key" }), "lane {lane}");
    }
    dealloc_window(&rig.engines, &rig.pd, key).unwrap();
    assert!(dealloc_window(&rig.engines, &rig.pd, key).is_err());
    let refused = alloc_window(&Backed, &rig.pd);
    assert!(matches!(refused, Err(MirrorError::Control(ControlError::Invalid { .. }))));
}
