//! Frames of an authenticated channel, encrypted as records.
//!
//! ```text
//! record:  length of the ciphertext (2, big-endian)  ciphertext with its tag
//! ```
//! Records are numbered in each direction, so that one that is omitted, repeated or moved does not
//! open.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bowline_peers::{PeerError, Session, TAG_BYTES};

use super::error::SetupError;

/// Most bytes of a frame in one record.
const MAX_PLAIN: usize = 16 << 10;

/// Both directions of a channel. One thread may send while another receives.
#[derive(Debug)]
pub(super) struct Records {
    session: Session,
    sent: Mutex<u64>,
    received: Mutex<Received>,
}

/// The receiving direction.
#[derive(Debug, Default)]
struct Received {
    records: u64,
    /// Decrypted bytes, unread from `at` on.
    plain: Vec<u8>,
    at: usize,
}

impl Records {
    pub(super) fn new(session: Session) -> Records {
        Records { session, sent: Mutex::default(), received: Mutex::default() }
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// Whether there are decrypted bytes that have not been read.
    pub(super) fn has_unread(&self) -> bool {
        let received = lock(&self.received);
        received.at < received.plain.len()
    }

    /// Encrypts a frame and hands its records to `write`, before those of any other frame.
    pub(super) fn seal(
        &self,
        frame: &[u8],
        mut write: impl FnMut(&[u8]) -> Result<(), SetupError>,
    ) -> Result<(), SetupError> {
        let mut sent = lock(&self.sent);
        for piece in frame.chunks(MAX_PLAIN) {
            let sealed = self.session.seal(*sent, piece)?;
            *sent += 1;
            let mut record = (sealed.len() as u16).to_be_bytes().to_vec();
            record.extend_from_slice(&sealed);
            write(&record)?;
        }
        Ok(())
    }

    /// Fills `out` with what the peer has sent, reading records with `read`.
    pub(super) fn open(
        &self,
        mut out: &mut [u8],
        mut read: impl FnMut(&mut [u8]) -> Result<(), SetupError>,
    ) -> Result<(), SetupError> {
        let mut received = lock(&self.received);
        while !out.is_empty() {
            let ready = &received.plain[received.at..];
            if ready.is_empty() {
                let mut len = [0; 2];
                read(&mut len)?;
                let len = usize::from(u16::from_be_bytes(len));
                // Empty records would let a peer keep this end busy at no cost.
                if !(TAG_BYTES + 1..=TAG_BYTES + MAX_PLAIN).contains(&len) {
                    return Err(PeerError::Changed.into());
                }
                let mut sealed = vec![0; len];
                read(&mut sealed)?;
                received.plain = self.session.open(received.records, &sealed)?;
                received.records += 1;
                received.at = 0;
                continue;
            }
            let count = ready.len().min(out.len());
            let (filled, rest) = out.split_at_mut(count);
            filled.copy_from_slice(&ready[..count]);
            received.at += count;
            out = rest;
        }
        Ok(())
    }
}

/// A thread that panicked has ended its own use of the channel; numbers are not reused.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
