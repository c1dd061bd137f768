//! ISA-L, loaded at run time: a peer to measure against.

use std::error::Error;
use std::ffi::c_int;
use std::path::Path;

use libloading::{Library, Symbol};

type InitTables = unsafe extern "C" fn(c_int, c_int, *const u8, *mut u8);
type EncodeData =
    unsafe extern "C" fn(c_int, c_int, c_int, *const u8, *const *const u8, *const *mut u8);

/// ISA-L's tables for one code take 32 bytes a coefficient.
const TABLE_BYTES: usize = 32;

/// A code as ISA-L computes it.
pub(crate) struct Isal {
    // The function is of this library, which must stay.
    _library: Library,
    encode: EncodeData,
    tables: Vec<u8>,
    k: usize,
    m: usize,
}

impl Isal {
    /// Loads the library and prepares the code with these parity rows, `k` coefficients each.
    pub(crate) fn load(
        path: &Path,
        k: usize,
        m: usize,
        rows: &[u8],
    ) -> Result<Self, Box<dyn Error>> {
        assert_eq!(rows.len(), k * m);
        // SAFETY: ISA-L has no initialisers; the types are those of its header erasure_code.h.
        let (library, init, encode) = unsafe {
            let library = Library::new(path)?;
            // Not called: its presence says that the assembler knew GFNI.
            let _: Symbol<'_, EncodeData> = library.get(b"ec_encode_data_avx512_gfni\0")?;
            let init: InitTables = *library.get(b"ec_init_tables\0")?;
            let encode: EncodeData = *library.get(b"ec_encode_data\0")?;
            (library, init, encode)
        };
        let mut tables = vec![0; k * m * TABLE_BYTES];
        // SAFETY: `rows` has k * m coefficients and `tables` 32 bytes for each, as the header asks.
        unsafe { init(k as c_int, m as c_int, rows.as_ptr(), tables.as_mut_ptr()) };
        Ok(Self { _library: library, encode, tables, k, m })
    }

    /// Computes the parity. All chunks are of one length.
    pub(crate) fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) {
        assert_eq!((data.len(), parity.len()), (self.k, self.m));
        let len = data[0].len();
        assert!(data.iter().all(|chunk| chunk.len() == len));
        assert!(parity.iter().all(|chunk| chunk.len() == len));
        let sources: Vec<*const u8> = data.iter().map(|chunk| chunk.as_ptr()).collect();
        let outs: Vec<*mut u8> = parity.iter_mut().map(|chunk| chunk.as_mut_ptr()).collect();
        // SAFETY: `k` sources and `m` outputs of `len` bytes each, and tables for k and m.
        unsafe {
            (self.encode)(
                len as c_int,
                self.k as c_int,
                self.m as c_int,
                self.tables.as_ptr(),
                sources.as_ptr(),
                outs.as_ptr(),
            );
        }
    }
}
