//! Tensors that a Walsh–Hadamard transform spreads over packets, so that a lost packet slightly
//! degrades all elements instead of erasing a few.

use bowline_codes::hadamard::{Group, Hadamard, HadamardError, Layout};
use bowline_codes::reduce::{DataType, ReduceOp};

/// Shorter tensors are sent unencoded: they have too few packets to spread over.
const MIN_BYTES: usize = 64 << 10;
/// Lines of a region. The transform runs across them.
const LINES: usize = 64;
/// Maximum packet size. A packet takes a line from each region of a group, so larger packets would
/// make groups that fit no cache.
const MAX_PACKET_BYTES: usize = 4096;

/// How a tensor is encoded. All ranks must use the same encoding and the same seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Encoding {
    /// The type of its elements.
    pub dtype: DataType,
    /// The number of elements.
    pub elements: usize,
    /// Maximum number of bytes that are lost together.
    pub packet_bytes: usize,
}

impl Encoding {
    /// The encoding for a tensor whose messages have at most `chunk_bytes`. `None` if it is sent
    /// unencoded: it is short, its elements cannot be transformed, or the reduction is not linear.
    pub fn of(dtype: DataType, op: ReduceOp, elements: usize, chunk_bytes: usize) -> Option<Self> {
        let is_linear = matches!(op, ReduceOp::Sum | ReduceOp::Average);
        let bytes = elements.checked_mul(dtype.size())?;
        if !is_linear || bytes < MIN_BYTES {
            return None;
        }
        // A message is a group of regions, so a loss burst takes a little of each region.
        let packet_bytes = (chunk_bytes / LINES / 64 * 64).clamp(64, MAX_PACKET_BYTES);
        let encoding = Encoding { dtype, elements, packet_bytes };
        encoding.plan(0).is_ok().then_some(encoding)
    }

    /// The transform, with signs drawn from this seed.
    ///
    /// # Errors
    /// If there is no transform for elements of this type.
    pub fn plan(&self, seed: u64) -> Result<Hadamard, HadamardError> {
        let layout = Layout::Local { packet_bytes: self.packet_bytes };
        Hadamard::new(self.dtype, self.elements, layout, seed)
    }

    /// The length of the encoded tensor in bytes, and the parts that are encoded independently.
    pub(crate) fn parts(&self) -> (usize, Vec<Group>) {
        // `of` has made the same plan before, with another seed, so this does not fail.
        let Ok(plan) = self.plan(0) else { return (0, Vec::new()) };
        (plan.encoded_len(), (0..plan.groups()).map(|index| plan.group(index)).collect())
    }

    /// Encodes, or decodes, one part.
    pub fn transform(&self, seed: u64, group: usize, is_back: bool, src: &[u8], dst: &mut [u8]) {
        // Does not fail, as in `parts`.
        let Ok(plan) = self.plan(seed) else { return };
        match is_back {
            true => plan.decode_group(group, src, dst),
            false => plan.encode_group(group, src, dst),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_long_linear_and_floating_is_encoded() {
        let of = |dtype, op, elements| Encoding::of(dtype, op, elements, 128 << 10);
        let encoding = of(DataType::F32, ReduceOp::Sum, 1 << 20).unwrap();
        assert_eq!(encoding.packet_bytes, 2048);
        let (bytes, parts) = encoding.parts();
        assert_eq!(bytes, 4 << 20);
        assert!(parts.iter().all(|part| part.encoded.len() == 128 << 10));
        assert_eq!(of(DataType::F32, ReduceOp::Max, 1 << 20), None, "not linear");
        assert_eq!(of(DataType::F64, ReduceOp::Sum, 1 << 20), None, "no such transform");
        assert_eq!(of(DataType::Bf16, ReduceOp::Average, 1000), None, "short");
        assert!(of(DataType::Bf16, ReduceOp::Average, 100_000).is_some());
    }
}
