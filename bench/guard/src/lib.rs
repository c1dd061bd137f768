//! Instructions counted by callgrind: they do not depend on what else the machine does. What
//! `bench/guard/run` and `bench/fec/run cost` have in common: running a program under it, and a
//! connection in memory to count.

pub mod callgrind;
pub mod pair;
