//! Memory windows from a program's side.

#![allow(clippy::undocumented_unsafe_blocks, reason = "see support")]

mod support;

use std::mem::zeroed;

use support::*;

/// Statuses, by their numbers in the header.
const MW_BIND_ERR: u32 = 6;
const REM_ACCESS_ERR: u32 = 10;

/// An end's memory once more, as one that windows can be bound to.
fn bindable(end: &End) -> *mut ibv_mr {
    let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND;
    let (addr, len) = (end.memory.as_ptr(), end.memory.len());
    unsafe { ibv_reg_mr(end.pd, addr.cast_mut().cast(), len, access as i32) }
}

fn bind_wr(wr_id: u64, mw: *mut ibv_mw, rkey: u32, mr: *mut ibv_mr, addr: u64) -> ibv_send_wr {
    let bind_info =
        ibv_mw_bind_info { mr, addr, length: 4096, mw_access_flags: IBV_ACCESS_REMOTE_WRITE };
    let mut wr = send_wr(wr_id, IBV_WR_BIND_MW);
    wr.bind_mw = ibv_wr_bind_mw { mw, rkey, bind_info };
    wr
}

#[test]
fn a_window_is_bound_used_and_revoked() {
    let (mut a, qa, b, qb) = pair(IBV_QPT_RC, Terms::default());
    a.memory[..8].copy_from_slice(b"windowed");
    let mr = bindable(&b);
    let ops = unsafe { &(*b.ctx).ops };
    let mw = unsafe { (ops.alloc_mw)(b.pd, IBV_MW_TYPE_2) };
    assert!(!mw.is_null());
    let rkey = unsafe { (*mw).rkey } | 0x42;
    assert_eq!(post_send(qb, &mut bind_wr(7, mw, rkey, mr, b.addr(8192))), 0);
    let wc = b.completion();
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (7, SUCCESS, IBV_WC_BIND_MW));
    assert_eq!(unsafe { ibv_dereg_mr(mr) }, libc::EBUSY);

    let mut sge = a.sge(0, 8);
    assert_eq!(post_send(qa, &mut write_wr(1, &mut sge, (b.addr(8192), rkey))), 0);
    assert_eq!(a.completion().status, SUCCESS);
    assert_eq!(bytes(&b, 8192, 8), b"windowed");

    let mut wr = send_wr(8, IBV_WR_LOCAL_INV);
    wr.imm_data = rkey;
    assert_eq!(post_send(qb, &mut wr), 0);
    let wc = b.completion();
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (8, SUCCESS, IBV_WC_LOCAL_INV));
    assert_eq!(post_send(qa, &mut write_wr(2, &mut sge, (b.addr(9000), rkey))), 0);
    assert_eq!(a.completion().status, REM_ACCESS_ERR);
    assert_eq!(bytes(&b, 9000, 8), [0; 8]);
    assert_eq!(unsafe { ((*b.ctx).ops.dealloc_mw)(mw) }, 0);
    assert_eq!(unsafe { ibv_dereg_mr(mr) }, 0);
    a.close(&[qa]);
    b.close(&[qb]);
}

#[test]
fn what_there_is_not_is_refused() {
    let (a, qa, b, qb) = pair(IBV_QPT_UC, Terms::default());
    let ops = unsafe { &(*b.ctx).ops };
    assert!(unsafe { (ops.alloc_mw)(b.pd, 3) }.is_null());
    assert_eq!(errno(), libc::EINVAL);
    let of_domain = unsafe { (ops.alloc_mw)(b.pd, IBV_MW_TYPE_1) };
    let mw = unsafe { (ops.alloc_mw)(b.pd, IBV_MW_TYPE_2) };
    let mr = bindable(&b);
    let rkey = unsafe { (*mw).rkey };
    let einval = |wr: &mut ibv_send_wr| assert_eq!(post_send(qb, wr), libc::EINVAL);
    einval(&mut bind_wr(1, mw, rkey ^ 0x100, mr, b.addr(0)));
    einval(&mut bind_wr(1, mr.cast(), rkey, mr, b.addr(0)));
    // Those of type 1 have a verb of their own, which is for no others.
    einval(&mut bind_wr(1, of_domain, unsafe { (*of_domain).rkey }, mr, b.addr(0)));
    let mut bind = type_1(1, mr, b.addr(0), 4096);
    assert_eq!(unsafe { (ops.bind_mw)(qb, mw, &mut bind) }, libc::EINVAL);
    assert_eq!(unsafe { (ops.dealloc_mw)(of_domain) }, 0);
    einval(&mut bind_wr(1, mw, rkey, mw.cast(), b.addr(0)));
    let mut zero_based = bind_wr(1, mw, rkey, mr, 0);
    zero_based.bind_mw.bind_info.mw_access_flags |= IBV_ACCESS_ZERO_BASED;
    einval(&mut zero_based);
    let mut attr: ibv_device_attr = unsafe { zeroed() };
    assert_eq!(unsafe { ibv_query_device(b.ctx, &mut attr) }, 0);
    let both = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    assert_eq!(attr.device_cap_flags & both, both);
    assert!(attr.max_mw > 0);
    // A region that does not allow it: the NIC's to say.
    assert_eq!(post_send(qb, &mut bind_wr(2, mw, rkey, b.mr, b.addr(0))), 0);
    assert_eq!(b.completion().status, MW_BIND_ERR);
    assert_eq!(unsafe { (ops.dealloc_mw)(mw) }, 0);
    assert_eq!(unsafe { (ops.dealloc_mw)(mw) }, libc::EINVAL);
    assert_eq!(unsafe { ibv_dereg_mr(mr) }, 0);
    a.close(&[qa]);
    b.close(&[qb]);
}

fn type_1(wr_id: u64, mr: *mut ibv_mr, addr: u64, length: u64) -> ibv_mw_bind {
    let bind_info = ibv_mw_bind_info { mr, addr, length, mw_access_flags: IBV_ACCESS_REMOTE_WRITE };
    ibv_mw_bind { wr_id, send_flags: IBV_SEND_SIGNALED, bind_info }
}

#[test]
fn a_window_of_type_1_gets_another_key_with_every_bind() {
    let (mut a, qa, b, qb) = pair(IBV_QPT_RC, Terms::default());
    a.memory[..8].copy_from_slice(b"windowed");
    let mr = bindable(&b);
    let ops = unsafe { &(*b.ctx).ops };
    let mw = unsafe { (ops.alloc_mw)(b.pd, IBV_MW_TYPE_1) };
    assert!(!mw.is_null());
    let bind = |wr_id, mr, addr, length| {
        assert_eq!(unsafe { (ops.bind_mw)(qb, mw, &mut type_1(wr_id, mr, addr, length)) }, 0);
        let wc = b.completion();
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (wr_id, SUCCESS, IBV_WC_BIND_MW));
        unsafe { (*mw).rkey }
    };
    let mut sge = a.sge(0, 8);
    let mut keys = vec![unsafe { (*mw).rkey }];
    for n in 0..3 {
        let at = 8192 + 100 * n;
        keys.push(bind(n as u64, mr, b.addr(8192), 4096));
        let remote = (b.addr(at), keys[n + 1]);
        assert_eq!(post_send(qa, &mut write_wr(1, &mut sge, remote)), 0);
        assert_eq!(a.completion().status, SUCCESS);
        assert_eq!(bytes(&b, at, 8), b"windowed");
    }
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 4, "no key twice");
    // Bound to nothing, it is closed.
    let key = bind(9, std::ptr::null_mut(), 0, 0);
    assert_eq!(post_send(qa, &mut write_wr(2, &mut sge, (b.addr(9000), key))), 0);
    assert_eq!(a.completion().status, REM_ACCESS_ERR);
    assert_eq!(bytes(&b, 9000, 8), [0; 8]);
    assert_eq!(unsafe { ibv_dereg_mr(mr) }, 0);
    assert_eq!(unsafe { (ops.dealloc_mw)(mw) }, 0);
    a.close(&[qa]);
    b.close(&[qb]);
}
