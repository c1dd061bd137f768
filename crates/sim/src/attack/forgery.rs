//! Kinds of forgeries.

/// What a forged packet pretends to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgery {
    /// A SEND over RC or UC, in one packet or several.
    Send,
    /// A WRITE over RC or UC with a key that is a guess.
    Write,
    /// A middle or last packet of a message that the peer may have started.
    Piece,
    /// A READ.
    Read,
    /// An atomic.
    Atomic,
    /// An acknowledgement.
    Ack,
    /// A NAK.
    Nak,
    /// An RNR NAK.
    Rnr,
    /// An answer to a READ.
    ReadResponse,
    /// An answer to an atomic.
    AtomicAck,
    /// A datagram.
    Datagram,
    /// A FEC repair.
    Repair,
    /// FEC's greeting, an announcement or a report.
    FecControl,
    /// A congestion notification.
    Cnp,
    /// A message of SDR's control channel.
    SdrControl,
    /// A message between failover agents.
    Agent,
    /// A packet of an XP message or READ.
    Xp,
    /// XP's probe or feedback.
    XpControl,
    /// Random bytes under any opcode.
    Noise,
    /// A sealed packet replayed, perhaps much later.
    Replayed,
    /// A sealed packet with some bits changed.
    Flipped,
    /// A sealed packet without its end.
    Truncated,
    /// A sealed packet, returned to its sender.
    Reflected,
    /// A sealed packet for another queue pair.
    Redirected,
    /// A sealed packet under another epoch or counter.
    Renumbered,
}

impl Forgery {
    /// All of them.
    pub const ALL: [Forgery; 25] = [
        Forgery::Send,
        Forgery::Write,
        Forgery::Piece,
        Forgery::Read,
        Forgery::Atomic,
        Forgery::Ack,
        Forgery::Nak,
        Forgery::Rnr,
        Forgery::ReadResponse,
        Forgery::AtomicAck,
        Forgery::Datagram,
        Forgery::Repair,
        Forgery::FecControl,
        Forgery::Cnp,
        Forgery::SdrControl,
        Forgery::Agent,
        Forgery::Xp,
        Forgery::XpControl,
        Forgery::Noise,
        Forgery::Replayed,
        Forgery::Flipped,
        Forgery::Truncated,
        Forgery::Reflected,
        Forgery::Redirected,
        Forgery::Renumbered,
    ];

    /// What an on-path attacker can make of sealed packets.
    pub(crate) const ON_PATH: [Forgery; 6] = [
        Forgery::Replayed,
        Forgery::Flipped,
        Forgery::Truncated,
        Forgery::Reflected,
        Forgery::Redirected,
        Forgery::Renumbered,
    ];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Forgery::Send => "forged SENDs",
            Forgery::Write => "forged WRITEs",
            Forgery::Piece => "forged pieces of messages",
            Forgery::Read => "forged READs",
            Forgery::Atomic => "forged atomics",
            Forgery::Ack => "forged ACKs",
            Forgery::Nak => "forged NAKs",
            Forgery::Rnr => "forged RNR NAKs",
            Forgery::ReadResponse => "forged READ responses",
            Forgery::AtomicAck => "forged atomic responses",
            Forgery::Datagram => "forged datagrams",
            Forgery::Repair => "forged FEC repairs",
            Forgery::FecControl => "forged FEC control",
            Forgery::Cnp => "forged CNPs",
            Forgery::SdrControl => "forged SDR control",
            Forgery::Agent => "forged agents' messages",
            Forgery::Xp => "forged XP packets",
            Forgery::XpControl => "forged XP feedback",
            Forgery::Noise => "noise",
            Forgery::Replayed => "sealed packets replayed",
            Forgery::Flipped => "sealed packets changed",
            Forgery::Truncated => "sealed packets truncated",
            Forgery::Reflected => "sealed packets reflected",
            Forgery::Redirected => "sealed packets redirected",
            Forgery::Renumbered => "sealed packets renumbered",
        }
    }

    /// What can be forged for a reliable connection.
    pub(crate) const RC: [Forgery; 14] = [
        Forgery::Send,
        Forgery::Write,
        Forgery::Piece,
        Forgery::Read,
        Forgery::Atomic,
        Forgery::Ack,
        Forgery::Nak,
        Forgery::Rnr,
        Forgery::ReadResponse,
        Forgery::AtomicAck,
        Forgery::Repair,
        Forgery::FecControl,
        Forgery::Cnp,
        Forgery::Noise,
    ];

    /// What can be forged for an unreliable one.
    pub(crate) const UC: [Forgery; 7] = [
        Forgery::Send,
        Forgery::Write,
        Forgery::Piece,
        Forgery::Repair,
        Forgery::FecControl,
        Forgery::Cnp,
        Forgery::Noise,
    ];

    /// Whether it responds to the receiver's own requests, and then carries their PSNs.
    pub(crate) fn is_response(self) -> bool {
        matches!(
            self,
            Forgery::Ack | Forgery::Nak | Forgery::Rnr | Forgery::ReadResponse | Forgery::AtomicAck
        )
    }
}
