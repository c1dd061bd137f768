//! Waits for several sockets, and other descriptors beside them.

use core::ffi::{c_int, c_short};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::socket::{self, Phase, Socket};
use crate::errno::{Errno, minus_one};
use crate::guard::guard;

/// How long to poll before sleeping.
const SPIN: Duration = Duration::from_micros(20);
/// Longest sleep before polling again.
const NAP: Duration = Duration::from_millis(500);

impl Socket {
    /// Which of `events` are ready now.
    fn ready(&self, events: c_short) -> c_short {
        let mut inner = self.lock();
        if inner.phase == Phase::Listening {
            drop(inner);
            return plain_ready(self.fd, events);
        }
        if inner.hear().is_err() {
            return libc::POLLERR;
        }
        match inner.phase {
            Phase::Failed => events & (libc::POLLIN | libc::POLLOUT) | libc::POLLERR,
            Phase::Open => {
                let Ok(stream) = inner.stream_mut() else { return libc::POLLERR };
                stream.progress();
                let mut found = 0;
                if stream.arrived_bytes > 0 || !stream.readable {
                    found |= libc::POLLIN;
                }
                if stream.can_send() {
                    found |= libc::POLLOUT;
                }
                found &= events;
                if !stream.connected {
                    let failed = stream.error.is_some();
                    found |= if failed { libc::POLLERR } else { libc::POLLHUP };
                }
                found
            }
            Phase::Fresh => libc::POLLHUP,
            Phase::Opening | Phase::Listening => 0,
        }
    }

    /// The descriptors to sleep on: something happens to the stream, or to its connection.
    fn arm(&self) -> [Option<RawFd>; 2] {
        let mut inner = self.lock();
        let stream = inner.stream.as_mut().map(|stream| {
            stream.arm();
            stream.fd()
        });
        [Some(self.fd), stream]
    }

    fn disarm(&self) {
        if let Some(stream) = self.lock().stream.as_mut() {
            stream.disarm();
        }
    }
}

/// As `poll` says of one descriptor.
fn plain_ready(fd: RawFd, events: c_short) -> c_short {
    let mut one = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: one live structure.
    if unsafe { libc::poll(&raw mut one, 1, 0) } < 0 { 0 } else { one.revents }
}

/// Checks all of them; returns how many are ready.
fn look(fds: &mut [libc::pollfd], sockets: &[Option<Arc<Socket>>]) -> c_int {
    let mut count = 0;
    for (entry, socket) in fds.iter_mut().zip(sockets) {
        entry.revents = match socket {
            _ if entry.fd < 0 => 0,
            Some(socket) => socket.ready(entry.events),
            None => plain_ready(entry.fd, entry.events),
        };
        count += c_int::from(entry.revents != 0);
    }
    count
}

fn sleep(
    fds: &[libc::pollfd],
    sockets: &[Option<Arc<Socket>>],
    limit: Duration,
) -> Result<(), Errno> {
    let mut all = Vec::with_capacity(2 * fds.len());
    for (entry, socket) in fds.iter().zip(sockets) {
        match socket {
            Some(socket) => {
                for fd in socket.arm().into_iter().flatten() {
                    all.push(libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
                }
            }
            None => all.push(libc::pollfd { fd: entry.fd, events: entry.events, revents: 0 }),
        }
    }
    let limit_ms = limit.as_millis().clamp(1, 500) as c_int;
    // SAFETY: an array of that length.
    let polled = unsafe { libc::poll(all.as_mut_ptr(), all.len() as libc::nfds_t, limit_ms) };
    let result = if polled < 0 { Err(Errno::last()) } else { Ok(()) };
    sockets.iter().flatten().for_each(|socket| socket.disarm());
    result
}

fn poll(fds: &mut [libc::pollfd], timeout_ms: c_int) -> Result<c_int, Errno> {
    let sockets: Vec<_> = fds.iter().map(|entry| socket::find(entry.fd).ok()).collect();
    let begin = Instant::now();
    let limit = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
    let mut armed = false;
    loop {
        let found = look(fds, &sockets);
        let left = limit.map_or(NAP, |limit| limit.saturating_sub(begin.elapsed()).min(NAP));
        if found > 0 || left.is_zero() {
            return Ok(found);
        }
        if armed {
            sleep(fds, &sockets, left)?;
            armed = false;
        } else if begin.elapsed() > SPIN {
            // Completions before arming raise no event: check once more.
            sockets.iter().flatten().for_each(|socket| _ = socket.arm());
            armed = true;
        }
    }
}

/// `rpoll`: as `poll`, for sockets of this library and any other descriptors.
///
/// # Safety
/// `fds` must point to `count` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpoll(
    fds: *mut libc::pollfd,
    count: libc::nfds_t,
    timeout_ms: c_int,
) -> c_int {
    guard(-1, || {
        if fds.is_null() && count > 0 {
            return minus_one(Err(Errno::FAULT));
        }
        let mut none = [];
        let fds = match count {
            0 => &mut none[..],
            // SAFETY: as many entries by the caller's word.
            _ => unsafe { core::slice::from_raw_parts_mut(fds, count as usize) },
        };
        poll(fds, timeout_ms).unwrap_or_else(|error| minus_one(Err(error)))
    })
}

/// `rselect`: as `select`.
///
/// # Safety
/// The sets must be null or sets of descriptors, `timeout` null or a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rselect(
    count: c_int,
    reads: *mut libc::fd_set,
    writes: *mut libc::fd_set,
    excepts: *mut libc::fd_set,
    timeout: *mut libc::timeval,
) -> c_int {
    guard(-1, || {
        let sets = [(reads, libc::POLLIN), (writes, libc::POLLOUT), (excepts, libc::POLLPRI)];
        // SAFETY: sets by the caller's word, of descriptors below their size.
        let has = |set: *mut libc::fd_set, fd| unsafe { !set.is_null() && libc::FD_ISSET(fd, set) };
        let asked = |fd| {
            let named = sets.iter().filter(|(set, _)| has(*set, fd));
            named.fold(0, |events, (_, event)| events | event)
        };
        let fds = (0..count.clamp(0, libc::FD_SETSIZE as c_int)).map(|fd| (fd, asked(fd)));
        let mut fds: Vec<libc::pollfd> = fds
            .filter(|(_, events)| *events != 0)
            .map(|(fd, events)| libc::pollfd { fd, events, revents: 0 })
            .collect();
        // SAFETY: null, or a time by the caller's word.
        let limit_ms = unsafe { timeout.as_ref() }
            .map_or(-1, |t| (t.tv_sec * 1000 + t.tv_usec / 1000).min(i64::from(i32::MAX)) as c_int);
        let polled = poll(&mut fds, limit_ms);
        match polled {
            // SAFETY: as above.
            Ok(_) => unsafe { answer(&fds, &sets) },
            Err(error) => minus_one(Err(error)),
        }
    })
}

/// Leaves in the sets what was found; how many bits.
///
/// # Safety
/// The sets must be null or sets of descriptors.
unsafe fn answer(fds: &[libc::pollfd], sets: &[(*mut libc::fd_set, c_short); 3]) -> c_int {
    let mut found = 0;
    for (set, event) in sets.iter().filter(|(set, _)| !set.is_null()) {
        // A closed connection is both readable and writable.
        let counts = match *event {
            libc::POLLPRI => libc::POLLPRI,
            event => event | libc::POLLHUP | libc::POLLERR,
        };
        for entry in fds.iter().filter(|entry| entry.events & event != 0) {
            // SAFETY: by the caller's word; the descriptor was in the set.
            unsafe {
                if entry.revents & counts != 0 {
                    found += 1;
                } else {
                    libc::FD_CLR(entry.fd, *set);
                }
            }
        }
    }
    found
}

/// Functions that fail with `EOPNOTSUPP`.
macro_rules! unsupported {
    ($($name:ident($($argument:ty),*);)*) => {$(
        /// Not supported: it fails with `EOPNOTSUPP`.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($(_: $argument),*) -> c_int {
            minus_one(Err(Errno::UNSUPPORTED))
        }
    )*};
}

unsupported! {
    repoll_create(c_int);
    repoll_ctl(c_int, c_int, c_int, *mut libc::epoll_event);
    repoll_wait(c_int, *mut libc::epoll_event, c_int, c_int);
}
