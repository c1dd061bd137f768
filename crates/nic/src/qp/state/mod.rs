//! The QP state machine: the transitions that exist, and the attributes that each needs and allows
//! (IBTA 11.2.5.2, table 91; what `ibv_modify_qp` documents).

use super::Attrs;
use crate::config::NicConfig;
use crate::error::ModifyError;
use crate::types::{QpAttr, QpState, QpType};

use QpState::{Err as Error, Init, Reset, Rtr, Rts, Sqd, Sqe};

bitflags::bitflags! {
    /// Attributes as a set, to state the table with.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Mask: u32 {
        const CUR_STATE = 1;
        const PKEY = 1 << 1;
        const PORT = 1 << 2;
        const ACCESS = 1 << 3;
        const QKEY = 1 << 4;
        const AV = 1 << 5;
        const MTU = 1 << 6;
        const DEST_QPN = 1 << 7;
        const RQ_PSN = 1 << 8;
        const SQ_PSN = 1 << 9;
        const MAX_DEST_RD = 1 << 10;
        const MAX_RD = 1 << 11;
        const MIN_RNR = 1 << 12;
        const TIMEOUT = 1 << 13;
        const RETRY = 1 << 14;
        const RNR_RETRY = 1 << 15;
        const SQD_NOTIFY = 1 << 16;
    }
}

const NAMES: [(Mask, &str); 17] = [
    (Mask::CUR_STATE, "current_state"),
    (Mask::PKEY, "pkey_index"),
    (Mask::PORT, "port"),
    (Mask::ACCESS, "access"),
    (Mask::QKEY, "qkey"),
    (Mask::AV, "av"),
    (Mask::MTU, "path_mtu"),
    (Mask::DEST_QPN, "dest_qpn"),
    (Mask::RQ_PSN, "rq_psn"),
    (Mask::SQ_PSN, "sq_psn"),
    (Mask::MAX_DEST_RD, "max_dest_rd_atomic"),
    (Mask::MAX_RD, "max_rd_atomic"),
    (Mask::MIN_RNR, "min_rnr_timer"),
    (Mask::TIMEOUT, "timeout"),
    (Mask::RETRY, "retry_count"),
    (Mask::RNR_RETRY, "rnr_retry"),
    (Mask::SQD_NOTIFY, "sqd_notify"),
];

fn name_of(mask: Mask) -> &'static str {
    NAMES.iter().find(|(m, _)| mask.contains(*m)).map_or("attribute", |(_, name)| name)
}

fn mask_of(attr: &QpAttr) -> Mask {
    let mut mask = Mask::empty();
    mask.set(Mask::CUR_STATE, attr.current_state.is_some());
    mask.set(Mask::PKEY, attr.pkey_index.is_some());
    mask.set(Mask::PORT, attr.port.is_some());
    mask.set(Mask::ACCESS, attr.access.is_some());
    mask.set(Mask::QKEY, attr.qkey.is_some());
    mask.set(Mask::AV, attr.av.is_some());
    mask.set(Mask::MTU, attr.path_mtu.is_some());
    mask.set(Mask::DEST_QPN, attr.dest_qpn.is_some());
    mask.set(Mask::RQ_PSN, attr.rq_psn.is_some());
    mask.set(Mask::SQ_PSN, attr.sq_psn.is_some());
    mask.set(Mask::MAX_DEST_RD, attr.max_dest_rd_atomic.is_some());
    mask.set(Mask::MAX_RD, attr.max_rd_atomic.is_some());
    mask.set(Mask::MIN_RNR, attr.min_rnr_timer.is_some());
    mask.set(Mask::TIMEOUT, attr.timeout.is_some());
    mask.set(Mask::RETRY, attr.retry_count.is_some());
    mask.set(Mask::RNR_RETRY, attr.rnr_retry.is_some());
    mask.set(Mask::SQD_NOTIFY, attr.sqd_notify.is_some());
    mask
}

/// Attributes that a transition needs and those that it allows; `None` if it does not exist.
fn rule(qp_type: QpType, from: QpState, to: QpState) -> Option<(Mask, Mask)> {
    let none = Mask::empty();
    let transport = qp_type.descriptor();
    let key = if transport.connected { Mask::ACCESS } else { Mask::QKEY };
    let reliable = |mask: Mask| if transport.reliable { mask } else { none };
    let connected = |mask: Mask| if transport.connected { mask } else { none };
    // An extended connection sends one way, and each end gets only the attributes that it needs.
    let (one_way, two_way) = if transport.addressed {
        let receiver = Mask::MAX_DEST_RD | Mask::MIN_RNR;
        (receiver | Mask::RETRY | Mask::RNR_RETRY | Mask::MAX_RD, none)
    } else {
        (none, Mask::all())
    };
    Some(match (from, to) {
        (_, Reset) => (none, none),
        (Reset, Error) => return None,
        (_, Error) => (none, none),
        (Reset, Init) => (Mask::PKEY | Mask::PORT | key, none),
        (Init, Init) => (none, Mask::PKEY | Mask::PORT | key),
        (Init, Rtr) => (
            connected(Mask::AV | Mask::MTU | Mask::DEST_QPN | Mask::RQ_PSN)
                | reliable(Mask::MAX_DEST_RD | Mask::MIN_RNR) & two_way,
            Mask::PKEY | key | one_way & (Mask::MAX_DEST_RD | Mask::MIN_RNR),
        ),
        (Rtr, Rts) => (
            Mask::SQ_PSN
                | reliable(Mask::TIMEOUT)
                | reliable(Mask::RETRY | Mask::RNR_RETRY | Mask::MAX_RD) & two_way,
            Mask::CUR_STATE
                | key
                | reliable(Mask::MIN_RNR)
                | one_way & (Mask::RETRY | Mask::RNR_RETRY | Mask::MAX_RD),
        ),
        (Rts, Rts) => (none, Mask::CUR_STATE | key | reliable(Mask::MIN_RNR)),
        (Rts, Sqd) => (none, Mask::SQD_NOTIFY),
        (Sqd, Sqd) => (
            none,
            key | Mask::PKEY
                | connected(Mask::AV)
                | reliable(
                    Mask::TIMEOUT
                        | Mask::RETRY
                        | Mask::RNR_RETRY
                        | Mask::MAX_RD
                        | Mask::MAX_DEST_RD
                        | Mask::MIN_RNR,
                ),
        ),
        (Sqd, Rts) => (none, Mask::CUR_STATE | key | reliable(Mask::MIN_RNR)),
        (Sqe, Rts) if !transport.reliable => (none, Mask::CUR_STATE | key),
        _ => return None,
    })
}

/// Checks a `modify_qp` request as a whole, before any of it takes effect.
pub(crate) fn check(
    qp_type: QpType,
    from: QpState,
    attr: &QpAttr,
    config: &NicConfig,
) -> Result<(), ModifyError> {
    let to = attr.state.unwrap_or(from);
    if let Some(claimed) = attr.current_state
        && claimed != from
    {
        return Err(ModifyError::StateMismatch { actual: from, claimed });
    }
    let bad = ModifyError::BadTransition { qp_type, from, to };
    let (required, optional) = rule(qp_type, from, to).ok_or(bad)?;
    let given = mask_of(attr);
    let missing = required - given;
    if !missing.is_empty() {
        return Err(ModifyError::Missing { from, to, attr: name_of(missing) });
    }
    let surplus = given - required - optional - Mask::CUR_STATE;
    if !surplus.is_empty() {
        return Err(ModifyError::NotAllowed { from, to, attr: name_of(surplus) });
    }
    check_values(attr, config)
}

fn check_values(attr: &QpAttr, config: &NicConfig) -> Result<(), ModifyError> {
    let ranges: [(bool, &'static str, &'static str); 10] = [
        (attr.pkey_index.is_some_and(|v| v != 0), "pkey_index", "0 is the only one"),
        (attr.port.is_some_and(|v| v != 1), "port", "1 is the only one"),
        (attr.timeout.is_some_and(|v| v > 31), "timeout", "0 to 31"),
        (attr.retry_count.is_some_and(|v| v > 7), "retry_count", "0 to 7"),
        (attr.rnr_retry.is_some_and(|v| v > 7), "rnr_retry", "0 to 7"),
        (attr.min_rnr_timer.is_some_and(|v| v > 31), "min_rnr_timer", "0 to 31"),
        (
            attr.max_rd_atomic.is_some_and(|v| v > config.max_rd_atomic),
            "max_rd_atomic",
            "at most the device's max_rd_atomic",
        ),
        (
            attr.max_dest_rd_atomic.is_some_and(|v| v > config.max_rd_atomic),
            "max_dest_rd_atomic",
            "at most the device's max_rd_atomic",
        ),
        (
            attr.path_mtu.is_some_and(|v| v > config.max_mtu),
            "path_mtu",
            "at most what the port carries",
        ),
        (
            attr.av.is_some_and(|av| av.dst.is_ipv4() != config.addr.is_ipv4()),
            "av",
            "the destination must be of the device's address family",
        ),
    ];
    match ranges.into_iter().find(|(wrong, _, _)| *wrong) {
        Some((_, attr, why)) => Err(ModifyError::OutOfRange { attr, why }),
        None => Ok(()),
    }
}

/// Copies the attributes that are given.
pub(super) fn assign(attrs: &mut Attrs, attr: &QpAttr) {
    fn set<T: Copy>(to: &mut T, from: Option<T>) {
        if let Some(value) = from {
            *to = value;
        }
    }
    set(&mut attrs.access, attr.access);
    set(&mut attrs.qkey, attr.qkey);
    if attr.av.is_some() {
        attrs.av = attr.av;
    }
    set(&mut attrs.mtu, attr.path_mtu);
    set(&mut attrs.dest_qpn, attr.dest_qpn);
    set(&mut attrs.rq_psn, attr.rq_psn);
    set(&mut attrs.sq_psn, attr.sq_psn);
    set(&mut attrs.max_dest_rd_atomic, attr.max_dest_rd_atomic);
    set(&mut attrs.max_rd_atomic, attr.max_rd_atomic);
    set(&mut attrs.min_rnr_timer, attr.min_rnr_timer);
    set(&mut attrs.timeout, attr.timeout);
    set(&mut attrs.retry_count, attr.retry_count);
    set(&mut attrs.rnr_retry, attr.rnr_retry);
    set(&mut attrs.sqd_notify, attr.sqd_notify);
}

#[cfg(test)]
mod tests;
