//! GIDs: in RoCEv2, the IP addresses of ports.

use core::ffi::c_int;
use std::net::{IpAddr, Ipv6Addr};

use bowline_nic::AddressVector;

use crate::abi::{IBV_GID_TYPE_ROCE_V2, ibv_ah_attr, ibv_context, ibv_gid, ibv_gid_entry};
use crate::context::{self, Context, PORT};
use crate::errno::{Errno, code, minus_one};
use crate::guard::guard;

/// Valid entries of the GID table. Both are the same: on other RoCE devices index 0 is often a
/// link-local GID and index 1 the one to use, and programs are configured with either.
pub(crate) const GIDS: u32 = 2;
/// Size of the table. Like any port's it has an empty entry, which programs know to skip.
pub(crate) const GID_TABLE_LEN: u32 = GIDS + 1;

/// The GID of an address.
pub(crate) fn of_addr(addr: IpAddr) -> ibv_gid {
    let v6 = match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    ibv_gid { raw: v6.octets() }
}

/// The address of a GID.
pub(crate) fn to_addr(gid: &ibv_gid) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(gid.raw)).to_canonical()
}

/// The destination of an address handle's attributes.
pub(crate) fn address_vector(ctx: &Context, attr: &ibv_ah_attr) -> Result<AddressVector, Errno> {
    // RoCE has no LIDs to route by: without a GRH there is no destination.
    if attr.is_global == 0 || attr.port_num != PORT || u32::from(attr.grh.sgid_index) >= GIDS {
        return Err(Errno::INVAL);
    }
    let dst = to_addr(&attr.grh.dgid);
    if dst.is_unspecified() || dst.is_ipv4() != ctx.device.addr.is_ipv4() {
        return Err(Errno::INVAL);
    }
    Ok(AddressVector { dst, traffic_class: attr.grh.traffic_class })
}

/// The attributes of an address handle to `av`.
pub(crate) fn ah_attr(av: &AddressVector) -> ibv_ah_attr {
    let mut attr = ibv_ah_attr { is_global: 1, port_num: PORT, ..Default::default() };
    attr.grh.dgid = of_addr(av.dst);
    attr.grh.hop_limit = 64;
    attr.grh.traffic_class = av.traffic_class;
    attr
}

fn entry(ctx: &Context, index: u32) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ctx.device.gid(),
        gid_index: index,
        port_num: PORT.into(),
        gid_type: IBV_GID_TYPE_ROCE_V2,
        ndev_ifindex: ctx.device.interface().map_or(0, |(_, index)| index),
    }
}

/// `ibv_query_gid`.
///
/// # Safety
/// `context` must be an open device's, and `gid` point to a GID.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    guard(-1, || {
        minus_one((|| {
            let ctx = context::find(context)?;
            let place = u32::try_from(index).ok().filter(|place| *place < GID_TABLE_LEN);
            let place = place.ok_or(Errno::INVAL)?;
            if port != PORT || gid.is_null() {
                return Err(Errno::INVAL);
            }
            // An empty place reads as zeros.
            let found = if place < GIDS { ctx.device.gid() } else { ibv_gid::default() };
            // SAFETY: not null, so a GID by the caller's word; it need not be aligned.
            unsafe { gid.write_unaligned(found) };
            Ok(())
        })())
    })
}

/// `ibv_query_gid_ex`, below its inline function.
///
/// # Safety
/// `context` must be an open device's, and `to` point to an entry of `entry_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    to: *mut ibv_gid_entry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    guard(libc::EIO, || {
        code((|| {
            let ctx = context::find(context)?;
            if flags != 0 || port != u32::from(PORT) || to.is_null() {
                return Err(Errno::INVAL);
            }
            if index >= GIDS {
                return Err(Errno(libc::ENODATA));
            }
            // SAFETY: `to` has `entry_size` bytes by the caller's word.
            unsafe { put(&entry(ctx, index), to, entry_size) };
            Ok(())
        })())
    })
}

/// `ibv_query_gid_table`, below its inline function: how many entries it wrote. A table that does
/// not fit is an error, as it is with the kernel.
///
/// # Safety
/// `context` must be an open device's, and `entries` point to `max_entries` entries of `entry_size`
/// bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    guard(-(libc::EIO as isize), || {
        let Ok(ctx) = context::find(context) else {
            return -(libc::EINVAL as isize);
        };
        let count = GIDS as usize;
        if flags != 0 || entries.is_null() || max_entries < count {
            return -(libc::EINVAL as isize);
        }
        for i in 0..count {
            // SAFETY: the array has `max_entries` places of `entry_size` bytes.
            unsafe {
                let to = entries.cast::<u8>().add(i * entry_size).cast();
                put(&entry(ctx, i as u32), to, entry_size);
            }
        }
        count as isize
    })
}

/// `ibv_query_gid_type`, which `ibv_devinfo` and librdmacm use: 1 stands for RoCEv2.
///
/// # Safety
/// `context` must be an open device's, and `kind` point to an `enum`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: u32,
    kind: *mut c_int,
) -> c_int {
    guard(-1, || {
        minus_one((|| {
            context::find(context)?;
            if port != PORT || index >= GID_TABLE_LEN || kind.is_null() {
                return Err(Errno::INVAL);
            }
            // SAFETY: not null, so an `enum` by the caller's word.
            unsafe { *kind = c_int::from(index < GIDS) };
            Ok(())
        })())
    })
}

/// Writes as much of `value` as fits `size` bytes, and zeroes after it: structures grow.
///
/// # Safety
/// `to` must point to `size` writable bytes.
pub(crate) unsafe fn put<T: Copy>(value: &T, to: *mut T, size: usize) {
    let known = size.min(size_of::<T>());
    let to = to.cast::<u8>();
    // SAFETY: `known` is at most the size of either; the rest of `to` is zeroed within `size`.
    unsafe {
        core::ptr::copy_nonoverlapping((&raw const *value).cast::<u8>(), to, known);
        core::ptr::write_bytes(to.add(known), 0, size - known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip() {
        for text in ["127.0.0.1", "10.1.2.3", "fd00::17"] {
            let addr: IpAddr = text.parse().unwrap();
            assert_eq!(to_addr(&of_addr(addr)), addr);
        }
        let raw = of_addr("1.2.3.4".parse().unwrap()).raw;
        assert_eq!(raw, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 1, 2, 3, 4]);
    }

    #[test]
    fn a_shorter_structure_gets_what_fits_and_a_longer_one_zeroes() {
        let entry = ibv_gid_entry { gid_index: 7, ndev_ifindex: 9, ..Default::default() };
        let mut bytes = [0xff_u8; 64];
        // SAFETY: 20 bytes of 64.
        unsafe { put(&entry, bytes.as_mut_ptr().cast(), 20) };
        assert_eq!(bytes[16..24], [7, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        // SAFETY: 40 bytes of 64.
        unsafe { put(&entry, bytes.as_mut_ptr().cast(), 40) };
        assert_eq!(bytes[28..41], [9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff]);
    }
}
