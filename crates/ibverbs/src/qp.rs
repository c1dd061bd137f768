//! Queue pairs.

use core::ffi::{c_int, c_uint};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::Arc;

use bowline_nic::{Mtu, QpAttr, QpState, QpType};
use bowline_verbs_types::{
    IBV_QP_ACCESS_FLAGS, IBV_QP_AV, IBV_QP_CUR_STATE, IBV_QP_DEST_QPN, IBV_QP_EN_SQD_ASYNC_NOTIFY,
    IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MTU,
    IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_QKEY, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN,
    IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, ibv_qp,
    ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr,
};
use bowline_wire::Qpn;

use crate::address::ah_attr;
use crate::mr::access_flags;
use crate::{Context, Cq, Pd, Srq, VerbsError};

/// States by their numbers in the header.
const STATES: [QpState; 7] = [
    QpState::Reset,
    QpState::Init,
    QpState::Rtr,
    QpState::Rts,
    QpState::Sqd,
    QpState::Sqe,
    QpState::Err,
];

/// Sizes of a queue pair: what is asked for, or what there is.
#[derive(Clone, Copy, Debug)]
pub struct QpCaps {
    /// Sends that can be outstanding.
    pub max_send_wr: u32,
    /// Receives that can be outstanding.
    pub max_recv_wr: u32,
    /// Pieces of memory that one send gathers.
    pub max_send_sge: u32,
    /// Pieces of memory that one receive scatters to.
    pub max_recv_sge: u32,
    /// Bytes that a send can carry in the work request itself.
    pub max_inline: u32,
}

/// A queue pair.
pub struct Qp {
    pub(crate) pd: Arc<Pd>,
    pub(crate) raw: *mut ibv_qp,
    pub(crate) qp_type: QpType,
    pub(crate) caps: QpCaps,
    pub(crate) uses_srq: bool,
    pub(crate) post_send: PostSend,
    pub(crate) post_recv: PostRecv,
    qpn: Qpn,
    // Held so that they outlive the queue pair.
    _queues: (Arc<Cq>, Arc<Cq>, Option<Arc<Srq>>),
}

// SAFETY: verbs objects may be used from any thread, and from several at once.
unsafe impl Send for Qp {}
// SAFETY: as above.
unsafe impl Sync for Qp {}

type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
type PostRecv = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

impl Qp {
    /// Makes a queue pair, in the reset state.
    pub fn create(
        qp_type: QpType,
        pd: &Arc<Pd>,
        [send_cq, recv_cq]: [&Arc<Cq>; 2],
        srq: Option<&Arc<Srq>>,
        asked: QpCaps,
        signal_all: bool,
    ) -> Result<Qp, VerbsError> {
        let mut init = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: send_cq.raw,
            recv_cq: recv_cq.raw,
            srq: srq.map_or(null_mut(), |srq| srq.raw),
            cap: ibv_qp_cap {
                max_send_wr: asked.max_send_wr,
                max_recv_wr: asked.max_recv_wr,
                max_send_sge: asked.max_send_sge,
                max_recv_sge: asked.max_recv_sge,
                max_inline_data: asked.max_inline,
            },
            qp_type: type_number(qp_type)?,
            sq_sig_all: c_int::from(signal_all),
        };
        // SAFETY: domain and queues live, and the attributes do for the call.
        let raw = unsafe { (pd.context.library.ibv_create_qp)(pd.raw, &raw mut init) };
        if raw.is_null() {
            return Err(VerbsError::last("create a queue pair"));
        }
        // SAFETY: just made; and an open context has its table, in which every provider has these.
        let (qpn, post_send, post_recv) = unsafe {
            let ops = &raw const (*pd.context.raw).ops;
            (
                Qpn::new((*raw).qp_num),
                (&raw const (*ops).post_send).read(),
                (&raw const (*ops).post_recv).read(),
            )
        };
        pd.context.watched.add_qp(raw, qpn);
        let caps = QpCaps {
            max_send_wr: init.cap.max_send_wr,
            max_recv_wr: init.cap.max_recv_wr,
            max_send_sge: init.cap.max_send_sge,
            max_recv_sge: init.cap.max_recv_sge,
            max_inline: init.cap.max_inline_data,
        };
        let queues = (Arc::clone(send_cq), Arc::clone(recv_cq), srq.cloned());
        Ok(Qp {
            pd: Arc::clone(pd),
            raw,
            qp_type,
            caps,
            uses_srq: srq.is_some(),
            post_send,
            post_recv,
            qpn,
            _queues: queues,
        })
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Changes attributes or the state.
    pub fn modify(&self, attr: &QpAttr) -> Result<(), VerbsError> {
        let (mut attr, mask) = attributes(&self.pd.context, attr);
        // SAFETY: the queue pair lives, and the attributes are read during the call.
        let code =
            unsafe { (self.pd.context.library.ibv_modify_qp)(self.raw, &raw mut attr, mask) };
        VerbsError::check("change the queue pair", code)
    }

    /// Its state.
    pub fn state(&self) -> Result<QpState, VerbsError> {
        let mut attr = ibv_qp_attr::default();
        let mut init = MaybeUninit::<ibv_qp_init_attr>::zeroed();
        // SAFETY: the queue pair lives, and there is room for what is filled in.
        let code = unsafe {
            let query = self.pd.context.library.ibv_query_qp;
            query(self.raw, &raw mut attr, IBV_QP_STATE, init.as_mut_ptr())
        };
        VerbsError::check("query the queue pair", code)?;
        let state = STATES.get(attr.qp_state as usize).copied();
        Ok(state.unwrap_or(QpState::Err))
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        self.pd.context.watched.remove_qp(self.raw);
        // SAFETY: made by us, and ended once.
        let _ = unsafe { (self.pd.context.library.ibv_destroy_qp)(self.raw) };
    }
}

fn type_number(qp_type: QpType) -> Result<c_uint, VerbsError> {
    match qp_type {
        QpType::Rc => Ok(IBV_QPT_RC),
        QpType::Uc => Ok(IBV_QPT_UC),
        QpType::Ud => Ok(IBV_QPT_UD),
        QpType::Xrc => Err(VerbsError::Unsupported {
            what: "extended reliable connection through Bowline",
            instead: "open Bowline's soft NIC on the address of the interface, or use RC",
        }),
        QpType::Xp => Err(VerbsError::Unsupported {
            what: "XP queue pair, whose opcodes are Bowline's own",
            instead: "open Bowline's soft NIC on the address of the interface, or use UC",
        }),
    }
}

/// Attributes in verbs, and the mask that says which there are.
fn attributes(context: &Context, from: &QpAttr) -> (ibv_qp_attr, c_int) {
    let (mut to, mut mask) = (ibv_qp_attr::default(), 0);
    macro_rules! set {
        ($field:ident = $value:expr, $bit:ident) => {
            if let Some(value) = $value {
                to.$field = value;
                mask |= $bit;
            }
        };
    }
    set!(qp_state = from.state.map(state_number), IBV_QP_STATE);
    set!(cur_qp_state = from.current_state.map(state_number), IBV_QP_CUR_STATE);
    set!(pkey_index = from.pkey_index, IBV_QP_PKEY_INDEX);
    set!(port_num = from.port.map(|_| context.port), IBV_QP_PORT);
    let access = from.access.map(|access| access_flags(access).cast_unsigned());
    set!(qp_access_flags = access, IBV_QP_ACCESS_FLAGS);
    set!(qkey = from.qkey, IBV_QP_QKEY);
    let av = from.av.map(|av| ah_attr(&av, context.port, context.sgid_index));
    set!(ah_attr = av, IBV_QP_AV);
    set!(path_mtu = from.path_mtu.map(mtu_number), IBV_QP_PATH_MTU);
    set!(dest_qp_num = from.dest_qpn.map(Qpn::get), IBV_QP_DEST_QPN);
    set!(rq_psn = from.rq_psn.map(|psn| psn.get()), IBV_QP_RQ_PSN);
    set!(sq_psn = from.sq_psn.map(|psn| psn.get()), IBV_QP_SQ_PSN);
    set!(max_dest_rd_atomic = from.max_dest_rd_atomic, IBV_QP_MAX_DEST_RD_ATOMIC);
    set!(max_rd_atomic = from.max_rd_atomic, IBV_QP_MAX_QP_RD_ATOMIC);
    set!(min_rnr_timer = from.min_rnr_timer, IBV_QP_MIN_RNR_TIMER);
    set!(timeout = from.timeout, IBV_QP_TIMEOUT);
    set!(retry_cnt = from.retry_count, IBV_QP_RETRY_CNT);
    set!(rnr_retry = from.rnr_retry, IBV_QP_RNR_RETRY);
    set!(en_sqd_async_notify = from.sqd_notify.map(u8::from), IBV_QP_EN_SQD_ASYNC_NOTIFY);
    (to, mask)
}

fn state_number(state: QpState) -> c_uint {
    STATES.iter().position(|known| *known == state).map_or(0, |index| index as c_uint)
}

fn mtu_number(mtu: Mtu) -> c_uint {
    Mtu::ALL.iter().position(|known| *known == mtu).map_or(1, |index| index as c_uint + 1)
}
