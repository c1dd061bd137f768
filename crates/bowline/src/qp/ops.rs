//! Posting work.

use std::ops::Range;
use std::sync::Arc;

use bowline_nic::{Payload, PostError, RecvWr, SendFlags, SendOp, SendWr, Sge, UdDest};

use super::Qp;
use crate::{Error, Mr, RemoteMr};

/// A batch of work requests that was accepted only in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("only the first {posted} requests of the batch were taken: {source}")]
pub struct BatchError {
    /// How many were accepted, from the first on.
    pub posted: usize,
    /// Why the next one was not.
    pub source: PostError,
}

/// Errors that tell that a connection has moved to the other NIC.
pub(super) trait WentAway {
    fn went_away(&self) -> bool;
}

impl WentAway for PostError {
    fn went_away(&self) -> bool {
        *self == PostError::Away
    }
}

impl WentAway for BatchError {
    fn went_away(&self) -> bool {
        // Connections do not move in the middle of a batch.
        self.posted == 0 && self.source == PostError::Away
    }
}

/// One-sided operations and messages, each with a completion that carries `wr_id`.
///
/// The memory must not be reused before that completion.
impl Qp {
    /// Writes a part of `mr` to the start of `remote`.
    pub fn write(
        &self,
        wr_id: u64,
        mr: &Mr,
        range: Range<usize>,
        remote: RemoteMr,
    ) -> Result<(), Error> {
        let to = remote.fit(range.len())?;
        self.post(wr_id, SendOp::Write(to), self.sge(mr, range)?)
    }

    /// Writes, then consumes one of the peer's receives and completes it with `imm`.
    pub fn write_imm(
        &self,
        wr_id: u64,
        mr: &Mr,
        range: Range<usize>,
        remote: RemoteMr,
        imm: u32,
    ) -> Result<(), Error> {
        let to = remote.fit(range.len())?;
        self.post(wr_id, SendOp::WriteImm(to, imm), self.sge(mr, range)?)
    }

    /// Reads the start of `remote` into a part of `mr`.
    pub fn read(
        &self,
        wr_id: u64,
        mr: &Mr,
        range: Range<usize>,
        remote: RemoteMr,
    ) -> Result<(), Error> {
        let from = remote.fit(range.len())?;
        self.post(wr_id, SendOp::Read(from), self.sge(mr, range)?)
    }

    /// Atomically adds `add` to the 64-bit word at the start of `remote`; the previous value is
    /// returned into `mr` at `offset`, in this machine's byte order.
    pub fn fetch_add(
        &self,
        wr_id: u64,
        mr: &Mr,
        offset: usize,
        remote: RemoteMr,
        add: u64,
    ) -> Result<(), Error> {
        let remote = remote.fit(8)?;
        self.post(wr_id, SendOp::FetchAdd { remote, add }, self.word(mr, offset)?)
    }

    /// Atomically replaces the 64-bit word at the start of `remote` by `swap` if it equals
    /// `compare`; the previous value is returned into `mr` at `offset`.
    pub fn compare_swap(
        &self,
        wr_id: u64,
        mr: &Mr,
        offset: usize,
        remote: RemoteMr,
        compare: u64,
        swap: u64,
    ) -> Result<(), Error> {
        let remote = remote.fit(8)?;
        let op = SendOp::CompareSwap { remote, compare, swap };
        self.post(wr_id, op, self.word(mr, offset)?)
    }

    /// Sends a part of `mr` into the peer's next receive.
    pub fn send(&self, wr_id: u64, mr: &Mr, range: Range<usize>) -> Result<(), Error> {
        self.post(wr_id, SendOp::Send, self.sge(mr, range)?)
    }

    /// Sends, with 32 bits for the receiver's completion.
    pub fn send_imm(
        &self,
        wr_id: u64,
        mr: &Mr,
        range: Range<usize>,
        imm: u32,
    ) -> Result<(), Error> {
        self.post(wr_id, SendOp::SendImm(imm), self.sge(mr, range)?)
    }

    /// Sends bytes that need not be registered and can be reused at once.
    pub fn send_inline(&self, wr_id: u64, bytes: &[u8]) -> Result<(), Error> {
        let payload = Payload::Inline(bytes);
        self.post_send(&SendWr { payload, ..SendWr::new(wr_id, SendOp::Send, &[]) })
    }

    /// Sends a datagram on a UD queue pair.
    pub fn send_to(
        &self,
        wr_id: u64,
        mr: &Mr,
        range: Range<usize>,
        to: UdDest,
    ) -> Result<(), Error> {
        let sge = [self.sge(mr, range)?];
        self.post_send(&SendWr { ud: Some(to), ..SendWr::new(wr_id, SendOp::Send, &sge) })
    }

    /// Posts a receive into a part of `mr`.
    ///
    /// A datagram is preceded there by a 40-byte GRH.
    pub fn recv(&self, wr_id: u64, mr: &Mr, range: Range<usize>) -> Result<(), Error> {
        self.post_recv(&RecvWr::new(wr_id, &[self.sge(mr, range)?]))
    }

    /// Posts any send work request.
    pub fn post_send(&self, wr: &SendWr<'_>) -> Result<(), Error> {
        if let Some(qp) = self.inner.core.verbs() {
            return qp.post_send(std::slice::from_ref(wr)).map_err(|(_, source)| source.into());
        }
        self.post_work(|nic, now, qpn| nic.post_send(now, qpn, wr))
    }

    /// Posts several send work requests at once, which is cheaper than one by one.
    ///
    /// If one is rejected, those before it have been accepted: [`Error::Batch`] tells how many.
    pub fn post_send_batch(&self, wrs: &[SendWr<'_>]) -> Result<(), Error> {
        if let Some(qp) = self.inner.core.verbs() {
            return qp.post_send(wrs).map_err(batch_error);
        }
        self.post_work(|nic, now, qpn| post_each(wrs, |wr| nic.post_send(now, qpn, wr)))
    }

    /// Posts any receive work request.
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), Error> {
        if let Some(qp) = self.inner.core.verbs() {
            return qp.post_recv(std::slice::from_ref(wr)).map_err(|(_, source)| source.into());
        }
        self.post_work(|nic, _, qpn| nic.post_recv(qpn, wr))
    }

    /// Posts several receive work requests at once, which is cheaper than one by one.
    ///
    /// If one is rejected, those before it have been accepted: [`Error::Batch`] tells how many.
    pub fn post_recv_batch(&self, wrs: &[RecvWr<'_>]) -> Result<(), Error> {
        if let Some(qp) = self.inner.core.verbs() {
            return qp.post_recv(wrs).map_err(batch_error);
        }
        self.post_work(|nic, _, qpn| post_each(wrs, |wr| nic.post_recv(qpn, wr)))
    }

    fn post(&self, wr_id: u64, op: SendOp, sge: Sge) -> Result<(), Error> {
        let sges = [sge];
        // An empty message has no memory to gather.
        let sges = if sge.len == 0 { &[][..] } else { &sges };
        let flags = SendFlags::SIGNALED;
        self.post_send(&SendWr { flags, ..SendWr::new(wr_id, op, sges) })
    }

    fn sge(&self, mr: &Mr, range: Range<usize>) -> Result<Sge, Error> {
        if !Arc::ptr_eq(mr.pd(), &self.inner.pd) {
            return Err(Error::Foreign { what: "the memory region", of: "protection domain" });
        }
        mr.sge(range)
    }

    fn word(&self, mr: &Mr, offset: usize) -> Result<Sge, Error> {
        self.sge(mr, offset..offset.saturating_add(8))
    }
}

/// The error for a batch that a provider accepted in part.
fn batch_error((posted, source): (usize, PostError)) -> Error {
    BatchError { posted, source }.into()
}

/// Posts requests up to the first that is rejected.
fn post_each<T>(
    wrs: &[T],
    mut post: impl FnMut(&T) -> Result<(), PostError>,
) -> Result<(), BatchError> {
    for (posted, wr) in wrs.iter().enumerate() {
        post(wr).map_err(|source| BatchError { posted, source })?;
    }
    Ok(())
}
