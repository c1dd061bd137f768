//! Collective operations for C programs.
//!
//! With a place for a handle, a call starts the operation and returns; without one, it waits until
//! the operation has ended.

use std::ffi::c_void;

use bowline::{Access, DataType, Operation, ReduceOp, Request};

use crate::memory::{data_type, give, object, reduce_op, tensor};
use crate::{Trouble, bowline_comm, bowline_work, guard};

pub use crate::memory::{
    BOWLINE_AVERAGE, BOWLINE_BF16, BOWLINE_F16, BOWLINE_F32, BOWLINE_F64, BOWLINE_I8, BOWLINE_I32,
    BOWLINE_I64, BOWLINE_MAX, BOWLINE_MIN, BOWLINE_PRODUCT, BOWLINE_SUM, BOWLINE_U8, BOWLINE_U32,
    BOWLINE_U64,
};

/// The memory of a call, and where to store its handle.
struct Call {
    comm: *const bowline_comm,
    input: *const c_void,
    output: *mut c_void,
    work: *mut *mut bowline_work,
}

impl Call {
    /// Starts an operation. Without an input it works in place.
    ///
    /// # Safety
    /// As documented for each operation.
    unsafe fn start(
        self,
        operation: Operation,
        dtype: DataType,
        op: ReduceOp,
    ) -> Result<(), Trouble> {
        // SAFETY: upheld by the caller.
        let comm = unsafe { object(self.comm, "the communicator") }?;
        let can_be_in_place = !matches!(
            operation,
            Operation::AllToAll { .. }
                | Operation::AllToAllV { .. }
                | Operation::Scatter { .. }
                | Operation::Send { .. }
                | Operation::Recv { .. }
                | Operation::Barrier
        );
        let in_place = can_be_in_place && self.input.is_null();
        let request = Request { dtype, op, in_place, ..Request::new(operation) };
        let (rank, ranks) = (comm.comm.rank(), comm.comm.size());
        let (input_bytes, output_bytes) =
            request.bytes(rank, ranks).map_err(bowline::Error::from)?;
        // SAFETY: upheld by the caller: the buffers have as many bytes as the operation uses.
        let (input, output) = unsafe {
            (
                tensor(&comm.pd, self.input.cast_mut(), input_bytes, dtype, Access::empty())?,
                tensor(&comm.pd, self.output, output_bytes, dtype, Access::LOCAL_WRITE)?,
            )
        };
        let tensors = [&input, &output].map(|pair| pair.as_ref().map(|(_, tensor)| tensor));
        let started = comm.comm.start(&request, tensors[0], tensors[1])?;
        let regions = [input, output].into_iter().flatten().map(|(mr, _)| mr).collect();
        let work = bowline_work::new(started, regions);
        if self.work.is_null() {
            return work.wait_long().map(drop);
        }
        // SAFETY: upheld by the caller.
        unsafe { give(self.work, work) }
    }
}

/// All ranks get the reduction of `count` elements of all ranks. Without an input it works in
/// place.
///
/// # Safety
/// For all operations: `comm` has not been freed. Input and output have the elements that the
/// operation reads and writes, and do not overlap. The program does not touch them until the
/// operation has ended: when the call returns or, with a place for a handle in `work`, when
/// `bowline_work_wait` or `bowline_work_free` returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_allreduce(
    comm: *const bowline_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: u32,
    op: u32,
    work: *mut *mut bowline_work,
) -> i32 {
    guard(|| {
        let operation = Operation::Allreduce { count };
        // SAFETY: upheld by the caller.
        unsafe {
            Call { comm, input, output, work }.start(operation, data_type(dtype)?, reduce_op(op)?)
        }
    })
}

/// Rank r gets the r-th block of `count` elements of the reduction. In place, the output holds the
/// blocks of all ranks, and the result replaces this rank's block.
///
/// # Safety
/// As for `bowline_allreduce`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_reduce_scatter(
    comm: *const bowline_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: u32,
    op: u32,
    work: *mut *mut bowline_work,
) -> i32 {
    guard(|| {
        let operation = Operation::ReduceScatter { count };
        // SAFETY: upheld by the caller.
        unsafe {
            Call { comm, input, output, work }.start(operation, data_type(dtype)?, reduce_op(op)?)
        }
    })
}

/// All ranks get the blocks of `count` elements of all ranks. In place, this rank's block is at its
/// position in the output.
///
/// # Safety
/// As for `bowline_allreduce`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_allgather(
    comm: *const bowline_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: u32,
    work: *mut *mut bowline_work,
) -> i32 {
    guard(|| {
        let operation = Operation::Allgather { count };
        // SAFETY: upheld by the caller.
        unsafe {
            Call { comm, input, output, work }.start(operation, data_type(dtype)?, ReduceOp::Sum)
        }
    })
}

/// Rank r gets the r-th block of `count` elements of all ranks.
///
/// # Safety
/// As for `bowline_allreduce`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_all_to_all(
    comm: *const bowline_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: u32,
    work: *mut *mut bowline_work,
) -> i32 {
    guard(|| {
        let operation = Operation::AllToAll { count };
        // SAFETY: upheld by the caller.
        unsafe {
            Call { comm, input, output, work }.start(operation, data_type(dtype)?, ReduceOp::Sum)
        }
    })
}

/// Like `bowline_all_to_all`, but blocks differ in length: `send_counts[r]` elements go to rank r
/// and `recv_counts[r]` come from it. Blocks lie one after another.
///
/// # Safety
/// As for `bowline_allreduce`; both lists have a count for each rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_all_to_all_counts(
    comm: *const bowline_comm,
    input: *const c_void,
    send_counts: *const usize,
    output: *mut c_void,
    recv_counts: *const usize,
    dtype: u32,
    work: *mut *mut bowline_work,
) -> i32 {
    guard(|| {
        // SAFETY: upheld by the caller.
        let ranks = unsafe { object(comm, "the communicator") }?.comm.size() as usize;
        let counts = |list: *const usize| {
            if list.is_null() {
                return Err(Trouble::caller("a list of counts is NULL"));
            }
            // SAFETY: upheld by the caller.
            Ok(unsafe { std::slice::from_raw_parts(list, ranks) }.to_vec())
        };
        let operation =
            Operation::AllToAllV { send: counts(send_counts)?, recv: counts(recv_counts)? };
        // SAFETY: upheld by the caller.
        unsafe {
            Call { comm, input, output, work }.start(operation, data_type(dtype)?, ReduceOp::Sum)
        }
    })
}

/// All ranks get the root's `count` elements, in place.
///
/// # Safety
/// As for `bowline_allreduce`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_broadcast(
    comm: *const bowline_comm,
    data: *mut c_void,
    count: usize,
    dtype: u32,
    root: u32,
    work: *mut *mut bowline_work,
) -> i32 {
    guard(|| {
        let operation = Operation::Broadcast { count, root };
        let call = Call { comm, input: std::ptr::null(), output: data, work };
        // SAFETY: upheld by the caller.
        unsafe { call.start(operation, data_type(dtype)?, ReduceOp::Sum) }
    })
}

/// The root gets the reduction of `count` elements of all ranks. Without an input it works in
/// place, and the elements of the other ranks do not change; with one, only the root needs an
/// output.
///
/// # Safety
/// As for `bowline_allreduce`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_reduce(
    comm: *const bowline_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: u32,
    op: u32,
    root: u32,
    work: *mut *mut bowline_work,
) -> i32 {
    guard(|| {
        let operation = Operation::Reduce { count, root };
        // SAFETY: upheld by the caller.
        unsafe {
            Call { comm, input, output, work }.start(operation, data_type(dtype)?, reduce_op(op)?)
        }
    })
}

/// The root gets the blocks of `count` elements of all ranks. Only the root needs an output.
///
/// # Safety
/// As for `bowline_allreduce`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_gather(
    comm: *const bowline_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: u32,
    root: u32,
    work: *mut *mut bowline_work,
) -> i32 {
    guard(|| {
        if input.is_null() && count > 0 {
            return Err(Trouble::caller("gather needs an input at every rank"));
        }
        let operation = Operation::Gather { count, root };
        // SAFETY: upheld by the caller.
        unsafe {
            Call { comm, input, output, work }.start(operation, data_type(dtype)?, ReduceOp::Sum)
        }
    })
}

/// Rank r gets the r-th block of `count` elements of the root. Only the root needs an input.
///
/// # Safety
/// As for `bowline_allreduce`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_scatter(
    comm: *const bowline_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: u32,
    root: u32,
    work: *mut *mut bowline_work,
) -> i32 {
    guard(|| {
        let operation = Operation::Scatter { count, root };
        // SAFETY: upheld by the caller.
        unsafe {
            Call { comm, input, output, work }.start(operation, data_type(dtype)?, ReduceOp::Sum)
        }
    })
}

/// Ends when all ranks have called it.
///
/// # Safety
/// As for `bowline_allreduce`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_barrier(
    comm: *const bowline_comm,
    work: *mut *mut bowline_work,
) -> i32 {
    guard(|| {
        let call = Call { comm, input: std::ptr::null(), output: std::ptr::null_mut(), work };
        // SAFETY: upheld by the caller.
        unsafe { call.start(Operation::Barrier, DataType::U8, ReduceOp::Sum) }
    })
}

/// Sends `count` elements to a rank, which must receive the same number of the same type.
///
/// # Safety
/// As for `bowline_allreduce`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_send(
    comm: *const bowline_comm,
    data: *const c_void,
    count: usize,
    dtype: u32,
    to: u32,
    work: *mut *mut bowline_work,
) -> i32 {
    guard(|| {
        let call = Call { comm, input: data, output: std::ptr::null_mut(), work };
        // SAFETY: upheld by the caller.
        unsafe { call.start(Operation::Send { count, to }, data_type(dtype)?, ReduceOp::Sum) }
    })
}

/// Receives `count` elements from a rank. Sends and receives run concurrently; those between two
/// ranks run in order.
///
/// # Safety
/// As for `bowline_allreduce`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_recv(
    comm: *const bowline_comm,
    data: *mut c_void,
    count: usize,
    dtype: u32,
    from: u32,
    work: *mut *mut bowline_work,
) -> i32 {
    guard(|| {
        let call = Call { comm, input: std::ptr::null(), output: data, work };
        // SAFETY: upheld by the caller.
        unsafe { call.start(Operation::Recv { count, from }, data_type(dtype)?, ReduceOp::Sum) }
    })
}
