//! Data types and operations of reductions, with the names that users write.

use std::fmt;
use std::str::FromStr;

/// The type of a tensor's elements, in the byte order of this machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DataType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    Bf16,
    /// Signed, 8 bits.
    I8,
    /// Unsigned, 8 bits.
    U8,
    /// Signed, 32 bits.
    I32,
    /// Unsigned, 32 bits.
    U32,
    /// Signed, 64 bits.
    I64,
    /// Unsigned, 64 bits.
    U64,
}

impl DataType {
    /// All of them.
    pub const ALL: [DataType; 10] = [
        DataType::F32,
        DataType::F64,
        DataType::F16,
        DataType::Bf16,
        DataType::I8,
        DataType::U8,
        DataType::I32,
        DataType::U32,
        DataType::I64,
        DataType::U64,
    ];

    /// Bytes of an element.
    pub const fn size(self) -> usize {
        match self {
            DataType::I8 | DataType::U8 => 1,
            DataType::F16 | DataType::Bf16 => 2,
            DataType::F32 | DataType::I32 | DataType::U32 => 4,
            DataType::F64 | DataType::I64 | DataType::U64 => 8,
        }
    }

    /// Whether elements are floating-point numbers.
    pub const fn is_float(self) -> bool {
        matches!(self, DataType::F32 | DataType::F64 | DataType::F16 | DataType::Bf16)
    }

    /// `f32`, `bf16`, `i64` and so on.
    pub const fn name(self) -> &'static str {
        self.names()[0]
    }

    /// The names that are understood: ours, numpy's and torch's, NCCL's.
    const fn names(self) -> &'static [&'static str] {
        match self {
            DataType::F32 => &["f32", "float32", "float"],
            DataType::F64 => &["f64", "float64", "double"],
            DataType::F16 => &["f16", "float16", "half"],
            DataType::Bf16 => &["bf16", "bfloat16"],
            DataType::I8 => &["i8", "int8"],
            DataType::U8 => &["u8", "uint8"],
            DataType::I32 => &["i32", "int32"],
            DataType::U32 => &["u32", "uint32"],
            DataType::I64 => &["i64", "int64"],
            DataType::U64 => &["u64", "uint64"],
        }
    }
}

/// How two elements become one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReduceOp {
    /// Their sum; integers wrap.
    Sum,
    /// Their product; integers wrap.
    Product,
    /// The smaller one.
    Min,
    /// The larger one.
    Max,
    /// Their sum, which [`finish`](super::finish) divides by the number of ranks in the end.
    Average,
}

impl ReduceOp {
    /// All of them.
    pub const ALL: [ReduceOp; 5] =
        [ReduceOp::Sum, ReduceOp::Product, ReduceOp::Min, ReduceOp::Max, ReduceOp::Average];

    /// `sum`, `product`, `min`, `max` or `average`.
    pub const fn name(self) -> &'static str {
        self.names()[0]
    }

    const fn names(self) -> &'static [&'static str] {
        match self {
            ReduceOp::Sum => &["sum"],
            ReduceOp::Product => &["product", "prod"],
            ReduceOp::Min => &["min"],
            ReduceOp::Max => &["max"],
            ReduceOp::Average => &["average", "avg"],
        }
    }
}

/// The name of neither a data type nor an operation.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown {what} `{name}`: take one of {known}")]
pub struct UnknownName {
    what: &'static str,
    name: String,
    known: String,
}

impl FromStr for DataType {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let found = Self::ALL.into_iter().find(|t| t.names().contains(&name));
        found.ok_or_else(|| UnknownName {
            what: "data type",
            name: name.to_owned(),
            known: Self::ALL.map(Self::name).join(", "),
        })
    }
}

impl FromStr for ReduceOp {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let found = Self::ALL.into_iter().find(|op| op.names().contains(&name));
        found.ok_or_else(|| UnknownName {
            what: "operation",
            name: name.to_owned(),
            known: Self::ALL.map(Self::name).join(", "),
        })
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_understood_as_one_thing() {
        for dtype in DataType::ALL {
            for name in dtype.names() {
                assert_eq!(name.parse(), Ok(dtype));
            }
        }
        for op in ReduceOp::ALL {
            for name in op.names() {
                assert_eq!(name.parse(), Ok(op));
            }
        }
    }

    #[test]
    fn an_unknown_name_is_told_what_there_is() {
        let error = "f8".parse::<DataType>().unwrap_err().to_string();
        assert_eq!(
            error,
            "unknown data type `f8`: take one of f32, f64, f16, bf16, i8, u8, i32, u32, i64, u64"
        );
    }
}
