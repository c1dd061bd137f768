//! Tensors that are spread over packets by a Walsh–Hadamard transform, so that a loss costs all
//! elements a little instead of some everything.

use bowline_codes::hadamard::{Group, Hadamard, HadamardError, Layout};
use bowline_codes::reduce::{DataType, ReduceOp};

/// Shorter tensors are sent as they are: they have too few packets to spread anything over.
const MIN_BYTES: usize = 64 << 10;
/// Lines of a region, which the transform is between.
const LINES: usize = 64;
/// Longest packet that a line of each region of a group makes. Longer ones would make groups that
/// no cache holds.
const MAX_PACKET_BYTES: usize = 4096;

/// How a tensor is encoded. All ranks need the same, and the same seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Encoding {
    /// What its elements are.
    pub dtype: DataType,
    /// How many.
    pub elements: usize,
    /// Bytes that get lost together, at most.
    pub packet_bytes: usize,
}

impl Encoding {
    /// How a tensor is encoded whose messages have at most `chunk_bytes`; `None` if it is not: it
    /// is short, its elements cannot be transformed, or their reduction is not linear.
    pub fn of(dtype: DataType, op: ReduceOp, elements: usize, chunk_bytes: usize) -> Option<Self> {
        let is_linear = matches!(op, ReduceOp::Sum | ReduceOp::Average);
        let bytes = elements.checked_mul(dtype.size())?;
        if !is_linear || bytes < MIN_BYTES {
            return None;
        }
        // A message is a group of regions: what a burst takes of it is a little of each of them.
        let packet_bytes = (chunk_bytes / LINES / 64 * 64).clamp(64, MAX_PACKET_BYTES);
        let encoding = Encoding { dtype, elements, packet_bytes };
        encoding.plan(0).is_ok().then_some(encoding)
    }

    /// The transform, with the signs of this seed.
    ///
    /// # Errors
    /// If there is none for such elements.
    pub fn plan(&self, seed: u64) -> Result<Hadamard, HadamardError> {
        let layout = Layout::Local { packet_bytes: self.packet_bytes };
        Hadamard::new(self.dtype, self.elements, layout, seed)
    }

    /// Bytes of the encoded tensor, and the parts that are encoded on their own.
    pub(crate) fn parts(&self) -> (usize, Vec<Group>) {
        // It was made before, with another seed.
        let Ok(plan) = self.plan(0) else { return (0, Vec::new()) };
        (plan.encoded_len(), (0..plan.groups()).map(|index| plan.group(index)).collect())
    }

    /// Encodes, or decodes, one part.
    pub fn transform(&self, seed: u64, group: usize, is_back: bool, src: &[u8], dst: &mut [u8]) {
        // As above.
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
