//! The ciphers, and a key of one of them.

use aws_lc_rs::aead::{
    AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use bowline_wire::SEALED_TAG_LEN;

use crate::libaegis::Aegis;

pub(crate) const NONCE_LEN: usize = 12;

/// An authenticated cipher, with tags of 128 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Suite {
    /// AEGIS-128X4: for CPUs whose instructions for AES take several blocks (VAES).
    Aegis128X4,
    /// AEGIS-128X2: for CPUs with instructions for AES.
    Aegis128X2,
    /// AEGIS-256X4: for those who want keys of 256 bits.
    Aegis256X4,
    /// AEGIS-256X2: the same for CPUs without VAES.
    Aegis256X2,
    /// AES-256-GCM: for those who must have it, where CPUs have instructions for AES.
    Aes256Gcm,
    /// ChaCha20-Poly1305: for all others.
    ChaCha20Poly1305,
}

impl Suite {
    /// All of them, from the most demanding on the CPU's instructions to the least.
    pub const ALL: [Suite; 6] = [
        Suite::Aegis128X4,
        Suite::Aegis128X2,
        Suite::Aegis256X4,
        Suite::Aegis256X2,
        Suite::Aes256Gcm,
        Suite::ChaCha20Poly1305,
    ];

    /// The fastest one on this CPU.
    pub fn best() -> Suite {
        #[cfg(target_arch = "x86_64")]
        let (has_aes, has_vaes) = (
            std::arch::is_x86_feature_detected!("aes")
                && std::arch::is_x86_feature_detected!("pclmulqdq"),
            std::arch::is_x86_feature_detected!("vaes")
                && std::arch::is_x86_feature_detected!("avx2"),
        );
        #[cfg(target_arch = "aarch64")]
        let (has_aes, has_vaes) = (std::arch::is_aarch64_feature_detected!("aes"), false);
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let (has_aes, has_vaes) = (false, false);
        match (has_vaes, has_aes) {
            (true, _) => Suite::Aegis128X4,
            (false, true) => Suite::Aegis128X2,
            (false, false) => Suite::ChaCha20Poly1305,
        }
    }

    /// The suite for two ends that prefer these: the later one in [`Suite::ALL`], since the end
    /// that named it has no faster one, or asked for this one.
    pub fn agree(ours: Suite, theirs: Suite) -> Suite {
        ours.max(theirs)
    }

    /// Its number in setup messages.
    pub fn code(self) -> u8 {
        match self {
            Suite::Aes256Gcm => 1,
            Suite::ChaCha20Poly1305 => 2,
            Suite::Aegis256X4 => 3,
            Suite::Aegis256X2 => 4,
            Suite::Aegis128X4 => 5,
            Suite::Aegis128X2 => 6,
        }
    }

    /// The suite with this number.
    pub fn from_code(code: u8) -> Option<Suite> {
        Suite::ALL.into_iter().find(|suite| suite.code() == code)
    }

    /// Its name, as people write it.
    pub fn name(self) -> &'static str {
        match self {
            Suite::Aegis128X4 => "aegis-128x4",
            Suite::Aegis128X2 => "aegis-128x2",
            Suite::Aegis256X4 => "aegis-256x4",
            Suite::Aegis256X2 => "aegis-256x2",
            Suite::Aes256Gcm => "aes-256-gcm",
            Suite::ChaCha20Poly1305 => "chacha20-poly1305",
        }
    }

    /// The suite of this name.
    pub fn from_name(name: &str) -> Option<Suite> {
        Suite::ALL.into_iter().find(|suite| suite.name() == name)
    }
}

/// A key, and the crate that implements its cipher.
enum Cipher {
    Aegis(Aegis),
    AwsLc(Box<LessSafeKey>),
}

impl Cipher {
    fn new(suite: Suite, key: &[u8; 32]) -> Cipher {
        let aws_lc = |algorithm: &'static Algorithm| {
            let key = UnboundKey::new(algorithm, key).expect("both have keys of 32 bytes");
            Cipher::AwsLc(Box::new(LessSafeKey::new(key)))
        };
        match suite {
            Suite::Aegis128X4 => Cipher::Aegis(Aegis::new_128x4(key)),
            Suite::Aegis128X2 => Cipher::Aegis(Aegis::new_128x2(key)),
            Suite::Aegis256X4 => Cipher::Aegis(Aegis::new_256x4(key)),
            Suite::Aegis256X2 => Cipher::Aegis(Aegis::new_256x2(key)),
            Suite::Aes256Gcm => aws_lc(&AES_256_GCM),
            Suite::ChaCha20Poly1305 => aws_lc(&CHACHA20_POLY1305),
        }
    }
}

/// A nonce of AEGIS, which is longer: the rest of it is zero.
fn long_nonce(nonce: &[u8; NONCE_LEN]) -> [u8; 32] {
    let mut long = [0; 32];
    long[..NONCE_LEN].copy_from_slice(nonce);
    long
}

/// The key of one epoch of one direction.
pub(crate) struct PacketKey {
    cipher: Cipher,
    iv: [u8; NONCE_LEN],
    pub(crate) epoch: u64,
}

impl PacketKey {
    pub(crate) fn new(suite: Suite, key: &[u8; 32], iv: [u8; NONCE_LEN], epoch: u64) -> PacketKey {
        PacketKey { cipher: Cipher::new(suite, key), iv, epoch }
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
        let nonce = self.nonce(counter);
        match &self.cipher {
            Cipher::Aegis(key) => Some(key.seal(&long_nonce(&nonce), aad, in_out)),
            Cipher::AwsLc(key) => {
                let nonce = Nonce::assume_unique_for_key(nonce);
                let tag = key.seal_in_place_separate_tag(nonce, Aad::from(aad), in_out).ok()?;
                tag.as_ref().try_into().ok()
            }
        }
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
        let nonce = self.nonce(counter);
        match &self.cipher {
            Cipher::Aegis(key) => key.open(&long_nonce(&nonce), aad, (ciphertext, tag), out),
            Cipher::AwsLc(key) => {
                let nonce = Nonce::assume_unique_for_key(nonce);
                key.open_separate_gather(nonce, Aad::from(aad), ciphertext, tag, out).is_ok()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_agree_and_whoever_needs_another_cipher_gets_it() {
        use Suite::{Aegis128X2, Aegis128X4, Aegis256X4, Aes256Gcm, ChaCha20Poly1305};
        assert_eq!(Suite::agree(Aegis128X4, Aegis128X4), Aegis128X4);
        assert_eq!(Suite::agree(Aegis128X4, Aegis128X2), Aegis128X2);
        assert_eq!(Suite::agree(Aegis128X2, Aegis256X4), Aegis256X4);
        assert_eq!(Suite::agree(Aegis128X4, Aes256Gcm), Aes256Gcm);
        assert_eq!(Suite::agree(Aes256Gcm, ChaCha20Poly1305), ChaCha20Poly1305);
        for (a, b) in Suite::ALL.into_iter().flat_map(|a| Suite::ALL.map(|b| (a, b))) {
            assert_eq!(Suite::agree(a, b), Suite::agree(b, a));
        }
    }

    #[test]
    fn codes_and_names_lead_back() {
        for suite in Suite::ALL {
            assert_eq!(Suite::from_code(suite.code()), Some(suite));
            assert_eq!(Suite::from_name(suite.name()), Some(suite));
        }
    }
}
