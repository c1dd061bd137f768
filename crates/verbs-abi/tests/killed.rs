//! Killed peers: a process that gets SIGKILL sends nothing, yet the other end of its connections is
//! notified.

#![allow(clippy::undocumented_unsafe_blocks, reason = "see support")]

mod support;

use std::ffi::{CString, c_int};
use std::io::{BufRead, BufReader, Read};
use std::mem::zeroed;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use bowline_verbs_abi::rdmacm::abi::*;
use support::*;

/// Which part of this file a child process plays, and whom it calls.
const PART: &str = "BOWLINE_TEST_PART";
const TO: &str = "BOWLINE_TEST_TO";
const PORT: &str = "7301";
/// How often connections check on their peers here.
const INTERVAL: Duration = Duration::from_millis(400);
/// Three intervals, and time for a busy machine.
const BOUND: Duration = Duration::from_secs(6);
/// The connection manager gives up after 8.6 s.
const HANDSHAKE_BOUND: Duration = Duration::from_secs(15);

/// An address that only this process and its child number `n` have.
fn addr(n: u32) -> String {
    let pid = std::process::id();
    format!("127.75.{}.{}", pid / 25 % 250, pid % 25 * 10 + 1 + n)
}

/// A child that plays a part, and is killed when the test fails.
struct Peer {
    child: Child,
    /// Kept, so that the child can go on saying something.
    said: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts it, and waits until it says that it is `ready`.
    fn start(part: &str, n: u32, ready: &str) -> Peer {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", part, "--nocapture", "--test-threads=1"])
            .env(PART, part)
            .env(TO, addr(0))
            .env("BOWLINE_DEVICES", format!("bl0={}", addr(n)))
            .env("BOWLINE_KEEPALIVE", format!("{}ms", INTERVAL.as_millis()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let mut peer = Peer { child, said };
        peer.wait_for(ready);
        peer
    }

    fn wait_for(&mut self, word: &str) {
        let mut lines = self.said.by_ref().lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains(word)), "it never says {word}");
    }

    fn kill(mut self) -> Instant {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        Instant::now()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The device of the test itself, which all its tests share.
fn set_up_here() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| unsafe {
        if std::env::var_os(PART).is_none() {
            std::env::set_var("BOWLINE_DEVICES", format!("bl0={}", addr(0)));
            std::env::set_var("BOWLINE_KEEPALIVE", format!("{}ms", INTERVAL.as_millis()));
        }
    });
}

fn plays(part: &str) -> bool {
    std::env::var(PART).is_ok_and(|playing| playing == part)
}

/// The next event of a channel: kind, status and identifier; `None` if there is none in time.
fn next(
    channel: *mut rdma_event_channel,
    limit: Duration,
) -> Option<(u32, c_int, *mut rdma_cm_id)> {
    unsafe {
        let mut fd = libc::pollfd { fd: (*channel).fd, events: libc::POLLIN, revents: 0 };
        if libc::poll(&mut fd, 1, limit.as_millis() as c_int) != 1 {
            return None;
        }
        let mut event = null_mut();
        assert_eq!(rdma_get_cm_event(channel, &mut event), 0, "errno {}", errno());
        let told = ((*event).event, (*event).status, (*event).id);
        assert_eq!(rdma_ack_cm_event(event), 0);
        Some(told)
    }
}

fn expect(channel: *mut rdma_event_channel, kind: u32) -> *mut rdma_cm_id {
    let (found, status, id) = next(channel, PATIENCE).expect("something happens");
    assert_eq!((found, status), (kind, 0));
    id
}

fn find(node: &str, port: &str, passive: bool) -> *mut rdma_addrinfo {
    let (node, port) = (CString::new(node).unwrap(), CString::new(port).unwrap());
    unsafe {
        let mut hints: rdma_addrinfo = zeroed();
        hints.ai_port_space = RDMA_PS_TCP as c_int;
        hints.ai_flags = if passive { RAI_PASSIVE } else { 0 };
        let mut found = null_mut();
        assert_eq!(rdma_getaddrinfo(node.as_ptr(), port.as_ptr(), &hints, &mut found), 0);
        found
    }
}

fn make_qp(id: *mut rdma_cm_id) {
    unsafe {
        let mut init: ibv_qp_init_attr = zeroed();
        (init.qp_type, init.sq_sig_all) = (IBV_QPT_RC, 1);
        (init.cap.max_send_wr, init.cap.max_recv_wr) = (8, 8);
        (init.cap.max_send_sge, init.cap.max_recv_sge) = (1, 1);
        assert_eq!(rdma_create_qp(id, null_mut(), &mut init), 0, "errno {}", errno());
    }
}

fn param() -> rdma_conn_param {
    let mut param: rdma_conn_param = unsafe { zeroed() };
    (param.retry_count, param.rnr_retry_count) = (7, 7);
    param
}

fn listen(channel: *mut rdma_event_channel, node: &str, port: &str) -> *mut rdma_cm_id {
    unsafe {
        let mut id = null_mut();
        assert_eq!(rdma_create_id(channel, &mut id, null_mut(), RDMA_PS_TCP), 0);
        let res = find(node, port, true);
        assert_eq!(rdma_bind_addr(id, (*res).ai_src_addr), 0, "errno {}", errno());
        rdma_freeaddrinfo(res);
        assert_eq!(rdma_listen(id, 4), 0, "errno {}", errno());
        id
    }
}

fn call(channel: *mut rdma_event_channel, node: &str, port: &str) -> *mut rdma_cm_id {
    unsafe {
        let mut id = null_mut();
        assert_eq!(rdma_create_id(channel, &mut id, null_mut(), RDMA_PS_TCP), 0);
        let res = find(node, port, false);
        assert_eq!(rdma_resolve_addr(id, null_mut(), (*res).ai_dst_addr, 1000), 0);
        rdma_freeaddrinfo(res);
        expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
        assert_eq!(rdma_resolve_route(id, 1000), 0);
        expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
        make_qp(id);
        assert_eq!(rdma_connect(id, &mut param()), 0, "errno {}", errno());
        id
    }
}

/// What a child says, and then nothing any more.
fn say_and_wait(what: &str) -> ! {
    println!("{what}");
    loop {
        std::thread::sleep(PATIENCE);
    }
}

/// Accepts a connection and rests.
#[test]
fn server() {
    if !plays("server") {
        return;
    }
    let channel = unsafe { rdma_create_event_channel() };
    listen(channel, &own_addr(), PORT);
    println!("listening");
    let id = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    make_qp(id);
    assert_eq!(unsafe { rdma_accept(id, &mut param()) }, 0);
    expect(channel, RDMA_CM_EVENT_ESTABLISHED);
    say_and_wait("connected");
}

/// Listens, and never answers.
#[test]
fn silent_server() {
    if !plays("silent_server") {
        return;
    }
    let channel = unsafe { rdma_create_event_channel() };
    listen(channel, &own_addr(), PORT);
    say_and_wait("listening");
}

/// Connects and rests.
#[test]
fn client() {
    if !plays("client") {
        return;
    }
    let channel = unsafe { rdma_create_event_channel() };
    call(channel, &std::env::var(TO).unwrap(), "7302");
    println!("asked");
    expect(channel, RDMA_CM_EVENT_ESTABLISHED);
    say_and_wait("connected");
}

/// Asks for a connection and rests.
#[test]
fn silent_client() {
    if !plays("silent_client") {
        return;
    }
    let channel = unsafe { rdma_create_event_channel() };
    call(channel, &std::env::var(TO).unwrap(), "7303");
    say_and_wait("asked");
}

fn own_addr() -> String {
    let devices = std::env::var("BOWLINE_DEVICES").unwrap();
    devices.split('=').nth(1).unwrap().to_owned()
}

/// A receive that waits for what never comes.
fn post_receive(id: *mut rdma_cm_id) {
    assert_eq!(post_recv(unsafe { (*id).qp }, 77, None), 0);
}

/// The end of a connection is reported in time, its queue pair is in error, its receive is flushed.
fn check_end(channel: *mut rdma_event_channel, id: *mut rdma_cm_id, died: Instant) {
    let (kind, status, about) = next(channel, BOUND).expect("the end is reported");
    assert!(died.elapsed() < BOUND, "after {:?}", died.elapsed());
    assert_eq!((kind, status, about), (RDMA_CM_EVENT_DISCONNECTED, -libc::ETIMEDOUT, id));
    unsafe {
        let mut wc = ibv_wc::default();
        let cq = (*(*id).qp).recv_cq;
        assert_eq!(((*(*cq).context).ops.poll_cq)(cq, 1, &mut wc), 1);
        assert_eq!((wc.wr_id, wc.status), (77, WR_FLUSH_ERR));
        let (mut attr, mut made): (ibv_qp_attr, ibv_qp_init_attr) = (zeroed(), zeroed());
        assert_eq!(ibv_query_qp((*id).qp, &mut attr, IBV_QP_STATE, &mut made), 0);
        assert_eq!(attr.qp_state, IBV_QPS_ERR);
        assert_eq!(rdma_disconnect(id), 0, "it is over, and that is no error");
        rdma_destroy_qp(id);
        assert_eq!(rdma_destroy_id(id), 0);
    }
}

#[test]
fn the_client_of_a_server_that_is_killed_hears_of_it() {
    set_up_here();
    let mut peer = Peer::start("server", 1, "listening");
    let channel = unsafe { rdma_create_event_channel() };
    let id = call(channel, &addr(1), PORT);
    expect(channel, RDMA_CM_EVENT_ESTABLISHED);
    post_receive(id);
    peer.wait_for("connected");
    // A peer that lives and says nothing stays.
    assert_eq!(next(channel, 5 * INTERVAL), None);
    check_end(channel, id, peer.kill());
}

#[test]
fn the_server_of_a_client_that_is_killed_hears_of_it() {
    set_up_here();
    let channel = unsafe { rdma_create_event_channel() };
    listen(channel, &addr(0), "7302");
    let mut peer = Peer::start("client", 2, "asked");
    let id = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    make_qp(id);
    post_receive(id);
    assert_eq!(unsafe { rdma_accept(id, &mut param()) }, 0);
    expect(channel, RDMA_CM_EVENT_ESTABLISHED);
    peer.wait_for("connected");
    check_end(channel, id, peer.kill());
}

#[test]
fn a_server_that_is_killed_before_it_answers_is_unreachable() {
    set_up_here();
    let peer = Peer::start("silent_server", 3, "listening");
    let channel = unsafe { rdma_create_event_channel() };
    let id = call(channel, &addr(3), PORT);
    peer.kill();
    let told = next(channel, HANDSHAKE_BOUND);
    assert_eq!(told, Some((RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT, id)));
}

#[test]
fn a_client_that_is_killed_before_it_is_answered_is_unreachable() {
    set_up_here();
    let channel = unsafe { rdma_create_event_channel() };
    listen(channel, &addr(0), "7303");
    let peer = Peer::start("silent_client", 4, "asked");
    let id = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    peer.kill();
    make_qp(id);
    assert_eq!(unsafe { rdma_accept(id, &mut param()) }, 0);
    let told = next(channel, HANDSHAKE_BOUND);
    assert_eq!(told, Some((RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT, id)));
}
