//! Callers' chunks, in any container, as slices for the kernels.

use arrayvec::ArrayVec;

use crate::MAX_CHUNKS;

/// Chunks to be read, on the stack.
pub(crate) type Chunks<'a> = ArrayVec<&'a [u8], MAX_CHUNKS>;

/// Chunks to be written, on the stack.
pub(crate) type ChunksMut<'a> = ArrayVec<&'a mut [u8], MAX_CHUNKS>;

/// The chunks as slices. There may be at most [`MAX_CHUNKS`].
#[inline]
pub(crate) fn gather<T: AsRef<[u8]>>(chunks: &[T]) -> Chunks<'_> {
    chunks.iter().map(AsRef::as_ref).collect()
}

/// The same for chunks to be written.
#[inline]
pub(crate) fn gather_mut<T: AsMut<[u8]>>(chunks: &mut [T]) -> ChunksMut<'_> {
    chunks.iter_mut().map(AsMut::as_mut).collect()
}
