//! CRC-32 by table, for inputs too short for SIMD to pay.

/// The Ethernet polynomial, bit-reflected.
pub(super) const POLY: u32 = 0xedb8_8320;

/// `TABLES[k][b]`: the register after byte `b` and `k` zero bytes, from a register of zero.
///
/// A `static`, so that there is one copy of the 16 KiB however often it is inlined.
static TABLES: [[u32; 256]; 16] = build();

const fn build() -> [[u32; 256]; 16] {
    let mut tables = [[0; 256]; 16];
    let mut byte = 0;
    while byte < 256 {
        let mut reg = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            reg = (reg >> 1) ^ (POLY & (reg & 1).wrapping_neg());
            bit += 1;
        }
        tables[0][byte] = reg;
        byte += 1;
    }
    let mut k = 1;
    while k < 16 {
        let mut byte = 0;
        while byte < 256 {
            let reg = tables[k - 1][byte];
            tables[k][byte] = tables[0][(reg & 0xff) as usize] ^ (reg >> 8);
            byte += 1;
        }
        k += 1;
    }
    tables
}

/// The register after one more byte.
#[inline]
pub(super) const fn step(reg: u32, byte: u8) -> u32 {
    TABLES[0][((reg ^ byte as u32) & 0xff) as usize] ^ (reg >> 8)
}

/// The register after `N` more bytes, 4 to 16, with one independent lookup per byte.
#[inline]
pub(super) const fn step_block<const N: usize>(reg: u32, block: &[u8; N]) -> u32 {
    const { assert!(N >= 4 && N <= 16) };
    let head = reg.to_le_bytes();
    let mut out = 0;
    let mut i = 0;
    while i < N {
        let carried = if i < 4 { head[i] } else { 0 };
        out ^= TABLES[N - 1 - i][(block[i] ^ carried) as usize];
        i += 1;
    }
    out
}

/// The register after all of `bytes`.
#[inline]
pub(super) const fn update(mut reg: u32, mut bytes: &[u8]) -> u32 {
    while let Some((block, rest)) = bytes.split_first_chunk::<16>() {
        reg = step_block(reg, block);
        bytes = rest;
    }
    // Covered bytes come in fours, so one more block nearly always finishes the rest.
    if let Some((block, rest)) = bytes.split_first_chunk::<12>() {
        reg = step_block(reg, block);
        bytes = rest;
    } else if let Some((block, rest)) = bytes.split_first_chunk::<8>() {
        reg = step_block(reg, block);
        bytes = rest;
    } else if let Some((block, rest)) = bytes.split_first_chunk::<4>() {
        reg = step_block(reg, block);
        bytes = rest;
    }
    while let Some((&byte, rest)) = bytes.split_first() {
        reg = step(reg, byte);
        bytes = rest;
    }
    reg
}
