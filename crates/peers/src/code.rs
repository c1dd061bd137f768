//! One-time codes: three words that one person reads to another.

use std::fmt;
use std::str::FromStr;

use zeroize::Zeroizing;

use crate::PeerError;
use crate::words::WORDS;

/// Words of a code.
const COUNT: usize = 3;

/// A one-time code of 24 bits. That is enough because SPAKE2 gives an attacker one guess per
/// connection, and a receiver voids a code with the first connection that tries it.
#[derive(Clone, PartialEq, Eq)]
pub struct Code(Zeroizing<[u8; COUNT]>);

impl Code {
    /// Generates a code.
    pub fn generate() -> Result<Code, PeerError> {
        let mut bytes = [0; COUNT];
        getrandom::fill(&mut bytes).map_err(|_| PeerError::Random)?;
        Ok(Code(Zeroizing::new(bytes)))
    }

    /// The password for SPAKE2.
    pub(crate) fn password(&self) -> &[u8] {
        &*self.0
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<&str> = self.0.iter().map(|byte| WORDS[usize::from(*byte)]).collect();
        f.write_str(&words.join("-"))
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Code(…)")
    }
}

impl FromStr for Code {
    type Err = PeerError;

    /// Accepts the words in any case, with hyphens, spaces or dots between them.
    fn from_str(text: &str) -> Result<Code, PeerError> {
        let wrong = || PeerError::NotACode {
            text: text.chars().take(80).collect(),
            example: [WORDS[0], WORDS[100], WORDS[200]].join("-"),
        };
        let mut words = text.split(|c: char| !c.is_alphabetic()).filter(|word| !word.is_empty());
        let mut bytes = [0; COUNT];
        for byte in &mut bytes {
            let word = words.next().ok_or_else(wrong)?.to_lowercase();
            let index = WORDS.iter().position(|known| *known == word).ok_or_else(wrong)?;
            *byte = index as u8;
        }
        if words.next().is_some() {
            return Err(wrong());
        }
        Ok(Code(Zeroizing::new(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn words_are_apart_and_easy_to_say() {
        let words: HashSet<&str> = WORDS.into_iter().collect();
        assert_eq!(words.len(), 256, "each word stands once");
        for word in WORDS {
            assert!((3..=7).contains(&word.len()), "{word}");
            assert!(word.bytes().all(|byte| byte.is_ascii_lowercase()), "{word}");
        }
    }

    #[test]
    fn a_code_is_read_as_people_type_it() {
        let code = Code::generate().unwrap();
        let text = code.to_string();
        assert_eq!(text.split('-').count(), 3);
        for typed in
            [text.clone(), text.to_uppercase(), text.replace('-', " "), format!(" {text}\n")]
        {
            assert_eq!(typed.parse::<Code>().unwrap(), code, "{typed:?}");
        }
        for wrong in ["", "a-b-c", &text[1..], &format!("{text}-acorn"), "acorn-acorn"] {
            let error = wrong.parse::<Code>().unwrap_err().to_string();
            assert!(error.contains("three words, e.g. "), "{error}");
        }
    }
}
