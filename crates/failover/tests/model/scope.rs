//! What one run of the checker looks at: a mode, a few requests, a few faults.

/// An end of the connection: 0 is *A*, 1 is *B*.
pub(crate) type EndId = usize;

/// A rail: 0 is the default one, 1 the backup.
pub(crate) type Rail = u8;

/// The rail that connections come back to.
pub(crate) const DEFAULT: Rail = 0;

/// Most requests of one end.
pub(crate) const MAX_REQUESTS: usize = 5;

/// What a request does at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Data. The program looks at it when a later request tells it to.
    Write,
    /// Data and its notification, which takes a receive.
    WriteImm,
    /// A message into a receive.
    Send,
    /// The same in two packets.
    LongSend,
    Read,
    /// A counter; for NVSHMEM also the notification of writes before it.
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

    /// Whether it lies in memory that the program gets to reuse.
    pub(crate) fn writes(self) -> bool {
        matches!(self, Kind::Write | Kind::WriteImm | Kind::FlagWrite)
    }

    /// Whether the program notices it, and with it what was written before.
    pub(crate) fn notifies(self) -> bool {
        !matches!(self, Kind::Write | Kind::Read)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// What the paper proves impossible: a new transport on the other rail, and everything that is
    /// not acknowledged once more.
    OpaqueRetry,
    /// The same, less what the receiver has counted; an atomic in flight is an error.
    Shift,
    /// The transport itself moves.
    Exact,
}

impl Mode {
    /// Whether a move begins a new transport.
    pub(crate) fn starts_anew(self) -> bool {
        self != Mode::Exact
    }

    /// Whether the mode promises that such a request is carried out at most once.
    pub(crate) fn promises_once(self, kind: Kind) -> bool {
        match self {
            Mode::Exact => kind != Kind::Read,
            Mode::Shift | Mode::OpaqueRetry => kind.is_two_sided() || kind == Kind::FetchAdd,
        }
    }
}

/// A way to get the protocol wrong. Each must be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Break {
    /// The old rail stays open after the count was reported.
    NotHeld,
    /// Sends go before the peer's count is known.
    NotWithheld,
    /// A new transport starts with the PSNs of the last one.
    SamePsns,
    /// A new transport's PSNs follow from the number of the epoch, however far the last one got.
    PsnsByEpoch,
    /// A `Move` of an old epoch is adopted.
    OldAdopted,
    /// Each end keeps its own rail when both begin the same epoch.
    TieKept,
    /// A READ before a counted message counts as done.
    ReadsMarked,
    /// An atomic in flight is sent again.
    AtomicsUnchecked,
    /// The responder's record of READs and atomics stays behind.
    RecordLost,
    /// A message half received stays behind.
    HalfLost,
    /// A new transport goes on with a message half received.
    HalfKept,
    /// READs from before a new transport are answered, as hardware would.
    GhostReadsAnswered,
    /// Only the first `Move` of an epoch is answered.
    AnsweredOnce,
    /// `Move`s take the new home only, not both rails.
    OneRailOnly,
    /// The end that comes back drains its own requests, not the peer's.
    PeerNotDrained,
    /// An end that cannot drain lifts its fence and says nothing.
    RefusalUnsaid,
    /// Of the attempts to come back that it has refused, an end remembers the last only.
    LateReturnTaken,
}

/// Something that must be reachable, or the checker looks at too little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Both ends begin the same epoch.
    BothBegan,
    /// Both begin the same epoch, on different rails.
    TieBroken,
    /// The new home is given up before the peer has answered.
    FailedInHandshake,
    /// A packet of an earlier epoch comes back to life on its rail.
    Ghost,
    /// A request is not sent again because the peer has counted it.
    Counted,
    /// An atomic is answered from the record.
    Replayed,
    /// A `Move` of an old epoch arrives.
    OldMove,
    /// A connection has come back, both ends drained.
    CameBack,
    /// An end could not drain, and said so.
    Refused,
    /// An atomic in flight goes to the program as an error.
    AtomicFailed,
}

#[derive(Clone, Debug)]
pub(crate) struct Scope {
    pub(crate) mode: Mode,
    pub(crate) broken: Option<Break>,
    pub(crate) requests: [&'static [Kind]; 2],
    /// How often an end may find its home dead, right or wrong.
    pub(crate) faults: u8,
    /// How often the connection may try to come back.
    pub(crate) returns: u8,
    /// The end with the higher (address, QPN).
    pub(crate) higher: EndId,
    /// Starts on the backup rail, as after a failover.
    pub(crate) away: bool,
    /// An end may begin an epoch on either rail, not only on the other one.
    pub(crate) any_rail: bool,
    /// Ends may give up while they wait for an answer.
    pub(crate) gives_up: bool,
    /// A quarter of the PSN circle: no more may be in flight.
    pub(crate) quarter: u8,
    pub(crate) watch: Option<Event>,
}

impl Scope {
    /// *A* asks, *B* answers; one fault.
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

    /// PSN arithmetic: `psn` moved on by `by`.
    pub(crate) fn advance(&self, psn: u8, by: u8) -> u8 {
        (psn + by) % (4 * self.quarter)
    }

    /// How far `psn` is ahead of `of`; half the circle and more means behind.
    pub(crate) fn ahead(&self, psn: u8, of: u8) -> u8 {
        (psn + 4 * self.quarter - of) % (4 * self.quarter)
    }

    pub(crate) fn is_behind(&self, psn: u8, of: u8) -> bool {
        self.ahead(psn, of) >= 2 * self.quarter
    }
}
