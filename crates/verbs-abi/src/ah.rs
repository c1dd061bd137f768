//! Address handles: where datagrams go.

use core::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bowline_nic::AddressVector;

use crate::abi::*;
use crate::context::{self, Context, PORT};
use crate::errno::{Errno, code, minus_one, object};
use crate::gid;
use crate::guard::guard;
use crate::handle::{self, Kind, Public};

/// An address handle.
pub(crate) struct Ah {
    ctx: Arc<Context>,
    pub(crate) av: AddressVector,
}

impl Public for ibv_ah {
    type Inner = Ah;
    const KIND: Kind = Kind::Ah;
}

fn create(pd: *mut ibv_pd, attr: &ibv_ah_attr) -> Result<*mut ibv_ah, Errno> {
    let domain = handle::find(pd)?;
    domain.ctx.core()?;
    let av = gid::address_vector(&domain.ctx, attr)?;
    domain.ctx.objects.fetch_add(1, Ordering::AcqRel);
    // SAFETY: `pd` was found to be live.
    let public = ibv_ah { context: unsafe { (*pd).context }, pd, handle: 0 };
    Ok(handle::create(public, Ah { ctx: Arc::clone(&domain.ctx), av }))
}

/// `ibv_create_ah`.
///
/// # Safety
/// `pd` must be a protection domain, and `attr` point to attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    guard(core::ptr::null_mut(), || {
        // SAFETY: null, or attributes by the caller's word.
        object(unsafe { attr.as_ref() }.ok_or(Errno::INVAL).and_then(|attr| create(pd, attr)))
    })
}

/// `ibv_destroy_ah`.
///
/// # Safety
/// `ah` must be an address handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    guard(libc::EIO, || {
        code(handle::find(ah).and_then(|inner| {
            inner.ctx.objects.fetch_sub(1, Ordering::AcqRel);
            handle::destroy(ah)
        }))
    })
}

/// The sender of the datagram with these 40 bytes: over IPv6 they are its IPv6 header, over IPv4
/// the last 20 are its IPv4 header.
fn sender(grh: &[u8; 40]) -> Option<AddressVector> {
    if grh[0] >> 4 == 6 {
        let src = Ipv6Addr::from(*grh[8..].first_chunk::<16>()?);
        let traffic_class = grh[0] << 4 | grh[1] >> 4;
        return Some(AddressVector { dst: IpAddr::V6(src), traffic_class });
    }
    if grh[20] >> 4 == 4 {
        let src = Ipv4Addr::from(*grh[32..].first_chunk::<4>()?);
        return Some(AddressVector { dst: IpAddr::V4(src), traffic_class: grh[21] });
    }
    None
}

/// The attributes of an address handle that answers a datagram.
///
/// # Safety
/// `wc` and `grh` must be null or point to what they say.
unsafe fn answer(port: u8, wc: *mut ibv_wc, grh: *mut ibv_grh) -> Result<ibv_ah_attr, Errno> {
    // SAFETY: null, or a completion by the caller's word.
    let wc = unsafe { wc.as_ref() }.ok_or(Errno::INVAL)?;
    if port != PORT || wc.wc_flags & IBV_WC_GRH == 0 || grh.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: not null, so 40 bytes by the caller's word; they need not be aligned.
    let bytes = unsafe { grh.cast::<[u8; 40]>().read_unaligned() };
    let mut attr = gid::ah_attr(&sender(&bytes).ok_or(Errno::INVAL)?);
    attr.sl = wc.sl;
    Ok(attr)
}

/// `ibv_init_ah_from_wc`.
///
/// # Safety
/// `context` must be an open device's, and the pointers lead to what they say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    guard(-1, || {
        minus_one((|| {
            context::find(context)?;
            if attr.is_null() {
                return Err(Errno::INVAL);
            }
            // SAFETY: as the caller promises of all three.
            unsafe { attr.write(answer(port, wc, grh)?) };
            Ok(())
        })())
    })
}

/// `ibv_create_ah_from_wc`.
///
/// # Safety
/// `pd` must be a protection domain, and the pointers lead to what they say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    guard(core::ptr::null_mut(), || {
        // SAFETY: as the caller promises.
        object(unsafe { answer(port, wc, grh) }.and_then(|attr| create(pd, &attr)))
    })
}

/// `ibv_resolve_eth_l2_from_gid`: the kernel resolves link addresses, packet by packet.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_resolve_eth_l2_from_gid(
    _context: *mut ibv_context,
    _attr: *mut ibv_ah_attr,
    _eth_mac: *mut u8,
    _vid: *mut u16,
) -> c_int {
    code(Err(Errno::UNSUPPORTED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sender_of_a_datagram_is_found_in_its_header() {
        for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let grh =
                bowline_wire::ud_grh(src.parse().unwrap(), dst.parse().unwrap(), 0x68, 64, 100);
            let av = sender(&grh).unwrap();
            assert_eq!(av.dst, src.parse::<IpAddr>().unwrap());
            assert_eq!(av.traffic_class, 0x68);
        }
        assert_eq!(sender(&[0; 40]), None);
    }
}
