//! Test helpers: a C program's view of the verbs, with less typing.

#![allow(dead_code, unreachable_pub, reason = "every test uses a part of it")]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "the tests are a C program in Rust: every call is unsafe, for the one reason that it \
              follows the rules of the verbs, or breaks them on purpose"
)]

pub mod back_end;

use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr::{null_mut, slice_from_raw_parts};
use std::sync::Once;
use std::time::{Duration, Instant};

pub use bowline_verbs_abi::abi::*;
pub use bowline_verbs_abi::verbs::*;

/// Nothing in the tests takes longer, on however busy a machine.
pub const PATIENCE: Duration = Duration::from_secs(30);
pub const REMOTE: u32 = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
pub const ALL_ACCESS: u32 = IBV_ACCESS_LOCAL_WRITE | REMOTE;

/// Devices on this process's own addresses, unless the environment names others: two that its tests
/// share, and a third for tests that leave an address to peers that keep sending there.
pub fn set_up() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if std::env::var_os("BOWLINE_DEVICES").is_none() {
            let pid = std::process::id();
            let net = format!("127.72.{}", pid / 80 % 250);
            let host = pid % 80 * 3 + 1;
            let devices = format!("bl0={net}.{host},bl1={net}.{},bl2={net}.{}", host + 1, host + 2);
            // SAFETY: nothing else of this process reads the environment through C.
            unsafe { std::env::set_var("BOWLINE_DEVICES", devices) };
        }
    });
}

pub fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// One end: a device, a domain, a queue and registered memory.
pub struct End {
    pub ctx: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub channel: *mut ibv_comp_channel,
    pub cq: *mut ibv_cq,
    pub mr: *mut ibv_mr,
    pub memory: Box<[u8]>,
}

unsafe impl Send for End {}
unsafe impl Sync for End {}

impl End {
    /// Opens device number `device`.
    pub fn open(device: usize) -> End {
        End::with_depth(device, 1024)
    }

    pub fn with_depth(device: usize, depth: c_int) -> End {
        set_up();
        unsafe {
            let list = ibv_get_device_list(null_mut());
            let ctx = ibv_open_device(*list.add(device));
            assert!(!ctx.is_null(), "open: errno {}", errno());
            ibv_free_device_list(list);
            let pd = ibv_alloc_pd(ctx);
            let channel = ibv_create_comp_channel(ctx);
            let cq = ibv_create_cq(ctx, depth, null_mut(), channel, 0);
            assert!(!pd.is_null() && !channel.is_null() && !cq.is_null());
            let mut memory = vec![0_u8; 1 << 20].into_boxed_slice();
            let mr = ibv_reg_mr(pd, memory.as_mut_ptr().cast(), memory.len(), ALL_ACCESS as c_int);
            assert!(!mr.is_null());
            End { ctx, pd, channel, cq, mr, memory }
        }
    }

    pub fn addr(&self, offset: usize) -> u64 {
        self.memory[offset..].as_ptr() as u64
    }

    pub fn sge(&self, offset: usize, length: u32) -> ibv_sge {
        ibv_sge { addr: self.addr(offset), length, lkey: unsafe { (*self.mr).lkey } }
    }

    pub fn rkey(&self) -> u32 {
        unsafe { (*self.mr).rkey }
    }

    /// A QP with queues of 64.
    pub fn qp(&self, qp_type: u32) -> *mut ibv_qp {
        self.qp_with(qp_type, self.cq, null_mut())
    }

    pub fn qp_with(&self, qp_type: u32, cq: *mut ibv_cq, srq: *mut ibv_srq) -> *mut ibv_qp {
        let mut init = qp_init(qp_type, cq);
        init.srq = srq;
        let qp = unsafe { ibv_create_qp(self.pd, &mut init) };
        assert!(!qp.is_null(), "create_qp: errno {}", errno());
        qp
    }

    pub fn gid(&self) -> ibv_gid {
        let mut gid = ibv_gid::default();
        assert_eq!(unsafe { ibv_query_gid(self.ctx, 1, 0, &mut gid) }, 0);
        gid
    }

    /// One completion of the end's queue.
    pub fn completion(&self) -> ibv_wc {
        completion(self.cq)
    }

    /// Everything is destroyed in order, and nothing is busy.
    pub fn close(self, qps: &[*mut ibv_qp]) {
        unsafe {
            for &qp in qps {
                assert_eq!(ibv_destroy_qp(qp), 0);
            }
            assert_eq!(ibv_destroy_cq(self.cq), 0);
            assert_eq!(ibv_destroy_comp_channel(self.channel), 0);
            assert_eq!(ibv_dereg_mr(self.mr), 0);
            assert_eq!(ibv_dealloc_pd(self.pd), 0);
            assert_eq!(ibv_close_device(self.ctx), 0);
        }
    }
}

pub fn qp_init(qp_type: u32, cq: *mut ibv_cq) -> ibv_qp_init_attr {
    ibv_qp_init_attr {
        qp_context: null_mut(),
        send_cq: cq,
        recv_cq: cq,
        srq: null_mut(),
        cap: ibv_qp_cap {
            max_send_wr: 64,
            max_recv_wr: 64,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 128,
        },
        qp_type,
        sq_sig_all: 0,
    }
}

/// Polls until `done`, and says what did not come.
pub fn until<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = done() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "{what} did not come");
        std::thread::yield_now();
    }
}

pub fn poll(cq: *mut ibv_cq) -> Option<ibv_wc> {
    let mut wc = ibv_wc::default();
    let count = unsafe { ((*(*cq).context).ops.poll_cq)(cq, 1, &mut wc) };
    assert!(count >= 0, "poll_cq: {count}");
    (count == 1).then_some(wc)
}

pub fn completion(cq: *mut ibv_cq) -> ibv_wc {
    until("a completion", || poll(cq))
}

/// How a connection is made; the defaults give up after about a second.
#[derive(Clone, Copy)]
pub struct Terms {
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
}

impl Default for Terms {
    fn default() -> Terms {
        Terms { timeout: 14, retry_cnt: 7, rnr_retry: 7 }
    }
}

pub const TO_INIT: c_int = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;

pub fn modify(qp: *mut ibv_qp, mut attr: ibv_qp_attr, mask: c_int) -> c_int {
    unsafe { ibv_modify_qp(qp, &mut attr, mask) }
}

pub fn init_attr() -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: IBV_QPS_INIT,
        port_num: 1,
        qp_access_flags: REMOTE,
        ..Default::default()
    }
}

pub fn to_init(qp: *mut ibv_qp) {
    assert_eq!(modify(qp, init_attr(), TO_INIT), 0);
}

/// From INIT to RTS, towards the QP `dest_qp_num` at `gid`.
pub fn to_rts(qp: *mut ibv_qp, dest_qp_num: u32, gid: ibv_gid, terms: Terms) {
    let is_rc = unsafe { (*qp).qp_type } == IBV_QPT_RC;
    let mut attr = ibv_qp_attr {
        qp_state: IBV_QPS_RTR,
        path_mtu: 3,
        dest_qp_num,
        rq_psn: 77,
        max_dest_rd_atomic: 16,
        min_rnr_timer: 1,
        ..Default::default()
    };
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.grh.dgid = gid;
    let rc = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    let mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    assert_eq!(modify(qp, attr, if is_rc { mask | rc } else { mask }), 0);
    let attr = ibv_qp_attr {
        qp_state: IBV_QPS_RTS,
        sq_psn: 77,
        timeout: terms.timeout,
        retry_cnt: terms.retry_cnt,
        rnr_retry: terms.rnr_retry,
        max_rd_atomic: 16,
        ..Default::default()
    };
    let rc = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    let mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    assert_eq!(modify(qp, attr, if is_rc { mask | rc } else { mask }), 0);
}

/// Connects two QPs of two ends.
pub fn connect(a: (&End, *mut ibv_qp), b: (&End, *mut ibv_qp), terms: Terms) {
    unsafe {
        to_init(a.1);
        to_init(b.1);
        to_rts(a.1, (*b.1).qp_num, b.0.gid(), terms);
        to_rts(b.1, (*a.1).qp_num, a.0.gid(), terms);
    }
}

/// Two ends with a connected QP each.
pub fn pair(qp_type: u32, terms: Terms) -> (End, *mut ibv_qp, End, *mut ibv_qp) {
    pair_of((End::open(0), End::open(1)), qp_type, terms)
}

/// A connected QP on each of two ends.
pub fn pair_of(
    (a, b): (End, End),
    qp_type: u32,
    terms: Terms,
) -> (End, *mut ibv_qp, End, *mut ibv_qp) {
    let (qa, qb) = (a.qp(qp_type), b.qp(qp_type));
    connect((&a, qa), (&b, qb), terms);
    (a, qa, b, qb)
}

/// Makes a UD QP ready, with Q_Key 0x1234.
pub fn ready_ud(qp: *mut ibv_qp) {
    let attr = ibv_qp_attr { qkey: 0x1234, ..init_attr() };
    let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
    assert_eq!(modify(qp, attr, mask), 0);
    let attr = ibv_qp_attr { qp_state: IBV_QPS_RTR, ..Default::default() };
    assert_eq!(modify(qp, attr, IBV_QP_STATE), 0);
    let attr = ibv_qp_attr { qp_state: IBV_QPS_RTS, ..Default::default() };
    assert_eq!(modify(qp, attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
}

/// A signaled request without a list.
pub fn send_wr(wr_id: u64, opcode: u32) -> ibv_send_wr {
    ibv_send_wr { wr_id, opcode, send_flags: IBV_SEND_SIGNALED, ..unsafe { zeroed() } }
}

pub fn write_wr(wr_id: u64, sge: &mut ibv_sge, remote: (u64, u32)) -> ibv_send_wr {
    let mut wr = send_wr(wr_id, IBV_WR_RDMA_WRITE);
    wr.sg_list = sge;
    wr.num_sge = 1;
    wr.wr.rdma = ibv_wr_rdma { remote_addr: remote.0, rkey: remote.1 };
    wr
}

/// Posts one request.
pub fn post_send(qp: *mut ibv_qp, wr: &mut ibv_send_wr) -> c_int {
    post_chain(qp, wr).0
}

/// Posts a chain; the error and the request that it is about.
pub fn post_chain(qp: *mut ibv_qp, wr: *mut ibv_send_wr) -> (c_int, *mut ibv_send_wr) {
    let mut bad = null_mut();
    let code = unsafe { ((*(*qp).context).ops.post_send)(qp, wr, &mut bad) };
    (code, bad)
}

pub fn post_recv(qp: *mut ibv_qp, wr_id: u64, sge: Option<ibv_sge>) -> c_int {
    let mut list = sge.unwrap_or_default();
    let mut wr = ibv_recv_wr {
        wr_id,
        next: null_mut(),
        sg_list: &mut list,
        num_sge: c_int::from(sge.is_some()),
    };
    let mut bad = null_mut();
    let code = unsafe { ((*(*qp).context).ops.post_recv)(qp, &mut wr, &mut bad) };
    assert_eq!(bad.is_null(), code == 0, "bad_wr is set exactly on an error");
    code
}

pub fn state(qp: *mut ibv_qp) -> u32 {
    unsafe {
        let (mut attr, mut init) = (zeroed::<ibv_qp_attr>(), zeroed::<ibv_qp_init_attr>());
        assert_eq!(ibv_query_qp(qp, &mut attr, IBV_QP_STATE, &mut init), 0);
        attr.qp_state
    }
}

/// The bytes of an end's memory as they are now: the NIC writes them behind the compiler's back.
pub fn bytes(end: &End, offset: usize, len: usize) -> Vec<u8> {
    let start = end.memory[offset..].as_ptr();
    assert!(offset + len <= end.memory.len());
    let all = slice_from_raw_parts(start, len);
    (0..len).map(|i| unsafe { (all as *const u8).add(i).read_volatile() }).collect()
}

/// The next asynchronous event, acknowledged.
pub fn async_event(ctx: *mut ibv_context) -> (u32, usize) {
    unsafe {
        let mut ready = libc::pollfd { fd: (*ctx).async_fd, events: libc::POLLIN, revents: 0 };
        let count = libc::poll(&mut ready, 1, PATIENCE.as_millis() as c_int);
        assert_eq!(count, 1, "no asynchronous event came");
        let mut event = zeroed::<ibv_async_event>();
        assert_eq!(ibv_get_async_event(ctx, &mut event), 0);
        let about = event.element.qp as usize;
        ibv_ack_async_event(&mut event);
        (event.event_type, about)
    }
}

pub const SUCCESS: u32 = 0;
pub const LOC_LEN_ERR: u32 = 1;
pub const LOC_PROT_ERR: u32 = 4;
pub const WR_FLUSH_ERR: u32 = 5;
pub const REM_INV_REQ_ERR: u32 = 9;
pub const REM_ACCESS_ERR: u32 = 10;
pub const RETRY_EXC_ERR: u32 = 12;
pub const RNR_RETRY_EXC_ERR: u32 = 13;
