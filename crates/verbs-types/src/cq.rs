//! Completion queues and completions.

use core::ffi::{c_int, c_uint, c_void};

use super::{ibv_comp_channel, ibv_context, ibv_pd};

#[repr(C)]
pub struct ibv_cq {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}

#[repr(C)]
pub struct ibv_poll_cq_attr {
    pub comp_mask: u32,
}

/// Begins like [`ibv_cq`].
#[repr(C)]
pub struct ibv_cq_ex {
    pub cq: ibv_cq,
    pub comp_mask: u32,
    pub status: c_uint,
    pub wr_id: u64,
    pub start_poll: unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int,
    pub next_poll: unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int,
    pub end_poll: unsafe extern "C" fn(*mut ibv_cq_ex),
    pub read_opcode: unsafe extern "C" fn(*mut ibv_cq_ex) -> c_uint,
    pub read_vendor_err: unsafe extern "C" fn(*mut ibv_cq_ex) -> u32,
    pub read_byte_len: unsafe extern "C" fn(*mut ibv_cq_ex) -> u32,
    pub read_imm_data: unsafe extern "C" fn(*mut ibv_cq_ex) -> u32,
    pub read_qp_num: unsafe extern "C" fn(*mut ibv_cq_ex) -> u32,
    pub read_src_qp: unsafe extern "C" fn(*mut ibv_cq_ex) -> u32,
    pub read_wc_flags: unsafe extern "C" fn(*mut ibv_cq_ex) -> c_uint,
    pub read_slid: unsafe extern "C" fn(*mut ibv_cq_ex) -> u32,
    pub read_sl: unsafe extern "C" fn(*mut ibv_cq_ex) -> u8,
    pub read_dlid_path_bits: unsafe extern "C" fn(*mut ibv_cq_ex) -> u8,
    pub read_completion_ts: unsafe extern "C" fn(*mut ibv_cq_ex) -> u64,
    pub read_cvlan: unsafe extern "C" fn(*mut ibv_cq_ex) -> u16,
    pub read_flow_tag: unsafe extern "C" fn(*mut ibv_cq_ex) -> u32,
    pub read_tm_info: unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_wc_tm_info),
    pub read_completion_wallclock_ns: unsafe extern "C" fn(*mut ibv_cq_ex) -> u64,
}

#[repr(C)]
pub struct ibv_wc_tm_info {
    pub tag: u64,
    pub priv_data: u32,
}

#[repr(C)]
pub struct ibv_cq_init_attr_ex {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut ibv_comp_channel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    pub parent_domain: *mut ibv_pd,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ibv_wc {
    pub wr_id: u64,
    pub status: c_uint,
    pub opcode: c_uint,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// Immediate data in network byte order, or the key that was invalidated.
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

pub const IBV_WC_SEND: c_uint = 0;
pub const IBV_WC_RDMA_WRITE: c_uint = 1;
pub const IBV_WC_RDMA_READ: c_uint = 2;
pub const IBV_WC_COMP_SWAP: c_uint = 3;
pub const IBV_WC_FETCH_ADD: c_uint = 4;
pub const IBV_WC_BIND_MW: c_uint = 5;
pub const IBV_WC_LOCAL_INV: c_uint = 6;
pub const IBV_WC_RECV: c_uint = 1 << 7;
pub const IBV_WC_RECV_RDMA_WITH_IMM: c_uint = (1 << 7) + 1;

pub const IBV_WC_GRH: c_uint = 1;
pub const IBV_WC_WITH_IMM: c_uint = 1 << 1;
pub const IBV_WC_WITH_INV: c_uint = 1 << 3;

/// Byte length, immediate, QP numbers, LIDs and service level: the columns of [`ibv_wc`].
pub const IBV_WC_STANDARD_FLAGS: u64 = 0x7f;
pub const IBV_WC_EX_WITH_COMPLETION_TIMESTAMP: u64 = 1 << 7;
pub const IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK: u64 = 1 << 11;

pub const IBV_CQ_INIT_ATTR_MASK_FLAGS: u32 = 1;
pub const IBV_CQ_INIT_ATTR_MASK_PD: u32 = 2;
pub const IBV_CREATE_CQ_ATTR_SINGLE_THREADED: u32 = 1;
