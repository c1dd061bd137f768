//! The preload library: everything that `bowline-verbs-abi` exports, and nothing else.

pub use bowline_verbs_abi::verbs;
