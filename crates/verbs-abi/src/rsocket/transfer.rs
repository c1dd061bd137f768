//! Sends and receives a stream's bytes.

use super::stream::Stream;
use super::wire::{Message, RemoteBuffer};
use crate::abi::ibv_sge;
use crate::errno::Errno;

/// The longest write: long enough to amortise its cost, short enough for the peer to read while the
/// next is sent.
pub(super) const MAX_TRANSFER: usize = 128 << 10;

impl Stream {
    /// Sends as much as one write takes; returns the number of bytes. The caller has checked that
    /// something can be sent.
    ///
    /// # Safety
    /// `from` must point to `len` bytes.
    pub(super) unsafe fn send(&mut self, from: *const u8, len: usize) -> Result<usize, Errno> {
        let Some(target) = self.ready.front_mut() else { return Ok(0) };
        let len = len.min(MAX_TRANSFER).min(self.out_free).min(target.len as usize);
        let to = *target;
        target.addr = target.addr.wrapping_add(len as u64);
        target.len -= len as u32;
        if target.len == 0 {
            self.ready.pop_front();
        }
        self.sent = self.sent.wrapping_add(1);
        // SAFETY: by the caller's word.
        unsafe { self.write(Message::Data(len as u32), from, len, to) }?;
        Ok(len)
    }

    /// Posts a write of the program's bytes, by way of the ring unless they fit into the work
    /// request.
    ///
    /// # Safety
    /// As for [`Stream::send`]; `len` must not exceed the room in the ring.
    pub(super) unsafe fn write(
        &mut self,
        message: Message,
        from: *const u8,
        len: usize,
        to: RemoteBuffer,
    ) -> Result<(), Errno> {
        self.slots -= 1;
        self.out_free -= len;
        if len <= self.sizes.inline.into() {
            let piece = ibv_sge { addr: from as u64, length: len as u32, lkey: 0 };
            return self.post(message, &mut [piece], true, to);
        }
        let lkey = self.out.lkey();
        let size = self.sizes.send_bytes as usize;
        let first = len.min(size - self.out_at);
        let piece =
            |at: usize, len: usize| ibv_sge { addr: self.out.addr(at), length: len as u32, lkey };
        let mut pieces = [piece(self.out_at, first), piece(0, len - first)];
        // SAFETY: the program's bytes by the caller's word. What is overwritten was acknowledged:
        // there is room.
        unsafe {
            self.out.write(self.out_at, from, first);
            self.out.write(0, from.add(first), len - first);
        }
        self.out_at = (self.out_at + len) % size;
        let count = if first < len { 2 } else { 1 };
        self.post(message, &mut pieces[..count], false, to)
    }

    /// Copies received bytes to the program; returns how many. With `peek` they stay.
    ///
    /// # Safety
    /// `to` must point to room for `len` bytes.
    pub(super) unsafe fn receive(&mut self, to: *mut u8, len: usize, peek: bool) -> usize {
        let len = len.min(self.arrived_bytes);
        let size = self.sizes.receive_bytes as usize;
        let first = len.min(size - self.read_at);
        // SAFETY: room by the caller's word. The peer writes nothing there until it is offered
        // again.
        unsafe {
            self.into.read(self.read_at, to, first);
            self.into.read(0, to.add(first), len - first);
        }
        if !peek {
            self.consume(len);
        }
        len
    }

    fn consume(&mut self, len: usize) {
        self.read_at = (self.read_at + len) % self.sizes.receive_bytes as usize;
        self.arrived_bytes -= len;
        self.freed += len;
        let mut left = len as u32;
        // A message that is read completely returns its credit.
        while let Some(message) = self.arrived.front_mut() {
            let taken = left.min(*message);
            *message -= taken;
            left -= taken;
            if *message > 0 {
                return;
            }
            self.arrived.pop_front();
            self.taken = self.taken.wrapping_add(1);
        }
    }
}
