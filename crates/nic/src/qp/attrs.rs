//! A queue pair's attributes.

use bowline_wire::{Psn, Qpn};

use crate::types::{Access, AddressVector, Mtu, QpAttr, QpState};

/// A QP's attributes, each with a value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attrs {
    pub(crate) access: Access,
    pub(crate) qkey: u32,
    pub(crate) av: Option<AddressVector>,
    pub(crate) mtu: Mtu,
    pub(crate) dest_qpn: Qpn,
    pub(crate) rq_psn: Psn,
    pub(crate) sq_psn: Psn,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) sqd_notify: bool,
}

impl Attrs {
    pub(super) fn new(max_mtu: Mtu) -> Attrs {
        Attrs {
            access: Access::empty(),
            qkey: 0,
            av: None,
            mtu: max_mtu,
            dest_qpn: Qpn::new(0),
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            max_dest_rd_atomic: 1,
            max_rd_atomic: 1,
            min_rnr_timer: 12,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            sqd_notify: false,
        }
    }

    /// As the query verb reports them.
    pub(crate) fn to_attr(self, state: QpState) -> QpAttr {
        QpAttr {
            state: Some(state),
            current_state: Some(state),
            pkey_index: Some(0),
            port: Some(1),
            access: Some(self.access),
            qkey: Some(self.qkey),
            av: self.av,
            path_mtu: Some(self.mtu),
            dest_qpn: Some(self.dest_qpn),
            rq_psn: Some(self.rq_psn),
            sq_psn: Some(self.sq_psn),
            max_dest_rd_atomic: Some(self.max_dest_rd_atomic),
            max_rd_atomic: Some(self.max_rd_atomic),
            min_rnr_timer: Some(self.min_rnr_timer),
            timeout: Some(self.timeout),
            retry_count: Some(self.retry_count),
            rnr_retry: Some(self.rnr_retry),
            sqd_notify: Some(self.sqd_notify),
        }
    }
}
