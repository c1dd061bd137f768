//! What C programs pass in: pointers, strings, memory.

use std::ffi::{CStr, c_char, c_void};

use bowline::{Access, Buffer, DataType, Mr, Pd, ReduceOp, Tensor};

use crate::Trouble;

/// IEEE 754 binary32 elements.
pub const BOWLINE_F32: u32 = 0;
/// IEEE 754 binary64 elements.
pub const BOWLINE_F64: u32 = 1;
/// IEEE 754 binary16 elements.
pub const BOWLINE_F16: u32 = 2;
/// bfloat16 elements: the upper half of a binary32.
pub const BOWLINE_BF16: u32 = 3;
/// Signed 8-bit integers.
pub const BOWLINE_I8: u32 = 4;
/// Unsigned 8-bit integers.
pub const BOWLINE_U8: u32 = 5;
/// Signed 32-bit integers.
pub const BOWLINE_I32: u32 = 6;
/// Unsigned 32-bit integers.
pub const BOWLINE_U32: u32 = 7;
/// Signed 64-bit integers.
pub const BOWLINE_I64: u32 = 8;
/// Unsigned 64-bit integers.
pub const BOWLINE_U64: u32 = 9;

/// The sum; integers wrap.
pub const BOWLINE_SUM: u32 = 0;
/// The product; integers wrap.
pub const BOWLINE_PRODUCT: u32 = 1;
/// The minimum.
pub const BOWLINE_MIN: u32 = 2;
/// The maximum.
pub const BOWLINE_MAX: u32 = 3;
/// The sum divided by the number of ranks.
pub const BOWLINE_AVERAGE: u32 = 4;

/// The data type with this constant.
pub(crate) fn data_type(code: u32) -> Result<DataType, Trouble> {
    DataType::ALL.get(code as usize).copied().ok_or_else(|| {
        Trouble::caller(format!("unknown data type {code}: use BOWLINE_F32 to BOWLINE_U64"))
    })
}

/// The reduction with this constant.
pub(crate) fn reduce_op(code: u32) -> Result<ReduceOp, Trouble> {
    ReduceOp::ALL.get(code as usize).copied().ok_or_else(|| {
        Trouble::caller(format!("unknown reduction {code}: use BOWLINE_SUM to BOWLINE_AVERAGE"))
    })
}

/// A reference to the object behind a C pointer.
///
/// # Safety
/// `pointer` is null, or points to a live object that nothing else changes during the call.
pub(crate) unsafe fn object<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, Trouble> {
    // SAFETY: upheld by the caller.
    unsafe { pointer.as_ref() }.ok_or_else(|| Trouble::caller(format!("{what} is NULL")))
}

/// A C string.
///
/// # Safety
/// `text` is null, or ends with a null byte and does not change during the call.
pub(crate) unsafe fn string<'a>(text: *const c_char, what: &str) -> Result<&'a str, Trouble> {
    if text.is_null() {
        return Err(Trouble::caller(format!("{what} is NULL")));
    }
    // SAFETY: upheld by the caller.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Trouble::caller(format!("{what} is not UTF-8")))
}

/// Stores a new object behind a C pointer.
///
/// # Safety
/// `out` is null, or may be written.
pub(crate) unsafe fn give<T>(out: *mut *mut T, value: T) -> Result<(), Trouble> {
    if out.is_null() {
        return Err(Trouble::caller("the pointer for the result is NULL"));
    }
    // SAFETY: upheld by the caller.
    unsafe { out.write(Box::into_raw(Box::new(value))) };
    Ok(())
}

/// Memory of a C program as a tensor; `None` without a pointer. The caller must deregister the
/// region.
///
/// # Safety
/// `addr` points to `bytes` readable bytes, also writable if `access` allows writes. They stay
/// valid until the region has been deregistered.
pub(crate) unsafe fn tensor(
    pd: &Pd,
    addr: *mut c_void,
    bytes: usize,
    dtype: DataType,
    access: Access,
) -> Result<Option<(Mr, Tensor)>, Trouble> {
    if addr.is_null() || bytes == 0 {
        return Ok(None);
    }
    // SAFETY: upheld by the caller. We own nothing of the memory: the registration ends before the
    // program may free it.
    let buffer = unsafe { Buffer::foreign(addr.cast(), bytes, Box::new(())) };
    let buffer = buffer.ok_or_else(|| Trouble::caller("a buffer beyond the address space"))?;
    let mr = pd.register_buffer(buffer, access)?;
    let tensor = Tensor::new(&mr, 0..bytes, dtype)?;
    Ok(Some((mr, tensor)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_those_of_the_types() {
        let types = [
            (BOWLINE_F32, "f32"),
            (BOWLINE_F64, "f64"),
            (BOWLINE_F16, "f16"),
            (BOWLINE_BF16, "bf16"),
            (BOWLINE_I8, "i8"),
            (BOWLINE_U8, "u8"),
            (BOWLINE_I32, "i32"),
            (BOWLINE_U32, "u32"),
            (BOWLINE_I64, "i64"),
            (BOWLINE_U64, "u64"),
        ];
        for (code, name) in types {
            assert_eq!(data_type(code).unwrap().name(), name);
        }
        assert!(data_type(types.len() as u32).is_err());
        let ops = [
            (BOWLINE_SUM, "sum"),
            (BOWLINE_PRODUCT, "product"),
            (BOWLINE_MIN, "min"),
            (BOWLINE_MAX, "max"),
            (BOWLINE_AVERAGE, "average"),
        ];
        for (code, name) in ops {
            assert_eq!(reduce_op(code).unwrap().name(), name);
        }
        assert!(reduce_op(ops.len() as u32).is_err());
    }
}
