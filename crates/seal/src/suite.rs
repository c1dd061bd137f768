//! The ciphers, and a key of one of them.

use aws_lc_rs::aead::{
    AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use bowline_wire::SEALED_TAG_LEN;

pub(crate) const NONCE_LEN: usize = 12;

/// An authenticated cipher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Suite {
    /// AES-256-GCM: for CPUs with instructions for AES.
    Aes256Gcm,
    /// ChaCha20-Poly1305: for all others.
    ChaCha20Poly1305,
}

impl Suite {
    /// All of them.
    pub const ALL: [Suite; 2] = [Suite::Aes256Gcm, Suite::ChaCha20Poly1305];

    /// The faster one on this CPU.
    pub fn best() -> Suite {
        #[cfg(target_arch = "x86_64")]
        let has_aes = std::arch::is_x86_feature_detected!("aes")
            && std::arch::is_x86_feature_detected!("pclmulqdq");
        #[cfg(target_arch = "aarch64")]
        let has_aes = std::arch::is_aarch64_feature_detected!("aes");
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let has_aes = false;
        if has_aes { Suite::Aes256Gcm } else { Suite::ChaCha20Poly1305 }
    }

    /// The suite for two ends whose CPUs prefer these: AES only if both have instructions for it.
    pub fn agree(ours: Suite, theirs: Suite) -> Suite {
        if ours == theirs { ours } else { Suite::ChaCha20Poly1305 }
    }

    /// Its number in setup messages.
    pub fn code(self) -> u8 {
        match self {
            Suite::Aes256Gcm => 1,
            Suite::ChaCha20Poly1305 => 2,
        }
    }

    /// The suite with this number.
    pub fn from_code(code: u8) -> Option<Suite> {
        Suite::ALL.into_iter().find(|suite| suite.code() == code)
    }

    fn algorithm(self) -> &'static Algorithm {
        match self {
            Suite::Aes256Gcm => &AES_256_GCM,
            Suite::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        }
    }
}

/// The key of one epoch of one direction.
pub(crate) struct PacketKey {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    pub(crate) epoch: u64,
}

impl PacketKey {
    pub(crate) fn new(suite: Suite, key: &[u8; 32], iv: [u8; NONCE_LEN], epoch: u64) -> PacketKey {
        let key =
            UnboundKey::new(suite.algorithm(), key).expect("both suites have keys of 32 bytes");
        PacketKey { key: LessSafeKey::new(key), iv, epoch }
    }

    /// A unique identifier of the key: the tag of an empty message that no packet equals.
    pub(crate) fn name(&self) -> [u8; SEALED_TAG_LEN] {
        let made = self.seal(u64::MAX, b"name", &mut []);
        made.unwrap_or_default()
    }

    /// The nonce of a packet: the epoch's IV combined with the packet's counter (RFC 8446, section
    /// 5.3).
    #[inline]
    pub(crate) fn nonce(&self, counter: u64) -> [u8; NONCE_LEN] {
        let mut nonce = self.iv;
        for (byte, more) in nonce[NONCE_LEN - 8..].iter_mut().zip(counter.to_be_bytes()) {
            *byte ^= more;
        }
        nonce
    }

    /// Encrypts `in_out` and returns its tag; `None` if it is longer than the cipher allows.
    #[inline]
    pub(crate) fn seal(
        &self,
        counter: u64,
        aad: &[u8],
        in_out: &mut [u8],
    ) -> Option<[u8; SEALED_TAG_LEN]> {
        let nonce = Nonce::assume_unique_for_key(self.nonce(counter));
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::from(aad), in_out).ok()?;
        tag.as_ref().try_into().ok()
    }

    /// Decrypts into `out`. Returns whether the tag was right; if not, `out` must not be used.
    #[inline]
    pub(crate) fn open(
        &self,
        counter: u64,
        aad: &[u8],
        (ciphertext, tag): (&[u8], &[u8; SEALED_TAG_LEN]),
        out: &mut [u8],
    ) -> bool {
        let nonce = Nonce::assume_unique_for_key(self.nonce(counter));
        self.key.open_separate_gather(nonce, Aad::from(aad), ciphertext, tag, out).is_ok()
    }
}
