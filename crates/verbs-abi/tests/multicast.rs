//! Multicast groups, over the loopback interface.

#![allow(clippy::undocumented_unsafe_blocks, reason = "see support")]

mod support;

use std::mem::zeroed;
use std::net::Ipv4Addr;
use std::ptr::null_mut;

use bowline_verbs_abi::rdmacm::abi::*;
use support::*;

/// A group of this process's own.
fn group(last: u8) -> Ipv4Addr {
    let pid = std::process::id();
    Ipv4Addr::new(239, 72, (pid >> 8) as u8, (pid as u8) ^ last)
}

fn gid_of(group: Ipv4Addr) -> ibv_gid {
    ibv_gid { raw: group.to_ipv6_mapped().octets() }
}

#[test]
fn datagrams_reach_all_members_on_other_devices() {
    let (a, b) = (End::open(0), End::open(1));
    let (from, one, two) = (a.qp(IBV_QPT_UD), b.qp(IBV_QPT_UD), b.qp(IBV_QPT_UD));
    [from, one, two].into_iter().for_each(ready_ud);
    let gid = gid_of(group(1));
    unsafe {
        for qp in [one, two] {
            assert_eq!(ibv_attach_mcast(qp, &gid, 0xc000), 0, "errno {}", errno());
        }
        assert_eq!(ibv_attach_mcast(one, &b.gid(), 0), libc::EINVAL, "not a group");
        assert_eq!(post_recv(one, 1, Some(b.sge(0, 200))), 0);
        assert_eq!(post_recv(two, 2, Some(b.sge(1000, 200))), 0);
        let mut attr = ibv_ah_attr { is_global: 1, port_num: 1, ..Default::default() };
        attr.grh.dgid = gid;
        let ah = ibv_create_ah(a.pd, &mut attr);
        assert!(!ah.is_null(), "errno {}", errno());
        let mut sge = a.sge(0, 64);
        let mut wr = send_wr(9, IBV_WR_SEND);
        (wr.sg_list, wr.num_sge) = (&mut sge, 1);
        wr.wr.ud = ibv_wr_ud { ah, remote_qpn: 0xff_ffff, remote_qkey: 0x1234 };
        assert_eq!(post_send(from, &mut wr), 0);
        assert_eq!(a.completion().status, SUCCESS);
        let mut got: Vec<u64> = (0..2).map(|_| b.completion().wr_id).collect();
        got.sort_unstable();
        assert_eq!(got, [1, 2]);
        assert_eq!(ibv_detach_mcast(one, &gid, 0xc000), 0);
        assert_eq!(ibv_detach_mcast(one, &gid, 0xc000), libc::EINVAL, "once");
        assert_eq!(ibv_destroy_ah(ah), 0);
    }
    a.close(&[from]);
    b.close(&[one, two]);
}

/// An identifier of device `device` that is in a group, and what it was told of it.
fn join(
    channel: *mut rdma_event_channel,
    device: usize,
    to: Ipv4Addr,
) -> (*mut rdma_cm_id, rdma_ud_param) {
    set_up();
    let devices = std::env::var("BOWLINE_DEVICES").unwrap();
    let own = devices.split(',').nth(device).unwrap().split('=').nth(1).unwrap().parse().unwrap();
    let address = |ip: Ipv4Addr| unsafe {
        let mut addr: libc::sockaddr_in = zeroed();
        addr.sin_family = libc::AF_INET as u16;
        addr.sin_addr.s_addr = u32::from(ip).to_be();
        addr
    };
    let (mut own, mut to) = (address(own), address(to));
    unsafe {
        let mut id = null_mut();
        assert_eq!(rdma_create_id(channel, &mut id, null_mut(), RDMA_PS_UDP), 0);
        let (own, to) = ((&raw mut own).cast(), (&raw mut to).cast());
        assert_eq!(rdma_resolve_addr(id, own, to, 1000), 0, "errno {}", errno());
        event(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
        let mut init: ibv_qp_init_attr = zeroed();
        (init.qp_type, init.sq_sig_all) = (IBV_QPT_UD, 1);
        (init.cap.max_send_wr, init.cap.max_recv_wr) = (4, 4);
        (init.cap.max_send_sge, init.cap.max_recv_sge) = (1, 1);
        assert_eq!(rdma_create_qp(id, null_mut(), &mut init), 0, "errno {}", errno());
        assert_eq!(rdma_join_multicast(id, to, 77 as *mut _), 0, "errno {}", errno());
        let told = event(channel, RDMA_CM_EVENT_MULTICAST_JOIN);
        assert_eq!(told.private_data as usize, 77, "the program's own context");
        assert_eq!((rdma_join_multicast(id, to, null_mut()), errno()), (-1, libc::EADDRINUSE));
        (id, told)
    }
}

fn event(channel: *mut rdma_event_channel, kind: u32) -> rdma_ud_param {
    unsafe {
        let mut event = null_mut();
        assert_eq!(rdma_get_cm_event(channel, &mut event), 0, "errno {}", errno());
        assert_eq!(((*event).event, (*event).status), (kind, 0));
        let told = (*event).param.ud;
        rdma_ack_cm_event(event);
        told
    }
}

#[test]
fn identifiers_join_and_leave_by_ip_address() {
    unsafe {
        let channel = rdma_create_event_channel();
        let (a, told) = join(channel, 0, group(2));
        let (b, _) = join(channel, 1, group(2));
        assert_eq!(told.qp_num, 0xff_ffff);
        let mut memory = vec![0_u8; 512];
        let at = memory.as_mut_ptr();
        let mr = ibv_reg_mr((*b).pd, at.cast(), 512, ALL_ACCESS as i32);
        let sge = ibv_sge { addr: at as u64, length: 512, lkey: (*mr).lkey };
        assert_eq!(post_recv((*b).qp, 5, Some(sge)), 0);
        let mut attr = told.ah_attr;
        let ah = ibv_create_ah((*a).pd, &mut attr);
        assert!(!ah.is_null(), "errno {}", errno());
        let mut wr = send_wr(6, IBV_WR_SEND);
        wr.wr.ud = ibv_wr_ud { ah, remote_qpn: told.qp_num, remote_qkey: told.qkey };
        assert_eq!(post_send((*a).qp, &mut wr), 0);
        assert_eq!(completion((*b).recv_cq).wr_id, 5);
        assert_eq!(completion((*a).send_cq).status, SUCCESS);
        ibv_destroy_ah(ah);
        ibv_dereg_mr(mr);
        let mut left: libc::sockaddr_in = zeroed();
        left.sin_family = libc::AF_INET as u16;
        left.sin_addr.s_addr = u32::from(group(2)).to_be();
        let left = (&raw mut left).cast();
        assert_eq!(rdma_leave_multicast(b, left), 0, "errno {}", errno());
        assert_eq!((rdma_leave_multicast(b, left), errno()), (-1, libc::EADDRNOTAVAIL));
        for id in [a, b] {
            rdma_destroy_qp(id);
            assert_eq!(rdma_destroy_id(id), 0);
        }
        rdma_destroy_event_channel(channel);
    }
}
