//! Codes from a caller's side: every loss pattern of small shapes, and the largest shapes.

use bowline_codes::{ChunkSet, Code, CodeError, Family, Kernel, MAX_CHUNKS};
use proptest::prelude::*;

/// A block of `k` chunks of `len` bytes; the last one is shorter.
fn block(k: usize, len: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut state = seed | 1;
    let mut byte = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..k)
        .map(|j| (0..if j + 1 == k { len - len / 3 } else { len }).map(|_| byte()).collect())
        .collect()
}

fn encode(code: &Code, data: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut parity = vec![vec![0xee; data[0].len()]; code.m()];
    code.encode(data, &mut parity).unwrap();
    parity
}

/// Destroys what is not present, reconstructs it, and compares.
fn check_recovery(code: &Code, data: &[Vec<u8>], parity: &[Vec<u8>], present: &ChunkSet) {
    let mut damaged = data.to_vec();
    let mut damaged_parity = parity.to_vec();
    for (j, chunk) in damaged.iter_mut().enumerate() {
        if !present.contains(j) {
            chunk.fill(0xaa);
        }
    }
    for (i, chunk) in damaged_parity.iter_mut().enumerate() {
        if !present.contains(code.k() + i) {
            chunk.clear();
        }
    }
    code.reconstruct(present, &mut damaged, &damaged_parity).unwrap();
    assert!(damaged == data, "{code:?} with {present:?}");
}

/// What the definition of the family says, group by group.
fn recoverable_by_definition(family: Family, k: usize, m: usize, present: &ChunkSet) -> bool {
    let has = |index: &usize| present.contains(*index);
    match family {
        Family::Mds => (0..k).all(|j| has(&j)) || (0..k + m).filter(has).count() >= k,
        Family::Xor => (0..m).all(|group| {
            let lost = (group..k).step_by(m).filter(|j| !has(j)).count();
            lost == 0 || lost == 1 && has(&(k + group))
        }),
    }
}

#[test]
fn every_loss_pattern_of_small_shapes() {
    for family in [Family::Xor, Family::Mds] {
        for k in 1..=9 {
            for m in 1..=10 - k {
                let Ok(code) = Code::new(family, k, m) else {
                    assert!(family == Family::Xor && m > k);
                    continue;
                };
                let data = block(k, 9, (k * 16 + m) as u64);
                let parity = encode(&code, &data);
                for pattern in 0..1u64 << (k + m) {
                    let mut present = ChunkSet::EMPTY;
                    present.insert_bits(0, pattern);
                    let recoverable = code.recoverable(&present);
                    assert_eq!(recoverable, recoverable_by_definition(family, k, m, &present));
                    if recoverable {
                        check_recovery(&code, &data, &parity, &present);
                    } else {
                        let missing = (0..k).filter(|j| !present.contains(*j)).count();
                        let error = code.plan(&present).unwrap_err();
                        assert_eq!(error, CodeError::Unrecoverable { missing });
                    }
                }
            }
        }
    }
}

#[test]
fn largest_shapes() {
    for (k, m) in [(255, 1), (1, 255), (224, 32), (200, 56), (128, 128), (56, 200)] {
        let code = Code::mds(k, m).unwrap();
        let data = block(k, 200, k as u64);
        let parity = encode(&code, &data);
        let lost = m.min(k);
        // Bursts at the start and at the end of the data, and losses spread over everything.
        check_recovery(&code, &data, &parity, &(lost..MAX_CHUNKS).collect());
        check_recovery(&code, &data, &parity, &(0..k - lost).chain(k..MAX_CHUNKS).collect());
        let mut spread = ChunkSet::first(MAX_CHUNKS);
        (0..m).for_each(|i| spread.remove(i * MAX_CHUNKS / m));
        check_recovery(&code, &data, &parity, &spread);
        spread.remove(spread.iter().next().unwrap());
        assert!(!code.recoverable(&spread));
    }
}

proptest! {
    #[test]
    fn kernels_agree_and_order_does_not_matter(
        k in 1..40usize,
        m in 1..20usize,
        len in 1..300usize,
        seed: u64,
        order in any::<prop::sample::Index>(),
    ) {
        for family in [Family::Xor, Family::Mds] {
            let Ok(code) = Code::new(family, k, m) else { continue };
            let data = block(k, len, seed);
            let want = encode(&code, &data);
            for kernel in Kernel::supported() {
                let code = code.clone().with_kernel(kernel);
                prop_assert_eq!(&encode(&code, &data), &want);
                let mut parity = vec![vec![0; data[0].len()]; m];
                for j in 0..k {
                    let j = (j + order.index(k)) % k;
                    code.update(j, &data[j], &mut parity).unwrap();
                }
                prop_assert_eq!(&parity, &want);
                // In two runs, cut anywhere.
                let cut = order.index(k);
                let mut parity = vec![vec![0; data[0].len()]; m];
                code.update_run(cut, &data[cut..], &mut parity).unwrap();
                code.update_run(0, &data[..cut], &mut parity).unwrap();
                prop_assert_eq!(&parity, &want);
            }
        }
    }

    #[test]
    fn random_losses_on_every_kernel(
        k in 1..60usize,
        m in 1..24usize,
        len in 1..300usize,
        seed: u64,
        losses in prop::collection::vec(any::<prop::sample::Index>(), 0..24),
    ) {
        for family in [Family::Xor, Family::Mds] {
            let Ok(code) = Code::new(family, k, m) else { continue };
            let data = block(k, len, seed);
            let parity = encode(&code, &data);
            let mut present = ChunkSet::first(k + m);
            for loss in &losses {
                let before = present;
                present.remove(loss.index(k + m));
                if !code.recoverable(&present) {
                    present = before;
                }
            }
            for kernel in Kernel::supported() {
                check_recovery(&code.clone().with_kernel(kernel), &data, &parity, &present);
            }
        }
    }
}

#[test]
fn a_plan_serves_many_blocks_and_takes_its_sources_apart() {
    let code = Code::mds(6, 3).unwrap();
    let present = ChunkSet::from_iter([0, 2, 3, 5, 7, 8]);
    let plan = code.plan(&present).unwrap();
    assert_eq!(plan.missing(), [1, 4]);
    assert_eq!(plan.sources(), [0, 2, 3, 5, 7, 8]);
    for seed in 0..10 {
        let data = block(6, 50, seed);
        let parity = encode(&code, &data);
        let all: Vec<&[u8]> = data.iter().chain(&parity).map(Vec::as_slice).collect();
        let sources: Vec<&[u8]> = plan.sources().iter().map(|i| all[*i]).collect();
        let mut missing = [vec![0; 50], vec![0; 50]];
        plan.apply(&sources, &mut missing).unwrap();
        assert_eq!(missing[0], data[1]);
        assert_eq!(missing[1], data[4]);
    }
}

#[test]
fn blocks_at_the_end_of_a_message_have_empty_chunks() {
    for family in [Family::Xor, Family::Mds] {
        let code = Code::new(family, 8, 4).unwrap();
        let mut data = block(8, 64, 5);
        data[2].truncate(10);
        data[3..].iter_mut().for_each(Vec::clear);
        let parity = encode(&code, &data);
        check_recovery(&code, &data, &parity, &(3..12).chain([0, 1]).collect());
        check_recovery(&code, &data, &parity, &(3..12).collect());
    }
}

#[test]
fn mistakes_are_named() {
    for (k, m) in [(0, 1), (1, 0), (200, 57), (usize::MAX, 1)] {
        assert_eq!(Code::mds(k, m).unwrap_err(), CodeError::Shape { k, m });
        assert_eq!(Code::xor(k, m).unwrap_err(), CodeError::Shape { k, m });
    }
    assert_eq!(Code::xor(3, 4).unwrap_err(), CodeError::Shape { k: 3, m: 4 });

    let code = Code::mds(3, 2).unwrap();
    let data = block(3, 8, 1);
    let mut parity = vec![vec![0; 8], vec![0; 7]];
    let count = |what, expected, got| CodeError::Count { what, expected, got };
    assert_eq!(code.encode(&data[1..], &mut parity), Err(count("data", 3, 2)));
    assert_eq!(code.encode(&data, &mut parity[..1]), Err(count("parity", 2, 1)));
    let short = CodeError::ParityTooShort { parity: 1, len: 7, needed: 8 };
    assert_eq!(code.encode(&data, &mut parity), Err(short));
    assert_eq!(code.update(0, &data[0], &mut parity), Err(short));
    assert_eq!(code.update(3, &[], &mut parity), Err(CodeError::Index { index: 3, k: 3 }));
    assert_eq!(code.update_run(2, &data, &mut parity), Err(CodeError::Index { index: 4, k: 3 }));
    assert!(parity.iter().flatten().all(|byte| *byte == 0), "nothing is written on an error");

    let present = ChunkSet::from_iter([2, 3, 4]);
    let mut damaged = data.clone();
    assert_eq!(code.reconstruct(&present, &mut damaged, &parity), Err(short));
    assert_eq!(damaged, data);
    let plan = code.plan(&present).unwrap();
    assert_eq!(plan.reconstruct(&mut damaged[1..], &parity), Err(count("data", 3, 2)));
    assert_eq!(plan.reconstruct(&mut damaged, &parity[1..]), Err(count("parity", 2, 1)));
    assert_eq!(plan.apply(&data[1..], &mut damaged[..2]), Err(count("source", 3, 2)));
    assert_eq!(plan.apply(&data, &mut damaged), Err(count("missing", 2, 3)));
}
