//! What one run of the checker explores: a mode, a few requests, a few faults.

/// An end of the connection: 0 is *A*, 1 is *B*.
pub(crate) type EndId = usize;

/// A rail: 0 is the default one, 1 the backup.
pub(crate) type Rail = u8;

/// The rail that connections return to.
pub(crate) const DEFAULT: Rail = 0;

/// Maximum number of requests of one end.
pub(crate) const MAX_REQUESTS: usize = 5;

/// What a request does at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Data. The program reads it when a later request notifies it.
    Write,
    /// Data with a notification, which consumes a receive.
    WriteImm,
    /// A message into a receive.
    Send,
    /// The same in two packets.
    LongSend,
    Read,
    /// An addition to a counter; for NVSHMEM also the notification of earlier writes.
    FetchAdd,
    /// Data with a flag in it (NCCL LL): the program polls the flag, and reuses the memory at once.
    FlagWrite,
}

impl Kind {
    pub(crate) fn is_two_sided(self) -> bool {
        matches!(self, Kind::Send | Kind::LongSend | Kind::WriteImm)
    }

    pub(crate) fn packets(self) -> u8 {
        if self == Kind::LongSend { 2 } else { 1 }
    }

    pub(crate) fn wants_response(self) -> bool {
        matches!(self, Kind::Read | Kind::FetchAdd)
    }

    /// Whether it writes memory that the program will reuse.
    pub(crate) fn writes(self) -> bool {
        matches!(self, Kind::Write | Kind::WriteImm | Kind::FlagWrite)
    }

    /// Whether the program notices it, and with it all earlier writes.
    pub(crate) fn notifies(self) -> bool {
        !matches!(self, Kind::Write | Kind::Read)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// What the paper proves impossible: a new transport on the other rail, which retransmits
    /// everything unacknowledged.
    OpaqueRetry,
    /// The same, except for what the receiver has counted; an atomic in flight is an error.
    Shift,
    /// The transport itself moves.
    Exact,
}

impl Mode {
    /// Whether a move starts a new transport.
    pub(crate) fn starts_anew(self) -> bool {
        self != Mode::Exact
    }

    /// Whether the mode guarantees that such a request is executed at most once.
    pub(crate) fn promises_once(self, kind: Kind) -> bool {
        match self {
            Mode::Exact => kind != Kind::Read,
            Mode::Shift | Mode::OpaqueRetry => kind.is_two_sided() || kind == Kind::FetchAdd,
        }
    }
}

/// A way to break the protocol. The checker must find each one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Break {
    /// The old rail stays open after the count was reported.
    NotHeld,
    /// Sends are released before the peer's count is known.
    NotWithheld,
    /// A new transport starts with the PSNs of the previous one.
    SamePsns,
    /// A new transport's PSNs are derived from the epoch number, however far the previous one got.
    PsnsByEpoch,
    /// A `Move` of an old epoch is accepted.
    OldAdopted,
    /// Each end keeps its own rail when both begin the same epoch.
    TieKept,
    /// A READ before a counted message counts as completed.
    ReadsMarked,
    /// An atomic in flight is retransmitted.
    AtomicsUnchecked,
    /// The responder's record of READs and atomics stays behind.
    RecordLost,
    /// A partly received message stays behind.
    HalfLost,
    /// A new transport continues a partly received message.
    HalfKept,
    /// READs from before a new transport are answered, as hardware would do.
    GhostReadsAnswered,
    /// Only the first `Move` of an epoch is answered.
    AnsweredOnce,
    /// `Move`s are sent on the new home rail only, not on both rails.
    OneRailOnly,
    /// The returning end drains its own requests, but not the peer's.
    PeerNotDrained,
    /// An end that cannot drain removes its fence without saying so.
    RefusalUnsaid,
    /// An end remembers only the last of the returns that it has refused.
    LateReturnTaken,
}

/// Something that must be reachable; otherwise the checker explores too little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Both ends begin the same epoch.
    BothBegan,
    /// Both begin the same epoch, on different rails.
    TieBroken,
    /// The new home is abandoned before the peer has answered.
    FailedInHandshake,
    /// A packet of an earlier epoch reappears on its rail.
    Ghost,
    /// A request is not retransmitted because the peer has counted it.
    Counted,
    /// An atomic is answered from the record.
    Replayed,
    /// A `Move` of an old epoch arrives.
    OldMove,
    /// A connection has returned, with both ends drained.
    CameBack,
    /// An end could not drain, and said so.
    Refused,
    /// An atomic in flight is reported to the program as an error.
    AtomicFailed,
}

#[derive(Clone, Debug)]
pub(crate) struct Scope {
    pub(crate) mode: Mode,
    pub(crate) broken: Option<Break>,
    pub(crate) requests: [&'static [Kind]; 2],
    /// How often an end may decide that its home is dead, rightly or wrongly.
    pub(crate) faults: u8,
    /// How often the connection may try to return.
    pub(crate) returns: u8,
    /// The end with the higher (address, QPN).
    pub(crate) higher: EndId,
    /// The connection starts on the backup rail, as after a failover.
    pub(crate) away: bool,
    /// An end may begin an epoch on either rail, not only on the other one.
    pub(crate) any_rail: bool,
    /// Ends may give up while they wait for an answer.
    pub(crate) gives_up: bool,
    /// A quarter of the PSN space: no more may be in flight.
    pub(crate) quarter: u8,
    pub(crate) watch: Option<Event>,
}

impl Scope {
    /// *A* sends requests, *B* answers; one fault.
    pub(crate) fn new(mode: Mode, requests: &'static [Kind]) -> Scope {
        assert!(requests.len() <= MAX_REQUESTS);
        Scope {
            mode,
            broken: None,
            requests: [requests, &[]],
            faults: 1,
            returns: 0,
            higher: 1,
            away: false,
            any_rail: false,
            gives_up: false,
            quarter: 16,
            watch: None,
        }
    }

    pub(crate) fn is_broken(&self, how: Break) -> bool {
        self.broken == Some(how)
    }

    /// PSN arithmetic: `psn` advanced by `by`.
    pub(crate) fn advance(&self, psn: u8, by: u8) -> u8 {
        (psn + by) % (4 * self.quarter)
    }

    /// How far `psn` is ahead of `of`; half of the PSN space or more means behind.
    pub(crate) fn ahead(&self, psn: u8, of: u8) -> u8 {
        (psn + 4 * self.quarter - of) % (4 * self.quarter)
    }

    pub(crate) fn is_behind(&self, psn: u8, of: u8) -> bool {
        self.ahead(psn, of) >= 2 * self.quarter
    }
}
