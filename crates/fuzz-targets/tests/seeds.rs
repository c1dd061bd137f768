//! The seeds of all targets, and inputs near them, find nothing.

use std::path::PathBuf;

use bowline_fuzz_targets::TARGETS;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn seeds(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(name);
    let entries = std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

#[test]
fn every_target_has_seeds_and_survives_them() {
    for (name, target) in TARGETS {
        let seeds = seeds(name);
        assert!(!seeds.is_empty(), "{name} has no seeds");
        for (path, bytes) in seeds {
            // Printed only if the target fails.
            println!("{}", path.display());
            target(&bytes);
        }
    }
}

/// A smoke test of what a fuzzer does: it needs no other tools, and is the same every time.
#[test]
fn inputs_near_the_seeds_find_nothing() {
    for (name, target) in TARGETS {
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let seeds = seeds(name);
        // Some targets touch files or sockets.
        let rounds = if ["store", "recv", "pcap"].contains(&name) { 60 } else { 300 };
        for round in 0..rounds {
            let mut bytes = seeds[round % seeds.len()].1.clone();
            for _ in 0..rng.random_range(1..8) {
                let at = rng.random_range(0..=bytes.len());
                match rng.random_range(0..3) {
                    0 => bytes.insert(at, rng.next_u32() as u8),
                    1 => bytes.truncate(at.max(1)),
                    _ => {
                        if let Some(byte) = bytes.get_mut(at) {
                            *byte = rng.next_u32() as u8;
                        }
                    }
                }
            }
            println!("{name}, round {round}: {bytes:02x?}");
            target(&bytes);
        }
    }
}
