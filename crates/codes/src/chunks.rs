//! Callers' chunks, whatever holds them, as slices for the kernels.

use crate::MAX_CHUNKS;

/// The chunks as slices; those beyond the given ones, of which there are at most [`MAX_CHUNKS`], are
/// empty.
pub(crate) fn gather<T: AsRef<[u8]>>(chunks: &[T]) -> [&[u8]; MAX_CHUNKS] {
    let mut chunks = chunks.iter();
    std::array::from_fn(|_| chunks.next().map_or(&[][..], AsRef::as_ref))
}

/// The same for chunks to be written.
pub(crate) fn gather_mut<T: AsMut<[u8]>>(chunks: &mut [T]) -> [&mut [u8]; MAX_CHUNKS] {
    let mut chunks = chunks.iter_mut();
    std::array::from_fn(|_| chunks.next().map_or(&mut [][..], AsMut::as_mut))
}
