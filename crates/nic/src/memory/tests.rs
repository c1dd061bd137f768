use std::sync::Arc;

use bowline_wire::{Icrc, Qpn};
use proptest::prelude::*;

use super::*;

fn table(len: usize, iova: u64, access: Access) -> (MemoryTable, PdId, Arc<Buffer>, u32) {
    let mut t = MemoryTable::new(8, 8, [7; 32]);
    let pd = t.alloc_pd().unwrap();
    let buffer = Buffer::new(len);
    let key = t.register(pd, Region::owned(buffer.clone()), iova, access).unwrap();
    (t, pd, buffer, key.0)
}

/// The peer of a QP in a domain.
fn peer(pd: PdId) -> Peer {
    Peer { pd, qpn: Qpn::new(5) }
}

proptest! {
    #[test]
    fn a_remote_access_is_allowed_exactly_inside_the_region(
        len in 0usize..300,
        iova in prop_oneof![Just(0u64), Just(0x1000), Just(u64::MAX - 1000)],
        start in -20i64..320,
        size in 0u32..320,
    ) {
        let (t, pd, _buffer, key) = table(len, iova, Access::all());
        let addr = iova.wrapping_add_signed(start);
        let inside = start >= 0 && start as u64 + u64::from(size) <= len as u64;
        let checked = t.check_remote(peer(pd), key, addr, size, Access::REMOTE_WRITE).is_ok();
        prop_assert_eq!(checked, inside);
        let written = t.remote_write(peer(pd), key, addr, &vec![1; size as usize], true);
        prop_assert_eq!(written.is_ok(), inside);
        prop_assert_eq!(t.remote_read(peer(pd), key, addr, size).is_ok(), inside);
    }

    #[test]
    fn scattering_and_gathering_agree(
        lens in prop::collection::vec(0u32..40, 0..6),
        offset in 0u32..100,
        len in 0u32..100,
    ) {
        let (t, pd, buffer, key) = table(4096, 0, Access::all());
        let mut at = 0;
        let sges: Vec<Sge> = lens.iter().map(|&len| {
            let sge = Sge { addr: at, len, lkey: key };
            at += u64::from(len) + 7;
            sge
        }).collect();
        let total: u32 = lens.iter().sum();
        let bytes: Vec<u8> = (0..len).map(|i| i as u8 + 1).collect();
        let fits = len == 0 || offset + len <= total;
        prop_assert_eq!(t.scatter(pd, &sges, offset, &bytes, true).is_ok(), fits);
        let mut segments = Vec::new();
        prop_assert_eq!(t.gather(pd, &sges, offset, len, &mut segments).is_ok(), fits);
        if fits {
            let mut back = Vec::new();
            for segment in &segments {
                segment.append_summed(Icrc::START, &mut back);
            }
            prop_assert_eq!(back, bytes);
        }
        // The gaps between the entries are never touched.
        let mut gap = 0;
        for &len in &lens {
            gap += len as usize;
            prop_assert_eq!(buffer.to_vec(gap, 7), vec![0; 7]);
            gap += 7;
        }
    }
}

#[test]
fn rights_and_domains_are_kept_apart() {
    let (mut t, pd, _buffer, key) = table(64, 0, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    assert!(t.remote_write(peer(pd), key, 0, &[1], true).is_ok());
    assert!(t.remote_read(peer(pd), key, 0, 1).is_err());
    assert!(t.remote_atomic(peer(pd), key, 0, AtomicOp::FetchAdd(1)).is_err());
    assert!(t.remote_invalidate(peer(pd), key).is_err());
    let other = t.alloc_pd().unwrap();
    assert!(t.remote_write(peer(other), key, 0, &[1], true).is_err());
    assert!(t.check_local(other, &[Sge { addr: 0, len: 1, lkey: key }], false).is_err());
}

#[test]
fn atomics_need_alignment_and_room() {
    let (t, pd, buffer, key) = table(20, 0, Access::all());
    let add = AtomicOp::FetchAdd(1);
    assert_eq!(t.remote_atomic(peer(pd), key, 8, add), Ok(0));
    assert_eq!(buffer.load_u64(8), 1);
    assert!(t.remote_atomic(peer(pd), key, 4, add).is_err());
    assert!(t.remote_atomic(peer(pd), key, 16, add).is_err(), "it would reach past the end");
}

#[test]
fn a_part_of_a_buffer_is_all_that_is_registered() {
    let buffer = Buffer::new(100);
    assert!(Region::part(buffer.clone(), 90, 11).is_none());
    let region = Region::part(buffer.clone(), 90, 10).unwrap();
    assert_eq!(region.write(5, &[1; 6], true), None);
    assert!(region.write(5, &[1; 5], true).is_some());
    assert_eq!(buffer.to_vec(90, 10), [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]);
}

#[test]
fn a_slot_leads_to_its_buffer_or_nowhere() {
    let (mut t, pd, buffer, key) = table(4096, 0x1000, Access::all());
    let root = t.register_indirect(pd, 4, 10).unwrap();
    t.bind_slot(root, 2, Some((MrKey(key), 0x1000 + 100, 300))).unwrap();
    // Null slots accept everything and store nothing.
    assert!(t.remote_write(peer(pd), root.0, 1024, &[1; 1024], true).is_ok());
    assert_eq!(buffer.to_vec(0, 4096), vec![0; 4096]);
    // The bound one accepts what fits its buffer, at the right place.
    assert!(t.remote_write(peer(pd), root.0, 2048 + 290, &[7; 10], true).is_ok());
    assert_eq!(buffer.to_vec(389, 12), [0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 0]);
    assert!(t.remote_write(peer(pd), root.0, 2048 + 291, &[7; 10], true).is_err());
    assert!(t.check_remote(peer(pd), root.0, 2048 + 291, 10, Access::REMOTE_WRITE).is_err());
    // Not across slots, not beyond the last, and nothing but writes.
    assert!(t.remote_write(peer(pd), root.0, 1020, &[1; 8], true).is_err());
    assert!(t.remote_write(peer(pd), root.0, 4096, &[1; 1], true).is_err());
    assert!(t.remote_write(peer(pd), root.0, u64::MAX - 3, &[1; 8], true).is_err());
    assert!(t.remote_read(peer(pd), root.0, 2048, 8).is_err());
    assert!(t.remote_atomic(peer(pd), root.0, 2048, AtomicOp::FetchAdd(1)).is_err());
    // Unbound, it is null again.
    t.bind_slot(root, 2, None).unwrap();
    assert!(t.remote_write(peer(pd), root.0, 2048, &[9; 300], true).is_ok());
    assert_eq!(buffer.to_vec(100, 8), [0; 8]);
}

#[test]
fn a_slot_whose_place_is_anothers_takes_nothing() {
    let (mut t, pd, buffer, key) = table(4096, 0, Access::all());
    let root = t.register_indirect(pd, 4, 10).unwrap();
    let write = |t: &MemoryTable, slot: u64, byte| {
        t.remote_write(peer(pd), root.0, slot << 10, &[byte; 8], true).is_ok()
    };
    for to in [Some((MrKey(key), 0, 8)), None] {
        t.bind_slot(root, 2, to).unwrap();
        assert!(write(&t, 2, 1) && !write(&t, 6, 2), "{to:?}");
        t.bind_slot(root, 6, to).unwrap();
        let before = buffer.to_vec(0, 8);
        assert!(!write(&t, 2, 3), "it was held back: {to:?}");
        // Not even an empty one, which a landing would trust to come from the peer.
        assert!(t.check_remote(peer(pd), root.0, 2 << 10, 0, Access::REMOTE_WRITE).is_err());
        assert_eq!(buffer.to_vec(0, 8), before);
        assert!(write(&t, 6, 4), "{to:?}");
    }
    assert!(t.bind_slot(root, 1 << 54, None).is_err(), "it would have no address");
    assert!(t.register_indirect(pd, 3, 10).is_err());
}

#[test]
fn a_slot_does_not_outlive_its_buffer() {
    let (mut t, pd, _buffer, key) = table(4096, 0, Access::all());
    let root = t.register_indirect(pd, 1, 12).unwrap();
    t.bind_slot(root, 0, Some((MrKey(key), 0, 4096))).unwrap();
    t.deregister(MrKey(key)).unwrap();
    // Another region takes its table slot, and must not be mistaken for it.
    let other = Buffer::new(4096);
    t.register(pd, Region::owned(other.clone()), 0, Access::all()).unwrap();
    assert!(t.remote_write(peer(pd), root.0, 0, &[1; 64], true).is_err());
    assert_eq!(other.to_vec(0, 64), vec![0; 64]);
}

#[test]
fn bindings_are_checked() {
    let (mut t, pd, _buffer, key) = table(4096, 0, Access::LOCAL_WRITE);
    let (writable, other_pd) = (Buffer::new(64), t.alloc_pd().unwrap());
    let elsewhere = t.register(other_pd, Region::owned(writable), 0, Access::all()).unwrap();
    let root = t.register_indirect(pd, 1, 6).unwrap();
    let refused = [
        (root, 0, Some((MrKey(key), 0, 64))),
        (root, 0, Some((elsewhere, 0, 64))),
        (root, 1 << 58, None),
        (MrKey(key), 0, None),
    ];
    for (root, slot, to) in refused {
        assert!(t.bind_slot(root, slot, to).is_err(), "{slot} {to:?}");
    }
}

#[test]
fn computing_over_memory_is_checked() {
    let (t, pd, buffer, key) = table(4096, 0, Access::LOCAL_WRITE);
    buffer.write_at(0, &[1, 2, 3, 4]);
    let sge = |addr, len| Sge { addr, len, lkey: key };
    let add = |reads: &[&[u8]], writes: &mut [&mut [u8]]| {
        writes[0].iter_mut().zip(reads[0].iter().zip(reads[1])).for_each(|(w, (a, b))| *w = a + b);
    };
    t.with_slices(pd, &[sge(0, 2), sge(2, 2)], &[sge(100, 2)], add).unwrap();
    assert_eq!(buffer.to_vec(100, 2), [4, 6]);
    let refused = [
        ([sge(0, 2), sge(2, 2)], sge(1, 2)),
        ([sge(0, 2), sge(2, 2)], sge(4095, 2)),
        ([sge(0, 2), sge(5000, 2)], sge(100, 2)),
    ];
    for (reads, write) in refused {
        assert!(t.with_slices(pd, &reads, &[write], |_, _| ()).is_err(), "{write:?}");
    }
}

/// The safe memory interface and the engine's accesses run concurrently with another thread that
/// does the same: no data race under Miri, and every packet's ICRC matches it.
#[test]
fn an_owner_may_use_memory_while_the_engine_does() {
    let buffer = Buffer::new(64);
    let region = Region::owned(buffer.clone());
    let rounds = if cfg!(miri) { 20 } else { 20_000 };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..rounds {
                buffer.write_at(1, &[round as u8; 40]);
                buffer.fill(3, 20, !(round as u8));
                let mut out = [0; 50];
                buffer.read_at(0, &mut out);
            }
        });
        for round in 0..rounds {
            region.write(30, &[round as u8; 20], false).unwrap();
            let mut out = Vec::new();
            let icrc = region.segment(2, 45).unwrap().append_summed(Icrc::START, &mut out);
            assert_eq!(icrc, Icrc::START.update(&out), "round {round}");
            region.segment(2, 45).unwrap().append(&mut out);
        }
    });
}

/// Foreign memory lives as long as anything that may touch it, and no longer.
#[test]
fn foreign_memory_is_let_go_of_with_the_last_use() {
    let mut bytes = vec![7u8; 100];
    let (addr, len) = (bytes.as_mut_ptr(), bytes.len());
    let owner = std::sync::Arc::new(());
    let held = std::sync::Arc::clone(&owner);
    // SAFETY: `bytes` outlives the buffer, and is not accessed before the buffer is gone.
    let buffer = unsafe { Buffer::foreign(addr.add(1), len - 1, Box::new(held)) }.unwrap();
    let region = Region::owned(buffer.clone());
    region.write(0, &[1, 2, 3], false).unwrap();
    assert_eq!(buffer.to_vec(0, 4), [1, 2, 3, 7]);
    // Word alignment is that of the address, not of the offset in the buffer.
    let aligned = (0..8).find(|offset| (buffer.addr() + offset).is_multiple_of(8)).unwrap();
    buffer.store_u64(aligned as usize, 5);
    drop(buffer);
    assert_eq!(std::sync::Arc::strong_count(&owner), 2, "registered memory stays");
    drop(region);
    assert_eq!(std::sync::Arc::strong_count(&owner), 1);
    assert_eq!(bytes[0], 7);
    // SAFETY: it is refused, so nothing is touched.
    let nowhere = unsafe { Buffer::foreign(std::ptr::null_mut(), 8, Box::new(())) };
    assert!(nowhere.is_none());
    // SAFETY: as above.
    let beyond = unsafe { Buffer::foreign(addr, usize::MAX, Box::new(())) };
    assert!(beyond.is_none());
}
