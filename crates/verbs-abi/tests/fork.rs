//! What a child of a program finds: errors, at once, and devices of its own if it opens them.

#![allow(clippy::undocumented_unsafe_blocks, reason = "see support")]

mod support;

use std::ffi::c_int;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use support::*;

/// Runs `body` in a child; the code that it ends with, or `None` if it does not end.
fn in_child(body: impl FnOnce() -> c_int) -> Option<c_int> {
    unsafe {
        match libc::fork() {
            0 => libc::_exit(body()),
            child => {
                let start = Instant::now();
                let mut status = 0;
                while libc::waitpid(child, &mut status, libc::WNOHANG) == 0 {
                    if start.elapsed() > Duration::from_secs(20) {
                        libc::kill(child, libc::SIGKILL);
                        libc::waitpid(child, &mut status, 0);
                        return None;
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
                Some(if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -1 })
            }
        }
    }
}

#[test]
fn a_child_gets_errors_from_its_parent_s_device_and_the_parent_goes_on() {
    let (a, qa, b, qb) = pair(IBV_QPT_RC, Terms::default());
    assert_eq!(ibv_fork_init(), 0);
    assert_eq!(ibv_is_fork_initialized(), IBV_FORK_UNNEEDED);
    let code = in_child(|| unsafe {
        let mut wc = ibv_wc::default();
        let mut sge = a.sge(0, 8);
        let mut wr = write_wr(1, &mut sge, (b.addr(0), b.rkey()));
        let refused = [
            ((*a.ctx).ops.poll_cq)(a.cq, 1, &mut wc) == -libc::EIO,
            post_chain(qa, &mut wr).0 == libc::EIO,
            ((*a.ctx).ops.req_notify_cq)(a.cq, 0) == libc::EIO,
            ibv_alloc_pd(a.ctx).is_null(),
            ibv_dereg_mr(a.mr) == libc::EIO,
            ibv_destroy_qp(qa) == libc::EIO,
            ibv_destroy_cq(a.cq) == libc::EIO,
            ibv_close_device(a.ctx) == 0,
        ];
        refused.iter().position(|r| !r).map_or(0, |i| i as c_int + 1)
    });
    assert_eq!(code, Some(0), "which of the verbs did not fail as it should");

    let mut sge = a.sge(0, 8);
    assert_eq!(post_send(qa, &mut write_wr(1, &mut sge, (b.addr(0), b.rkey()))), 0);
    assert_eq!(a.completion().status, SUCCESS);
    a.close(&[qa]);
    b.close(&[qb]);

    // A child may open devices of its own, after a parent that has used its own.
    let code = in_child(|| unsafe {
        let list = ibv_get_device_list(null_mut());
        let ctx = ibv_open_device(*list);
        if ctx.is_null() {
            return 1;
        }
        let pd = ibv_alloc_pd(ctx);
        c_int::from(pd.is_null() || ibv_dealloc_pd(pd) != 0 || ibv_close_device(ctx) != 0)
    });
    assert_eq!(code, Some(0));
}
