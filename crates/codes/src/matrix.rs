//! Matrices over GF(2^8), laid out for the kernels.

use std::ops::Range;

use crate::gf;
use crate::kernel::MAX_ROWS;

/// A matrix that turns source chunks (one per column) into output chunks (one per row).
///
/// Rows are kept in bands of at most [`MAX_ROWS`], the number of outputs that a kernel computes in
/// one pass over the sources.
#[derive(Clone, Debug)]
pub(crate) struct Matrix {
    rows: usize,
    columns: usize,
    bands: Vec<Band>,
}

/// Some rows of a matrix, column by column, as the kernels read them.
#[derive(Clone, Debug)]
pub(crate) struct Band {
    rows: usize,
    /// Coefficients: `rows` of them for each column.
    coefficients: Vec<u8>,
    /// The same as bit matrices (see [`gf::AFFINE`]).
    affine: Vec<u64>,
    /// Whether the first row is all ones, which saves its multiplications.
    first_is_ones: bool,
}

impl Matrix {
    /// The matrix with element `element(row, column)`.
    pub(crate) fn from_fn(
        rows: usize,
        columns: usize,
        element: impl Fn(usize, usize) -> u8,
    ) -> Self {
        let bands = (0..rows)
            .step_by(MAX_ROWS)
            .map(|first| {
                let count = MAX_ROWS.min(rows - first);
                let coefficients: Vec<u8> = (0..columns)
                    .flat_map(|column| (first..first + count).map(move |row| (row, column)))
                    .map(|(row, column)| element(row, column))
                    .collect();
                Band::new(count, coefficients)
            })
            .collect();
        Self { rows, columns, bands }
    }

    /// The parity rows of a systematic MDS code with `k` data and `m` parity chunks, k + m <= 256.
    ///
    /// A Cauchy matrix, all of whose square parts are invertible: element (i, j) is
    /// 1 / (x_i + y_j) with all x and y distinct. Rows and columns are then scaled, which keeps
    /// that, so that the first row and the first column are ones: a row of ones needs no
    /// multiplication, and with m = 1 the code is plain XOR parity.
    pub(crate) fn cauchy(k: usize, m: usize) -> Self {
        debug_assert!(k + m <= 256);
        let sum = |i: usize, j: usize| (k + i) as u8 ^ j as u8;
        // Divided by the first row's element: (x_0 + y_j) / (x_i + y_j). And that by column 0's.
        let scaled = |i, j| gf::mul(sum(0, j), gf::inverse(sum(i, j)));
        let by_row: Vec<u8> = (0..m).map(|i| gf::inverse(scaled(i, 0))).collect();
        Self::from_fn(m, k, |i, j| gf::mul(scaled(i, j), by_row[i]))
    }

    /// Number of outputs.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Number of sources.
    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// The rows in order, [`MAX_ROWS`] at a time.
    pub(crate) fn bands(&self) -> &[Band] {
        &self.bands
    }

    /// One element.
    pub(crate) fn at(&self, row: usize, column: usize) -> u8 {
        let band = &self.bands[row / MAX_ROWS];
        band.coefficients[column * band.rows + row % MAX_ROWS]
    }
}

impl Band {
    fn new(rows: usize, coefficients: Vec<u8>) -> Self {
        let affine = coefficients.iter().map(|c| gf::AFFINE[usize::from(*c)]).collect();
        let first_is_ones = coefficients.iter().step_by(rows).all(|c| *c == 1);
        Self { rows, coefficients, affine, first_is_ones }
    }

    /// All of it, for the kernels.
    pub(crate) fn coefs(&self) -> Coefs<'_> {
        Coefs {
            rows: self.rows,
            stride: self.rows,
            bytes: &self.coefficients,
            affine: &self.affine,
            first_is_ones: self.first_is_ones,
        }
    }
}

/// Some rows and columns of a [`Band`]: what a kernel multiplies by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Coefs<'a> {
    /// Outputs, 1 to [`MAX_ROWS`].
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only vector kernels ask"))]
    pub(crate) rows: usize,
    /// From one source's coefficients to the next one's.
    pub(crate) stride: usize,
    /// The coefficient of output `i` and source `j` is at `j * stride + i`.
    pub(crate) bytes: &'a [u8],
    /// The same as bit matrices.
    pub(crate) affine: &'a [u64],
    /// Whether the first output is the plain sum of the sources.
    pub(crate) first_is_ones: bool,
}

impl Coefs<'_> {
    /// These rows of them.
    pub(crate) fn rows(self, rows: Range<usize>) -> Self {
        Self {
            rows: rows.len(),
            bytes: &self.bytes[rows.start..],
            affine: &self.affine[rows.start..],
            first_is_ones: self.first_is_ones && rows.start == 0,
            ..self
        }
    }

    /// All columns but the first `count`.
    pub(crate) fn skip_columns(self, count: usize) -> Self {
        let at = count * self.stride;
        Self { bytes: &self.bytes[at..], affine: &self.affine[at..], ..self }
    }
}

/// The inverse of a square matrix given row by row, or `None` if it has none.
pub(crate) fn invert(matrix: &[u8], size: usize) -> Option<Vec<u8>> {
    debug_assert_eq!(matrix.len(), size * size);
    let mut left = matrix.to_vec();
    let mut right = vec![0; size * size];
    (0..size).for_each(|i| right[i * size + i] = 1);
    for pivot in 0..size {
        let row = (pivot..size).find(|row| left[row * size + pivot] != 0)?;
        for column in 0..size {
            left.swap(row * size + column, pivot * size + column);
            right.swap(row * size + column, pivot * size + column);
        }
        let scale = gf::inverse(left[pivot * size + pivot]);
        for half in [&mut left, &mut right] {
            half[pivot * size..][..size].iter_mut().for_each(|x| *x = gf::mul(*x, scale));
        }
        for row in (0..size).filter(|row| *row != pivot) {
            let factor = left[row * size + pivot];
            for half in [&mut left, &mut right] {
                for column in 0..size {
                    half[row * size + column] ^= gf::mul(factor, half[pivot * size + column]);
                }
            }
        }
    }
    Some(right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_row_and_column_of_the_code_are_ones() {
        for (k, m) in [(1, 1), (32, 8), (200, 56), (1, 255), (255, 1), (17, 20)] {
            let code = Matrix::cauchy(k, m);
            assert!((0..k).all(|j| code.at(0, j) == 1), "({k}, {m})");
            assert!((0..m).all(|i| code.at(i, 0) == 1), "({k}, {m})");
        }
    }

    #[test]
    fn inverse_times_matrix_is_one() {
        for size in 1..=24 {
            let code = Matrix::cauchy(size, size);
            let rows: Vec<u8> = (0..size * size).map(|at| code.at(at / size, at % size)).collect();
            let inverse = invert(&rows, size).expect("Cauchy");
            for i in 0..size {
                for j in 0..size {
                    let sum = (0..size)
                        .fold(0, |s, x| s ^ gf::mul(rows[i * size + x], inverse[x * size + j]));
                    assert_eq!(sum, u8::from(i == j));
                }
            }
        }
    }

    #[test]
    fn a_singular_matrix_has_no_inverse() {
        assert_eq!(invert(&[1, 2, 1, 2], 2), None);
        assert_eq!(invert(&[0], 1), None);
    }
}
