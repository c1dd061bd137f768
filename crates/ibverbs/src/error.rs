//! Why a verbs device, or an object of one, cannot be had.

use std::io;
use std::net::IpAddr;

use bowline_nic::ControlError;

/// Why a verbs device, or an object of one, cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// There is no libibverbs, or one that lacks something.
    #[error(
        "libibverbs cannot be used: {why}: install it (Debian: apt install libibverbs1 ibverbs-providers; \
         Fedora: dnf install libibverbs), or set BOWLINE_LIBIBVERBS to the library's path"
    )]
    Library {
        /// What the dynamic linker says.
        why: String,
    },
    /// No device of that name.
    #[error("there is no verbs device {name:?}: {there} (`bowline devinfo` lists them)")]
    NoDevice {
        /// The name asked for.
        name: String,
        /// Those there are.
        there: String,
    },
    /// The device is none that Bowline can use.
    #[error("verbs device {name} cannot be used: {why}")]
    Unusable {
        /// The device.
        name: String,
        /// Why, and what to do.
        why: String,
    },
    /// The device has no such address.
    #[error("verbs device {name} has no RoCE v2 address {addr}: it has {there}")]
    NoAddress {
        /// The device.
        name: String,
        /// The address asked for.
        addr: IpAddr,
        /// Those it has.
        there: String,
    },
    /// The library or the kernel refused.
    #[error("cannot {what}: {source}")]
    Refused {
        /// What was tried, to be read after "cannot".
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Verbs have no such thing.
    #[error("a verbs device has no {what}: {instead}")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
        /// What to do instead.
        instead: &'static str,
    },
}

impl VerbsError {
    /// A call that left its reason in `errno`.
    pub(crate) fn last(what: &'static str) -> VerbsError {
        VerbsError::Refused { what, source: io::Error::last_os_error() }
    }

    /// The system's error number, or the nearest one.
    pub fn errno(&self) -> i32 {
        match self {
            VerbsError::Refused { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            VerbsError::Unsupported { .. } => libc::EOPNOTSUPP,
            _ => libc::ENODEV,
        }
    }

    /// A call that returned its reason. Some return −1 and leave it in `errno`.
    pub(crate) fn check(what: &'static str, code: i32) -> Result<(), VerbsError> {
        match code {
            0 => Ok(()),
            code if code > 0 => {
                Err(VerbsError::Refused { what, source: io::Error::from_raw_os_error(code) })
            }
            _ => Err(VerbsError::last(what)),
        }
    }
}

impl From<VerbsError> for ControlError {
    fn from(error: VerbsError) -> ControlError {
        match error {
            VerbsError::Unsupported { what, instead } => {
                ControlError::Invalid { what, why: instead }
            }
            VerbsError::Refused { what, .. } => {
                ControlError::Refused { what, errno: error.errno() }
            }
            _ => ControlError::Refused { what: "use the verbs device", errno: error.errno() },
        }
    }
}
