//! Elements in registered memory.

use std::ops::Range;

use bowline_collective::{DataType, Piece};

use crate::{Access, Error, Mr};

/// A part of a memory region, as elements of a type.
///
/// The region needs [`Access::LOCAL_WRITE`] to receive a result. Other ranks never write it.
///
/// ```
/// use bowline::{Access, DataType, Device, Tensor};
///
/// let mr = Device::open("127.9.3.9")?.alloc_pd()?.register(100, Access::LOCAL_WRITE)?;
/// assert_eq!(Tensor::new(&mr, 0..100, DataType::F32)?.count(), 25);
/// assert!(Tensor::new(&mr, 0..101, DataType::U8).is_err());
/// assert!(Tensor::new(&mr, 0..99, DataType::F32).is_err());
/// # Ok::<(), bowline::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Tensor {
    mr: Mr,
    range: Range<usize>,
    dtype: DataType,
}

impl Tensor {
    /// The elements in bytes `range` of a region.
    pub fn new(mr: &Mr, range: Range<usize>, dtype: DataType) -> Result<Tensor, Error> {
        let Range { start, end } = range;
        if start > end || end > mr.buffer().len() {
            return Err(Error::OutOfRange { start, end, len: mr.buffer().len() });
        }
        if !range.len().is_multiple_of(dtype.size()) {
            let why = format!("{} bytes are not a whole number of {dtype} elements", range.len());
            return Err(Error::Invalid { what: "tensor", why });
        }
        Ok(Tensor { mr: mr.clone(), range, dtype })
    }

    /// Its region.
    pub fn mr(&self) -> &Mr {
        &self.mr
    }

    /// The type of its elements.
    pub fn data_type(&self) -> DataType {
        self.dtype
    }

    /// Number of elements.
    pub fn count(&self) -> usize {
        self.range.len() / self.dtype.size()
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.range.len()
    }

    /// Some of its elements.
    pub fn slice(&self, elements: Range<usize>) -> Result<Tensor, Error> {
        let size = self.dtype.size();
        let at = |element: usize| {
            let bytes = element.checked_mul(size).filter(|bytes| *bytes <= self.range.len());
            bytes.map(|bytes| self.range.start + bytes)
        };
        match (at(elements.start), at(elements.end)) {
            (Some(start), Some(end)) => Tensor::new(&self.mr, start..end, self.dtype),
            _ => {
                let Range { start, end } = elements;
                Err(Error::OutOfRange { start, end, len: self.count() })
            }
        }
    }

    /// Checks that a result can be written there.
    pub(super) fn check_writable(&self) -> Result<(), Error> {
        if self.mr.access().contains(Access::LOCAL_WRITE) {
            return Ok(());
        }
        let why = "a result cannot go there: register its memory with Access::LOCAL_WRITE";
        Err(Error::Invalid { what: "tensor", why: why.to_owned() })
    }

    pub(super) fn piece(&self) -> Piece {
        let addr = self.mr.buffer().addr() + self.range.start as u64;
        Piece { key: self.mr.key(), addr, len: self.range.len() }
    }
}
