//! Memory windows: bound and revoked by work requests, for one QP's peer or for those of a domain.

use super::*;
use crate::memory::{WindowBinding, WindowScope};

/// A window over 4096 bytes at offset 8192 of an end's buffer.
fn binding(end: &End, key: u32) -> WindowBinding {
    let (region, addr) = (end.key, 0x1_0000 + 8192);
    let scope = WindowScope::Qp;
    WindowBinding { key, region, addr, len: 4096, access: Access::REMOTE_WRITE, scope }
}

fn remote(key: u32, offset: u64) -> Remote {
    Remote { addr: (0x1_0000_u64 + 8192).wrapping_add(offset), rkey: key }
}

impl Pair {
    /// Allocates a window at end 1 and binds it with this last byte of its key.
    fn window(&mut self, tag: u32) -> u32 {
        let end = &mut self.ends[1];
        let key = end.nic.alloc_window(end.pd).unwrap().0 | tag;
        let op = SendOp::BindWindow(binding(end, key));
        self.post(1, 70, op, &[]);
        self.exchange();
        let done = self.ends[1].completions();
        assert_eq!((done[0].wr_id, done[0].status), (70, WcStatus::Success));
        assert_eq!((done.len(), done[0].opcode), (1, WcOpcode::BindWindow));
        key
    }

    /// End 0 writes 100 bytes through a key; returns whether they have arrived.
    fn writes_through(&mut self, remote: Remote) -> bool {
        let place = (remote.addr - 0x1_0000) as usize;
        self.ends[1].buffer.write_at(place, &[0; 100]);
        let bytes = self.fill(0, 0, 100);
        let sge = self.ends[0].sge(0, 100);
        self.post(0, 1, SendOp::Write(remote), &[sge]);
        self.exchange();
        self.ends[0].completions();
        self.ends[1].buffer.to_vec(place, 100) == bytes
    }
}

#[test]
fn a_window_is_open_from_bind_to_invalidate() {
    for qp_type in [QpType::Uc, QpType::Xp] {
        let mut pair = Pair::of(qp_type);
        let key = pair.window(0x5a);
        assert_eq!(key & 0xff, 0x5a);
        assert!(pair.writes_through(remote(key, 0)), "{qp_type:?}");
        assert!(pair.writes_through(remote(key, 4096 - 100)));
        assert!(!pair.writes_through(remote(key, 4096 - 99)), "beyond its end");
        assert!(!pair.writes_through(remote(key, u64::MAX)), "before its beginning");
        assert!(!pair.writes_through(remote(key ^ 1, 0)), "another last byte");
        pair.post(1, 71, SendOp::LocalInvalidate(key), &[]);
        assert!(!pair.writes_through(remote(key, 0)), "after it was revoked");
        let done = pair.ends[1].completions();
        assert_eq!((done[0].wr_id, done[0].opcode), (71, WcOpcode::LocalInvalidate));
        // Bound again, under another key.
        let again = binding(&pair.ends[1], key ^ 3);
        pair.post(1, 72, SendOp::BindWindow(again), &[]);
        assert!(pair.writes_through(remote(key ^ 3, 0)));
        assert!(!pair.writes_through(remote(key, 0)));
        assert_eq!(pair.ends[1].statuses(), [(72, WcStatus::Success)]);
    }
}

#[test]
fn on_rc_windows_are_bound_in_turn() {
    let mut pair = Pair::rc();
    let key = pair.ends[1].nic.alloc_window(pair.ends[1].pd).unwrap().0;
    let (source, bind) = (pair.ends[1].sge(0, 3000), binding(&pair.ends[1], key));
    pair.recv(0, 50, &[pair.ends[0].sge(4096, 3000)]);
    pair.recv(0, 51, &[pair.ends[0].sge(4096, 3000)]);
    for (n, op) in [SendOp::Send, SendOp::BindWindow(bind), SendOp::Send].into_iter().enumerate() {
        let sges = if n == 1 { &[][..] } else { &[source] };
        pair.post(1, n as u64, op, sges);
    }
    // The first is lost, and retransmitted.
    pair.take(1);
    assert!(pair.ends[1].completions().is_empty(), "not before the first is done");
    pair.run_out();
    let done: Vec<_> = pair.ends[1].statuses();
    assert_eq!(done, [0, 1, 2].map(|n| (n, WcStatus::Success)));
    assert!(pair.writes_through(remote(key, 0)));
    assert_eq!(pair.ends[0].state(), QpState::Rts);
}

#[test]
fn a_revoked_key_fails_its_user_on_rc() {
    let mut pair = Pair::rc();
    let key = pair.window(1);
    pair.post(1, 71, SendOp::LocalInvalidate(key), &[]);
    pair.exchange();
    pair.fill(0, 0, 100);
    let sge = pair.ends[0].sge(0, 100);
    pair.post(0, 1, SendOp::Write(remote(key, 0)), &[sge]);
    pair.exchange();
    assert_eq!(pair.ends[0].statuses(), [(1, WcStatus::RemAccessErr)]);
}

#[test]
fn a_revoked_key_stops_a_message_on_its_way() {
    let mut pair = Pair::of(QpType::Uc);
    let key = pair.window(1);
    let sge = pair.ends[0].sge(0, 4096);
    pair.fill(0, 0, 4096);
    pair.post(0, 1, SendOp::Write(remote(key, 0)), &[sge]);
    let frames = pair.take(0);
    assert_eq!(frames.len(), 4);
    pair.deliver_all(&frames[..2]);
    pair.post(1, 71, SendOp::LocalInvalidate(key), &[]);
    pair.take(1);
    pair.deliver_all(&frames[2..]);
    assert_eq!(pair.ends[1].buffer.to_vec(8192 + 2048, 2048), [0; 2048]);
    assert_eq!(pair.ends[1].buffer.to_vec(8192, 2048), pair.ends[0].buffer.to_vec(0, 2048));
}

#[test]
fn a_peers_send_may_revoke_a_window() {
    let mut pair = Pair::rc();
    let key = pair.window(9);
    assert!(pair.writes_through(remote(key, 0)));
    pair.recv(1, 5, &[]);
    pair.post(0, 2, SendOp::SendInvalidate(key), &[]);
    pair.exchange();
    assert_eq!(pair.ends[1].completions()[0].invalidated, Some(key));
    assert!(!pair.writes_through(remote(key, 0)));
}

#[test]
fn a_window_is_for_the_peer_of_its_qp_alone() {
    let mut pair = Pair::of(QpType::Uc);
    let end = &mut pair.ends[1];
    let init = QpInit { max_recv_wr: 1, ..QpInit::new(QpType::Uc, end.pd, end.cq) };
    let other = end.nic.create_qp(&init).unwrap();
    end.nic.connect(pair.now, other, &connect_to(addr(0), Qpn::new(77))).unwrap();
    let key = end.nic.alloc_window(end.pd).unwrap().0;
    let bind = SendWr::new(1, SendOp::BindWindow(binding(end, key)), &[]);
    end.nic.post_send(pair.now, other, &bind).unwrap();
    pair.exchange();
    assert_eq!(pair.ends[1].statuses(), [(1, WcStatus::Success)]);
    assert!(!pair.writes_through(remote(key, 0)));
    // Nor may the next QP that gets this number.
    pair.ends[1].nic.destroy_qp(other).unwrap();
    let bind = binding(&pair.ends[1], key);
    pair.post(1, 2, SendOp::BindWindow(bind), &[]);
    assert!(pair.writes_through(remote(key, 0)), "it is free to be bound again");
}

#[test]
fn what_cannot_be_bound_fails_the_send_queue() {
    let good = |end: &End, key| binding(end, key);
    type Change = fn(&mut WindowBinding);
    let changes: [Change; 6] = [
        |bind| bind.len = 0,
        |bind| bind.len = 1 << 20,
        |bind| bind.addr = 0,
        |bind| bind.key ^= 0x100,
        |bind| bind.region = MrKey(bind.region.0 ^ 1),
        |bind| bind.access = Access::LOCAL_WRITE,
    ];
    for (n, change) in changes.into_iter().enumerate() {
        for qp_type in [QpType::Rc, QpType::Uc, QpType::Xp] {
            let mut pair = Pair::of(qp_type);
            let key = pair.ends[1].nic.alloc_window(pair.ends[1].pd).unwrap().0;
            let mut bind = good(&pair.ends[1], key);
            change(&mut bind);
            pair.post(1, 1, SendOp::BindWindow(bind), &[]);
            pair.exchange();
            assert_eq!(pair.ends[1].statuses(), [(1, WcStatus::MwBindErr)], "{n} {qp_type:?}");
            let state = if qp_type == QpType::Rc { QpState::Err } else { QpState::Sqe };
            assert_eq!(pair.ends[1].state(), state);
        }
    }
    // Twice, or revoked twice.
    let mut pair = Pair::of(QpType::Uc);
    let key = pair.window(1);
    let bind = good(&pair.ends[1], key ^ 3);
    pair.post(1, 2, SendOp::BindWindow(bind), &[]);
    pair.exchange();
    assert_eq!(pair.ends[1].statuses(), [(2, WcStatus::MwBindErr)]);
    assert!(pair.writes_through(remote(key, 0)), "receiving goes on, and so does the window");
}

#[test]
fn windows_and_regions_hold_each_other() {
    let mut pair = Pair::of(QpType::Uc);
    let key = pair.window(1);
    let end = &mut pair.ends[1];
    let busy = Err(ControlError::Busy { what: "the memory region" });
    assert_eq!(end.nic.deregister(end.key), busy);
    assert!(end.nic.deregister(MrKey(key)).is_err(), "a window is no region");
    assert!(end.nic.share_key(MrKey(key)).is_err());
    let sge = Sge::new(MrKey(key), 0x1_0000 + 8192, 10);
    end.nic.post_recv(end.qpn, &RecvWr::new(1, &[sge])).unwrap();
    pair.post(0, 1, SendOp::Send, &[pair.ends[0].sge(0, 10)]);
    pair.exchange();
    assert_eq!(pair.ends[1].statuses(), [(1, WcStatus::LocProtErr)], "nor a local key");
    let end = &mut pair.ends[1];
    end.nic.dealloc_window(MrKey(key)).unwrap();
    assert!(end.nic.dealloc_window(MrKey(key)).is_err());
    end.nic.deregister(end.key).unwrap();
}

#[test]
fn a_region_must_allow_windows() {
    let mut pair = Pair::of(QpType::Uc);
    let end = &mut pair.ends[1];
    for (access, wanted) in [
        (ALL - Access::BIND_WINDOW, Access::REMOTE_READ),
        (Access::BIND_WINDOW, Access::REMOTE_WRITE),
    ] {
        let region = Region::owned(end.buffer.clone());
        let region = end.nic.register(end.pd, region, 0, access).unwrap();
        let key = end.nic.alloc_window(end.pd).unwrap().0;
        let scope = WindowScope::Qp;
        let bind = WindowBinding { key, region, addr: 0, len: 8, access: wanted, scope };
        let peer = crate::memory::Peer { pd: end.pd, qpn: end.qpn };
        assert!(end.nic.shared.memory.bind_window(peer, &bind).is_err());
        let read_only = WindowBinding { access: Access::REMOTE_READ, ..bind };
        let allowed = access.contains(Access::BIND_WINDOW);
        assert_eq!(end.nic.shared.memory.bind_window(peer, &read_only).is_ok(), allowed);
    }
}

#[test]
fn a_window_of_a_domain_serves_the_peers_of_all_its_qps() {
    let mut pair = Pair::of(QpType::Uc);
    let end = &mut pair.ends[1];
    let init = QpInit { max_recv_wr: 1, ..QpInit::new(QpType::Uc, end.pd, end.cq) };
    let other = end.nic.create_qp(&init).unwrap();
    end.nic.connect(pair.now, other, &connect_to(addr(0), Qpn::new(77))).unwrap();
    let key = end.nic.alloc_window(end.pd).unwrap().0;
    let of_domain = |end: &End, key| {
        let bind = WindowBinding { scope: WindowScope::Domain, ..binding(end, key) };
        SendOp::BindWindow(bind)
    };
    let bind = SendWr::new(1, of_domain(end, key), &[]);
    end.nic.post_send(pair.now, other, &bind).unwrap();
    pair.exchange();
    assert_eq!(pair.ends[1].statuses(), [(1, WcStatus::Success)]);
    assert!(pair.writes_through(remote(key, 0)), "bound through another QP");
    pair.ends[1].nic.destroy_qp(other).unwrap();
    assert!(pair.writes_through(remote(key, 0)), "and not gone with it");

    // Once it is rebound, its previous key is invalid.
    let again = of_domain(&pair.ends[1], key ^ 1);
    pair.post(1, 2, again, &[]);
    assert!(pair.writes_through(remote(key ^ 1, 0)));
    assert!(!pair.writes_through(remote(key, 0)));
    assert_eq!(pair.ends[1].statuses(), [(2, WcStatus::Success)]);

    // Bound to nothing, no key is valid.
    let SendOp::BindWindow(nothing) = of_domain(&pair.ends[1], key ^ 2) else { unreachable!() };
    let nothing = WindowBinding { len: 0, region: MrKey(0), ..nothing };
    pair.post(1, 3, SendOp::BindWindow(nothing), &[]);
    assert!(!pair.writes_through(remote(key ^ 1, 0)));
    assert!(!pair.writes_through(remote(key ^ 2, 0)));
    assert_eq!(pair.ends[1].statuses(), [(3, WcStatus::Success)]);
    let end = &mut pair.ends[1];
    end.nic.deregister(end.key).unwrap();
}

#[test]
fn a_window_of_a_domain_is_not_revoked_by_its_key() {
    let mut pair = Pair::of(QpType::Uc);
    let key = pair.ends[1].nic.alloc_window(pair.ends[1].pd).unwrap().0;
    let bind = WindowBinding { scope: WindowScope::Domain, ..binding(&pair.ends[1], key) };
    pair.post(1, 1, SendOp::BindWindow(bind), &[]);
    pair.post(1, 2, SendOp::LocalInvalidate(key), &[]);
    pair.exchange();
    let statuses = pair.ends[1].statuses();
    assert_eq!(statuses, [(1, WcStatus::Success), (2, WcStatus::MwBindErr)]);
    assert!(pair.writes_through(remote(key, 0)));
}
