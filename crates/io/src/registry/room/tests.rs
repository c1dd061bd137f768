use std::net::Ipv4Addr;

use super::*;

const BUFFER: u64 = 80_000;
const ROOM: u64 = BUFFER / 8 * 5;
const PREFIX: u8 = 5;
const ADDR: (IpAddr, u16) = (IpAddr::V4(Ipv4Addr::new(127, 0, 0, 9)), 14_791);

struct TempDir(PathBuf);

impl TempDir {
    fn new(name: &str) -> TempDir {
        let dir = std::env::temp_dir().join(format!("bowline-room-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("the temporary directory is writable");
        TempDir(dir)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A receiver, and what a sender knows of its address.
fn ends(dir: &TempDir) -> (Rooms, Peer) {
    let rooms = Rooms::open(&dir.0, ADDR, PREFIX, BUFFER).expect("the directory is writable");
    (rooms, Peer::new(&dir.0, ADDR.0, ADDR.1, Time::ZERO))
}

fn at(ns: u64) -> Time {
    Time::from_nanos(ns)
}

#[test]
fn a_sender_waits_for_room_and_goes_on_when_there_is() {
    let dir = TempDir::new("waits");
    let (rooms, mut peer) = ends(&dir);
    let one = ROOM / 3;
    assert!((0..3).all(|_| peer.admits(at(1), PREFIX, one)));
    assert!(!peer.admits(at(2), PREFIX, one));
    rooms.took((one - DESCRIPTOR - OVERHEAD) as usize);
    assert!(peer.admits(at(3), PREFIX, one));
    assert!(!peer.admits(at(4), PREFIX, one));
}

#[test]
fn a_datagram_larger_than_all_room_goes_to_an_empty_socket() {
    let dir = TempDir::new("large");
    let (_rooms, mut peer) = ends(&dir);
    assert!(peer.admits(at(1), PREFIX, ROOM * 2));
    assert!(!peer.admits(at(1), PREFIX, 1));
}

#[test]
fn a_receiver_that_takes_nothing_is_not_waited_for_until_it_does() {
    let dir = TempDir::new("stalled");
    let (rooms, mut peer) = ends(&dir);
    assert!(peer.admits(at(1), PREFIX, ROOM));
    assert!(!peer.admits(at(2), PREFIX, 100));
    assert!(!peer.admits(at(STALL_NS), PREFIX, 100));
    assert!(peer.admits(at(2 + STALL_NS), PREFIX, 100));
    assert!(peer.admits(at(3 + STALL_NS), PREFIX, 100));
    // It wakes up, and senders wait for it again.
    rooms.took(0);
    assert!(!peer.admits(at(4 + STALL_NS), PREFIX, ROOM));
}

#[test]
fn an_empty_socket_sets_wrong_counts_right() {
    let dir = TempDir::new("drained");
    let (rooms, mut peer) = ends(&dir);
    assert!(peer.admits(at(1), PREFIX, ROOM));
    // The kernel dropped it: nothing was ever consumed, but the socket is empty.
    rooms.drained(rooms.sent());
    assert!(peer.admits(at(2), PREFIX, ROOM));
    // Uncounted datagrams from elsewhere do not count as free space.
    rooms.took(1 << 20);
    rooms.drained(rooms.sent());
    assert!(peer.admits(at(3), PREFIX, ROOM));
    assert!(!peer.admits(at(3), PREFIX, ROOM));
}

#[test]
fn nobody_waits_for_a_process_that_left_or_a_host_that_is_not_ours() {
    let dir = TempDir::new("left");
    let (rooms, mut peer) = ends(&dir);
    rooms.close();
    assert!((0..9).all(|_| peer.admits(at(1), PREFIX, ROOM)));
    let mut elsewhere = Peer::new(&dir.0, Ipv4Addr::new(10, 0, 0, 1).into(), ADDR.1, at(1));
    assert!((0..9).all(|_| elsewhere.admits(at(1), PREFIX, ROOM)));
}

#[test]
fn a_new_process_starts_with_an_empty_room() {
    let dir = TempDir::new("anew");
    let (rooms, mut peer) = ends(&dir);
    assert!(peer.admits(at(1), PREFIX, ROOM));
    drop(rooms);
    let (_rooms, _) = ends(&dir);
    assert!(peer.admits(at(2), PREFIX, ROOM));
    assert!(!peer.admits(at(2), PREFIX, ROOM));
}

#[test]
fn a_burst_to_a_group_fits_all_its_listeners_or_waits_for_all() {
    let dir = TempDir::new("group");
    let [first, second] = [PREFIX, PREFIX + 1]
        .map(|prefix| Rooms::open(&dir.0, ADDR, prefix, BUFFER).expect("a writable directory"));
    let mut sender = Rooms::open(&dir.0, ADDR, 9, BUFFER).expect("a writable directory");
    // The last one is on another host: nobody waits for it.
    let far: IpAddr = [192, 0, 2, 7].into();
    let listeners = [(ADDR.0, PREFIX), (ADDR.0, PREFIX + 1), (far, PREFIX)];
    assert!(sender.all_admit(at(1), &listeners, ROOM));
    assert_eq!((first.sent(), second.sent()), (ROOM, ROOM));
    first.took((ROOM - DESCRIPTOR - OVERHEAD) as usize);
    assert!(!sender.all_admit(at(2), &listeners, ROOM), "the second one is full");
    assert_eq!((first.sent(), second.sent()), (ROOM, ROOM), "nothing stays reserved");
    second.took((ROOM - DESCRIPTOR - OVERHEAD) as usize);
    assert!(sender.all_admit(at(3), &listeners, ROOM));
}
