//! Errors as the verbs report them: numbers of `<errno.h>`.

use core::ffi::c_int;

use bowline_device::DeviceError;
use bowline_io::{LaneError, PortError, RegistryError};
use bowline_nic::{ControlError, ModifyError, PostError};

/// An error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

impl Errno {
    pub(crate) const INVAL: Errno = Errno(libc::EINVAL);
    pub(crate) const NOMEM: Errno = Errno(libc::ENOMEM);
    pub(crate) const BUSY: Errno = Errno(libc::EBUSY);
    pub(crate) const FAULT: Errno = Errno(libc::EFAULT);
    pub(crate) const IO: Errno = Errno(libc::EIO);
    pub(crate) const UNSUPPORTED: Errno = Errno(libc::EOPNOTSUPP);
    /// The queue pair is on the other NIC. Never returned to a program.
    pub(crate) const AWAY: Errno = Errno(libc::EREMCHG);

    /// What the last failed system call of this thread left.
    pub(crate) fn last() -> Errno {
        Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    }

    /// Leaves the number in `errno`.
    pub(crate) fn set(self) {
        // SAFETY: the location of this thread's `errno` is always valid.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

impl From<ControlError> for Errno {
    fn from(error: ControlError) -> Errno {
        match error {
            ControlError::Exhausted { .. } => Errno::NOMEM,
            ControlError::Busy { .. } => Errno::BUSY,
            ControlError::Refused { errno, .. } => Errno(errno),
            ControlError::TooLarge { .. }
            | ControlError::NotFound { .. }
            | ControlError::Invalid { .. } => Errno::INVAL,
        }
    }
}

impl From<ModifyError> for Errno {
    fn from(_: ModifyError) -> Errno {
        Errno::INVAL
    }
}

impl From<PostError> for Errno {
    fn from(error: PostError) -> Errno {
        match error {
            PostError::Full => Errno::NOMEM,
            PostError::Away => Errno::AWAY,
            PostError::Refused { errno } => Errno(errno),
            _ => Errno::INVAL,
        }
    }
}

impl From<LaneError> for Errno {
    fn from(_: LaneError) -> Errno {
        Errno::IO
    }
}

impl From<DeviceError> for Errno {
    fn from(error: DeviceError) -> Errno {
        let of_system = |error: &std::io::Error| Errno(error.raw_os_error().unwrap_or(libc::EIO));
        match &error {
            DeviceError::Control(error) => (*error).into(),
            DeviceError::Port(error) | DeviceError::Backup { source: error, .. } => error.into(),
            DeviceError::System { source, .. } => of_system(source),
            DeviceError::NeedsSoftNic { .. } => Errno::UNSUPPORTED,
            DeviceError::Store(_) | DeviceError::Invalid { .. } | DeviceError::Foreign { .. } => {
                Errno::INVAL
            }
            _ => Errno::IO,
        }
    }
}

impl From<&PortError> for Errno {
    fn from(error: &PortError) -> Errno {
        match error {
            PortError::InUse { .. } => Errno(libc::EADDRINUSE),
            PortError::NotLocal(_) | PortError::Unspecified(_) => Errno(libc::EADDRNOTAVAIL),
            PortError::Os { source, .. }
            | PortError::Xdp { source, .. }
            | PortError::Registry(
                RegistryError::File { source, .. } | RegistryError::Steering(source),
            ) => Errno(source.raw_os_error().unwrap_or(libc::EIO)),
            _ => Errno::IO,
        }
    }
}

/// The return value of a verb that returns an error number.
#[inline]
pub(crate) fn code(result: Result<(), Errno>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            error.set();
            error.0
        }
    }
}

/// The return value of a verb that returns −1 and sets `errno`.
pub(crate) fn minus_one(result: Result<(), Errno>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            error.set();
            -1
        }
    }
}

/// The return value of a verb that makes an object, or returns null and sets `errno`.
pub(crate) fn object<T>(result: Result<*mut T, Errno>) -> *mut T {
    result.unwrap_or_else(|error| {
        error.set();
        core::ptr::null_mut()
    })
}
