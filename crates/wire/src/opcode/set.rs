//! Sets of opcodes.

use super::Opcode;

/// A set of opcodes, usable in constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct OpcodeSet([u64; 4]);

impl OpcodeSet {
    /// The empty set.
    pub const EMPTY: Self = Self([0; 4]);

    /// The set of these opcodes.
    pub const fn of(opcodes: &[Opcode]) -> Self {
        let mut set = Self::EMPTY;
        let mut i = 0;
        while i < opcodes.len() {
            set = set.with(opcodes[i]);
            i += 1;
        }
        set
    }

    /// All from `first` to `last`, both included.
    pub const fn range(first: Opcode, last: Opcode) -> Self {
        let mut set = Self::EMPTY;
        let mut code = first.0 as usize;
        while code <= last.0 as usize {
            set = set.with(Opcode(code as u8));
            code += 1;
        }
        set
    }

    /// The set and one more.
    #[must_use]
    pub const fn with(mut self, opcode: Opcode) -> Self {
        self.0[opcode.0 as usize / 64] |= 1 << (opcode.0 % 64);
        self
    }

    /// The union of two sets.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        let ([a, b, c, d], [e, f, g, h]) = (self.0, other.0);
        Self([a | e, b | f, c | g, d | h])
    }

    /// Whether it has this opcode.
    #[inline]
    pub const fn contains(&self, opcode: Opcode) -> bool {
        self.0[opcode.0 as usize / 64] >> (opcode.0 % 64) & 1 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_was_put_into_it_and_nothing_else() {
        let range = OpcodeSet::range(Opcode::RC_SEND_FIRST, Opcode::RC_SEND_ONLY_INV);
        let set = range.union(OpcodeSet::of(&[Opcode::CNP, Opcode(0xff)]));
        for code in 0..=255 {
            let expected = code <= 0x17 || code == 0x81 || code == 0xff;
            assert_eq!(set.contains(Opcode(code)), expected, "{code:#x}");
        }
    }
}
