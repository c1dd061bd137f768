//! Queue pairs: their states and attributes.

use core::ffi::{c_int, c_uint};

use bowline_nic::{Access, AddressVector, Mtu, QpAttr, QpState};
use bowline_wire::{Psn, Qpn};

use crate::abi::*;
use crate::context::PORT;
use crate::errno::{Errno, code};
use crate::gid;
use crate::guard::guard;
use crate::handle;
use crate::qp::Qp;

/// Attributes of the standard that this NIC does not support: alternate paths, rate limits and
/// changes of size.
const UNSUPPORTED: c_int = IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE | IBV_QP_CAP | IBV_QP_RATE_LIMIT;

const KNOWN: c_int = IBV_QP_STATE
    | IBV_QP_CUR_STATE
    | IBV_QP_EN_SQD_ASYNC_NOTIFY
    | IBV_QP_ACCESS_FLAGS
    | IBV_QP_PKEY_INDEX
    | IBV_QP_PORT
    | IBV_QP_QKEY
    | IBV_QP_AV
    | IBV_QP_PATH_MTU
    | IBV_QP_TIMEOUT
    | IBV_QP_RETRY_CNT
    | IBV_QP_RNR_RETRY
    | IBV_QP_RQ_PSN
    | IBV_QP_MAX_QP_RD_ATOMIC
    | IBV_QP_MIN_RNR_TIMER
    | IBV_QP_SQ_PSN
    | IBV_QP_MAX_DEST_RD_ATOMIC
    | IBV_QP_DEST_QPN;

fn state(value: c_uint) -> Result<QpState, Errno> {
    Ok(match value {
        IBV_QPS_RESET => QpState::Reset,
        IBV_QPS_INIT => QpState::Init,
        IBV_QPS_RTR => QpState::Rtr,
        IBV_QPS_RTS => QpState::Rts,
        IBV_QPS_SQD => QpState::Sqd,
        IBV_QPS_SQE => QpState::Sqe,
        IBV_QPS_ERR => QpState::Err,
        _ => return Err(Errno::INVAL),
    })
}

fn state_number(state: QpState) -> c_uint {
    match state {
        QpState::Reset => IBV_QPS_RESET,
        QpState::Init => IBV_QPS_INIT,
        QpState::Rtr => IBV_QPS_RTR,
        QpState::Rts => IBV_QPS_RTS,
        QpState::Sqd => IBV_QPS_SQD,
        QpState::Sqe => IBV_QPS_SQE,
        QpState::Err => IBV_QPS_ERR,
    }
}

/// The number of an MTU: 1 for 256 bytes to 5 for 4096.
pub(crate) fn mtu_number(mtu: Mtu) -> c_uint {
    Mtu::ALL.iter().position(|m| *m == mtu).map_or(0, |i| i as c_uint + 1)
}

fn mtu(number: c_uint) -> Result<Mtu, Errno> {
    Mtu::ALL.into_iter().find(|m| mtu_number(*m) == number).ok_or(Errno::INVAL)
}

/// The peer's access rights through a QP. Local rights mean nothing there.
fn access(flags: c_uint) -> Access {
    let mut access = Access::empty();
    access.set(Access::REMOTE_WRITE, flags & IBV_ACCESS_REMOTE_WRITE != 0);
    access.set(Access::REMOTE_READ, flags & IBV_ACCESS_REMOTE_READ != 0);
    access.set(Access::REMOTE_ATOMIC, flags & IBV_ACCESS_REMOTE_ATOMIC != 0);
    access.set(Access::LOCAL_WRITE, flags & IBV_ACCESS_LOCAL_WRITE != 0);
    access
}

/// The address of a connection's peer, which must be a single host.
fn peer_of(qp: &Qp, attr: &ibv_qp_attr) -> Result<AddressVector, Errno> {
    let av = gid::address_vector(&qp.ctx, &attr.ah_attr)?;
    if av.dst.is_multicast() { Err(Errno::INVAL) } else { Ok(av) }
}

/// The attributes that the mask names.
fn from_mask(qp: &Qp, attr: &ibv_qp_attr, mask: c_int) -> Result<QpAttr, Errno> {
    if mask & UNSUPPORTED != 0 {
        return Err(Errno::UNSUPPORTED);
    }
    if mask & !KNOWN != 0 {
        return Err(Errno::INVAL);
    }
    let has = |bit: c_int| mask & bit != 0;
    let checked = |bit: c_int, value: u32| match value {
        _ if !has(bit) => Ok(None),
        0..=0xff_ffff => Ok(Some(value)),
        _ => Err(Errno::INVAL),
    };
    Ok(QpAttr {
        state: has(IBV_QP_STATE).then(|| state(attr.qp_state)).transpose()?,
        current_state: has(IBV_QP_CUR_STATE).then(|| state(attr.cur_qp_state)).transpose()?,
        pkey_index: has(IBV_QP_PKEY_INDEX).then_some(attr.pkey_index),
        port: has(IBV_QP_PORT).then_some(attr.port_num),
        access: has(IBV_QP_ACCESS_FLAGS).then(|| access(attr.qp_access_flags)),
        qkey: has(IBV_QP_QKEY).then_some(attr.qkey),
        av: has(IBV_QP_AV).then(|| peer_of(qp, attr)).transpose()?,
        path_mtu: has(IBV_QP_PATH_MTU).then(|| mtu(attr.path_mtu)).transpose()?,
        dest_qpn: checked(IBV_QP_DEST_QPN, attr.dest_qp_num)?.map(Qpn::new),
        // Programs draw PSNs of 32 bits, and other providers mask them.
        rq_psn: has(IBV_QP_RQ_PSN).then(|| Psn::new(attr.rq_psn & 0xff_ffff)),
        sq_psn: has(IBV_QP_SQ_PSN).then(|| Psn::new(attr.sq_psn & 0xff_ffff)),
        max_dest_rd_atomic: has(IBV_QP_MAX_DEST_RD_ATOMIC).then_some(attr.max_dest_rd_atomic),
        max_rd_atomic: has(IBV_QP_MAX_QP_RD_ATOMIC).then_some(attr.max_rd_atomic),
        // On the wire and in NICs these have 5 and 3 bits, and programs rely on the rest being
        // ignored.
        min_rnr_timer: has(IBV_QP_MIN_RNR_TIMER).then_some(attr.min_rnr_timer & 0x1f),
        timeout: has(IBV_QP_TIMEOUT).then_some(attr.timeout & 0x1f),
        retry_count: has(IBV_QP_RETRY_CNT).then_some(attr.retry_cnt & 7),
        rnr_retry: has(IBV_QP_RNR_RETRY).then_some(attr.rnr_retry & 7),
        sqd_notify: has(IBV_QP_EN_SQD_ASYNC_NOTIFY).then_some(attr.en_sqd_async_notify != 0),
    })
}

/// `ibv_modify_qp`: applies everything, or nothing and returns an error.
///
/// # Safety
/// `qp` must be a queue pair, and `attr` point to attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    guard(libc::EIO, || {
        code((|| {
            let inner = handle::find(qp.cast::<ibv_qp_ex>())?;
            // SAFETY: null, or attributes by the caller's word.
            let attr = unsafe { attr.as_ref() }.ok_or(Errno::INVAL)?;
            let wanted = from_mask(inner, attr, mask)?;
            let core = inner.core()?;
            core.modify(&wanted)?.inspect_err(|error| {
                crate::log::debug(|| format!("modify_qp of {}: {error}", core.qpn()));
            })?;
            if mask & IBV_QP_STATE != 0 {
                // SAFETY: the QP lives; the field is ours to write.
                unsafe { (*qp).state = attr.qp_state };
            }
            Ok(())
        })())
    })
}

/// `ibv_query_qp`: fills in everything, whatever the mask.
///
/// # Safety
/// `qp` must be a queue pair; `attr` and `init` must point to attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    guard(libc::EIO, || {
        code((|| {
            let inner = handle::find(qp.cast::<ibv_qp_ex>())?;
            if attr.is_null() || init.is_null() {
                return Err(Errno::INVAL);
            }
            let found = query(inner)?;
            // SAFETY: the QP lives, and neither pointer is null.
            unsafe {
                (*qp).state = found.qp_state;
                attr.write(found);
                init.write(ibv_qp_init_attr {
                    qp_context: (*qp).qp_context,
                    send_cq: (*qp).send_cq,
                    recv_cq: (*qp).recv_cq,
                    srq: (*qp).srq,
                    cap: inner.cap,
                    qp_type: (*qp).qp_type,
                    sq_sig_all: c_int::from(inner.signal_all),
                });
            }
            Ok(())
        })())
    })
}

fn query(qp: &Qp) -> Result<ibv_qp_attr, Errno> {
    let info = qp.core()?.info()?.ok_or(Errno::INVAL)?;
    let a = info.attr;
    let state = state_number(info.state);
    Ok(ibv_qp_attr {
        qp_state: state,
        cur_qp_state: state,
        path_mtu: a.path_mtu.map_or(0, mtu_number),
        qkey: a.qkey.unwrap_or(0),
        rq_psn: a.rq_psn.map_or(0, Psn::get),
        sq_psn: a.sq_psn.map_or(0, Psn::get),
        dest_qp_num: a.dest_qpn.map_or(0, Qpn::get),
        qp_access_flags: a.access.map_or(0, |access| {
            // The bits are the same, except the NIC's right to invalidate, which verbs lack.
            (access - Access::REMOTE_INVALIDATE).bits()
        }),
        cap: qp.cap,
        ah_attr: a.av.map_or_else(ibv_ah_attr::default, |av| gid::ah_attr(&av)),
        pkey_index: a.pkey_index.unwrap_or(0),
        en_sqd_async_notify: u8::from(a.sqd_notify.unwrap_or(false)),
        max_rd_atomic: a.max_rd_atomic.unwrap_or(0),
        max_dest_rd_atomic: a.max_dest_rd_atomic.unwrap_or(0),
        min_rnr_timer: a.min_rnr_timer.unwrap_or(0),
        port_num: PORT,
        timeout: a.timeout.unwrap_or(0),
        retry_cnt: a.retry_count.unwrap_or(0),
        rnr_retry: a.rnr_retry.unwrap_or(0),
        ..ibv_qp_attr::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_and_mtus_round_trip() {
        for number in IBV_QPS_RESET..=IBV_QPS_ERR {
            assert_eq!(state_number(state(number).unwrap()), number);
        }
        assert_eq!(state(7), Err(Errno::INVAL));
        for number in 1..=5 {
            assert_eq!(mtu_number(mtu(number).unwrap()), number);
        }
        assert_eq!(mtu(0), Err(Errno::INVAL));
        assert_eq!(mtu(6), Err(Errno::INVAL));
    }

    #[test]
    fn access_bits_are_the_header_s() {
        assert_eq!(access(0xf).bits(), 0xf);
    }
}
