use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bowline_wire::{Psn, Qpn};

use super::*;
use crate::types::{Access, AddressVector, Mtu};

const STATES: [QpState; 7] = [Reset, Init, Rtr, Rts, Sqd, Sqe, Error];

fn config() -> NicConfig {
    NicConfig::new(IpAddr::V4(Ipv4Addr::LOCALHOST), [0; 32])
}

/// Every attribute, with a legal value.
fn full() -> QpAttr {
    QpAttr {
        state: None,
        current_state: None,
        pkey_index: Some(0),
        port: Some(1),
        access: Some(Access::empty()),
        qkey: Some(1),
        av: Some(AddressVector::new(IpAddr::V4(Ipv4Addr::LOCALHOST))),
        path_mtu: Some(Mtu::B1024),
        dest_qpn: Some(Qpn::new(2)),
        rq_psn: Some(Psn::new(0)),
        sq_psn: Some(Psn::new(0)),
        max_dest_rd_atomic: Some(1),
        max_rd_atomic: Some(1),
        min_rnr_timer: Some(1),
        timeout: Some(14),
        retry_count: Some(7),
        rnr_retry: Some(7),
        sqd_notify: Some(false),
    }
}

/// The full set cut down to a mask.
fn only(mask: Mask, state: QpState) -> QpAttr {
    fn keep<T>(mask: Mask, bit: Mask, value: Option<T>) -> Option<T> {
        value.filter(|_| mask.contains(bit))
    }
    let f = full();
    QpAttr {
        state: Some(state),
        current_state: None,
        pkey_index: keep(mask, Mask::PKEY, f.pkey_index),
        port: keep(mask, Mask::PORT, f.port),
        access: keep(mask, Mask::ACCESS, f.access),
        qkey: keep(mask, Mask::QKEY, f.qkey),
        av: keep(mask, Mask::AV, f.av),
        path_mtu: keep(mask, Mask::MTU, f.path_mtu),
        dest_qpn: keep(mask, Mask::DEST_QPN, f.dest_qpn),
        rq_psn: keep(mask, Mask::RQ_PSN, f.rq_psn),
        sq_psn: keep(mask, Mask::SQ_PSN, f.sq_psn),
        max_dest_rd_atomic: keep(mask, Mask::MAX_DEST_RD, f.max_dest_rd_atomic),
        max_rd_atomic: keep(mask, Mask::MAX_RD, f.max_rd_atomic),
        min_rnr_timer: keep(mask, Mask::MIN_RNR, f.min_rnr_timer),
        timeout: keep(mask, Mask::TIMEOUT, f.timeout),
        retry_count: keep(mask, Mask::RETRY, f.retry_count),
        rnr_retry: keep(mask, Mask::RNR_RETRY, f.rnr_retry),
        sqd_notify: keep(mask, Mask::SQD_NOTIFY, f.sqd_notify),
    }
}

#[test]
fn the_machine_has_the_standards_transitions_and_no_others() {
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        for from in STATES {
            for to in STATES {
                let legal = match (from, to) {
                    (_, Reset) => true,
                    (Reset, Error) => false,
                    (_, Error) => true,
                    (Reset, Init) | (Init, Init) | (Init, Rtr) | (Rtr, Rts) | (Rts, Rts) => true,
                    (Rts, Sqd) | (Sqd, Sqd) | (Sqd, Rts) => true,
                    (Sqe, Rts) => qp_type != QpType::Rc,
                    _ => false,
                };
                assert_eq!(rule(qp_type, from, to).is_some(), legal, "{qp_type:?} {from:?} {to:?}");
            }
        }
    }
}

#[test]
fn each_transition_needs_exactly_what_it_requires() {
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        for (from, to) in [(Reset, Init), (Init, Rtr), (Rtr, Rts)] {
            let (required, _) = rule(qp_type, from, to).unwrap();
            assert_eq!(check(qp_type, from, &only(required, to), &config()), Ok(()));
            for bit in required.iter() {
                let less = only(required - bit, to);
                let missing = ModifyError::Missing { from, to, attr: name_of(bit) };
                assert_eq!(check(qp_type, from, &less, &config()), Err(missing));
            }
            let too_much = only(Mask::all(), to);
            let refused = check(qp_type, from, &too_much, &config());
            assert!(matches!(refused, Err(ModifyError::NotAllowed { .. })), "{refused:?}");
        }
    }
}

#[test]
fn a_wrong_idea_of_the_current_state_is_noticed() {
    let attr = QpAttr { state: Some(Rts), current_state: Some(Sqd), ..QpAttr::default() };
    let mismatch = ModifyError::StateMismatch { actual: Rts, claimed: Sqd };
    assert_eq!(check(QpType::Rc, Rts, &attr, &config()), Err(mismatch));
}

#[test]
fn values_out_of_range_are_named() {
    let (required, _) = rule(QpType::Rc, Rtr, Rts).unwrap();
    let attr = QpAttr { timeout: Some(32), ..only(required, Rts) };
    let refused = check(QpType::Rc, Rtr, &attr, &config());
    assert!(matches!(refused, Err(ModifyError::OutOfRange { attr: "timeout", .. })));
    let (required, _) = rule(QpType::Rc, Init, Rtr).unwrap();
    let av = Some(AddressVector::new(IpAddr::V6(Ipv6Addr::LOCALHOST)));
    let attr = QpAttr { av, ..only(required, Rtr) };
    let refused = check(QpType::Rc, Init, &attr, &config());
    assert!(matches!(refused, Err(ModifyError::OutOfRange { attr: "av", .. })));
}
