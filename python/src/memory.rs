//! Memory of Python objects: anything with the buffer protocol, or else DLPack.

use std::any::Any;
use std::ffi::c_void;

use bowline::{Access, Buffer, DataType, Mr, Pd, Tensor};
use pyo3::buffer::{ElementType, PyUntypedBuffer};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::error::Trouble;

/// Elements that lie one after the other, and the object that keeps them.
pub(crate) struct Array {
    pub(crate) addr: usize,
    pub(crate) bytes: usize,
    pub(crate) dtype: DataType,
    pub(crate) is_writable: bool,
    pub(crate) owner: Box<dyn Any + Send + Sync>,
}

impl Array {
    /// The memory of an object.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Array> {
        match PyUntypedBuffer::get(object) {
            Ok(buffer) => Array::of_buffer(buffer),
            Err(_) if object.hasattr("__dlpack__")? => Array::of_dlpack(object),
            Err(_) => {
                let name = object.get_type().name()?;
                let text = format!("{name} has neither the buffer protocol nor __dlpack__");
                Err(Trouble::invalid(text).into())
            }
        }
    }

    /// The memory of an object that is to be written.
    pub(crate) fn writable(object: &Bound<'_, PyAny>) -> PyResult<Array> {
        let array = Array::of(object)?;
        if array.is_writable {
            return Ok(array);
        }
        Err(Trouble::invalid("a result cannot go to read-only memory").into())
    }

    pub(crate) fn count(&self) -> usize {
        self.bytes / self.dtype.size()
    }

    fn of_buffer(buffer: PyUntypedBuffer) -> PyResult<Array> {
        let format = buffer.format();
        let dtype = match (ElementType::from_format(format), format.to_bytes()) {
            (ElementType::SignedInteger { bytes: 1 }, _) => DataType::I8,
            (ElementType::SignedInteger { bytes: 4 }, _) => DataType::I32,
            (ElementType::SignedInteger { bytes: 8 }, _) => DataType::I64,
            (ElementType::UnsignedInteger { bytes: 1 } | ElementType::Bool, _) => DataType::U8,
            (ElementType::UnsignedInteger { bytes: 4 }, _) => DataType::U32,
            (ElementType::UnsignedInteger { bytes: 8 }, _) => DataType::U64,
            (ElementType::Float { bytes: 4 }, _) => DataType::F32,
            (ElementType::Float { bytes: 8 }, _) => DataType::F64,
            (_, b"e" | b"<e" | b"=e" | b"@e") => DataType::F16,
            _ => {
                let text = format!(
                    "elements of format {format:?}: take floats of 16, 32 or 64 bits, or integers of \
                     8, 32 or 64"
                );
                return Err(Trouble::invalid(text).into());
            }
        };
        if !buffer.is_c_contiguous() {
            return Err(not_contiguous());
        }
        let (addr, bytes) = (buffer.buf_ptr() as usize, buffer.len_bytes());
        let is_writable = !buffer.readonly();
        Ok(Array { addr, bytes, dtype, is_writable, owner: Box::new(buffer) })
    }

    fn of_dlpack(object: &Bound<'_, PyAny>) -> PyResult<Array> {
        let capsule = object.call_method0("__dlpack__")?.cast_into::<PyCapsule>()?;
        let pointer = capsule.pointer_checked(Some(c"dltensor"))?;
        // SAFETY: a capsule of this name has a `DLManagedTensor`, which begins with a `DLTensor`.
        // It lives as long as the capsule, which nobody else has.
        let tensor = unsafe { pointer.cast::<DlTensor>().as_ref() };
        let dtype = tensor.data_type()?;
        let bytes = tensor.bytes(dtype)?;
        let addr = (tensor.data as usize).wrapping_add(tensor.byte_offset as usize);
        let owner: Py<PyAny> = capsule.into_any().unbind();
        Ok(Array { addr, bytes, dtype, is_writable: true, owner: Box::new(owner) })
    }

    /// Registers the memory, which stays until nobody uses it any more.
    pub(crate) fn register(self, pd: &Pd) -> Result<Option<(Mr, Tensor)>, Trouble> {
        let Array { addr, bytes, dtype, is_writable, owner } = self;
        if bytes == 0 {
            return Ok(None);
        }
        // SAFETY: the owner, an export of the buffer protocol or of DLPack, keeps the memory where
        // it is until it is dropped, and says whether it may be written.
        let buffer = unsafe { Buffer::foreign(addr as *mut u8, bytes, owner) };
        let buffer = buffer.ok_or_else(|| Trouble::invalid("memory at no address"))?;
        let access = if is_writable { Access::LOCAL_WRITE } else { Access::empty() };
        let mr = pd.register_buffer(buffer, access)?;
        let tensor = Tensor::new(&mr, 0..bytes, dtype)?;
        Ok(Some((mr, tensor)))
    }
}

fn not_contiguous() -> PyErr {
    let text = "elements that do not lie one after the other: make a contiguous copy";
    Trouble::invalid(text).into()
}

/// DLPack's `DLTensor`.
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// DLPack's devices whose memory the CPU has: its own, and what CUDA and ROCm have pinned.
const HOST_DEVICES: [i32; 3] = [1, 3, 11];

impl DlTensor {
    fn data_type(&self) -> PyResult<DataType> {
        if !HOST_DEVICES.contains(&self.device_type) {
            let text = format!("memory of DLPack device {}: copy it to the CPU", self.device_type);
            return Err(Trouble::invalid(text).into());
        }
        // Codes: integer, unsigned, float, bfloat, bool.
        Ok(match (self.code, self.bits, self.lanes) {
            (2, 32, 1) => DataType::F32,
            (2, 64, 1) => DataType::F64,
            (2, 16, 1) => DataType::F16,
            (4, 16, 1) => DataType::Bf16,
            (0, 8, 1) => DataType::I8,
            (1 | 6, 8, 1) => DataType::U8,
            (0, 32, 1) => DataType::I32,
            (1, 32, 1) => DataType::U32,
            (0, 64, 1) => DataType::I64,
            (1, 64, 1) => DataType::U64,
            (code, bits, lanes) => {
                let text = format!("elements of DLPack type {code}, {bits} bits, {lanes} lanes");
                return Err(Trouble::invalid(text).into());
            }
        })
    }

    /// The bytes of all elements, if they lie one after the other.
    fn bytes(&self, dtype: DataType) -> PyResult<usize> {
        let dims = usize::try_from(self.ndim).unwrap_or(0);
        let list = |pointer: *const i64| match pointer.is_null() || dims == 0 {
            true => None,
            // SAFETY: the producer has a number for each dimension there.
            false => Some(unsafe { std::slice::from_raw_parts(pointer, dims) }),
        };
        let shape = list(self.shape).unwrap_or(&[]);
        let mut count = 1i64;
        for dim in 0..shape.len() {
            let at = shape.len() - 1 - dim;
            let stride = list(self.strides).map(|strides| strides[at]);
            if shape[at] > 1 && stride.is_some_and(|stride| stride != count) {
                return Err(not_contiguous());
            }
            count = count.saturating_mul(shape[at]);
        }
        let bytes = usize::try_from(count).ok().and_then(|count| count.checked_mul(dtype.size()));
        bytes.ok_or_else(|| Trouble::invalid("a tensor of too many elements").into())
    }
}
