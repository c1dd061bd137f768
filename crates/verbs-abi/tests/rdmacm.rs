//! Connections as a program of librdmacm makes them.

#![allow(clippy::undocumented_unsafe_blocks, reason = "see support")]

mod support;

use std::ffi::{CString, c_int};
use std::mem::zeroed;
use std::ptr::{null, null_mut};

use bowline_verbs_abi::rdmacm::abi::*;
use support::*;

/// The address of a device of the test's.
fn addr_of(device: usize) -> CString {
    set_up();
    let devices = std::env::var("BOWLINE_DEVICES").unwrap();
    let addr = devices.split(',').nth(device).unwrap().split('=').nth(1).unwrap().to_owned();
    CString::new(addr).unwrap()
}

fn find(device: usize, port: &str, passive: bool, ps: u32) -> *mut rdma_addrinfo {
    let (node, port) = (addr_of(device), CString::new(port).unwrap());
    unsafe {
        let mut hints: rdma_addrinfo = zeroed();
        hints.ai_port_space = ps as c_int;
        hints.ai_flags = if passive { RAI_PASSIVE } else { 0 };
        let mut found = null_mut();
        assert_eq!(rdma_getaddrinfo(node.as_ptr(), port.as_ptr(), &hints, &mut found), 0);
        found
    }
}

fn init(qp_type: u32) -> ibv_qp_init_attr {
    unsafe {
        let mut init: ibv_qp_init_attr = zeroed();
        (init.qp_type, init.sq_sig_all) = (qp_type, 1);
        (init.cap.max_send_wr, init.cap.max_recv_wr) = (8, 8);
        (init.cap.max_send_sge, init.cap.max_recv_sge) = (1, 1);
        init
    }
}

/// Waits for an event of this kind and acknowledges it; its status and who it is about.
fn expect(channel: *mut rdma_event_channel, kind: u32) -> (c_int, *mut rdma_cm_id, Vec<u8>) {
    unsafe {
        let mut event = null_mut();
        assert_eq!(rdma_get_cm_event(channel, &mut event), 0, "errno {}", errno());
        let found = &*event;
        let name = |kind| std::ffi::CStr::from_ptr(rdma_event_str(kind)).to_owned();
        assert_eq!(found.event, kind, "{:?}, not {:?}", name(found.event), name(kind));
        let param = found.param.conn;
        let data = match param.private_data.is_null() {
            true => Vec::new(),
            false => {
                let (at, len) = (param.private_data.cast::<u8>(), param.private_data_len);
                std::slice::from_raw_parts(at, len.into()).to_vec()
            }
        };
        let told = (found.status, found.id, data);
        assert_eq!(rdma_ack_cm_event(event), 0);
        told
    }
}

fn param(data: &[u8]) -> rdma_conn_param {
    unsafe {
        let mut param: rdma_conn_param = zeroed();
        param.private_data = data.as_ptr().cast();
        param.private_data_len = data.len() as u8;
        (param.responder_resources, param.initiator_depth) = (4, 4);
        (param.retry_count, param.rnr_retry_count) = (7, 7);
        param
    }
}

fn listener(channel: *mut rdma_event_channel, device: usize, port: &str) -> *mut rdma_cm_id {
    unsafe {
        let mut id = null_mut();
        assert_eq!(rdma_create_id(channel, &mut id, null_mut(), RDMA_PS_TCP), 0);
        let res = find(device, port, true, RDMA_PS_TCP);
        assert_eq!(rdma_bind_addr(id, (*res).ai_src_addr), 0, "errno {}", errno());
        rdma_freeaddrinfo(res);
        assert_eq!(rdma_listen(id, 4), 0, "errno {}", errno());
        id
    }
}

/// An identifier that is ready to connect, with a QP.
fn caller(channel: *mut rdma_event_channel, device: usize, port: &str) -> *mut rdma_cm_id {
    unsafe {
        let mut id = null_mut();
        assert_eq!(rdma_create_id(channel, &mut id, null_mut(), RDMA_PS_TCP), 0);
        let res = find(device, port, false, RDMA_PS_TCP);
        assert_eq!(rdma_resolve_addr(id, null_mut(), (*res).ai_dst_addr, 1000), 0);
        rdma_freeaddrinfo(res);
        expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
        assert_eq!(rdma_resolve_route(id, 1000), 0);
        expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
        assert_eq!(rdma_create_qp(id, null_mut(), &mut init(IBV_QPT_RC)), 0, "errno {}", errno());
        id
    }
}

#[test]
fn private_data_and_events_reach_both_ends() {
    unsafe {
        let (there, here) = (rdma_create_event_channel(), rdma_create_event_channel());
        let listens = listener(there, 0, "7201");
        let calls = caller(here, 0, "7201");
        assert_eq!(u16::from_be(rdma_get_dst_port(calls)), 7201);
        assert_eq!(rdma_connect(calls, &mut param(b"question")), 0);
        let (_, asked, data) = expect(there, RDMA_CM_EVENT_CONNECT_REQUEST);
        assert_eq!(data[..8], *b"question");
        assert_eq!(rdma_get_dst_port(asked), rdma_get_src_port(calls));
        assert_eq!(rdma_create_qp(asked, null_mut(), &mut init(IBV_QPT_RC)), 0);
        assert_eq!(rdma_accept(asked, &mut param(b"answer")), 0, "errno {}", errno());
        let (status, _, data) = expect(here, RDMA_CM_EVENT_ESTABLISHED);
        assert_eq!((status, &data[..6]), (0, &b"answer"[..]));
        assert_eq!(expect(there, RDMA_CM_EVENT_ESTABLISHED).1, asked);
        // The QPs are those of each other.
        let mut attr: ibv_qp_attr = zeroed();
        let mut made: ibv_qp_init_attr = zeroed();
        assert_eq!(ibv_query_qp((*calls).qp, &mut attr, IBV_QP_STATE, &mut made), 0);
        assert_eq!((attr.qp_state, attr.dest_qp_num), (IBV_QPS_RTS, (*(*asked).qp).qp_num));
        assert_eq!(rdma_disconnect(calls), 0);
        expect(here, RDMA_CM_EVENT_DISCONNECTED);
        expect(there, RDMA_CM_EVENT_DISCONNECTED);
        assert_eq!(rdma_disconnect(asked), 0, "it is over, and that is no error");
        for id in [calls, asked] {
            rdma_destroy_qp(id);
            assert_eq!(rdma_destroy_id(id), 0);
        }
        assert_eq!(rdma_destroy_id(listens), 0);
        rdma_destroy_event_channel(there);
        rdma_destroy_event_channel(here);
    }
}

#[test]
fn refusals_and_empty_ports_say_so() {
    unsafe {
        let channel = rdma_create_event_channel();
        // Nobody is there.
        let calls = caller(channel, 0, "7202");
        assert_eq!(rdma_connect(calls, null_mut()), 0);
        assert_eq!(expect(channel, RDMA_CM_EVENT_REJECTED).0, 8);
        rdma_destroy_qp(calls);
        assert_eq!(rdma_destroy_id(calls), 0);
        // Somebody is, and does not want to.
        let there = rdma_create_event_channel();
        let listens = listener(there, 0, "7202");
        let calls = caller(channel, 0, "7202");
        assert_eq!(rdma_connect(calls, null_mut()), 0);
        let (_, asked, _) = expect(there, RDMA_CM_EVENT_CONNECT_REQUEST);
        assert_eq!(rdma_reject(asked, b"no".as_ptr().cast(), 2), 0);
        let (status, _, data) = expect(channel, RDMA_CM_EVENT_REJECTED);
        assert_eq!((status, &data[..2]), (28, &b"no"[..]));
        // The service is taken.
        let mut second = null_mut();
        assert_eq!(rdma_create_id(there, &mut second, null_mut(), RDMA_PS_TCP), 0);
        let res = find(0, "7202", true, RDMA_PS_TCP);
        assert_eq!(rdma_bind_addr(second, (*res).ai_src_addr), 0);
        rdma_freeaddrinfo(res);
        assert_eq!((rdma_listen(second, 1), errno()), (-1, libc::EADDRINUSE));
        rdma_destroy_qp(calls);
        for id in [calls, asked, second, listens] {
            assert_eq!(rdma_destroy_id(id), 0);
        }
        // A listener that is gone leaves room for another.
        assert_eq!(rdma_destroy_id(listener(there, 0, "7202")), 0);
        rdma_destroy_event_channel(there);
        rdma_destroy_event_channel(channel);
    }
}

#[test]
fn a_listener_takes_its_unseen_requests_with_it() {
    unsafe {
        let (there, here) = (rdma_create_event_channel(), rdma_create_event_channel());
        let listens = listener(there, 0, "7203");
        let calls = caller(here, 0, "7203");
        assert_eq!(rdma_connect(calls, null_mut()), 0);
        let mut fd = libc::pollfd { fd: (*there).fd, events: libc::POLLIN, revents: 0 };
        assert_eq!(libc::poll(&mut fd, 1, PATIENCE.as_millis() as c_int), 1);
        assert_eq!(rdma_destroy_id(listens), 0);
        assert_eq!(expect(here, RDMA_CM_EVENT_REJECTED).0, 28);
        rdma_destroy_qp(calls);
        assert_eq!(rdma_destroy_id(calls), 0);
        rdma_destroy_event_channel(there);
        rdma_destroy_event_channel(here);
    }
}

#[test]
fn synchronous_endpoints_need_no_channel() {
    let server = std::thread::spawn(|| unsafe {
        let res = find(0, "7204", true, RDMA_PS_TCP);
        let (mut listens, mut id) = (null_mut(), null_mut());
        let mut wanted = init(IBV_QPT_RC);
        assert_eq!(rdma_create_ep(&mut listens, res, null_mut(), &mut wanted), 0);
        rdma_freeaddrinfo(res);
        assert_eq!(rdma_listen(listens, 0), 0);
        assert_eq!(rdma_get_request(listens, &mut id), 0, "errno {}", errno());
        assert!(!(*id).qp.is_null() && !(*id).recv_cq.is_null());
        assert_eq!(rdma_accept(id, null_mut()), 0, "errno {}", errno());
        rdma_disconnect(id);
        rdma_destroy_ep(id);
        rdma_destroy_ep(listens);
    });
    unsafe {
        let deadline = std::time::Instant::now() + PATIENCE;
        loop {
            let res = find(0, "7204", false, RDMA_PS_TCP);
            let mut id = null_mut();
            assert_eq!(rdma_create_ep(&mut id, res, null_mut(), &mut init(IBV_QPT_RC)), 0);
            rdma_freeaddrinfo(res);
            let connected = rdma_connect(id, null_mut());
            if connected == 0 {
                rdma_disconnect(id);
            } else {
                // The server has yet to listen.
                assert_eq!(errno(), libc::ECONNREFUSED);
                assert!(std::time::Instant::now() < deadline);
            }
            rdma_destroy_ep(id);
            if connected == 0 {
                break;
            }
        }
    }
    server.join().unwrap();
}

#[test]
fn what_is_wrong_is_refused() {
    set_up();
    unsafe {
        let mut id = null_mut();
        assert_eq!((rdma_create_id(null_mut(), &mut id, null_mut(), 0x9999), errno()), (-1, 93));
        assert_eq!(rdma_create_id(null_mut(), null_mut(), null_mut(), RDMA_PS_TCP), -1);
        assert_eq!(rdma_create_id(null_mut(), &mut id, null_mut(), RDMA_PS_TCP), 0);
        assert_eq!(rdma_connect(id, null_mut()), -1);
        assert_eq!(rdma_accept(id, null_mut()), -1);
        assert_eq!(rdma_disconnect(id), -1);
        assert_eq!(rdma_listen(id, 1), -1);
        assert_eq!(rdma_create_qp(id, null_mut(), &mut init(IBV_QPT_RC)), -1);
        assert_eq!(rdma_join_multicast(id, null_mut(), null_mut()), -1);
        assert_eq!(errno(), libc::EINVAL);
        let mut elsewhere: libc::sockaddr_in = zeroed();
        elsewhere.sin_family = libc::AF_INET as u16;
        elsewhere.sin_addr.s_addr = u32::from_ne_bytes([192, 0, 2, 1]);
        assert_eq!(rdma_bind_addr(id, (&raw mut elsewhere).cast()), -1);
        assert_eq!(errno(), libc::ENODEV);
        assert_eq!(rdma_destroy_id(id), 0);
        assert_eq!(rdma_destroy_id(id), -1, "once");
        assert_eq!(rdma_ack_cm_event(null_mut()), -1);
        let mut found = null_mut();
        assert_eq!(rdma_getaddrinfo(null(), null(), null(), &mut found), -1);
    }
}

#[test]
fn identifiers_bring_what_inline_functions_and_other_qps_need() {
    unsafe {
        let (there, here) = (rdma_create_event_channel(), rdma_create_event_channel());
        let listens = listener(there, 0, "7205");
        assert!(!(*listens).pd.is_null(), "who keeps QPs of his own makes them in it");
        let calls = caller(here, 0, "7205");
        assert_eq!((*(*calls).recv_cq).cq_context, calls.cast());
        let timeout = [21_u8];
        let value = timeout.as_ptr().cast_mut().cast();
        assert_eq!(rdma_set_option(calls, 0, 3, value, 1), 0, "errno {}", errno());
        assert_eq!(rdma_connect(calls, null_mut()), 0);
        let (_, asked, _) = expect(there, RDMA_CM_EVENT_CONNECT_REQUEST);
        // Receives of the connection come from a queue of the identifier's.
        let mut srq: ibv_srq_init_attr = zeroed();
        (srq.attr.max_wr, srq.attr.max_sge) = (8, 1);
        assert_eq!(rdma_create_srq(asked, null_mut(), &mut srq), 0, "errno {}", errno());
        assert_eq!(rdma_create_qp(asked, null_mut(), &mut init(IBV_QPT_RC)), 0);
        assert_eq!((*(*asked).qp).srq, (*asked).srq);
        assert_eq!(rdma_accept(asked, null_mut()), 0);
        expect(here, RDMA_CM_EVENT_ESTABLISHED);
        let (mut attr, mut made): (ibv_qp_attr, ibv_qp_init_attr) = (zeroed(), zeroed());
        assert_eq!(ibv_query_qp((*calls).qp, &mut attr, IBV_QP_TIMEOUT, &mut made), 0);
        assert_eq!(attr.timeout, 21);
        for id in [calls, asked] {
            rdma_destroy_qp(id);
            rdma_destroy_srq(id);
            assert_eq!(rdma_destroy_id(id), 0);
        }
        assert_eq!(rdma_destroy_id(listens), 0);
        rdma_destroy_event_channel(there);
        rdma_destroy_event_channel(here);
    }
}

#[test]
fn names_are_resolved_in_the_background_and_programs_have_events_of_their_own() {
    unsafe {
        let channel = rdma_create_event_channel();
        let mut id = null_mut();
        assert_eq!(rdma_create_id(channel, &mut id, null_mut(), RDMA_PS_TCP), 0);
        let (node, port) = (addr_of(0), CString::new("7206").unwrap());
        let mut found = null_mut();
        assert_eq!((rdma_query_addrinfo(id, &mut found), errno()), (-1, libc::ENOENT));
        assert_eq!(rdma_resolve_addrinfo(id, node.as_ptr(), port.as_ptr(), null()), 0);
        expect(channel, RDMA_CM_EVENT_ADDRINFO_RESOLVED);
        assert_eq!(rdma_query_addrinfo(id, &mut found), 0);
        assert!(!(*found).ai_dst_addr.is_null());
        // Without a name the result is what the hints say.
        let mut hints: rdma_addrinfo = zeroed();
        (hints.ai_src_addr, hints.ai_src_len) = ((*found).ai_dst_addr, (*found).ai_dst_len);
        let mut again = null_mut();
        assert_eq!(rdma_getaddrinfo(null(), null(), &hints, &mut again), 0);
        assert!(!(*again).ai_src_addr.is_null() && (*again).ai_dst_addr.is_null());
        rdma_freeaddrinfo(again);
        rdma_freeaddrinfo(found);
        assert_eq!(rdma_write_cm_event(id, RDMA_CM_EVENT_USER, 5, 77), 0);
        let mut event = null_mut();
        assert_eq!(rdma_get_cm_event(channel, &mut event), 0);
        assert_eq!(((*event).event, (*event).status), (RDMA_CM_EVENT_USER, 5));
        assert_eq!((*event).param.arg, 77);
        rdma_ack_cm_event(event);
        assert_eq!(rdma_write_cm_event(id, RDMA_CM_EVENT_ESTABLISHED, 0, 0), -1);
        assert_eq!(rdma_destroy_id(id), 0);
        rdma_destroy_event_channel(channel);
    }
}
