//! The transforms against their definition, against each other, and under loss.

use proptest::prelude::*;

use super::signs::Signs;
use super::*;
use crate::half::{f32_to_bf16, f32_to_f16};

const TYPES: [DataType; 3] = [DataType::F32, DataType::Bf16, DataType::F16];

/// Numbers as elements of a type.
fn tensor(dtype: DataType, values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    let values = values.into_iter();
    match dtype {
        DataType::F32 => values.flat_map(f32::to_ne_bytes).collect(),
        DataType::Bf16 => values.flat_map(|x| f32_to_bf16(x).to_ne_bytes()).collect(),
        _ => values.flat_map(|x| f32_to_f16(x).to_ne_bytes()).collect(),
    }
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_ne_bytes(*b)).collect()
}

/// A generator of numbers that look random: uniform in 0..1.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1u64 << 24) as f32
    }
}

fn encoded(plan: &Hadamard, tensor: &[u8]) -> Vec<u8> {
    let mut encoded = vec![0xa5; plan.encoded_len()];
    plan.encode(tensor, &mut encoded);
    encoded
}

fn decoded(plan: &Hadamard, encoded: &[u8]) -> Vec<u8> {
    let mut tensor = vec![0xa5; plan.tensor_len()];
    plan.decode(encoded, &mut tensor);
    tensor
}

fn minus_if(odd: u32) -> f64 {
    if odd & 1 == 1 { -1.0 } else { 1.0 }
}

#[test]
fn local_coefficients_are_those_of_the_definition() {
    // Three regions and a bit, so that a line of all regions is 4 lines long.
    let n = 3 * 1024 + 100;
    let values: Vec<f32> = (0..n).map(|i| ((i * 37) % 101) as f32 - 50.0).collect();
    let plan = Hadamard::new(DataType::F32, n, Layout::Local { packet_bytes: 4096 }, 5).unwrap();
    let coefs = f32s(&encoded(&plan, &tensor(DataType::F32, values.iter().copied())));
    assert_eq!(coefs.len(), 4 * 1024);
    for region in 0..4 {
        let signs = Signs::new(5, region as u64);
        for column in 0..16 {
            for u in 0..64u32 {
                let sum: f64 = (0..64u32)
                    .map(|line| {
                        let at = region * 1024 + line as usize * 16 + column;
                        let x = f64::from(values.get(at).copied().unwrap_or(0.0));
                        let sign = signs.word(line / 32 * 32 + column as u32) >> (line % 32);
                        x * minus_if(sign) * minus_if((u & line).count_ones()) / 8.0
                    })
                    .sum();
                let coef = coefs[(u as usize * 4 + region) * 16 + column];
                assert_eq!(f64::from(coef), sum, "region {region}, line {u}, column {column}");
            }
        }
    }
}

#[test]
fn coefficients_of_blocks_are_those_of_the_definition() {
    let (p, stride, n) = (64, 4, 5 * 64 + 3);
    let values: Vec<f32> = (0..n).map(|i| ((i * 37) % 101) as f32 - 50.0).collect();
    let layout = Layout::Blocks { block: p, stride };
    let plan = Hadamard::new(DataType::F32, n, layout, 5).unwrap();
    let coefs = f32s(&encoded(&plan, &tensor(DataType::F32, values.iter().copied())));
    // One group of 6 blocks, since 2 would be left over: units of 16 coefficients.
    for block in 0..6 {
        let signs = Signs::new(5, block as u64);
        for u in 0..p {
            let sum: f64 = (0..p)
                .map(|i| {
                    let x = f64::from(values.get(block * p + i).copied().unwrap_or(0.0));
                    let sign = signs.word(i as u32 / 32) >> (i % 32);
                    x * minus_if(sign) * minus_if((u & i).count_ones()) / 8.0
                })
                .sum();
            let coef = coefs[(u / 16 * 6 + block) * 16 + u % 16];
            assert_eq!(f64::from(coef), sum, "block {block}, coefficient {u}");
        }
    }
}

fn layouts() -> impl Strategy<Value = Layout> {
    prop_oneof![
        (1..70usize).prop_map(|lines| Layout::Local { packet_bytes: 64 * lines }),
        (0..11u32, 0..11u32)
            .prop_map(|(p, s)| Layout::Blocks { block: 1 << p, stride: 1 << s.min(p) }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any bits at all, NaNs among them, at any address.
    #[test]
    fn the_same_bits_with_all_vectors(
        dtype in proptest::sample::select(TYPES.to_vec()),
        layout in layouts(), elements in 0..20_000usize, seed: u64, tame: bool, skew in 0..5usize,
    ) {
        let mut random = Random(seed | 1);
        let mut bytes = vec![0u8; skew + elements * dtype.size()];
        if tame {
            bytes[skew..].copy_from_slice(&tensor(dtype, (0..elements).map(|_| random.next())));
        } else {
            bytes.fill_with(|| (random.next() * 256.0) as u8);
        }
        let plan = Hadamard::new(dtype, elements, layout, seed).unwrap();
        let scalar = plan.clone().with_vectors(Vectors::supported().last().unwrap());
        let expected = encoded(&scalar, &bytes[skew..]);
        let expected_back = decoded(&scalar, &expected);
        for vectors in Vectors::supported() {
            let plan = plan.clone().with_vectors(vectors);
            let coefs = encoded(&plan, &bytes[skew..]);
            prop_assert!(coefs == expected, "{:?} encodes otherwise", vectors);
            let mut back = vec![0; bytes.len()];
            plan.decode(&coefs, &mut back[skew..]);
            prop_assert!(back[skew..] == expected_back, "{:?} decodes otherwise", vectors);
        }
    }

    #[test]
    fn what_is_encoded_comes_back(
        dtype in proptest::sample::select(TYPES.to_vec()),
        layout in layouts(), elements in 1..20_000usize, seed: u64,
    ) {
        let mut random = Random(seed | 1);
        let original = tensor(dtype, (0..elements).map(|_| random.next() - 0.25));
        let plan = Hadamard::new(dtype, elements, layout, seed).unwrap();
        let back = decoded(&plan, &encoded(&plan, &original));
        let lost = distortion(dtype, &original, &back, 1024).unwrap();
        // Coefficients are rounded once, and the result once more.
        let epsilon: f64 = match dtype {
            DataType::F32 => 1e-6,
            DataType::Bf16 => 1.0 / 128.0,
            _ => 1.0 / 1024.0,
        };
        prop_assert!(lost.nmse <= epsilon * epsilon, "{:?}", lost);
    }
}

/// Large results go past the caches.
#[test]
fn streaming_stores_store_the_same() {
    let elements = STREAM_BYTES / 4 + 1234;
    let mut random = Random(3);
    let bytes = tensor(DataType::F32, (0..elements).map(|_| random.next()));
    let layout = Layout::Local { packet_bytes: 4096 };
    let plan = Hadamard::new(DataType::F32, elements, layout, 9).unwrap();
    let coefs = encoded(&plan, &bytes);
    let mut group_coefs = vec![0; plan.encoded_len() + 1];
    for index in 0..plan.groups() {
        let group = plan.group(index);
        // One byte off, where nothing can be streamed.
        let to = &mut group_coefs[1..][group.encoded];
        plan.encode_group(index, &bytes[group.tensor], to);
    }
    assert!(coefs == group_coefs[1..]);
    let back = decoded(&plan, &coefs);
    assert!(distortion(DataType::F32, &bytes, &back, 4096).unwrap().worst < 1e-12);
}

#[test]
fn encoded_tensors_add_up() {
    let n = 10_000;
    let mut random = Random(11);
    let ranks: Vec<Vec<f32>> =
        (0..4).map(|_| (0..n).map(|_| random.next() - 0.5).collect()).collect();
    let plan = Hadamard::new(DataType::F32, n, Layout::Local { packet_bytes: 1024 }, 2).unwrap();
    let coefs: Vec<Vec<u8>> =
        ranks.iter().map(|r| encoded(&plan, &tensor(DataType::F32, r.iter().copied()))).collect();
    let coefs: Vec<&[u8]> = coefs.iter().map(Vec::as_slice).collect();
    let mut sum = vec![0; plan.encoded_len()];
    crate::reduce::reduce_many(crate::reduce::ReduceOp::Sum, DataType::F32, &mut sum, &coefs);
    let expected = (0..n).map(|i| ranks.iter().map(|r| r[i]).sum());
    let expected = tensor(DataType::F32, expected);
    let lost = distortion(DataType::F32, &expected, &decoded(&plan, &sum), 1024).unwrap();
    assert!(lost.worst < 1e-12, "{lost:?}");
}

/// The energy that each region loses with a packet is that of one of its 64 lines: about a 64th of
/// all, and never twice that.
#[test]
fn a_packet_has_one_line_of_each_region() {
    for regions in [64, 65, 127, 128, 200] {
        let n = regions * 1024;
        let mut random = Random(17);
        let bytes = tensor(DataType::F32, (0..n).map(|_| random.next()));
        let layout = Layout::Local { packet_bytes: 4096 };
        let plan = Hadamard::new(DataType::F32, n, layout, 1).unwrap();
        assert_eq!(plan.packets(), regions);
        let coefs = encoded(&plan, &bytes);
        for packet in [0, 1, 63, regions - 1] {
            let mut lossy = coefs.clone();
            plan.erase(&mut lossy, [packet]);
            let zeros = |region: usize| {
                // A region is transformed on its own, so what is lost of it is what changes of it.
                let (a, b) = (decoded(&plan, &coefs), decoded(&plan, &lossy));
                let at = region * 4096..(region + 1) * 4096;
                distortion(DataType::F32, &a[at.clone()], &b[at], 1024).unwrap().worst
            };
            let hit = (0..regions).map(zeros).filter(|lost| *lost > 0.0).count();
            assert_eq!(hit, 64, "packet {packet} of {regions}");
        }
    }
}

/// Layers of different scale under random loss: the mean error is the loss rate in any case, and
/// the worst layer improves.
#[test]
fn the_worst_layer_gets_better_and_the_mean_does_not() {
    const N: usize = 1 << 18;
    const LAYER: usize = 4096;
    let mut random = Random(23);
    let mut values = Vec::with_capacity(N);
    for _ in 0..N / LAYER {
        let scale = (6.0 * random.next() - 3.0).exp();
        values.extend((0..LAYER).map(|_| scale * (random.next() + random.next() - 1.0)));
    }
    let bytes = tensor(DataType::F32, values);
    let packets = N * 4 / 4096;
    let local = Layout::Local { packet_bytes: 4096 };
    let strided = Layout::Blocks { block: 1024, stride: 64 };
    let [mut raw, mut by_lines, mut by_stride] = [(0.0, 0.0); 3];
    const PATTERNS: usize = 20;
    for _ in 0..PATTERNS {
        let lost: Vec<usize> = (0..packets).filter(|_| random.next() < 0.05).collect();
        let mut zeroed = bytes.clone();
        lost.iter().for_each(|packet| zeroed[packet * 4096..][..4096].fill(0));
        let add = |sum: &mut (f64, f64), restored: &[u8]| {
            let lost = distortion(DataType::F32, &bytes, restored, LAYER).unwrap();
            sum.0 += lost.nmse / PATTERNS as f64;
            sum.1 += lost.worst / PATTERNS as f64;
        };
        add(&mut raw, &zeroed);
        for (layout, sum) in [(local, &mut by_lines), (strided, &mut by_stride)] {
            let plan = Hadamard::new(DataType::F32, N, layout, 77).unwrap();
            let mut coefs = encoded(&plan, &bytes);
            plan.erase(&mut coefs, lost.iter().copied());
            add(sum, &decoded(&plan, &coefs));
        }
    }
    for (mean, _) in [raw, by_lines, by_stride] {
        assert!((0.03..0.08).contains(&mean), "{raw:?} {by_lines:?} {by_stride:?}");
    }
    assert!(
        raw.1 > 0.3 && by_lines.1 < 0.2 && by_stride.1 < 0.2,
        "{raw:?} {by_lines:?} {by_stride:?}"
    );
}

/// Without signs, numbers of one sign would be in one packet: here all have about the same energy.
#[test]
fn positive_numbers_are_in_all_packets() {
    let n = 64 * 1024;
    let bytes = tensor(DataType::F32, std::iter::repeat_n(1.0, n));
    let plan = Hadamard::new(DataType::F32, n, Layout::Local { packet_bytes: 4096 }, 3).unwrap();
    let coefs = encoded(&plan, &bytes);
    let all = energy(DataType::F32, &coefs).unwrap();
    assert!((all / n as f64 - 1.0).abs() < 1e-6);
    for packet in 0..plan.packets() {
        let part = energy(DataType::F32, &coefs[plan.packet(packet)]).unwrap() / all;
        assert!(part < 2.0 / 64.0, "packet {packet} has {part} of the energy");
    }
}

#[test]
fn mistakes_are_named() {
    let plan = |dtype, layout| Hadamard::new(dtype, 10, layout, 0).unwrap_err().to_string();
    let local = |packet_bytes| Layout::Local { packet_bytes };
    assert_eq!(
        plan(DataType::I32, local(4096)),
        "no Hadamard transform of i32: take f32, bf16 or f16"
    );
    assert_eq!(
        plan(DataType::F32, local(1000)),
        "packets of 1000 bytes: take a multiple of 64 bytes, e.g. 4096"
    );
    for (block, stride) in [(1000, 4), (1024, 3), (64, 128), (0, 0), (1 << 40, 1)] {
        assert!(plan(DataType::F32, Layout::Blocks { block, stride }).contains("powers of two"));
    }
    let too_long = Hadamard::new(DataType::F32, usize::MAX / 2, local(64), 0);
    assert_eq!(too_long.unwrap_err(), HadamardError::TooLong(usize::MAX / 2));
}

#[test]
fn packets_that_do_not_exist_are_none() {
    for packet_bytes in [64, 4096, 8192, usize::MAX & !63] {
        let layout = Layout::Local { packet_bytes };
        let plan = Hadamard::new(DataType::F32, 3000, layout, 0).unwrap();
        let mut coefs = vec![1; plan.encoded_len()];
        plan.erase(&mut coefs, [plan.packets(), plan.packets() + 1, usize::MAX]);
        assert!(coefs.iter().all(|byte| *byte == 1));
        plan.erase(&mut coefs, 0..plan.packets());
        assert!(coefs.iter().all(|byte| *byte == 0));
    }
}

#[test]
fn an_empty_tensor_has_no_packets() {
    let plan = Hadamard::new(DataType::F16, 0, Layout::Local { packet_bytes: 64 }, 0).unwrap();
    assert_eq!((plan.encoded_len(), plan.packets(), plan.groups()), (0, 0, 0));
    assert_eq!(plan.turns().count(), 0);
    plan.encode(&[], &mut []);
    plan.decode(&[], &mut []);
}
