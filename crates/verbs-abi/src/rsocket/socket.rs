//! Sockets, from creation to close.

use core::ffi::{c_int, c_void};
use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::iomap::Mapping;
use super::stream::{Sizes, Stream};
use super::wire::{Hello, Message};
use crate::errno::Errno;
use crate::rdmacm::abi::*;
use crate::rdmacm::{
    rdma_accept, rdma_ack_cm_event, rdma_bind_addr, rdma_connect, rdma_create_event_channel,
    rdma_create_id, rdma_destroy_event_channel, rdma_destroy_id, rdma_get_cm_event, rdma_listen,
    rdma_migrate_id, rdma_reject, rdma_resolve_addr, rdma_resolve_route,
};

/// How long a call polls before it sleeps.
const SPIN: Duration = Duration::from_micros(20);
/// Longest sleep before it polls again.
const NAP_MS: c_int = 500;

/// The state of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Fresh,
    Listening,
    /// REQ or REP has been sent.
    Opening,
    /// There is, or was, a connection.
    Open,
    /// A connection attempt failed.
    Failed,
}

/// What changes.
pub(super) struct Inner {
    pub(super) id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
    pub(super) phase: Phase,
    pub(super) sizes: Sizes,
    pub(super) mappings: Vec<Mapping>,
    pub(super) stream: Option<Stream>,
    /// The error that `SO_ERROR` returns, once.
    pub(super) error: Option<Errno>,
    /// Stored options: level, name, value.
    pub(super) kept: Vec<(c_int, c_int, Vec<u8>)>,
}

// SAFETY: the pointers are names of objects that are the socket's own.
unsafe impl Send for Inner {}

/// A socket.
pub(super) struct Socket {
    pub(super) fd: RawFd,
    pub(super) nonblocking: AtomicBool,
    inner: Mutex<Inner>,
}

fn table() -> MutexGuard<'static, HashMap<RawFd, Arc<Socket>>> {
    static TABLE: OnceLock<Mutex<HashMap<RawFd, Arc<Socket>>>> = OnceLock::new();
    TABLE.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// The socket of a descriptor.
pub(super) fn find(fd: RawFd) -> Result<Arc<Socket>, Errno> {
    table().get(&fd).cloned().ok_or(Errno(libc::EBADF))
}

/// Takes a socket out of the table.
pub(super) fn remove(fd: RawFd) -> Result<Arc<Socket>, Errno> {
    table().remove(&fd).ok_or(Errno(libc::EBADF))
}

/// The answer of a function of librdmacm.
fn done(result: c_int) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(Errno::last()) }
}

/// What an event says, and its private data.
struct Told {
    kind: u32,
    status: c_int,
    id: *mut rdma_cm_id,
    hello: Option<Hello>,
}

/// The next event of a channel; nothing if there is none now.
fn next_event(channel: *mut rdma_event_channel) -> Result<Option<Told>, Errno> {
    let mut event = core::ptr::null_mut();
    // SAFETY: the channel lives; its descriptor does not block.
    if unsafe { rdma_get_cm_event(channel, &raw mut event) } != 0 {
        return match Errno::last() {
            Errno(libc::EAGAIN) => Ok(None),
            error => Err(error),
        };
    }
    // SAFETY: an event that was just handed out. Both members of the union begin with the private
    // data, and all events of connections have it, or null.
    unsafe {
        let found = &*event;
        let (data, len) = (found.param.conn.private_data, found.param.conn.private_data_len);
        let hello = match data.is_null() {
            true => None,
            false => Hello::decode(core::slice::from_raw_parts(data.cast(), len.into())),
        };
        let told = Told { kind: found.event, status: found.status, id: found.id, hello };
        rdma_ack_cm_event(event);
        Ok(Some(told))
    }
}

/// Sleeps until a descriptor is readable, or some time has passed.
pub(super) fn nap(fds: &[RawFd], limit_ms: c_int) -> Result<(), Errno> {
    let mut fds: Vec<libc::pollfd> =
        fds.iter().map(|fd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 }).collect();
    // SAFETY: an array of that length.
    match unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, limit_ms) } {
        -1 => Err(Errno::last()),
        _ => Ok(()),
    }
}

impl Socket {
    /// A socket for an identifier and its channel. The descriptor is the channel's.
    fn register(
        id: *mut rdma_cm_id,
        channel: *mut rdma_event_channel,
        sizes: Sizes,
    ) -> Arc<Socket> {
        // SAFETY: the channel lives. It is looked at, and slept on, by its descriptor.
        let fd = unsafe {
            libc::fcntl((*channel).fd, libc::F_SETFL, libc::O_NONBLOCK);
            (*channel).fd
        };
        let (phase, mappings, kept) = (Phase::Fresh, Vec::new(), Vec::new());
        let inner = Inner { id, channel, phase, sizes, mappings, stream: None, error: None, kept };
        let nonblocking = AtomicBool::new(false);
        let socket = Arc::new(Socket { fd, nonblocking, inner: Mutex::new(inner) });
        table().insert(fd, Arc::clone(&socket));
        socket
    }

    /// Makes a socket for streams.
    pub(super) fn create() -> Result<Arc<Socket>, Errno> {
        // SAFETY: plain calls, whose results are checked.
        unsafe {
            let channel = rdma_create_event_channel();
            if channel.is_null() {
                return Err(Errno::last());
            }
            let mut id = core::ptr::null_mut();
            let made = rdma_create_id(channel, &raw mut id, core::ptr::null_mut(), RDMA_PS_TCP);
            if let Err(error) = done(made) {
                rdma_destroy_event_channel(channel);
                return Err(error);
            }
            Ok(Socket::register(id, channel, Sizes::default()))
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn blocks(&self, flags: c_int) -> bool {
        flags & libc::MSG_DONTWAIT == 0 && !self.nonblocking.load(Ordering::Relaxed)
    }

    /// # Safety
    /// `addr` must be a socket address.
    pub(super) unsafe fn bind(&self, addr: *const libc::sockaddr) -> Result<(), Errno> {
        // SAFETY: by the caller's word.
        done(unsafe { rdma_bind_addr(self.lock().id, addr.cast_mut()) })
    }

    pub(super) fn listen(&self, backlog: c_int) -> Result<(), Errno> {
        let mut inner = self.lock();
        // SAFETY: the identifier lives.
        done(unsafe { rdma_listen(inner.id, backlog) })?;
        inner.phase = Phase::Listening;
        Ok(())
    }

    /// Accepts the next connection: usable once the peer has confirmed it.
    pub(super) fn accept(&self) -> Result<Arc<Socket>, Errno> {
        loop {
            let told = {
                let inner = self.lock();
                if inner.phase != Phase::Listening {
                    return Err(Errno::INVAL);
                }
                next_event(inner.channel)?
            };
            match told {
                Some(told) if told.kind == RDMA_CM_EVENT_CONNECT_REQUEST => {
                    if let Ok(child) = self.welcome(&told) {
                        return Ok(child);
                    }
                }
                Some(_) => {}
                None if !self.blocks(0) => return Err(Errno(libc::EAGAIN)),
                None => nap(&[self.fd], NAP_MS)?,
            }
        }
    }

    fn welcome(&self, told: &Told) -> Result<Arc<Socket>, Errno> {
        let (id, sizes) = (told.id, self.lock().sizes);
        // SAFETY: the identifier of a request is this socket's until it is destroyed or handed on.
        let made = unsafe {
            let channel = rdma_create_event_channel();
            match told.hello.filter(|_| !channel.is_null()) {
                Some(hello) => Socket::open_passive(id, channel, sizes, &hello)
                    .map_err(|error| (error, channel)),
                None => Err((Errno(libc::EPROTO), channel)),
            }
        };
        made.map_err(|(error, channel)| {
            // SAFETY: as above; nobody uses the two any more.
            unsafe {
                rdma_reject(id, core::ptr::null(), 0);
                rdma_destroy_id(id);
                if !channel.is_null() {
                    rdma_destroy_event_channel(channel);
                }
            }
            error
        })
    }

    /// # Safety
    /// `id` must be that of a request, `channel` a new channel.
    unsafe fn open_passive(
        id: *mut rdma_cm_id,
        channel: *mut rdma_event_channel,
        sizes: Sizes,
        hello: &Hello,
    ) -> Result<Arc<Socket>, Errno> {
        // SAFETY: by the caller's word.
        done(unsafe { rdma_migrate_id(id, channel) })?;
        let mut stream = Stream::new(id, sizes)?;
        stream.meet(hello);
        let data = stream.hello().encode();
        let mut param = conn_param(&data);
        // SAFETY: as above; the private data lives until the call is over.
        done(unsafe { rdma_accept(id, &raw mut param) })?;
        let socket = Socket::register(id, channel, sizes);
        let mut inner = socket.lock();
        (inner.stream, inner.phase) = (Some(stream), Phase::Opening);
        drop(inner);
        Ok(socket)
    }

    /// # Safety
    /// `addr` must be a socket address.
    pub(super) unsafe fn connect(&self, addr: *const libc::sockaddr) -> Result<(), Errno> {
        let phase = self.lock().phase;
        match phase {
            // SAFETY: by the caller's word.
            Phase::Fresh => unsafe { self.lock().begin(addr) }?,
            Phase::Opening => {}
            Phase::Open => return Err(Errno(libc::EISCONN)),
            Phase::Listening | Phase::Failed => return Err(Errno::INVAL),
        }
        match self.opened(self.blocks(0)) {
            Err(Errno(libc::EAGAIN)) if phase == Phase::Fresh => Err(Errno(libc::EINPROGRESS)),
            Err(Errno(libc::EAGAIN)) => Err(Errno(libc::EALREADY)),
            other => other,
        }
    }

    /// Waits until the connection is established, or has failed.
    pub(super) fn opened(&self, blocking: bool) -> Result<(), Errno> {
        loop {
            let mut inner = self.lock();
            if inner.phase != Phase::Open {
                inner.hear()?;
            }
            match inner.phase {
                Phase::Open => return Ok(()),
                Phase::Failed => return Err(inner.error.unwrap_or(Errno(libc::ENOTCONN))),
                Phase::Opening if blocking => {}
                Phase::Opening => return Err(Errno(libc::EAGAIN)),
                Phase::Fresh | Phase::Listening => return Err(Errno(libc::ENOTCONN)),
            }
            drop(inner);
            nap(&[self.fd], NAP_MS)?;
        }
    }

    /// Waits until `test` holds of the stream.
    pub(super) fn wait(
        &self,
        blocking: bool,
        test: impl Fn(&Stream) -> bool,
    ) -> Result<MutexGuard<'_, Inner>, Errno> {
        self.opened(blocking)?;
        let begin = Instant::now();
        let mut armed = false;
        loop {
            let mut inner = self.lock();
            let stream = inner.stream_mut()?;
            stream.progress();
            if test(stream) {
                return Ok(inner);
            }
            if !blocking {
                return Err(Errno(libc::EAGAIN));
            }
            if armed {
                let fds = [stream.fd(), self.fd];
                drop(inner);
                nap(&fds, NAP_MS)?;
                let mut inner = self.lock();
                inner.stream_mut()?.disarm();
                inner.hear()?;
                armed = false;
            } else if begin.elapsed() > SPIN {
                // Completions between the last check and arming raise no event: check once more.
                stream.arm();
                armed = true;
            }
        }
    }

    /// Sends `len` bytes through `send`, which gets how many are done and how many are left;
    /// returns how many were sent.
    pub(super) fn send_all(
        &self,
        len: usize,
        flags: c_int,
        mut send: impl FnMut(&mut Stream, usize, usize) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let mut done = 0;
        while done < len || len == 0 {
            let sent = self.wait(self.blocks(flags), |s| s.can_send() || !s.writable).and_then(
                |mut inner| {
                    if !inner.stream()?.writable {
                        let error = inner.stream()?.error;
                        return Err(error.unwrap_or(Errno(libc::EPIPE)));
                    }
                    if len == 0 {
                        return Ok(0);
                    }
                    if inner.has_news() {
                        return inner.tell_of_mapping().map(|()| 0);
                    }
                    send(inner.stream_mut()?, done, len - done)
                },
            );
            match sent {
                Ok(sent) if len > 0 => done += sent,
                Err(_) if done > 0 => break,
                other => return other,
            }
        }
        Ok(done)
    }

    /// Shuts down receiving, sending, or both; waits until the peer has received everything.
    pub(super) fn shut_down(&self, how: c_int) -> Result<(), Errno> {
        let message = {
            let mut inner = self.lock();
            let stream = inner.stream_mut().map_err(|_| Errno(libc::ENOTCONN))?;
            if !stream.connected {
                return Ok(());
            }
            match how {
                libc::SHUT_RD => stream.readable = false,
                libc::SHUT_WR => stream.writable = false,
                libc::SHUT_RDWR => (stream.readable, stream.writable) = (false, false),
                _ => return Err(Errno::INVAL),
            }
            match (stream.readable, stream.writable) {
                (_, true) => return Ok(()),
                (true, false) => Message::Shutdown,
                (false, false) => Message::Disconnect,
            }
        };
        loop {
            let mut inner = self.wait(true, |_| true)?;
            let stream = inner.stream_mut()?;
            if !stream.connected || stream.control(message)? {
                break;
            }
            drop(inner);
            drop(self.wait(true, Stream::may_control)?);
        }
        let mut inner = self.wait(true, Stream::all_sent)?;
        if message == Message::Disconnect {
            inner.stream_mut()?.end(None);
        }
        Ok(())
    }
}

/// Parameters with a greeting. The rest is as in other rsockets.
fn conn_param(data: &[u8; Hello::LEN]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: data.as_ptr().cast::<c_void>(),
        private_data_len: Hello::LEN as u8,
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: 0,
        qp_num: 0,
    }
}

impl Inner {
    pub(super) fn stream(&self) -> Result<&Stream, Errno> {
        self.stream.as_ref().ok_or(Errno(libc::ENOTCONN))
    }

    pub(super) fn stream_mut(&mut self) -> Result<&mut Stream, Errno> {
        self.stream.as_mut().ok_or(Errno(libc::ENOTCONN))
    }

    /// Finds the device, makes the queue pair, and sends the REQ.
    ///
    /// # Safety
    /// `addr` must be a socket address.
    unsafe fn begin(&mut self, addr: *const libc::sockaddr) -> Result<(), Errno> {
        let none = core::ptr::null_mut();
        // SAFETY: the identifier and the channel live. Resolving takes no time, and its events are
        // there at once.
        unsafe {
            done(rdma_resolve_addr(self.id, none, addr.cast_mut(), 2000))?;
            next_event(self.channel)?;
            done(rdma_resolve_route(self.id, 2000))?;
            next_event(self.channel)?;
        }
        let stream = Stream::new(self.id, self.sizes)?;
        let data = stream.hello().encode();
        self.stream = Some(stream);
        let mut param = conn_param(&data);
        // SAFETY: as above; the private data lives until the call is over.
        done(unsafe { rdma_connect(self.id, &raw mut param) })?;
        self.phase = Phase::Opening;
        Ok(())
    }

    /// Handles the connection manager's events.
    pub(super) fn hear(&mut self) -> Result<(), Errno> {
        if self.phase == Phase::Listening {
            return Ok(());
        }
        while let Some(told) = next_event(self.channel)? {
            self.on_event(&told);
        }
        Ok(())
    }

    fn on_event(&mut self, told: &Told) {
        let Some(stream) = self.stream.as_mut() else { return };
        let failure = match (told.kind, self.phase) {
            (RDMA_CM_EVENT_ESTABLISHED, Phase::Opening) => {
                // The active end gets the greeting of the reply; the passive one has had that of
                // the request.
                if let (None, Some(hello)) = (stream.peer(), &told.hello) {
                    stream.meet(hello);
                }
                if stream.peer().is_some() {
                    stream.open();
                    self.phase = Phase::Open;
                    return;
                }
                libc::EPROTO
            }
            (RDMA_CM_EVENT_REJECTED, _) => libc::ECONNREFUSED,
            (RDMA_CM_EVENT_UNREACHABLE, _) => libc::ETIMEDOUT,
            (RDMA_CM_EVENT_CONNECT_ERROR, _) => told.status.abs(),
            (RDMA_CM_EVENT_DISCONNECTED, Phase::Opening) => libc::ECONNRESET,
            (RDMA_CM_EVENT_DISCONNECTED, _) => {
                // Data that the peer sent before can still be read.
                stream.progress();
                return stream.end(None);
            }
            _ => return,
        };
        (self.phase, self.error) = (Phase::Failed, Some(Errno(failure)));
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.mappings.clear();
        self.stream = None;
        // SAFETY: made with the socket, and used by nobody any more.
        unsafe {
            rdma_destroy_id(self.id);
            rdma_destroy_event_channel(self.channel);
        }
    }
}
