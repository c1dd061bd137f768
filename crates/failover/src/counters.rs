//! How often what happened to connections.

/// What an agent has done, over all of its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Moves that it began itself.
    pub begun: u64,
    /// Moves in which it followed the peer.
    pub followed: u64,
    /// Moves that both ends began at the same time.
    pub crossed: u64,
    /// Moves that were overtaken by another one before both ends had settled.
    pub overtaken: u64,
    /// Returns that a peer asked for and was refused, because requests were not done in time.
    pub refused: u64,
    /// Datagrams about a connection without its token: forged, or of a connection that was there
    /// before.
    pub strangers: u64,
}
