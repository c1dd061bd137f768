//! What happens in a world, as a hash and, if asked for, as a readable log.

use std::io::{self, Write};

use bowline_nic::Time;

use crate::hash::TraceHash;

/// What a record is about; its number enters the hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    Send = 1,
    Deliver = 2,
    QueueDrop = 3,
    Lost = 4,
    Timeout = 5,
    Wake = 6,
    Pause = 7,
    Resume = 8,
    App = 9,
    PauseFrame = 10,
    SwitchDrop = 11,
}

pub(crate) struct Trace {
    hash: TraceHash,
    log: Option<Box<dyn Write>>,
    error: Option<io::Error>,
}

impl Trace {
    pub(crate) fn new(seed: u64) -> Trace {
        Trace { hash: TraceHash::new(seed), log: None, error: None }
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash.value()
    }

    pub(crate) fn is_logging(&self) -> bool {
        self.log.is_some()
    }

    pub(crate) fn keep_log(&mut self, log: Box<dyn Write>) {
        self.log = Some(log);
    }

    pub(crate) fn end_log(&mut self) -> io::Result<()> {
        let flushed = self.log.take().map_or(Ok(()), |mut log| log.flush());
        self.error.take().map_or(flushed, Err)
    }

    #[inline]
    pub(crate) fn record(
        &mut self,
        now: Time,
        kind: Record,
        a: u64,
        b: u64,
        text: impl FnOnce() -> String,
    ) {
        self.hash.word(now.as_nanos());
        self.hash.word(kind as u64 ^ (a << 4));
        self.hash.word(b);
        if self.log.is_some() {
            self.write(now, kind, &text());
        }
    }

    #[cold]
    fn write(&mut self, now: Time, kind: Record, text: &str) {
        if let Some(log) = &mut self.log
            && let Err(error) = writeln!(log, "{now} {kind:?} {text}")
        {
            self.error = Some(error);
            self.log = None;
        }
    }
}
