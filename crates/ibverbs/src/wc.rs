//! Completions.

use bowline_nic::{Completion, WcOpcode, WcStatus};
use bowline_verbs_types::{
    IBV_WC_BIND_MW, IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD, IBV_WC_GRH, IBV_WC_LOCAL_INV,
    IBV_WC_RDMA_READ, IBV_WC_RDMA_WRITE, IBV_WC_RECV, IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_WITH_IMM,
    ibv_wc,
};
use bowline_wire::Qpn;

/// A completion in the engine's words. `invalidation_flag` is the provider's.
pub(crate) fn completion(wc: &ibv_wc, invalidation_flag: u32) -> Completion {
    let status = status(wc.status);
    let base =
        Completion { wr_id: wc.wr_id, status, qpn: Qpn::new(wc.qp_num), ..Completion::default() };
    // After a failure the header promises nothing else.
    if status != WcStatus::Success {
        return base;
    }
    let is_receive = wc.opcode & IBV_WC_RECV != 0;
    let has = |flag| is_receive && wc.wc_flags & flag != 0;
    Completion {
        opcode: opcode(wc.opcode),
        byte_len: wc.byte_len,
        imm: has(IBV_WC_WITH_IMM).then(|| u32::from_be(wc.imm_data)),
        invalidated: (has(invalidation_flag) && !has(IBV_WC_WITH_IMM)).then_some(wc.imm_data),
        src_qpn: Qpn::new(wc.src_qp),
        grh: has(IBV_WC_GRH),
        ..base
    }
}

fn status(number: u32) -> WcStatus {
    // Statuses of services that Bowline does not offer are errors of their own kind.
    WcStatus::from_verbs(number).unwrap_or(WcStatus::GeneralErr)
}

fn opcode(number: u32) -> WcOpcode {
    match number {
        IBV_WC_RDMA_WRITE => WcOpcode::Write,
        IBV_WC_RDMA_READ => WcOpcode::Read,
        IBV_WC_COMP_SWAP => WcOpcode::CompareSwap,
        IBV_WC_FETCH_ADD => WcOpcode::FetchAdd,
        IBV_WC_BIND_MW => WcOpcode::BindWindow,
        IBV_WC_LOCAL_INV => WcOpcode::LocalInvalidate,
        IBV_WC_RECV => WcOpcode::Recv,
        IBV_WC_RECV_RDMA_WITH_IMM => WcOpcode::RecvWriteImm,
        _ => WcOpcode::Send,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receive_says_what_came_with_it() {
        let wc = ibv_wc {
            wr_id: 7,
            opcode: IBV_WC_RECV,
            byte_len: 100,
            imm_data: 0x0102_0304_u32.to_be(),
            qp_num: 0x11,
            src_qp: 0x22,
            wc_flags: IBV_WC_WITH_IMM | IBV_WC_GRH,
            ..ibv_wc::default()
        };
        let found = completion(&wc, 8);
        assert_eq!((found.wr_id, found.byte_len, found.grh), (7, 100, true));
        assert_eq!((found.imm, found.invalidated), (Some(0x0102_0304), None));
        assert_eq!((found.qpn.get(), found.src_qpn.get()), (0x11, 0x22));
    }

    #[test]
    fn a_revoked_key_is_told_by_the_provider_s_flag() {
        for flag in [4, 8] {
            let wc = ibv_wc {
                opcode: IBV_WC_RECV,
                imm_data: 0x1234,
                wc_flags: flag,
                ..ibv_wc::default()
            };
            assert_eq!(completion(&wc, flag).invalidated, Some(0x1234));
            assert_eq!(completion(&wc, 12 - flag).invalidated, None);
        }
    }

    #[test]
    fn a_failure_says_nothing_but_its_status() {
        let wc = ibv_wc { status: 12, opcode: IBV_WC_RECV, wc_flags: 2, ..ibv_wc::default() };
        let found = completion(&wc, 8);
        assert_eq!((found.status, found.imm), (WcStatus::RetryExcErr, None));
        assert_eq!(status(15), WcStatus::GeneralErr);
    }
}
