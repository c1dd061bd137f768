//! One end of a connected stream: buffers, credits, and the handling of completions.
//!
//! The sender writes into the receiver's memory. Each end has one receive buffer in two halves,
//! which it offers to the peer one after the other by writing their address into the peer's target
//! list. Each write carries 32 bits that describe it ([`Message`]). These consume a receive at the
//! peer, so data messages are counted, and the peer grants credit for them.

use core::ffi::{c_int, c_uint};
use std::collections::VecDeque;
use std::os::fd::RawFd;

use super::iomap;
use super::memory::Region;
use super::wire::{Hello, IS_BIG_ENDIAN, Message, RemoteBuffer};
use crate::abi::*;
use crate::channel::{
    ibv_ack_cq_events, ibv_create_comp_channel, ibv_destroy_comp_channel, ibv_get_cq_event,
};
use crate::cq::{ibv_create_cq, ibv_destroy_cq, req_notify_cq};
use crate::errno::Errno;
use crate::poll::poll_cq;
use crate::post::{post_recv, post_send};
use crate::rdmacm::abi::rdma_cm_id;
use crate::rdmacm::{rdma_create_qp, rdma_destroy_qp};

/// Entries of a target list.
const TARGETS: usize = 2;
/// Offset of the entries for mapped memory, after the target list.
pub(super) const MAPS_AT: usize = TARGETS * RemoteBuffer::LEN;
/// Control messages that may be outstanding: the peer does not count them.
const CONTROLS: u32 = 4;
/// Marks receives among completions.
const RECEIVE: u64 = 1 << 63;
/// Completions taken at a time.
const BATCH: usize = 32;

/// The sizes of a stream's queues and buffers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) sends: u16,
    pub(super) receives: u16,
    pub(super) inline: u16,
    pub(super) send_bytes: u32,
    pub(super) receive_bytes: u32,
    /// Entries for memory that the peer maps.
    pub(super) maps: u16,
}

impl Default for Sizes {
    fn default() -> Sizes {
        let (send_bytes, receive_bytes) = (1 << 20, 1 << 20);
        Sizes { sends: 384, receives: 384, inline: 64, send_bytes, receive_bytes, maps: 0 }
    }
}

/// What is known of the other end.
#[derive(Clone, Copy)]
pub(super) struct Peer {
    big_endian: bool,
    /// Its target list, and the entry to write next.
    targets: RemoteBuffer,
    next: u32,
    pub(super) maps: u16,
}

impl Peer {
    /// Where to tell it of a mapping, and for what kind of CPU.
    pub(super) fn map_entry(&self, index: u16) -> (RemoteBuffer, bool) {
        let list = self.targets.len as usize * RemoteBuffer::LEN;
        let place = list + usize::from(index) * iomap::ENTRY;
        let addr = self.targets.addr.wrapping_add(place as u64);
        (RemoteBuffer { addr, ..self.targets }, self.big_endian)
    }
}

/// A stream, from the making of its queue pair on.
pub(super) struct Stream {
    pub(super) id: *mut rdma_cm_id,
    channel: *mut ibv_comp_channel,
    cq: *mut ibv_cq,
    pub(super) sizes: Sizes,
    peer: Option<Peer>,
    /// The program's bytes until they are acknowledged: a ring.
    pub(super) out: Region,
    pub(super) out_at: usize,
    pub(super) out_free: usize,
    /// Work requests, and control messages among them, that may still be posted.
    pub(super) slots: u32,
    controls: u32,
    /// Data messages sent, and the number up to which they may be.
    pub(super) sent: u16,
    allowed: u16,
    /// The peer's free buffers: the list that it writes here, and the entries found so far.
    pub(super) targets: Region,
    next_target: usize,
    pub(super) ready: VecDeque<RemoteBuffer>,
    /// What the peer writes: two halves.
    pub(super) into: Region,
    /// Lengths of messages that the program has not read, and their sum.
    pub(super) arrived: VecDeque<u32>,
    pub(super) arrived_bytes: usize,
    pub(super) read_at: usize,
    /// Bytes read but not offered again, and their offset.
    pub(super) freed: usize,
    free_at: usize,
    /// Data messages read, and the number at which the peer is told.
    pub(super) taken: u16,
    announce_at: u16,
    armed: bool,
    pub(super) connected: bool,
    pub(super) readable: bool,
    pub(super) writable: bool,
    pub(super) error: Option<Errno>,
}

// SAFETY: the pointers are names of objects that are the stream's own; whoever has its lock uses
// them.
unsafe impl Send for Stream {}

impl Stream {
    /// Makes the queue pair of an identifier, with all that the peer needs to know of.
    pub(super) fn new(id: *mut rdma_cm_id, mut sizes: Sizes) -> Result<Stream, Errno> {
        sizes.sends = sizes.sends.max(16);
        sizes.receives = sizes.receives.max(16);
        // SAFETY: the identifier lives and has a device.
        let (verbs, pd) = unsafe { ((*id).verbs, (*id).pd) };
        let half = (sizes.receive_bytes as usize / 2).max(64);
        let (out_free, entries) = (sizes.send_bytes.max(4096) as usize, sizes.maps);
        let list = MAPS_AT + usize::from(entries) * iomap::ENTRY;
        let mut stream = Stream {
            id,
            channel: core::ptr::null_mut(),
            cq: core::ptr::null_mut(),
            sizes,
            peer: None,
            out: Region::new(pd, out_free, false)?,
            out_at: 0,
            out_free,
            slots: u32::from(sizes.sends) - CONTROLS,
            controls: CONTROLS,
            sent: 0,
            allowed: 0,
            targets: Region::new(pd, list, true)?,
            next_target: 1,
            ready: VecDeque::new(),
            into: Region::new(pd, 2 * half, true)?,
            arrived: VecDeque::new(),
            arrived_bytes: 0,
            read_at: 0,
            freed: half,
            free_at: half,
            taken: 0,
            announce_at: sizes.receives / 2,
            armed: false,
            connected: false,
            readable: false,
            writable: false,
            error: None,
        };
        stream.sizes.receive_bytes = 2 * half as u32;
        stream.sizes.send_bytes = out_free as u32;
        stream.make_queues(verbs)?;
        for _ in 0..sizes.receives {
            stream.post_receive()?;
        }
        Ok(stream)
    }

    fn make_queues(&mut self, verbs: *mut ibv_context) -> Result<(), Errno> {
        let entries = c_int::from(self.sizes.sends) + c_int::from(self.sizes.receives);
        let none = core::ptr::null_mut();
        // SAFETY: the device is open; `drop` frees what is made here.
        unsafe {
            self.channel = ibv_create_comp_channel(verbs);
            if self.channel.is_null() {
                return Err(Errno::last());
            }
            // The stream sleeps on the descriptor, never in a call.
            libc::fcntl((*self.channel).fd, libc::F_SETFL, libc::O_NONBLOCK);
            self.cq = ibv_create_cq(verbs, entries, none, self.channel, 0);
            if self.cq.is_null() {
                return Err(Errno::last());
            }
            let mut init: ibv_qp_init_attr = core::mem::zeroed();
            (init.send_cq, init.recv_cq) = (self.cq, self.cq);
            (init.qp_type, init.sq_sig_all) = (IBV_QPT_RC, 1);
            (init.cap.max_send_wr, init.cap.max_recv_wr) =
                (self.sizes.sends.into(), self.sizes.receives.into());
            (init.cap.max_send_sge, init.cap.max_recv_sge) = (2, 1);
            init.cap.max_inline_data = u32::from(self.sizes.inline.max(RemoteBuffer::LEN as u16));
            if rdma_create_qp(self.id, none.cast(), &raw mut init) != 0 {
                return Err(Errno::last());
            }
        }
        Ok(())
    }

    fn half(&self) -> usize {
        self.sizes.receive_bytes as usize / 2
    }

    /// The greeting for the peer.
    pub(super) fn hello(&self) -> Hello {
        let (targets, into) = (&self.targets, &self.into);
        let list = RemoteBuffer { addr: targets.addr(0), key: targets.rkey(), len: TARGETS as u32 };
        let buffer = RemoteBuffer { addr: into.addr(0), key: into.rkey(), len: self.half() as u32 };
        Hello {
            big_endian: IS_BIG_ENDIAN,
            credits: self.sizes.receives,
            maps: self.sizes.maps,
            targets: list,
            buffer,
        }
    }

    /// Handles the peer's greeting.
    pub(super) fn meet(&mut self, hello: &Hello) {
        let Hello { big_endian, targets, maps, .. } = *hello;
        self.peer = Some(Peer { big_endian, targets, next: 1, maps });
        self.allowed = hello.credits;
        if hello.buffer.len > 0 {
            self.ready.push_back(hello.buffer);
        }
    }

    /// Both ends know of each other.
    pub(super) fn open(&mut self) {
        (self.connected, self.readable, self.writable) = (true, true, true);
    }

    pub(super) fn peer(&self) -> Option<&Peer> {
        self.peer.as_ref()
    }

    /// The other end is gone, or the connection.
    pub(super) fn end(&mut self, error: Option<Errno>) {
        if self.connected {
            self.error = error;
        }
        (self.connected, self.readable, self.writable) = (false, false, false);
    }

    /// Whether a write of some bytes can be posted.
    pub(super) fn can_send(&self) -> bool {
        let room = self.out_free >= 2048.min(self.sizes.send_bytes as usize / 2);
        self.slots > 0 && room && self.sent != self.allowed && !self.ready.is_empty()
    }

    pub(super) fn may_control(&self) -> bool {
        self.controls > 0 || !self.connected
    }

    pub(super) fn all_sent(&self) -> bool {
        self.slots + self.controls == u32::from(self.sizes.sends) || !self.connected
    }

    fn post_receive(&self) -> Result<(), Errno> {
        // SAFETY: a plain C struct for which zeroes are valid.
        let mut wr: ibv_recv_wr = unsafe { core::mem::zeroed() };
        wr.wr_id = RECEIVE;
        let mut bad = core::ptr::null_mut();
        // SAFETY: the QP lives as long as the stream.
        match unsafe { post_recv((*self.id).qp, &raw mut wr, &raw mut bad) } {
            0 => Ok(()),
            error => Err(Errno(error)),
        }
    }

    /// Writes to the peer, with `message` unless that is only for this end.
    pub(super) fn post(
        &self,
        message: Message,
        pieces: &mut [ibv_sge],
        inline: bool,
        to: RemoteBuffer,
    ) -> Result<(), Errno> {
        // SAFETY: a plain C struct for which zeroes are valid.
        let mut wr: ibv_send_wr = unsafe { core::mem::zeroed() };
        wr.wr_id = message.encode().into();
        (wr.sg_list, wr.num_sge) = (pieces.as_mut_ptr(), pieces.len() as c_int);
        wr.opcode = IBV_WR_RDMA_WRITE;
        if !matches!(message, Message::Direct(_)) {
            (wr.opcode, wr.imm_data) = (IBV_WR_RDMA_WRITE_WITH_IMM, message.encode().to_be());
        }
        wr.send_flags = if inline { IBV_SEND_INLINE } else { 0 };
        wr.wr.rdma = ibv_wr_rdma { remote_addr: to.addr, rkey: to.key };
        let mut bad = core::ptr::null_mut();
        // SAFETY: the QP lives as long as the stream, and the pieces as long as the call, or longer
        // if not inline.
        match unsafe { post_send((*self.id).qp, &raw mut wr, &raw mut bad) } {
            0 => Ok(()),
            error => Err(Errno(error)),
        }
    }

    /// Sends a control message, if one more may be outstanding.
    pub(super) fn control(&mut self, message: Message) -> Result<bool, Errno> {
        if self.controls == 0 {
            return Ok(false);
        }
        self.controls -= 1;
        self.post(message, &mut [], false, RemoteBuffer::default()).map(|()| true)
    }

    /// Returns credit to the peer, once that is worth a message.
    fn give_credits(&mut self) -> Result<(), Errno> {
        let half = self.half();
        let due = self.taken.wrapping_sub(self.announce_at) as i16 >= 0;
        if !self.connected || self.controls == 0 || !(self.freed >= half || due) {
            return Ok(());
        }
        let Some(mut peer) = self.peer else { return Ok(()) };
        self.announce_at = self.taken.wrapping_add(self.sizes.receives / 2);
        let message = Message::Credits(self.taken.wrapping_add(self.sizes.receives));
        if self.freed < half {
            return self.control(message).map(drop);
        }
        let (addr, key) = (self.into.addr(self.free_at), self.into.rkey());
        let entry = RemoteBuffer { addr, key, len: half as u32 }.to_memory(peer.big_endian);
        let place = u64::from(peer.next) * RemoteBuffer::LEN as u64;
        let to = RemoteBuffer { addr: peer.targets.addr.wrapping_add(place), ..peer.targets };
        let piece = ibv_sge { addr: entry.as_ptr() as u64, length: entry.len() as u32, lkey: 0 };
        self.controls -= 1;
        self.post(message, &mut [piece], true, to)?;
        self.freed -= half;
        self.free_at = if self.free_at == 0 { half } else { 0 };
        peer.next = (peer.next + 1) % peer.targets.len;
        self.peer = Some(peer);
        Ok(())
    }

    /// Polls completions, and handles them.
    pub(super) fn progress(&mut self) {
        if let Err(error) = self.try_progress() {
            self.end(Some(error));
        }
    }

    fn try_progress(&mut self) -> Result<(), Errno> {
        // SAFETY: plain C structs for which zeroes are valid.
        let mut batch: [ibv_wc; BATCH] = unsafe { core::mem::zeroed() };
        self.give_credits()?;
        loop {
            // SAFETY: the queue lives, and the array has room.
            let count = unsafe { poll_cq(self.cq, BATCH as c_int, batch.as_mut_ptr()) };
            let count = usize::try_from(count).map_err(|_| Errno::IO)?;
            for wc in &batch[..count] {
                let good = wc.status == 0;
                if wc.wr_id & RECEIVE != 0 {
                    if good {
                        self.on_receive(wc)?;
                    }
                } else {
                    self.on_sent(Message::decode(wc.wr_id as u32));
                    if !good {
                        self.end(Some(Errno::IO));
                    }
                }
            }
            if count < BATCH {
                return self.give_credits();
            }
        }
    }

    fn on_receive(&mut self, wc: &ibv_wc) -> Result<(), Errno> {
        let has_message = wc.wc_flags & IBV_WC_WITH_IMM != 0;
        match has_message.then(|| Message::decode(u32::from_be(wc.imm_data))).flatten() {
            Some(Message::Data(len)) => self.on_data(len as usize)?,
            Some(Message::Credits(upto)) => {
                self.allowed = upto;
                self.look_at_targets();
            }
            Some(Message::Disconnect) => self.end(None),
            Some(Message::Shutdown) => {
                self.readable = false;
                if !self.writable {
                    self.end(None);
                }
            }
            Some(Message::Map(_) | Message::KeepAlive | Message::Direct(_)) | None => {}
        }
        if self.connected { self.post_receive() } else { Ok(()) }
    }

    /// The peer reports that it has written so many bytes; it cannot exceed what it was offered.
    fn on_data(&mut self, len: usize) -> Result<(), Errno> {
        let offered = 2 * self.half() - self.freed;
        if self.arrived_bytes + len > offered || self.arrived.len() >= usize::from(u16::MAX) {
            return Err(Errno(libc::EPROTO));
        }
        self.arrived.push_back(len as u32);
        self.arrived_bytes += len;
        Ok(())
    }

    /// Reads the peer's entries in the target list. It writes them in turn, and reuses one only
    /// after its previous contents have been used, so an entry can be cleared once read.
    fn look_at_targets(&mut self) {
        for _ in 0..TARGETS {
            let (mut entry, at) = ([0; RemoteBuffer::LEN], self.next_target * RemoteBuffer::LEN);
            // SAFETY: as many bytes as the array has.
            unsafe { self.targets.read(at, entry.as_mut_ptr(), entry.len()) };
            let found = RemoteBuffer::from_memory(entry);
            if found.len == 0 || self.ready.len() >= TARGETS {
                return;
            }
            let zeroes = [0; RemoteBuffer::LEN];
            // SAFETY: as above.
            unsafe { self.targets.write(at, zeroes.as_ptr(), zeroes.len()) };
            self.ready.push_back(found);
            self.next_target = (self.next_target + 1) % TARGETS;
        }
    }

    fn on_sent(&mut self, message: Option<Message>) {
        match message {
            Some(Message::Data(len) | Message::Direct(len)) => {
                self.slots += 1;
                self.out_free += len as usize;
            }
            Some(Message::Map(_)) => {
                self.slots += 1;
                self.out_free += iomap::ENTRY;
            }
            _ => self.controls += 1,
        }
    }

    /// The descriptor that becomes readable when something has completed after [`Stream::arm`].
    pub(super) fn fd(&self) -> RawFd {
        // SAFETY: the channel lives as long as the stream.
        unsafe { (*self.channel).fd }
    }

    /// Asks to be woken.
    pub(super) fn arm(&mut self) {
        if !self.armed {
            // SAFETY: the queue lives.
            self.armed = unsafe { req_notify_cq(self.cq, 0) } == 0;
        }
    }

    /// Consumes the wake-up events.
    pub(super) fn disarm(&mut self) {
        let (mut cq, mut context) = (core::ptr::null_mut(), core::ptr::null_mut());
        // SAFETY: the channel lives, and does not block.
        while unsafe { ibv_get_cq_event(self.channel, &raw mut cq, &raw mut context) } == 0 {
            // SAFETY: the event was just got.
            unsafe { ibv_ack_cq_events(cq, 1 as c_uint) };
            self.armed = false;
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: made in `new`, and used by nobody any more; what was not made is null. The
        // identifier is its socket's, which outlives the stream.
        unsafe {
            if !(*self.id).qp.is_null() {
                rdma_destroy_qp(self.id);
            }
            if !self.cq.is_null() {
                ibv_destroy_cq(self.cq);
            }
            if !self.channel.is_null() {
                ibv_destroy_comp_channel(self.channel);
            }
        }
    }
}
