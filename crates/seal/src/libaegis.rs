//! AEGIS by libaegis, the C library inside the crate `aegis`.
//!
//! The crate's own interface opens packets in place, or into another buffer with a state that it
//! erases byte by byte. A copy or the erasing costs a sixth of opening a packet. The functions
//! called here need neither.

#![expect(unsafe_code, reason = "the crate has no such function; it calls these for others")]

use std::ffi::c_int;
use std::sync::Once;

// For its C library.
use aegis as _;
use bowline_wire::SEALED_TAG_LEN;
use zeroize::Zeroizing;

/// `c`, `mac`, `maclen`, `m`, `mlen`, `ad`, `adlen`, `npub`, `k`, as in `aegis128x4.h`.
type Encrypt = unsafe extern "C" fn(
    *mut u8,
    *mut u8,
    usize,
    *const u8,
    usize,
    *const u8,
    usize,
    *const u8,
    *const u8,
) -> c_int;

/// `m`, `c`, `clen`, `mac`, `maclen`, `ad`, `adlen`, `npub`, `k`.
type Decrypt = unsafe extern "C" fn(
    *mut u8,
    *const u8,
    usize,
    *const u8,
    usize,
    *const u8,
    usize,
    *const u8,
    *const u8,
) -> c_int;

/// The functions of a member of the family.
struct Functions {
    encrypt: Encrypt,
    decrypt: Decrypt,
}

/// Declares a member's two functions, which have the types above.
macro_rules! functions {
    ($encrypt:ident, $decrypt:ident) => {{
        unsafe extern "C" {
            fn $encrypt(
                c: *mut u8,
                mac: *mut u8,
                maclen: usize,
                m: *const u8,
                mlen: usize,
                ad: *const u8,
                adlen: usize,
                npub: *const u8,
                k: *const u8,
            ) -> c_int;
            fn $decrypt(
                m: *mut u8,
                c: *const u8,
                clen: usize,
                mac: *const u8,
                maclen: usize,
                ad: *const u8,
                adlen: usize,
                npub: *const u8,
                k: *const u8,
            ) -> c_int;
        }
        Functions { encrypt: $encrypt, decrypt: $decrypt }
    }};
}

static AEGIS_128X4: Functions =
    functions!(aegis128x4_encrypt_detached, aegis128x4_decrypt_detached);
static AEGIS_128X2: Functions =
    functions!(aegis128x2_encrypt_detached, aegis128x2_decrypt_detached);
static AEGIS_256X4: Functions =
    functions!(aegis256x4_encrypt_detached, aegis256x4_decrypt_detached);
static AEGIS_256X2: Functions =
    functions!(aegis256x2_encrypt_detached, aegis256x2_decrypt_detached);

/// Bytes of the longest key and nonce. Members with shorter ones read the first 16.
const MAX_LEN: usize = 32;

/// A member of the AEGIS family with a key.
pub(crate) struct Aegis {
    functions: &'static Functions,
    key: Zeroizing<[u8; MAX_LEN]>,
}

impl Aegis {
    pub(crate) fn new_128x4(key: &[u8; MAX_LEN]) -> Aegis {
        Aegis::new(&AEGIS_128X4, key)
    }

    pub(crate) fn new_128x2(key: &[u8; MAX_LEN]) -> Aegis {
        Aegis::new(&AEGIS_128X2, key)
    }

    pub(crate) fn new_256x4(key: &[u8; MAX_LEN]) -> Aegis {
        Aegis::new(&AEGIS_256X4, key)
    }

    pub(crate) fn new_256x2(key: &[u8; MAX_LEN]) -> Aegis {
        Aegis::new(&AEGIS_256X2, key)
    }

    fn new(functions: &'static Functions, key: &[u8; MAX_LEN]) -> Aegis {
        unsafe extern "C" {
            fn aegis_init() -> c_int;
        }
        static INIT: Once = Once::new();
        // SAFETY: it detects the CPU's instructions, and one thread at a time calls it.
        INIT.call_once(|| assert_eq!(unsafe { aegis_init() }, 0, "libaegis starts"));
        Aegis { functions, key: Zeroizing::new(*key) }
    }

    /// Encrypts in place and returns the tag.
    #[inline]
    pub(crate) fn seal(
        &self,
        nonce: &[u8; MAX_LEN],
        aad: &[u8],
        in_out: &mut [u8],
    ) -> [u8; SEALED_TAG_LEN] {
        let mut tag = [0; SEALED_TAG_LEN];
        let bytes = in_out.as_mut_ptr();
        // SAFETY: it reads `aad`, nonce and key, and writes `tag` and `in_out`, each within its
        // length; the text may be encrypted in place. It keeps no pointer.
        let status = unsafe {
            (self.functions.encrypt)(
                bytes,
                tag.as_mut_ptr(),
                tag.len(),
                bytes,
                in_out.len(),
                aad.as_ptr(),
                aad.len(),
                nonce.as_ptr(),
                self.key.as_ptr(),
            )
        };
        assert_eq!(status, 0, "the tag has a length that it knows");
        tag
    }

    /// Decrypts into `out`. Returns whether the tag was right; if not, `out` is erased.
    #[inline]
    pub(crate) fn open(
        &self,
        nonce: &[u8; MAX_LEN],
        aad: &[u8],
        (ciphertext, tag): (&[u8], &[u8; SEALED_TAG_LEN]),
        out: &mut [u8],
    ) -> bool {
        assert_eq!(ciphertext.len(), out.len(), "as long as the ciphertext");
        // SAFETY: it reads `ciphertext`, `tag`, `aad`, nonce and key, and writes as many bytes of
        // `out` as `ciphertext` has, which the assertion checked. It keeps no pointer.
        let status = unsafe {
            (self.functions.decrypt)(
                out.as_mut_ptr(),
                ciphertext.as_ptr(),
                ciphertext.len(),
                tag.as_ptr(),
                tag.len(),
                aad.as_ptr(),
                aad.len(),
                nonce.as_ptr(),
                self.key.as_ptr(),
            )
        };
        status == 0
    }
}

#[cfg(test)]
mod tests {
    use aegis::{
        aegis128x2::Aegis128X2, aegis128x4::Aegis128X4, aegis256x2::Aegis256X2,
        aegis256x4::Aegis256X4,
    };

    use super::*;

    const AAD: &[u8] = b"header";

    /// At lengths around all block lengths, what `ours` seals is what the crate seals; `ours`
    /// opens it, and refuses it if any part differs.
    fn check(ours: &Aegis, nonce: &[u8; 32], theirs: impl Fn(&mut [u8]) -> [u8; SEALED_TAG_LEN]) {
        for len in (0..300).chain([4096, 4108]) {
            let plain: Vec<u8> = (0..len).map(|i| (i % 251) as u8 + 1).collect();
            let (mut sealed, mut expected) = (plain.clone(), plain.clone());
            let tag = ours.seal(nonce, AAD, &mut sealed);
            assert_eq!((tag, &sealed), (theirs(&mut expected), &expected), "{len} bytes");
            let mut out = vec![0; len];
            assert!(ours.open(nonce, AAD, (&sealed, &tag), &mut out));
            assert_eq!(out, plain);
            assert!(!ours.open(nonce, b"reader", (&sealed, &tag), &mut out));
            assert!(!ours.open(nonce, AAD, (&sealed, &[0; SEALED_TAG_LEN]), &mut out));
            assert!(!ours.open(&[0; 32], AAD, (&sealed, &tag), &mut out));
            if let Some(last) = sealed.last_mut() {
                *last ^= 1;
                assert!(!ours.open(nonce, AAD, (&sealed, &tag), &mut out));
                assert_ne!(out, plain);
            }
        }
    }

    #[test]
    fn each_member_seals_and_opens_as_the_crate_does() {
        let (key, nonce) = (&[7; 32], &[9; 32]);
        let (short_key, short_nonce) = (&[7; 16], &[9; 16]);
        check(&Aegis::new_128x4(key), nonce, |text| {
            Aegis128X4::new(short_key, short_nonce).encrypt_in_place(text, AAD)
        });
        check(&Aegis::new_128x2(key), nonce, |text| {
            Aegis128X2::new(short_key, short_nonce).encrypt_in_place(text, AAD)
        });
        check(&Aegis::new_256x4(key), nonce, |text| {
            Aegis256X4::new(key, nonce).encrypt_in_place(text, AAD)
        });
        check(&Aegis::new_256x2(key), nonce, |text| {
            Aegis256X2::new(key, nonce).encrypt_in_place(text, AAD)
        });
    }
}
