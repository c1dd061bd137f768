//! What the standard library does not set on TCP sockets.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

/// Chooses the congestion control of a connection.
///
/// # Errors
/// If the kernel does not have it.
pub fn set_congestion_control(stream: &TcpStream, name: &str) -> io::Result<()> {
    // SAFETY: the name's bytes outlive the call, and their number is passed along.
    let rc = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            name.as_ptr().cast(),
            name.len() as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
