//! Attributes and capabilities of a device and its port.

use core::ffi::{c_char, c_int, c_void};
use core::mem::offset_of;

use bowline_io::LinkState;

use crate::abi::*;
use crate::context::{self, Context, PORT};
use crate::dm::MAX_DM_BYTES;
use crate::errno::{Errno, code, minus_one};
use crate::gid::{GID_TABLE_LEN, put};
use crate::guard::guard;
use crate::modify::mtu_number;

/// The partition that every port is a full member of.
const PKEY: u16 = 0xffff;
/// A locally administered OUI, which no vendor has: programs know the quirks of some vendors'
/// parts, and take 0 for a device that could not be queried.
const VENDOR_ID: u32 = 0x02_42_6f;
const VENDOR_PART_ID: u32 = 0xb0;
pub(crate) const FW_VERSION: &str = env!("CARGO_PKG_VERSION");

/// Link width 1x and speed 32 (25.78125 Gb/s): nominal, since a soft NIC has none.
const WIDTH_1X: u8 = 1;
const SPEED_EDR: u8 = 32;
/// The same in units of 100 Mbit/s.
const PORT_SPEED: u64 = 250;
const PHYS_DISABLED: u8 = 3;
const PHYS_LINK_UP: u8 = 5;
/// `IBV_QPF_GRH_REQUIRED`: on RoCE every destination has a GID.
const GRH_REQUIRED: u8 = 1;

/// Registered memory is reached through the process's own page tables: all transports also support
/// memory on demand. Bits are SEND, RECV, WRITE, READ, atomics, shared receive queue.
const ODP: ibv_odp_caps = ibv_odp_caps {
    general_caps: 1,
    rc_odp_caps: 0b11_1111,
    uc_odp_caps: 0b00_0111,
    ud_odp_caps: 0b10_0011,
};

fn device_attr(ctx: &Context) -> ibv_device_attr {
    let limits = ctx.peek().config();
    let int = |value: u32| c_int::try_from(value).unwrap_or(c_int::MAX);
    let rd_atomic = c_int::from(limits.max_rd_atomic);
    // A window's binding does not move to a backup.
    let windows = ctx.peek().backup_lanes().is_empty();
    let mut fw_ver = [0; 64];
    for (to, from) in fw_ver.iter_mut().zip(FW_VERSION.bytes()) {
        *to = from as c_char;
    }
    ibv_device_attr {
        fw_ver,
        node_guid: ctx.device.guid().to_be(),
        sys_image_guid: ctx.device.guid().to_be(),
        max_mr_size: u64::MAX >> 1,
        page_size_cap: 0xffff_f000,
        vendor_id: VENDOR_ID,
        vendor_part_id: VENDOR_PART_ID,
        hw_ver: 0,
        max_qp: int(limits.max_qps),
        max_qp_wr: int(limits.max_wr),
        device_cap_flags: IBV_DEVICE_CURR_QP_STATE_MOD
            | IBV_DEVICE_RC_RNR_NAK_GEN
            | IBV_DEVICE_SYS_IMAGE_GUID
            | IBV_DEVICE_XRC
            | IBV_DEVICE_SRQ_RESIZE
            | if windows { IBV_DEVICE_MEM_WINDOW_TYPE_2B } else { 0 }
            | if windows && ctx.peek().lanes().len() == 1 { IBV_DEVICE_MEM_WINDOW } else { 0 },
        max_sge: c_int::from(limits.max_sge),
        max_sge_rd: c_int::from(limits.max_sge),
        max_cq: int(limits.max_cqs),
        max_cqe: int(limits.max_cqe),
        max_mr: int(limits.max_mrs),
        max_pd: int(limits.max_pds),
        max_qp_rd_atom: rd_atomic,
        max_ee_rd_atom: 0,
        max_res_rd_atom: rd_atomic.saturating_mul(int(limits.max_qps)),
        max_qp_init_rd_atom: rd_atomic,
        max_ee_init_rd_atom: 0,
        atomic_cap: IBV_ATOMIC_GLOB,
        max_ee: 0,
        max_rdd: 0,
        max_mw: if windows { int(limits.max_mrs) } else { 0 },
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: 0,
        max_mcast_grp: int(limits.max_groups),
        max_mcast_qp_attach: int(limits.max_group_members),
        max_total_mcast_qp_attach: int(limits.max_groups.saturating_mul(limits.max_group_members)),
        max_ah: c_int::MAX,
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: int(limits.max_srqs),
        max_srq_wr: int(limits.max_wr),
        max_srq_sge: c_int::from(limits.max_sge),
        max_pkeys: 1,
        local_ca_ack_delay: 15,
        phys_port_cnt: 1,
    }
}

/// `ibv_query_device`.
///
/// # Safety
/// `context` must be an open device's, and `attr` point to attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    guard(libc::EIO, || {
        code((|| {
            let ctx = context::find(context)?;
            if attr.is_null() {
                return Err(Errno::INVAL);
            }
            // SAFETY: not null, so attributes by the caller's word.
            unsafe { attr.write(device_attr(ctx)) };
            Ok(())
        })())
    })
}

/// `ibv_query_device_ex`, in the context's table.
///
/// # Safety
/// `context` must be an open device's, and `attr` have `size` bytes.
pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    guard(libc::EIO, || {
        code((|| {
            let ctx = context::find(context)?;
            // SAFETY: null, or an input by the caller's word.
            let wants = unsafe { input.as_ref() }.map_or(0, |input| input.comp_mask);
            if attr.is_null() || wants != 0 || size < size_of::<ibv_device_attr>() {
                return Err(Errno::INVAL);
            }
            // SAFETY: all fields are integers, for which zeroes are valid.
            let mut found: ibv_device_attr_ex = unsafe { core::mem::zeroed() };
            found.orig_attr = device_attr(ctx);
            found.device_cap_flags_ex = found.orig_attr.device_cap_flags.into();
            // Completions are stamped with the device's clock, which counts nanoseconds.
            found.completion_timestamp_mask = u64::MAX;
            found.hca_core_clock = 1_000_000;
            found.phys_port_cnt_ex = 1;
            found.odp_caps = ODP;
            found.xrc_odp_caps = ODP.rc_odp_caps;
            found.max_dm_size = MAX_DM_BYTES as u64;
            // SAFETY: `attr` has `size` bytes, by the caller's word.
            unsafe { put(&found, attr, size) };
            Ok(())
        })())
    })
}

fn port_attr(ctx: &Context) -> ibv_port_attr {
    let active_mtu = mtu_number(ctx.peek().config().max_mtu);
    let (state, phys_state) = match ctx.peek().link() {
        LinkState::Up => (IBV_PORT_ACTIVE, PHYS_LINK_UP),
        LinkState::Down => (IBV_PORT_DOWN, PHYS_DISABLED),
    };
    ibv_port_attr {
        state,
        max_mtu: active_mtu.max(5),
        active_mtu,
        gid_tbl_len: GID_TABLE_LEN as c_int,
        port_cap_flags: IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS,
        max_msg_sz: 1 << 31,
        pkey_tbl_len: 1,
        max_vl_num: 1,
        subnet_timeout: 18,
        active_width: WIDTH_1X,
        active_speed: SPEED_EDR,
        phys_state,
        link_layer: IBV_LINK_LAYER_ETHERNET,
        flags: GRH_REQUIRED,
        ..ibv_port_attr::default()
    }
}

/// Writes a port's attributes into `size` bytes.
///
/// # Safety
/// `context` must be an open device's, and `attr` have `size` bytes.
unsafe fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> Result<(), Errno> {
    let ctx = context::find(context)?;
    if port != PORT || attr.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: by the contract above.
    unsafe { put(&port_attr(ctx), attr, size) };
    Ok(())
}

/// `ibv_query_port`, in the context's table.
///
/// # Safety
/// `context` must be an open device's, and `attr` have `size` bytes.
pub(crate) unsafe extern "C" fn query_port_ex(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    // SAFETY: as the caller promises.
    guard(libc::EIO, || code(unsafe { query_port(context, port, attr, size) }))
}

/// `ibv_query_port`, as programs made with old headers call it: without the last field.
///
/// # Safety
/// `context` must be an open device's, and `attr` point to attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut c_void,
) -> c_int {
    let size = offset_of!(ibv_port_attr, port_cap_flags2);
    // SAFETY: as the caller promises: the old structure ends before that field.
    guard(libc::EIO, || code(unsafe { query_port(context, port, attr.cast(), size) }))
}

/// `ibv_query_port_speed`, in units of 100 Mbit/s.
///
/// # Safety
/// `context` must be an open device's, and `speed` point to 64 bits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port_speed(
    context: *mut ibv_context,
    port: u32,
    speed: *mut u64,
) -> c_int {
    guard(libc::EIO, || {
        code((|| {
            context::find(context)?;
            if port != u32::from(PORT) || speed.is_null() {
                return Err(Errno::INVAL);
            }
            // SAFETY: not null, so 64 bits by the caller's word.
            unsafe { *speed = PORT_SPEED };
            Ok(())
        })())
    })
}

/// `ibv_query_pkey`, in network byte order.
///
/// # Safety
/// `context` must be an open device's, and `pkey` point to 16 bits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    guard(-1, || {
        minus_one((|| {
            context::find(context)?;
            if port != PORT || index != 0 || pkey.is_null() {
                return Err(Errno::INVAL);
            }
            // SAFETY: not null, so 16 bits by the caller's word.
            unsafe { *pkey = PKEY.to_be() };
            Ok(())
        })())
    })
}

/// `ibv_get_pkey_index`.
///
/// # Safety
/// `context` must be an open device's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_pkey_index(
    context: *mut ibv_context,
    port: u8,
    pkey: u16,
) -> c_int {
    guard(-1, || {
        minus_one(context::find(context).and_then(|_| {
            // The top bit only tells full from limited membership.
            let is_ours = port == PORT && u16::from_be(pkey) & 0x7fff == PKEY & 0x7fff;
            if is_ours { Ok(()) } else { Err(Errno::INVAL) }
        }))
    })
}

/// `ibv_query_rt_values_ex`, in the context's table: the device's clock.
///
/// # Safety
/// `context` must be an open device's, and `values` point to values.
pub(crate) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    guard(libc::EIO, || {
        code((|| {
            let ctx = context::find(context)?;
            // SAFETY: null, or values by the caller's word.
            let values = unsafe { values.as_mut() }.ok_or(Errno::INVAL)?;
            values.comp_mask &= IBV_VALUES_MASK_RAW_CLOCK;
            if values.comp_mask != 0 {
                let ns = ctx.core()?.now().as_nanos();
                values.raw_clock.tv_sec = (ns / 1_000_000_000) as libc::time_t;
                values.raw_clock.tv_nsec = (ns % 1_000_000_000) as libc::c_long;
            }
            Ok(())
        })())
    })
}
