//! Polling for completions.

use core::ffi::{c_int, c_uint};
use std::net::IpAddr;

use bowline_nic::{Completion, CqId, Nic, WcOpcode};

use crate::abi::*;
use crate::errno::Errno;
use crate::guard::guard;
use crate::handle;

/// Completions polled from the NIC at a time: as many as perftest asks for.
pub(crate) const BATCH: usize = 16;

/// `ibv_poll_cq`, in the context's table. Polling drives the device.
///
/// # Safety
/// `cq` must be a completion queue, and `wc` point to `count` completions.
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    guard(-libc::EIO, || {
        // SAFETY: a completion queue, by the caller's word.
        let Ok(inner) = (unsafe { handle::inner(cq.cast::<ibv_cq_ex>()) }) else {
            return -libc::EINVAL;
        };
        let Ok(wanted) = usize::try_from(count) else {
            return -libc::EINVAL;
        };
        if wc.is_null() && wanted > 0 {
            return -libc::EINVAL;
        }
        let (mut at, sl) = (wc, inner.datagram_sl);
        let polled = inner.poll(wanted, |nic, _, cq, room| {
            // SAFETY: `wc` has room for `wanted` completions, by the caller's word, of which `room`
            // are left.
            unsafe {
                let taken = take(nic, cq, sl, at, room)?;
                at = at.add(taken);
                Ok(taken)
            }
        });
        match polled {
            Ok(taken) => taken as c_int,
            Err(Errno(errno)) => -errno,
        }
    })
}

/// Moves up to `wanted` completions to `wc`.
///
/// # Safety
/// `wc` must have room for `wanted` completions.
#[inline]
unsafe fn take(
    nic: &mut Nic,
    cq: CqId,
    sl: u8,
    wc: *mut ibv_wc,
    wanted: usize,
) -> Result<usize, Errno> {
    let mut batch = [Completion::default(); BATCH];
    let mut taken = 0;
    while taken < wanted {
        let room = BATCH.min(wanted - taken);
        let got = nic.poll_cq(cq, &mut batch[..room])?;
        for (i, completion) in batch[..got].iter().enumerate() {
            // SAFETY: `taken + i` is below `wanted`.
            unsafe { wc.add(taken + i).write(to_wc(completion, sl)) };
        }
        taken += got;
        if got < room {
            break;
        }
    }
    Ok(taken)
}

/// The service level reported for datagrams to an address. RoCE has no service levels: there the
/// field says how a datagram arrived, bit 3 for UDP and below it 1 for IPv6 or 2 for IPv4, and
/// programs interpret the GRH by it.
pub(crate) fn datagram_sl(addr: IpAddr) -> u8 {
    8 | if addr.is_ipv6() { 1 } else { 2 }
}

/// A completion in the program's form; `sl` is that of datagrams.
#[inline]
fn to_wc(c: &Completion, sl: u8) -> ibv_wc {
    ibv_wc {
        wr_id: c.wr_id,
        status: c_uint::from(c.status as u8),
        opcode: opcode(c.opcode),
        vendor_err: 0,
        byte_len: c.byte_len,
        imm_data: imm_or_key(c),
        qp_num: c.qpn.get(),
        src_qp: c.src_qpn.get(),
        wc_flags: flags(c),
        sl: if c.grh { sl } else { 0 },
        ..ibv_wc::default()
    }
}

#[inline]
pub(crate) fn opcode(opcode: WcOpcode) -> c_uint {
    match opcode {
        WcOpcode::Send => IBV_WC_SEND,
        WcOpcode::Write => IBV_WC_RDMA_WRITE,
        WcOpcode::Read => IBV_WC_RDMA_READ,
        WcOpcode::CompareSwap => IBV_WC_COMP_SWAP,
        WcOpcode::FetchAdd => IBV_WC_FETCH_ADD,
        WcOpcode::BindWindow => IBV_WC_BIND_MW,
        WcOpcode::LocalInvalidate => IBV_WC_LOCAL_INV,
        WcOpcode::Recv => IBV_WC_RECV,
        WcOpcode::RecvWriteImm => IBV_WC_RECV_RDMA_WITH_IMM,
    }
}

/// Immediate data in network byte order, or the key that was invalidated.
#[inline]
pub(crate) fn imm_or_key(c: &Completion) -> u32 {
    c.imm.map(u32::to_be).or(c.invalidated).unwrap_or(0)
}

#[inline]
pub(crate) fn flags(c: &Completion) -> c_uint {
    let set = |condition: bool, flag: c_uint| if condition { flag } else { 0 };
    set(c.grh, IBV_WC_GRH)
        | set(c.imm.is_some(), IBV_WC_WITH_IMM)
        | set(c.invalidated.is_some(), IBV_WC_WITH_INV)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn immediate_data_is_in_network_byte_order_and_a_key_is_not() {
        let with_imm = Completion { imm: Some(0x0102_0304), ..Completion::default() };
        assert_eq!(to_wc(&with_imm, 10).imm_data.to_ne_bytes(), [1, 2, 3, 4]);
        assert_eq!(to_wc(&with_imm, 10).wc_flags, IBV_WC_WITH_IMM);
        let with_key = Completion { invalidated: Some(7), grh: true, ..Completion::default() };
        assert_eq!(to_wc(&with_key, 10).imm_data, 7);
        assert_eq!(to_wc(&with_key, 10).wc_flags, IBV_WC_WITH_INV | IBV_WC_GRH);
    }

    #[test]
    fn the_service_level_of_datagrams_says_ipv4_or_ipv6() {
        let sl = |addr: &str| datagram_sl(addr.parse().unwrap());
        let datagram = Completion { grh: true, ..Completion::default() };
        assert_eq!(to_wc(&datagram, sl("127.0.0.1")).sl, 0b1010);
        assert_eq!(to_wc(&datagram, sl("::1")).sl, 0b1001);
        assert_eq!(to_wc(&Completion::default(), sl("127.0.0.1")).sl, 0);
    }
}
