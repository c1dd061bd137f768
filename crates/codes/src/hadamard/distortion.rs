//! The distortion of a tensor caused by losses.

use super::HadamardError;
use crate::half::{bf16_to_f32, f16_to_f32};
use crate::reduce::DataType;

/// Lost energy of a tensor, overall and in its worst piece.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Distortion {
    /// The energy of the error over that of the original: the normalized mean squared error.
    pub nmse: f64,
    /// The same for the piece with the greatest loss.
    pub worst: f64,
}

/// Compares a restored tensor with the original, as a whole and in pieces of `piece` elements, such
/// as the layers of a model. Pieces without energy count towards the whole, not as the worst.
///
/// # Errors
/// If elements are not `f32`, `bf16` or `f16`.
///
/// # Panics
/// If the slices differ in length, or a piece has no element.
pub fn distortion(
    dtype: DataType,
    original: &[u8],
    restored: &[u8],
    piece: usize,
) -> Result<Distortion, HadamardError> {
    assert_eq!(original.len(), restored.len(), "tensors of different length");
    let (mut error, mut energy, mut worst) = (0.0, 0.0, 0.0f64);
    let piece = piece * dtype.size();
    for (original, restored) in original.chunks(piece).zip(restored.chunks(piece)) {
        let (mut piece_error, mut piece_energy) = (0.0, 0.0);
        for (x, y) in values(dtype, original)?.zip(values(dtype, restored)?) {
            piece_error += (x - y) * (x - y);
            piece_energy += x * x;
        }
        error += piece_error;
        energy += piece_energy;
        if piece_energy > 0.0 {
            worst = worst.max(piece_error / piece_energy);
        }
    }
    let nmse = if error == 0.0 { 0.0 } else { error / energy };
    Ok(Distortion { nmse, worst })
}

/// The sum of the squares of all elements.
///
/// # Errors
/// If elements are not `f32`, `bf16` or `f16`.
pub fn energy(dtype: DataType, tensor: &[u8]) -> Result<f64, HadamardError> {
    Ok(values(dtype, tensor)?.map(|x| x * x).sum())
}

fn values(dtype: DataType, bytes: &[u8]) -> Result<impl Iterator<Item = f64>, HadamardError> {
    let value = match dtype {
        DataType::F32 => |b: &[u8]| f32::from_ne_bytes([b[0], b[1], b[2], b[3]]),
        DataType::Bf16 => |b: &[u8]| bf16_to_f32(u16::from_ne_bytes([b[0], b[1]])),
        DataType::F16 => |b: &[u8]| f16_to_f32(u16::from_ne_bytes([b[0], b[1]])),
        other => return Err(HadamardError::DataType(other)),
    };
    Ok(bytes.chunks_exact(dtype.size()).map(move |b| f64::from(value(b))))
}
