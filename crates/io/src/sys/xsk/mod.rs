//! AF_XDP sockets: frames from and to one queue of a NIC, bypassing the kernel's network stack.
//!
//! Frames lie in chunks of one memory area. Four rings pass chunks between the kernel and us:
//! *fill* gives empty ones to the kernel, *rx* returns them full; *tx* gives full ones,
//! *completion* returns them. A chunk is used for one direction only, and what the kernel returns
//! is checked against what it was given: a wrong address is counted, and never followed.

mod area;
mod ring;

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use super::check;
use area::{Area, CHUNK};
use ring::Ring;

/// Chunks for received frames, in the fill and rx rings: what several peers may have in flight.
const RX_CHUNKS: u32 = 4096;
/// Chunks for sent frames.
const TX_CHUNKS: u32 = 2048;
/// What the kernel keeps free before a received frame.
const HEADROOM: usize = 256;

/// The longest frame that can be received, Ethernet header included.
pub(crate) const MAX_FRAME: usize = CHUNK - HEADROOM;

/// How frames get between the NIC and the area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BindMode {
    /// By DMA if the driver supports it, else by a copy.
    Any,
    /// By a copy.
    Copy,
    /// By the NIC's own DMA.
    ZeroCopy,
}

/// What the kernel has dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Drops {
    /// Received frames: there was no space.
    pub(crate) rx: u64,
    /// Descriptors of ours that the kernel rejected, and of the kernel's that we rejected.
    pub(crate) descriptors: u64,
}

/// A socket on one queue.
pub(crate) struct XdpSocket {
    // Before the area: the kernel must release it first.
    fd: OwnedFd,
    fill: Ring<u64>,
    rx: Ring<libc::xdp_desc>,
    tx: Ring<libc::xdp_desc>,
    completion: Ring<u64>,
    area: Area,
    /// By chunk: whether the kernel has it.
    lent: Vec<bool>,
    /// Chunks for sending that are ours.
    free: Vec<u64>,
    zero_copy: bool,
    /// Kernel descriptors that name a chunk that it did not have, or bytes outside of it.
    wrong_descriptors: u64,
}

impl XdpSocket {
    /// A socket on queue `queue` of an interface. Nothing arrives before an XDP program redirects
    /// to it.
    pub(crate) fn open(interface: u32, queue: u32, mode: BindMode) -> io::Result<XdpSocket> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: `socket` touches no memory.
        let fd = check(unsafe { libc::socket(libc::AF_XDP, kind, 0) })?;
        // SAFETY: `fd` was just opened and nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let area = Area::new(RX_CHUNKS + TX_CHUNKS)?;
        let registration = libc::xdp_umem_reg {
            addr: area.addr(),
            len: area.len() as u64,
            chunk_size: CHUNK as u32,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        set(&fd, libc::XDP_UMEM_REG, &registration)?;
        set(&fd, libc::XDP_UMEM_FILL_RING, &RX_CHUNKS)?;
        set(&fd, libc::XDP_UMEM_COMPLETION_RING, &TX_CHUNKS)?;
        set(&fd, libc::XDP_RX_RING, &RX_CHUNKS)?;
        set(&fd, libc::XDP_TX_RING, &TX_CHUNKS)?;
        // SAFETY: a plain C struct for which zeroes are valid.
        let mut at: libc::xdp_mmap_offsets = unsafe { mem::zeroed() };
        get(&fd, libc::XDP_MMAP_OFFSETS, &mut at)?;
        let (fill_at, completion_at) =
            (libc::XDP_UMEM_PGOFF_FILL_RING as i64, libc::XDP_UMEM_PGOFF_COMPLETION_RING as i64);
        // SAFETY: for all four, the offsets are what the kernel has just said for this ring, whose
        // length was set above; its ABI says of what type the entries are.
        let (mut fill, rx, tx, completion) = unsafe {
            (
                Ring::map(fd.as_fd(), fill_at, &at.fr, RX_CHUNKS)?,
                Ring::map(fd.as_fd(), libc::XDP_PGOFF_RX_RING, &at.rx, RX_CHUNKS)?,
                Ring::map(fd.as_fd(), libc::XDP_PGOFF_TX_RING, &at.tx, TX_CHUNKS)?,
                Ring::map(fd.as_fd(), completion_at, &at.cr, TX_CHUNKS)?,
            )
        };
        let mut lent = vec![false; (RX_CHUNKS + TX_CHUNKS) as usize];
        for chunk in 0..RX_CHUNKS {
            lent[chunk as usize] = fill.push(u64::from(chunk) * CHUNK as u64);
        }
        fill.publish();
        let free = (RX_CHUNKS..RX_CHUNKS + TX_CHUNKS).map(|c| u64::from(c) * CHUNK as u64);
        bind(&fd, interface, queue, mode)?;
        let mut options = libc::xdp_options { flags: 0 };
        get(&fd, libc::XDP_OPTIONS, &mut options)?;
        Ok(XdpSocket {
            fd,
            fill,
            rx,
            tx,
            completion,
            area,
            lent,
            free: free.collect(),
            zero_copy: options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0,
            wrong_descriptors: 0,
        })
    }

    /// Whether the NIC reads and writes the area itself.
    pub(crate) fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Passes at most `max` received frames to `sink`, and returns their chunks to the kernel;
    /// returns the number of frames.
    pub(crate) fn recv(&mut self, max: usize, sink: &mut dyn FnMut(&[u8])) -> usize {
        let mut count = 0;
        while count < max
            && let Some(desc) = self.rx.pop()
        {
            count += 1;
            let chunk = desc.addr / CHUNK as u64;
            if chunk >= u64::from(RX_CHUNKS) || !mem::take(&mut self.lent[chunk as usize]) {
                self.wrong_descriptors += 1;
                continue;
            }
            // A frame in several pieces is longer than the MTU that we announced.
            let whole = desc.options & libc::XDP_PKT_CONTD == 0;
            // SAFETY: the kernel had this place and has just given it back; it gets it again below.
            match unsafe { self.area.bytes(desc.addr, desc.len) }.filter(|_| whole) {
                Some(frame) => sink(frame),
                None => self.wrong_descriptors += 1,
            }
            // Never full: it has space for all chunks of this direction.
            self.lent[chunk as usize] = self.fill.push(chunk * CHUNK as u64);
        }
        if count > 0 {
            self.rx.release();
            self.fill.publish();
        }
        if self.fill.needs_wakeup() {
            // SAFETY: receives nothing, into nothing; it only wakes the driver. What it returns
            // does not matter: frames come or they do not.
            unsafe {
                libc::recvfrom(
                    self.fd.as_raw_fd(),
                    ptr::null_mut(),
                    0,
                    libc::MSG_DONTWAIT,
                    ptr::null_mut(),
                    ptr::null_mut(),
                )
            };
        }
        count
    }

    /// How many frames can be pushed, after reclaiming the chunks of those that have been sent.
    pub(crate) fn room(&mut self) -> usize {
        let mut any = false;
        while let Some(addr) = self.completion.pop() {
            any = true;
            let chunk = addr / CHUNK as u64;
            let is_tx = (u64::from(RX_CHUNKS)..u64::from(RX_CHUNKS + TX_CHUNKS)).contains(&chunk);
            if is_tx && mem::take(&mut self.lent[chunk as usize]) {
                self.free.push(chunk * CHUNK as u64);
            } else {
                self.wrong_descriptors += 1;
            }
        }
        if any {
            self.completion.release();
        }
        self.free.len()
    }

    /// Adds a frame of `len` bytes that `write` fills in; returns `false` if there is no space, or
    /// it is too long. The next [`XdpSocket::kick`] sends it.
    pub(crate) fn push(&mut self, len: usize, write: impl FnOnce(&mut [u8])) -> bool {
        let Some(&addr) = self.free.last().filter(|_| len <= CHUNK) else { return false };
        let desc = libc::xdp_desc { addr, len: len as u32, options: 0 };
        // SAFETY: a free place is ours alone until it is pushed below.
        let Some(bytes) = (unsafe { self.area.bytes_mut(addr, desc.len) }) else { return false };
        write(bytes);
        if !self.tx.push(desc) {
            return false;
        }
        self.free.pop();
        self.lent[(addr / CHUNK as u64) as usize] = true;
        true
    }

    /// Makes the kernel send what was pushed. An error means that some of it waits for another
    /// call.
    pub(crate) fn kick(&self) -> io::Result<()> {
        self.tx.publish();
        loop {
            let before = self.tx.untaken();
            if before == 0 || !self.tx.needs_wakeup() {
                return Ok(());
            }
            // SAFETY: sends nothing from nowhere to nobody: it only has the kernel look at the
            // ring.
            let sent = unsafe {
                libc::sendto(
                    self.fd.as_raw_fd(),
                    ptr::null(),
                    0,
                    libc::MSG_DONTWAIT,
                    ptr::null(),
                    0,
                )
            };
            let error = io::Error::last_os_error();
            // A copying kernel takes a few dozen frames in one call, and reports by an error that
            // there are more. A driver that was woken takes them at its own pace.
            if self.zero_copy || self.tx.untaken() == before {
                return if sent < 0 { Err(error) } else { Ok(()) };
            }
        }
    }

    /// Whether frames wait for another [`XdpSocket::kick`].
    pub(crate) fn is_stalled(&self) -> bool {
        self.tx.untaken() > 0 && self.tx.needs_wakeup()
    }

    /// What has been dropped so far.
    pub(crate) fn drops(&self) -> Drops {
        let mut seen = libc::xdp_statistics {
            rx_dropped: 0,
            rx_invalid_descs: 0,
            tx_invalid_descs: 0,
            rx_ring_full: 0,
            rx_fill_ring_empty_descs: 0,
            tx_ring_empty_descs: 0,
        };
        // If the socket cannot be queried any more, keep the last values.
        let _ = get(&self.fd, libc::XDP_STATISTICS, &mut seen);
        Drops {
            rx: seen.rx_dropped + seen.rx_ring_full + seen.rx_fill_ring_empty_descs,
            descriptors: seen.rx_invalid_descs + seen.tx_invalid_descs + self.wrong_descriptors,
        }
    }
}

impl AsFd for XdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn bind(fd: &OwnedFd, interface: u32, queue: u32, mode: BindMode) -> io::Result<()> {
    let how = match mode {
        BindMode::Any => 0,
        BindMode::Copy => libc::XDP_COPY,
        BindMode::ZeroCopy => libc::XDP_ZEROCOPY,
    };
    let addr = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: how | libc::XDP_USE_NEED_WAKEUP,
        sxdp_ifindex: interface,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    let len = size_of_val(&addr) as libc::socklen_t;
    // SAFETY: reads `len` bytes of a live address.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const addr).cast(), len) })?;
    Ok(())
}

fn set<T>(fd: &OwnedFd, name: libc::c_int, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: passes the address and size of a live value, which the kernel only reads.
    check(unsafe {
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_XDP, name, ptr::from_ref(value).cast(), len)
    })?;
    Ok(())
}

fn get<T: Copy>(fd: &OwnedFd, name: libc::c_int, value: &mut T) -> io::Result<()> {
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: passes the address and size of a live value; the callers' types are plain C structs
    // of integers, for which any bytes are valid.
    check(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_XDP,
            name,
            ptr::from_mut(value).cast(),
            &raw mut len,
        )
    })?;
    Ok(())
}
