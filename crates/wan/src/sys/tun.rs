//! TUN devices.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use super::{check, request_for};

/// Which superpackets a device accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offloads {
    pub(crate) tso: bool,
    pub(crate) uso: bool,
}

/// A TUN device whose packets are preceded by a `virtio_net_hdr`. Dropping this removes it.
#[derive(Debug)]
pub(crate) struct Tun {
    file: File,
    offloads: Offloads,
}

impl Tun {
    /// Makes the device in the network namespace of the calling thread.
    pub(crate) fn create(name: &str) -> io::Result<Tun> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/net/tun")?;
        let mut request = request_for(name);
        let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        request.ifr_ifru.ifru_flags = flags as libc::c_short;
        // SAFETY: reads and writes the live `ifreq`.
        check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
        let offloads = Tun::take_offloads(&file)?;
        Ok(Tun { file, offloads })
    }

    /// Enables what this kernel supports: USO came with Linux 6.2.
    fn take_offloads(file: &File) -> io::Result<Offloads> {
        let tso = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
        let uso = libc::TUN_F_USO4 | libc::TUN_F_USO6;
        let tries = [
            (tso | uso, Offloads { tso: true, uso: true }),
            (tso, Offloads { tso: true, uso: false }),
            (libc::TUN_F_CSUM, Offloads { tso: false, uso: false }),
        ];
        let mut refused = None;
        for (flags, offloads) in tries {
            let flags = libc::c_ulong::from(flags);
            // SAFETY: the argument is a number, not an address.
            match check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD, flags) }) {
                Ok(_) => return Ok(offloads),
                Err(error) => refused = Some(error),
            }
        }
        Err(refused.unwrap_or_else(|| io::ErrorKind::Unsupported.into()))
    }

    pub(crate) fn offloads(&self) -> Offloads {
        self.offloads
    }

    /// Reads one packet; `None` if there is none.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::io::read(&self.file, buffer) {
            Ok(len) => Ok(Some(len)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes one packet that is in two parts.
    pub(crate) fn write(&self, headers: &[u8], payload: &[u8]) -> io::Result<()> {
        let parts = [IoSlice::new(headers), IoSlice::new(payload)];
        rustix::io::writev(&self.file, &parts)?;
        Ok(())
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
