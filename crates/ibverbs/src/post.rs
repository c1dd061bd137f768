//! Work requests.

use std::io;
use std::mem::{MaybeUninit, offset_of};
use std::ptr::null_mut;

use bowline_nic::{Operations, Payload, PostError, RecvWr, Remote, SendFlags, SendOp, SendWr, Sge};
use bowline_verbs_types::{
    IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED,
    IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_BIND_MW, IBV_WR_LOCAL_INV,
    IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, ibv_mw_bind_info, ibv_recv_wr, ibv_send_wr,
    ibv_sge, ibv_wr_atomic, ibv_wr_bind_mw, ibv_wr_rdma, ibv_wr_target, ibv_wr_ud,
};

use crate::Qp;
use crate::mr::access_flags;
use crate::pd::NamedGuard;

/// Requests that the provider gets in one call, with one doorbell.
const BATCH: usize = 16;

// Lists of memory are handed over as they are.
const _: () = assert!(
    size_of::<Sge>() == size_of::<ibv_sge>()
        && offset_of!(Sge, addr) == offset_of!(ibv_sge, addr)
        && offset_of!(Sge, len) == offset_of!(ibv_sge, length)
        && offset_of!(Sge, lkey) == offset_of!(ibv_sge, lkey)
);

/// How many requests of a batch were taken, and why the next one was not.
pub(crate) type Partial = (usize, PostError);

impl Qp {
    /// Posts sends. If one is refused, those before it have been taken: the error says how many.
    pub fn post_send(&self, wrs: &[SendWr<'_>]) -> Result<(), (usize, PostError)> {
        each_batch(wrs, |batch| self.post_sends(batch))
    }

    /// Posts receives. If one is refused, those before it have been taken: the error says how many.
    pub fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), (usize, PostError)> {
        each_batch(wrs, |batch| self.post_recvs(batch))
    }

    fn post_sends(&self, wrs: &[SendWr<'_>]) -> Result<(), Partial> {
        let mut requests = [const { MaybeUninit::<ibv_send_wr>::uninit() }; BATCH];
        let mut inline = [ibv_sge::default(); BATCH];
        // Held until the requests are posted.
        let mut named = None;
        let mut refused = Ok(());
        let mut count = 0;
        for (wr, inline) in wrs.iter().zip(&mut inline) {
            match self.send_request(wr, inline, &mut named) {
                Ok(request) => requests[count].write(request),
                Err(error) => {
                    refused = Err((count, error));
                    break;
                }
            };
            count += 1;
        }
        if count == 0 {
            return refused;
        }
        let first = requests.as_mut_ptr().cast::<ibv_send_wr>();
        let mut bad = null_mut();
        // SAFETY: `count` requests are written and chained; they and what they point to live for
        // the call, and so does the queue pair.
        let (code, taken) = unsafe {
            (1..count).for_each(|next| (*first.add(next - 1)).next = first.add(next));
            let code = (self.post_send)(self.raw, first, &raw mut bad);
            (code, (0..count).find(|index| first.add(*index) == bad).unwrap_or(0))
        };
        post_error(code).map_err(|error| (taken, error))?;
        refused
    }

    fn post_recvs(&self, wrs: &[RecvWr<'_>]) -> Result<(), Partial> {
        if self.uses_srq {
            return Err((0, PostError::UsesSrq));
        }
        let mut requests = [const { MaybeUninit::<ibv_recv_wr>::uninit() }; BATCH];
        let mut refused = Ok(());
        let mut count = 0;
        for wr in wrs {
            match recv_request(wr, self.caps.max_recv_sge as usize) {
                Ok(request) => requests[count].write(request),
                Err(error) => {
                    refused = Err((count, error));
                    break;
                }
            };
            count += 1;
        }
        if count == 0 {
            return refused;
        }
        let first = requests.as_mut_ptr().cast::<ibv_recv_wr>();
        let mut bad = null_mut();
        // SAFETY: as for sends.
        let (code, taken) = unsafe {
            (1..count).for_each(|next| (*first.add(next - 1)).next = first.add(next));
            let code = (self.post_recv)(self.raw, first, &raw mut bad);
            (code, (0..count).find(|index| first.add(*index) == bad).unwrap_or(0))
        };
        post_error(code).map_err(|error| (taken, error))?;
        refused
    }

    /// A request in verbs. `inline` is where it keeps its entry for inline bytes, and `named` what
    /// it names.
    fn send_request<'a>(
        &'a self,
        wr: &SendWr<'_>,
        inline: &mut ibv_sge,
        named: &mut Option<NamedGuard<'a>>,
    ) -> Result<ibv_send_wr, PostError> {
        let operation = wr.op.operation();
        let supported = self.qp_type.descriptor().operations - Operations::WRITE_PACKETS;
        if !supported.contains(operation) {
            return Err(PostError::UnsupportedOp(self.qp_type));
        }
        let mut request = self.plain_request(wr, inline)?;
        match wr.op {
            SendOp::Send => request.opcode = IBV_WR_SEND,
            SendOp::SendImm(imm) => {
                request.opcode = IBV_WR_SEND_WITH_IMM;
                request.imm_data = imm.to_be();
            }
            SendOp::SendInvalidate(key) => {
                request.opcode = IBV_WR_SEND_WITH_INV;
                request.imm_data = key;
            }
            SendOp::Write(remote) => {
                request.opcode = IBV_WR_RDMA_WRITE;
                request.wr = rdma(remote);
            }
            SendOp::WriteImm(remote, imm) => {
                request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
                request.imm_data = imm.to_be();
                request.wr = rdma(remote);
            }
            SendOp::Read(remote) => {
                request.opcode = IBV_WR_RDMA_READ;
                request.wr = rdma(remote);
            }
            SendOp::CompareSwap { remote, compare, swap } => {
                request.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
                request.wr = atomic(remote, compare, swap);
            }
            SendOp::FetchAdd { remote, add } => {
                request.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
                request.wr = atomic(remote, add, 0);
            }
            SendOp::BindWindow(binding) => {
                let named = named.get_or_insert_with(|| self.pd.named());
                let (Some(mw), Some(mr)) =
                    (named.window(binding.key), named.region(binding.region.0))
                else {
                    return Err(PostError::NotFound);
                };
                request.opcode = IBV_WR_BIND_MW;
                let bind_info = ibv_mw_bind_info {
                    mr,
                    addr: binding.addr,
                    length: binding.len,
                    mw_access_flags: access_flags(binding.access).cast_unsigned(),
                };
                request.bind_mw = ibv_wr_bind_mw { mw, rkey: binding.key, bind_info };
            }
            SendOp::LocalInvalidate(key) => {
                request.opcode = IBV_WR_LOCAL_INV;
                request.imm_data = key;
            }
            SendOp::WritePackets(..) => return Err(PostError::UnsupportedOp(self.qp_type)),
        }
        if let Some(to) = &wr.ud {
            let ah = self.pd.destination(&to.av).ok_or(PostError::BadDestination)?;
            let ud = ibv_wr_ud { ah, remote_qpn: to.qpn.get(), remote_qkey: to.qkey };
            request.wr = ibv_wr_target { ud };
        }
        Ok(request)
    }

    /// A request without its operation.
    fn plain_request(
        &self,
        wr: &SendWr<'_>,
        inline: &mut ibv_sge,
    ) -> Result<ibv_send_wr, PostError> {
        if wr.ud.is_some() == self.qp_type.descriptor().connected {
            return Err(PostError::BadDestination);
        }
        // SAFETY: numbers, unions of numbers, and pointers that may be null.
        let mut request = unsafe { MaybeUninit::<ibv_send_wr>::zeroed().assume_init() };
        request.wr_id = wr.wr_id;
        request.send_flags = flags(wr.flags);
        match wr.payload {
            Payload::Sges(sges) => {
                let max = self.caps.max_send_sge as usize;
                check_sges(sges, max)?;
                request.sg_list = sges.as_ptr().cast::<ibv_sge>().cast_mut();
                request.num_sge = sges.len() as i32;
            }
            Payload::Inline(bytes) => {
                let returns = Operations::READ | Operations::COMPARE_SWAP | Operations::FETCH_ADD;
                if wr.op.operation().intersects(returns) {
                    return Err(PostError::InlineNotAllowed);
                }
                let (given, max) = (bytes.len(), self.caps.max_inline as usize);
                if given > max {
                    return Err(PostError::InlineTooLong { given, max });
                }
                *inline = ibv_sge { addr: bytes.as_ptr() as u64, length: given as u32, lkey: 0 };
                request.send_flags |= IBV_SEND_INLINE;
                request.sg_list = inline;
                request.num_sge = i32::from(given > 0);
            }
        }
        Ok(request)
    }
}

/// Posts batch by batch, and counts those that were taken.
fn each_batch<T>(
    wrs: &[T],
    mut post: impl FnMut(&[T]) -> Result<(), Partial>,
) -> Result<(), Partial> {
    for (index, batch) in wrs.chunks(BATCH).enumerate() {
        post(batch).map_err(|(taken, error)| (index * BATCH + taken, error))?;
    }
    Ok(())
}

fn rdma(remote: Remote) -> ibv_wr_target {
    ibv_wr_target { rdma: ibv_wr_rdma { remote_addr: remote.addr, rkey: remote.rkey } }
}

fn atomic(remote: Remote, compare_add: u64, swap: u64) -> ibv_wr_target {
    let Remote { addr, rkey } = remote;
    ibv_wr_target { atomic: ibv_wr_atomic { remote_addr: addr, compare_add, swap, rkey } }
}

fn flags(flags: SendFlags) -> u32 {
    let pairs = [
        (SendFlags::FENCE, IBV_SEND_FENCE),
        (SendFlags::SIGNALED, IBV_SEND_SIGNALED),
        (SendFlags::SOLICITED, IBV_SEND_SOLICITED),
    ];
    let set = pairs.iter().filter(|(flag, _)| flags.contains(*flag));
    set.fold(0, |all, (_, bit)| all | bit)
}

/// A receive in verbs, which refers to the list of `wr`.
pub(crate) fn recv_request(wr: &RecvWr<'_>, max_sge: usize) -> Result<ibv_recv_wr, PostError> {
    check_sges(wr.sges, max_sge)?;
    Ok(ibv_recv_wr {
        wr_id: wr.wr_id,
        next: null_mut(),
        sg_list: wr.sges.as_ptr().cast::<ibv_sge>().cast_mut(),
        num_sge: wr.sges.len() as i32,
    })
}

fn check_sges(sges: &[Sge], max: usize) -> Result<(), PostError> {
    match sges.len() {
        given if given > max => Err(PostError::TooManySges { given, max }),
        _ => Ok(()),
    }
}

/// What a posting function has returned: an error number, or −1 with one in `errno`.
pub(crate) fn post_error(code: i32) -> Result<(), PostError> {
    let errno = match code {
        0 => return Ok(()),
        code if code > 0 => code,
        _ => io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
    };
    match errno {
        libc::ENOMEM | libc::EAGAIN | libc::ENOSPC => Err(PostError::Full),
        errno => Err(PostError::Refused { errno }),
    }
}
