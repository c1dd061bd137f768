//! WRITEs into memory that both ends have mapped.

use super::*;
use crate::direct::{Door, PeerRegion, Reach};

/// A pair whose first end may write the second's memory, and has just heard from it.
fn sharing() -> Pair {
    let mut p = Pair::rc();
    // Memory whose key peers may revoke is not shared.
    let (pd, region) = (p.ends[1].pd, Region::owned(p.ends[1].buffer.clone()));
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    p.ends[1].key = p.ends[1].nic.register(pd, region, 0x1_0000, access).unwrap();
    p.ends.iter_mut().for_each(|end| end.nic.set_direct(true));
    p.write(0, 1);
    p.exchange();
    assert_eq!(p.ends[0].statuses(), [(0, WcStatus::Success)]);
    let (writer, owner) = (p.ends[0].qpn, p.ends[1].qpn);
    let door = Door::new(Buffer::new(Door::BYTES)).unwrap();
    let key = p.ends[1].key;
    p.ends[1].nic.open_door(owner, door.clone(), &[key]).unwrap();
    let here = Region::owned(p.ends[1].buffer.clone());
    let reach = Reach::new(door, vec![PeerRegion::new(key, 0x1_0000, here)]);
    p.ends[0].nic.set_reach(writer, reach).unwrap();
    p
}

impl Pair {
    /// The first end writes `len` bytes.
    fn write(&mut self, wr_id: u64, len: u32) -> Vec<u8> {
        let bytes = self.fill(0, 64 << 10, len as usize);
        let (sge, remote) = (self.ends[0].sge(64 << 10, len), self.ends[1].remote(0));
        self.post(0, wr_id, SendOp::Write(remote), &[sge]);
        bytes
    }

    fn arrived(&self, len: usize) -> Vec<u8> {
        self.ends[1].buffer.to_vec(0, len)
    }

    fn direct_writes(&self) -> u64 {
        self.ends[0].nic.counters().direct_writes
    }
}

#[test]
fn a_short_one_is_done_when_it_is_posted() {
    let mut p = sharing();
    for (wr_id, len) in [(1, 8), (2, 4096)] {
        let bytes = p.write(wr_id, len);
        assert_eq!(p.arrived(len as usize), bytes);
        assert!(!p.ends[0].nic.is_ready(), "there is nothing left to send");
        assert_eq!(p.ends[0].statuses(), [(wr_id, WcStatus::Success)]);
    }
    assert_eq!((p.direct_writes(), p.take(0).len()), (2, 0));
}

#[test]
fn a_long_one_waits_for_its_turn() {
    let mut p = sharing();
    let bytes = p.write(1, 4097);
    assert_ne!(p.arrived(4097), bytes);
    assert_eq!(p.take(0).len(), 0);
    assert_eq!(p.arrived(4097), bytes);
    assert_eq!(p.direct_writes(), 1);
}

#[test]
fn a_short_one_does_not_overtake_what_was_posted_before() {
    let mut p = sharing();
    let sge = p.ends[0].sge(0, 8);
    p.recv(1, 7, &[]);
    p.post(0, 1, SendOp::WriteImm(p.ends[1].remote(128), 5), &[sge]);
    let bytes = p.write(2, 8);
    assert_ne!(p.arrived(8), bytes);
    p.exchange();
    assert_eq!(p.ends[0].statuses(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!((p.arrived(8), p.direct_writes()), (bytes, 0));
}

#[test]
fn none_is_direct_while_packets_are_wanted_or_the_peer_is_silent() {
    let mut p = sharing();
    p.ends[0].nic.set_direct(false);
    p.write(1, 8);
    p.exchange();
    p.ends[0].nic.set_direct(true);
    p.now = p.now.plus_nanos(30_000_000);
    let bytes = p.write(2, 8);
    p.exchange();
    assert_eq!(p.ends[0].statuses(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!((p.arrived(8), p.direct_writes()), (bytes, 0));
    // It has been heard now.
    p.write(3, 8);
    assert_eq!(p.direct_writes(), 1);
}
