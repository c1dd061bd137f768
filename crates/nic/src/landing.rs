//! Where single-packet WRITEs with immediate go instead of a completion queue.
//!
//! A message that is sent as one WRITE per packet would cost its receiver a work request and a
//! completion for every packet. A landing is told of each right where the packet is handled, which
//! is what hardware would leave to an accelerator beside the NIC.

/// Told of every packet that a QP's peer has landed.
pub trait Landing: Send {
    /// `bytes` have been written to memory, and came with `imm`. What the write made visible to
    /// this call must be made visible to others with release ordering.
    fn landed(&mut self, imm: u32, bytes: u32);
}
