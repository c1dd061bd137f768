//! Rings from other engines.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use bowline_nic::{FrameMeta, IpId, Time};

use super::greeting::{ANSWER, GREETING_LEN, Greeting};
use super::ring::RingReader;
use super::{Counters, max_channels};
use crate::port::FrameSink;
use crate::sys::{Epoll, SeqPacket, effective_uid, interface_of, peer_uid};

/// Most connections that have not offered a ring yet.
const MAX_GUESTS: usize = 64;
/// How long they have to do so.
const GUEST_NS: u64 = 1_000_000_000;
/// Connections accepted in one call.
const MAX_ACCEPTS: usize = 16;
/// Wake-ups read from a connection in one call.
const MAX_WAKES: usize = 64;
/// Bytes passed to the engine at a time: they stay in the L1 cache until they are copied on.
const PIECE_BYTES: usize = 16 << 10;
/// Bytes read from a ring before the next one gets its turn.
const TURN_BYTES: usize = 128 << 10;
const TTL: u8 = 64;

/// The rings that a port reads from.
pub(super) struct Inbound {
    to: (IpAddr, u8),
    channels: Vec<Channel>,
    guests: Vec<Guest>,
    /// The ring to read first.
    turn: usize,
    piece: Vec<u8>,
}

/// A connection that has not offered a ring yet.
struct Guest {
    id: u64,
    socket: SeqPacket,
    since: Time,
}

struct Channel {
    id: u64,
    socket: SeqPacket,
    reader: RingReader,
    from: (IpAddr, u16),
    /// Nothing has been read yet: packets that its writer sent by UDP before may still be in
    /// flight.
    fresh: bool,
    /// The writer is gone. What it has written is still read.
    gone: bool,
}

impl Inbound {
    pub(super) fn new(addr: IpAddr, prefix: u8) -> Inbound {
        Inbound {
            to: (addr, prefix),
            channels: Vec::new(),
            guests: Vec::new(),
            turn: 0,
            piece: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.channels.is_empty()
    }

    /// Accepts connections that want to offer a ring. After any error other than that none is
    /// pending, the caller has to wait before the next call.
    pub(super) fn accept(
        &mut self,
        now: Time,
        listener: &SeqPacket,
        new_id: &mut u64,
        epoll: &Epoll,
    ) -> io::Result<()> {
        for _ in 0..MAX_ACCEPTS {
            let socket = match listener.accept() {
                Ok(socket) => socket,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            // Abstract names have no permissions of their own.
            let is_ours = peer_uid(&socket).is_ok_and(|uid| uid == effective_uid());
            if !is_ours || self.guests.len() >= MAX_GUESTS {
                continue;
            }
            epoll.add(socket.as_raw_fd(), *new_id)?;
            self.guests.push(Guest { id: *new_id, socket, since: now });
            *new_id += 1;
        }
        Ok(())
    }

    /// Reads from the connection `id`, if it is one of these.
    pub(super) fn hear(&mut self, id: u64, counters: &mut Counters) {
        if let Some(at) = self.guests.iter().position(|guest| guest.id == id) {
            self.hear_guest(at, counters);
        } else if let Some(channel) = self.channels.iter_mut().find(|channel| channel.id == id) {
            channel.hear();
        }
    }

    fn hear_guest(&mut self, at: usize, counters: &mut Counters) {
        let mut said = [0; GREETING_LEN];
        match self.guests[at].socket.recv(&mut said) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok((len, Some(file))) if len > 0 => {
                let guest = self.guests.swap_remove(at);
                match self.admit(guest, &said[..len], file) {
                    Ok(channel) => self.channels.push(channel),
                    Err(_) => counters.refused += 1,
                }
            }
            Ok((0, _)) => {
                self.guests.swap_remove(at);
            }
            _ => {
                self.guests.swap_remove(at);
                counters.refused += 1;
            }
        }
    }

    /// Accepts a ring, if its offer is valid.
    fn admit(&self, guest: Guest, said: &[u8], file: OwnedFd) -> io::Result<Channel> {
        let refused = || io::Error::from(io::ErrorKind::InvalidData);
        let greeting = Greeting::parse(said).ok_or_else(refused)?;
        let (addr, port, _) = greeting.from;
        // A process can use any address of its host, but none of another's.
        let is_here = interface_of(addr)?.is_some();
        if !is_here || greeting.to_prefix != self.to.1 || self.channels.len() >= max_channels() {
            return Err(refused());
        }
        let reader = RingReader::open(file, greeting.capacity)?;
        let Guest { id, socket, .. } = guest;
        socket.send(&ANSWER, None)?;
        Ok(Channel { id, socket, reader, from: (addr, port), fresh: true, gone: false })
    }

    /// Closes connections that offer no ring in time.
    pub(super) fn tire(&mut self, now: Time) {
        self.guests.retain(|guest| now.nanos_since(guest.since) < GUEST_NS);
    }

    /// Whether there is something in a ring that has not been read from yet.
    #[inline]
    pub(super) fn has_fresh(&self) -> bool {
        self.channels.iter().any(|channel| channel.fresh && !channel.reader.is_empty())
    }

    /// Passes the rings' contents to `sink`, within bounds; returns the number of frames.
    #[inline]
    pub(super) fn read(&mut self, sink: &mut dyn FrameSink, counters: &mut Counters) -> usize {
        let count = self.channels.len();
        let mut frames = 0;
        let mut ended = false;
        for i in 0..count {
            let at = (self.turn + i) % count;
            let channel = &mut self.channels[at];
            frames += channel.read(self.to.0, &mut self.piece, sink, counters);
            ended |= channel.gone;
        }
        if frames > 0 {
            self.turn = self.turn.wrapping_add(1) % count;
        }
        if ended {
            self.channels.retain(|channel| !channel.gone || !channel.reader.is_empty());
            self.turn = 0;
        }
        frames
    }

    /// The port is about to sleep; returns `false` if there is something to read.
    pub(super) fn lie_down(&self) -> bool {
        for channel in &self.channels {
            channel.reader.lie_down();
        }
        let empty = self.channels.iter().all(|channel| channel.reader.is_empty());
        if !empty {
            self.get_up();
        }
        empty
    }

    /// The port is awake.
    pub(super) fn get_up(&self) {
        for channel in &self.channels {
            channel.reader.get_up();
        }
    }
}

impl Channel {
    /// Reads wake-ups, and detects the end of the connection.
    fn hear(&mut self) {
        let mut said = [0; 8];
        for _ in 0..MAX_WAKES {
            match self.socket.recv(&mut said) {
                Ok((1.., _)) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                _ => {
                    self.gone = true;
                    return;
                }
            }
        }
    }

    #[inline]
    fn read(
        &mut self,
        dst: IpAddr,
        piece: &mut Vec<u8>,
        sink: &mut dyn FrameSink,
        counters: &mut Counters,
    ) -> usize {
        let (mut frames, mut bytes) = (0, 0);
        while bytes < TURN_BYTES {
            let read = match self.reader.read(PIECE_BYTES, piece) {
                Ok(Some(read)) => read,
                Ok(None) => break,
                Err(_) => {
                    counters.refused += 1;
                    self.close();
                    break;
                }
            };
            self.fresh = false;
            let ip_id = match read.record.summed {
                false => IpId::Unsummed,
                true if dst.is_ipv4() => IpId::Guess(read.first as u16),
                true => IpId::Known(0),
            };
            let (src, src_port) = self.from;
            let meta = FrameMeta { src, dst, src_port, tos: read.record.tos, ttl: TTL, ip_id };
            let segment_len = read.record.segment_len as usize;
            sink.frames(&meta, piece, segment_len);
            counters.rx_bursts += u64::from(read.first == 0);
            frames += piece.len().div_ceil(segment_len);
            bytes += piece.len();
        }
        counters.rx_frames += frames as u64;
        counters.rx_bytes += bytes as u64;
        frames
    }

    /// The writer has broken the protocol: nothing more is read, and closing the connection tells
    /// it.
    #[cold]
    fn close(&mut self) {
        self.gone = true;
        self.reader.abandon();
    }
}
