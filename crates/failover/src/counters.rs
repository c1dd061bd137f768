//! Counters of what happened to connections.

/// What an agent has done, summed over all of its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Moves that this agent began.
    pub begun: u64,
    /// Moves in which it followed the peer.
    pub followed: u64,
    /// Moves that both ends began at the same time.
    pub crossed: u64,
    /// Moves that were superseded by another one before both ends had settled.
    pub overtaken: u64,
    /// Returns that a peer asked for and that were refused, because requests did not complete in
    /// time.
    pub refused: u64,
    /// Datagrams without the connection's token: forged, or meant for an earlier connection.
    pub strangers: u64,
}
