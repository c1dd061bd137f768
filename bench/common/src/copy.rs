//! Copies that leave the destination out of the caches: what a receiver does best that only puts
//! data where it belongs and does not look at it.

/// Copies with stores that go past the caches, where the CPU has them, and waits until they are
/// there.
///
/// # Panics
/// If the lengths differ.
pub fn streaming(from: &[u8], to: &mut [u8]) {
    stream(from, to);
    settle();
}

/// The same without waiting. The next atomic operation that changes memory does.
///
/// # Panics
/// If the lengths differ.
pub fn stream(from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len(), "a copy has as many bytes as its source");
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx512f") {
        // SAFETY: the CPU has AVX-512F, which is all that the function asks for.
        unsafe { x86::stream(from, to) };
        return;
    }
    to.copy_from_slice(from);
}

/// Puts what was streamed before what this thread stores from now on.
fn settle() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{__m512i, _mm512_loadu_si512, _mm512_stream_si512};

    /// Bytes of a store.
    const LINE: usize = 64;

    #[target_feature(enable = "avx512f")]
    pub(super) fn stream(from: &[u8], to: &mut [u8]) {
        // Streaming stores have to be aligned; what is before and after goes the usual way.
        let head = to.as_ptr().align_offset(LINE).min(to.len());
        let (from_head, from) = from.split_at(head);
        let (to_head, to) = to.split_at_mut(head);
        to_head.copy_from_slice(from_head);
        let mut to_lines = to.chunks_exact_mut(LINE);
        let mut from_lines = from.chunks_exact(LINE);
        for (to, from) in to_lines.by_ref().zip(from_lines.by_ref()) {
            // SAFETY: both slices have 64 bytes, and `to` starts at a multiple of 64.
            unsafe {
                let line = _mm512_loadu_si512(from.as_ptr().cast::<__m512i>());
                _mm512_stream_si512(to.as_mut_ptr().cast::<__m512i>(), line);
            }
        }
        to_lines.into_remainder().copy_from_slice(from_lines.remainder());
    }
}

#[cfg(test)]
mod tests {
    use super::streaming;

    #[test]
    fn every_alignment_and_length_is_copied() {
        let from: Vec<u8> = (0..1000u32).map(|i| (i * 7 % 251) as u8).collect();
        for start in 0..70 {
            for len in [0, 1, 63, 64, 65, 130, 900] {
                let mut to = vec![0; 1000];
                streaming(&from[start..start + len], &mut to[70 - start..70 - start + len]);
                assert_eq!(to[70 - start..70 - start + len], from[start..start + len]);
                assert!(to[..70 - start].iter().chain(&to[70 - start + len..]).all(|b| *b == 0));
            }
        }
    }
}
