//! libsrt, loaded when it is needed: the program is built and runs without it.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::net::SocketAddr;

use crate::Result;

/// Where Debian and its kin have it.
const NAMES: [&CStr; 3] = [c"libsrt-openssl.so.1.5", c"libsrt-gnutls.so.1.5", c"libsrt.so.1.5"];
/// What calls return that fail.
const ERROR: c_int = -1;

/// Options, by their numbers in srt.h.
#[derive(Clone, Copy)]
pub(super) enum Option {
    FlightPackets = 4,
    SendBuffer = 5,
    RecvBuffer = 6,
    UdpSendBuffer = 8,
    UdpRecvBuffer = 9,
    MessageApi = 48,
    TransmissionType = 50,
}

/// `SRTT_FILE`.
pub(super) const FILE: c_int = 1;

// As they are in srt.h.
type Startup = unsafe extern "C" fn() -> c_int;
type Create = unsafe extern "C" fn() -> c_int;
type Set = unsafe extern "C" fn(c_int, c_int, *const c_void, c_int) -> c_int;
type Bind = unsafe extern "C" fn(c_int, *const libc::sockaddr, c_int) -> c_int;
type Listen = unsafe extern "C" fn(c_int, c_int) -> c_int;
type Accept = unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut c_int) -> c_int;
type Send = unsafe extern "C" fn(c_int, *const c_char, c_int) -> c_int;
type Recv = unsafe extern "C" fn(c_int, *mut c_char, c_int) -> c_int;
type LastError = unsafe extern "C" fn() -> *const c_char;

/// The calls that a stream needs.
#[derive(Clone, Copy)]
pub(super) struct Library {
    create: Create,
    set: Set,
    bind: Bind,
    listen: Listen,
    accept: Accept,
    connect: Bind,
    send: Send,
    recv: Recv,
    last_error: LastError,
}

impl Library {
    /// Loads and starts it.
    pub(super) fn load() -> Result<Library> {
        // SAFETY: the names are C strings; loading libsrt runs its constructors, which only set it
        // up.
        let open = |name: &&CStr| unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        let handle = NAMES.iter().map(open).find(|handle| !handle.is_null());
        let handle = handle.ok_or("libsrt 1.5 is not installed")?;
        macro_rules! symbol {
            ($name:literal, $type:ty) => {{
                // SAFETY: the handle is that of a loaded library, and the name a C string.
                let symbol = unsafe { libc::dlsym(handle, $name.as_ptr()) };
                if symbol.is_null() {
                    return Err(format!("libsrt has no {:?}", $name).into());
                }
                // SAFETY: the type is the function's in srt.h of this version.
                unsafe { std::mem::transmute::<*mut c_void, $type>(symbol) }
            }};
        }
        let startup = symbol!(c"srt_startup", Startup);
        let library = Library {
            create: symbol!(c"srt_create_socket", Create),
            set: symbol!(c"srt_setsockflag", Set),
            bind: symbol!(c"srt_bind", Bind),
            listen: symbol!(c"srt_listen", Listen),
            accept: symbol!(c"srt_accept", Accept),
            connect: symbol!(c"srt_connect", Bind),
            send: symbol!(c"srt_send", Send),
            recv: symbol!(c"srt_recv", Recv),
            last_error: symbol!(c"srt_getlasterror_str", LastError),
        };
        // SAFETY: it takes nothing and may be called once.
        library.check(unsafe { startup() }, "start")?;
        Ok(library)
    }

    fn check(&self, rc: c_int, what: &str) -> Result<c_int> {
        if rc != ERROR {
            return Ok(rc);
        }
        // SAFETY: it returns a C string that stays until this thread's next call.
        let why = unsafe { CStr::from_ptr((self.last_error)()) };
        Err(format!("SRT cannot {what}: {}", why.to_string_lossy()).into())
    }

    /// A socket that is not connected yet.
    pub(super) fn socket(self) -> Result<Socket> {
        // SAFETY: the library has been started.
        let id = self.check(unsafe { (self.create)() }, "make a socket")?;
        Ok(Socket { library: self, id })
    }
}

/// A socket of libsrt's. Sockets end with the process.
pub(super) struct Socket {
    library: Library,
    id: c_int,
}

impl Socket {
    pub(super) fn set(&self, option: Option, value: c_int) -> Result<()> {
        let (value, len) = (&raw const value, size_of::<c_int>() as c_int);
        // SAFETY: the value is an `int` that outlives the call. Options that are `bool` take one,
        // too.
        let rc = unsafe { (self.library.set)(self.id, option as c_int, value.cast(), len) };
        self.library.check(rc, "set an option").map(|_| ())
    }

    pub(super) fn connect(&self, to: SocketAddr) -> Result<()> {
        let (addr, len) = sockaddr(to)?;
        // SAFETY: the address outlives the call, and its length is passed along.
        let rc = unsafe { (self.library.connect)(self.id, (&raw const addr).cast(), len) };
        self.library.check(rc, "connect").map(|_| ())
    }

    pub(super) fn listen(&self, at: SocketAddr) -> Result<()> {
        let (addr, len) = sockaddr(at)?;
        // SAFETY: as in `connect`.
        let rc = unsafe { (self.library.bind)(self.id, (&raw const addr).cast(), len) };
        self.library.check(rc, "bind")?;
        // SAFETY: a number is all that it takes.
        self.library.check(unsafe { (self.library.listen)(self.id, 1) }, "listen").map(|_| ())
    }

    pub(super) fn accept(&self) -> Result<Socket> {
        let (addr, len) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: it takes null for an address that nobody wants.
        let rc = unsafe { (self.library.accept)(self.id, addr, len) };
        Ok(Socket { library: self.library, id: self.library.check(rc, "accept")? })
    }

    pub(super) fn send_all(&self, mut data: &[u8]) -> Result<()> {
        while !data.is_empty() {
            let len = c_int::try_from(data.len()).unwrap_or(c_int::MAX);
            // SAFETY: the call reads at most `len` bytes of the slice.
            let rc = unsafe { (self.library.send)(self.id, data.as_ptr().cast(), len) };
            data = &data[self.library.check(rc, "send")? as usize..];
        }
        Ok(())
    }

    pub(super) fn recv(&self, to: &mut [u8]) -> Result<usize> {
        let len = c_int::try_from(to.len()).unwrap_or(c_int::MAX);
        // SAFETY: the call writes at most `len` bytes of the slice.
        let rc = unsafe { (self.library.recv)(self.id, to.as_mut_ptr().cast(), len) };
        match self.library.check(rc, "receive")? {
            0 => Err("the SRT connection has closed".into()),
            got => Ok(got as usize),
        }
    }
}

fn sockaddr(addr: SocketAddr) -> Result<(libc::sockaddr_in, c_int)> {
    let SocketAddr::V4(addr) = addr else {
        return Err("the SRT driver takes IPv4 addresses only".into());
    };
    let made = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: addr.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(*addr.ip()).to_be() },
        sin_zero: [0; 8],
    };
    Ok((made, size_of::<libc::sockaddr_in>() as c_int))
}
