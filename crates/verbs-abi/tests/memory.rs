//! Memory that the library gives, and what is known of memory under a second pointer.

#![allow(clippy::undocumented_unsafe_blocks, reason = "see support")]

mod support;

use std::mem::{offset_of, zeroed};
use std::ptr::null_mut;

use support::*;

const PAGE: usize = 4096;

/// A buffer of a domain: its address and its handle.
fn alloc_buf(pd: *mut ibv_pd, size: usize) -> (u64, *mut ibv_buf) {
    let mut buf = null_mut();
    let addr = unsafe { ibv_alloc_buf(pd, size, &mut buf) };
    assert!(!addr.is_null() && !buf.is_null(), "errno {}", errno());
    (addr as u64, buf)
}

fn reg_buf(pd: *mut ibv_pd, buf: *mut ibv_buf, addr: u64, len: usize) -> *mut ibv_mr {
    unsafe { ibv_reg_buf_mr(pd, buf, addr as *mut _, len, ALL_ACCESS as i32) }
}

#[test]
fn a_buffer_is_registered_in_its_domain_and_written_to() {
    let (mut a, qa, b, qb) = pair(IBV_QPT_RC, Terms::default());
    a.memory[..8].copy_from_slice(b"buffered");
    let (addr, buf) = alloc_buf(b.pd, 2 * PAGE);
    assert_eq!(addr as usize % PAGE, 0);
    let mr = reg_buf(b.pd, buf, addr + PAGE as u64, PAGE);
    assert!(!mr.is_null());
    assert_eq!(unsafe { (*mr).addr } as u64, addr + PAGE as u64);
    // The region keeps the memory.
    unsafe { ibv_free_buf(buf) };
    let mut sge = a.sge(0, 8);
    let remote = (addr + PAGE as u64, unsafe { (*mr).rkey });
    assert_eq!(post_send(qa, &mut write_wr(1, &mut sge, remote)), 0);
    assert_eq!(a.completion().status, SUCCESS);
    let written: [u8; 8] = unsafe { (remote.0 as *const [u8; 8]).read_volatile() };
    assert_eq!(&written, b"buffered");
    assert_eq!(unsafe { ibv_dereg_mr(mr) }, 0);
    a.close(&[qa]);
    b.close(&[qb]);
}

#[test]
fn what_is_not_of_the_buffer_is_refused() {
    let end = End::open(0);
    let other = unsafe { ibv_alloc_pd(end.ctx) };
    let (addr, buf) = alloc_buf(end.pd, PAGE);
    let refused = |pd, addr, len| {
        assert!(reg_buf(pd, buf, addr, len).is_null());
        assert_eq!(errno(), libc::EINVAL);
    };
    refused(other, addr, PAGE);
    refused(end.pd, addr, PAGE + 1);
    refused(end.pd, addr + PAGE as u64, PAGE);
    refused(end.pd, addr - 1, 1);
    assert_eq!(unsafe { ibv_export_buf_dmabuf_fd(buf) }, -1);
    assert_eq!(errno(), libc::ENODATA);
    let mut none = null_mut();
    assert!(unsafe { ibv_alloc_buf(end.pd, 0, &mut none) }.is_null());
    unsafe { ibv_free_buf(buf) };
    assert!(reg_buf(end.pd, buf, addr, PAGE).is_null(), "a buffer that is gone");
    assert_eq!(unsafe { ibv_dealloc_pd(other) }, 0);
    end.close(&[]);
}

fn dmah_attr(ph: u8, tph_mem_type: u8, cpu_id: u32) -> ibv_dmah_init_attr {
    let comp_mask = IBV_DMAH_INIT_ATTR_MASK_CPU_ID
        | IBV_DMAH_INIT_ATTR_MASK_PH
        | IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE;
    ibv_dmah_init_attr { comp_mask, cpu_id, ph, tph_mem_type }
}

#[test]
fn a_dma_handle_is_a_hint_that_is_checked() {
    let end = End::open(0);
    for (ph, memory, cpu) in [(4, 0, 0), (0, 2, 0), (3, 0, 0xffff)] {
        let mut attr = dmah_attr(ph, memory, cpu);
        assert!(unsafe { ibv_alloc_dmah(end.ctx, &mut attr) }.is_null(), "{ph} {memory} {cpu}");
    }
    let dmah = unsafe { ibv_alloc_dmah(end.ctx, &mut dmah_attr(3, IBV_TPH_MEM_TYPE_PM, 0)) };
    assert!(!dmah.is_null());
    let mut attr: ibv_mr_init_attr = unsafe { zeroed() };
    attr.comp_mask = IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_DMAH;
    (attr.addr, attr.length) = (end.memory.as_ptr().cast_mut().cast(), PAGE);
    (attr.access, attr.dmah) = (ALL_ACCESS as i32, dmah);
    let mr = unsafe { ibv_reg_mr_ex(end.pd, &attr) };
    assert!(!mr.is_null());
    attr.access |= IBV_ACCESS_ON_DEMAND as i32;
    assert!(unsafe { ibv_reg_mr_ex(end.pd, &attr) }.is_null(), "it is not for memory on demand");
    unsafe {
        assert_eq!(ibv_dealloc_dmah(dmah), 0);
        assert_eq!(ibv_dealloc_dmah(dmah), libc::EINVAL);
        assert_eq!(ibv_dereg_mr(mr), 0);
    }
    end.close(&[]);
}

#[test]
fn a_device_is_imported_by_its_descriptor_with_what_is_on_it() {
    let (mut a, qa, b, qb) = pair(IBV_QPT_RC, Terms::default());
    a.memory[..8].copy_from_slice(b"imported");
    unsafe {
        let fd = libc::dup((*b.ctx).cmd_fd);
        let ctx = ibv_import_device(fd);
        assert!(!ctx.is_null() && ctx != b.ctx);
        let pd = ibv_import_pd(ctx, (*b.pd).handle);
        let mr = ibv_import_mr(pd, (*b.mr).handle);
        assert!(!pd.is_null() && !mr.is_null());
        assert_eq!(((*mr).rkey, (*mr).addr), (b.rkey(), null_mut()));
        assert_eq!(ibv_dealloc_pd(b.pd), libc::EBUSY);
        assert!(ibv_import_pd(ctx, 0xffff).is_null());
        assert!(ibv_import_mr(pd, !(*b.mr).handle).is_null());

        // Registered through the import, and used by a peer of the original's.
        let fresh = vec![0_u8; PAGE];
        let (at, access) = (fresh.as_ptr().cast_mut().cast(), ALL_ACCESS as i32);
        let new = ibv_reg_mr(pd, at, PAGE, access);
        let mut sge = a.sge(0, 8);
        let remote = (fresh.as_ptr() as u64, (*new).rkey);
        assert_eq!(post_send(qa, &mut write_wr(1, &mut sge, remote)), 0);
        assert_eq!(a.completion().status, SUCCESS);
        assert_eq!(fresh.as_ptr().cast::<[u8; 8]>().read_volatile(), *b"imported");
        assert_eq!(ibv_dereg_mr(new), 0);

        ibv_unimport_mr(mr);
        ibv_unimport_pd(pd);
        assert_eq!(ibv_close_device(ctx), 0);
        assert_eq!(libc::fcntl(fd, libc::F_GETFD), -1, "the descriptor was the context's");
        // The original goes on.
        let remote = (b.addr(100), b.rkey());
        assert_eq!(post_send(qa, &mut write_wr(2, &mut sge, remote)), 0);
        assert_eq!(a.completion().status, SUCCESS);
    }
    a.close(&[qa]);
    b.close(&[qb]);
}

#[test]
fn descriptors_of_no_device_import_none() {
    let end = End::open(0);
    let null = std::fs::File::open("/dev/null").unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&null);
    assert!(ibv_import_device(fd).is_null());
    assert_eq!(errno(), libc::EOPNOTSUPP);
    assert!(ibv_import_device(-1).is_null());
    assert_eq!(errno(), libc::EBADF);
    end.close(&[]);
}

#[test]
fn imported_device_memory_is_the_same_memory() {
    let end = End::open(0);
    unsafe {
        let container = |ctx: *mut ibv_context| {
            ctx.wrapping_byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>()
        };
        let ops = &*container(end.ctx);
        let attr = ibv_alloc_dm_attr { length: 64, log_align_req: 0, comp_mask: 0 };
        let dm = (ops.alloc_dm)(end.ctx, &attr);
        let other = (ops.alloc_dm)(end.ctx, &attr);
        assert_ne!((*dm).handle, (*other).handle);
        let ctx = ibv_import_device(libc::dup((*end.ctx).cmd_fd));
        let again = ibv_import_dm(ctx, (*dm).handle);
        assert!(!again.is_null());
        assert_eq!(((*dm).memcpy_to_dm)(dm, 4, c"both".as_ptr().cast(), 4), 0);
        let mut found = [0_u8; 4];
        assert_eq!(((*again).memcpy_from_dm)(found.as_mut_ptr().cast(), again, 4, 4), 0);
        assert_eq!(&found, b"both");
        ibv_unimport_dm(again);
        assert_eq!((ops.free_dm)(dm), 0);
        assert_eq!((ops.free_dm)(other), 0);
        assert_eq!(ibv_close_device(ctx), 0);
    }
    end.close(&[]);
}
