//! The macro that generates a header's borrowed views from one list of its fields.

/// Defines a shared and a mutable view over `[u8; LEN]` and the accessors of both.
///
/// Views borrow arrays, not slices: the length is checked once in `new`, and no accessor can be
/// out of bounds afterwards.
macro_rules! header_views {
    (
        $what:literal, $view:ident, $view_mut:ident, $len:expr;
        $(
            $(#[$doc:meta])*
            $get:ident, $set:ident: $ty:ty {
                get |$b:ident| $get_expr:expr;
                set |$bm:ident, $v:ident| $set_expr:expr;
            }
        )*
    ) => {
        #[doc = concat!("Checked view of ", $what, ".")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $view<'a>(&'a [u8; $len]);

        impl<'a> $view<'a> {
            #[doc = concat!("Views the first bytes of `bytes` as ", $what, ".")]
            #[inline]
            pub const fn new(bytes: &'a [u8]) -> Result<Self, $crate::ParseError> {
                match bytes.first_chunk() {
                    Some(header) => Ok(Self(header)),
                    None => Err($crate::ParseError::Truncated { need: $len, have: bytes.len() }),
                }
            }

            /// Views an array, whose type guarantees the length.
            #[inline]
            pub const fn of(header: &'a [u8; $len]) -> Self {
                Self(header)
            }

            /// The bytes viewed.
            #[inline]
            pub const fn as_bytes(&self) -> &'a [u8; $len] {
                self.0
            }

            $(
                $(#[$doc])*
                #[inline]
                pub const fn $get(&self) -> $ty {
                    let $b = self.0;
                    $get_expr
                }
            )*
        }

        #[doc = concat!("Checked mutable view of ", $what, ".")]
        #[derive(Debug, PartialEq, Eq)]
        pub struct $view_mut<'a>(&'a mut [u8; $len]);

        impl<'a> $view_mut<'a> {
            #[doc = concat!("Views the first bytes of `bytes` as ", $what, ".")]
            #[inline]
            pub const fn new(bytes: &'a mut [u8]) -> Result<Self, $crate::ParseError> {
                let have = bytes.len();
                match bytes.first_chunk_mut() {
                    Some(header) => Ok(Self(header)),
                    None => Err($crate::ParseError::Truncated { need: $len, have }),
                }
            }

            /// Views an array, whose type guarantees the length.
            #[inline]
            pub const fn of(header: &'a mut [u8; $len]) -> Self {
                Self(header)
            }

            /// A read-only view of the same bytes.
            #[inline]
            pub const fn as_view(&self) -> $view<'_> {
                $view(self.0)
            }

            $(
                #[doc = concat!("Writes what [`", stringify!($view), "::", stringify!($get), "`] reads.")]
                #[inline]
                pub const fn $set(&mut self, value: $ty) {
                    let $v = value;
                    let $bm = &mut *self.0;
                    $set_expr
                }
            )*
        }
    };
}

/// Reads `N` bytes at `at`; the offset is a constant inside the array wherever this is used.
#[inline]
pub(crate) const fn chunk<const N: usize, const LEN: usize>(b: &[u8; LEN], at: usize) -> [u8; N] {
    let mut out = [0; N];
    let mut i = 0;
    while i < N {
        out[i] = b[at + i];
        i += 1;
    }
    out
}

/// Writes `N` bytes at `at`; the offset is a constant inside the array wherever this is used.
#[inline]
pub(crate) const fn put<const N: usize, const LEN: usize>(
    b: &mut [u8; LEN],
    at: usize,
    value: [u8; N],
) {
    let mut i = 0;
    while i < N {
        b[at + i] = value[i];
        i += 1;
    }
}

#[inline]
pub(crate) const fn be16<const LEN: usize>(b: &[u8; LEN], at: usize) -> u16 {
    u16::from_be_bytes(chunk(b, at))
}

#[inline]
pub(crate) const fn be24<const LEN: usize>(b: &[u8; LEN], at: usize) -> u32 {
    u32::from_be_bytes([0, b[at], b[at + 1], b[at + 2]])
}

#[inline]
pub(crate) const fn be32<const LEN: usize>(b: &[u8; LEN], at: usize) -> u32 {
    u32::from_be_bytes(chunk(b, at))
}

#[inline]
pub(crate) const fn be64<const LEN: usize>(b: &[u8; LEN], at: usize) -> u64 {
    u64::from_be_bytes(chunk(b, at))
}

/// Writes the low 24 bits of `value`.
#[inline]
pub(crate) const fn put_be24<const LEN: usize>(b: &mut [u8; LEN], at: usize, value: u32) {
    let [_, hi, mid, lo] = value.to_be_bytes();
    put(b, at, [hi, mid, lo]);
}

/// `byte` with the bits of `mask` replaced by those of `value`.
#[inline]
pub(crate) const fn with_bits(byte: u8, mask: u8, value: u8) -> u8 {
    (byte & !mask) | (value & mask)
}

/// `byte` with the bits of `mask` all set or all cleared.
#[inline]
pub(crate) const fn with_flag(byte: u8, mask: u8, on: bool) -> u8 {
    if on { byte | mask } else { byte & !mask }
}
