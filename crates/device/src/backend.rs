//! The backends of a device's objects: Bowline's own engines, or verbs.

use crate::DeviceError;

/// An object of the soft NIC, or a verbs object. All objects of a device are of one kind.
///
/// This is an enum rather than a trait object: on the soft NIC's data path it costs a comparison,
/// not a call.
pub(crate) enum Backend<S, V> {
    /// An object on every engine of the device.
    Soft(S),
    /// An object of the provider.
    Verbs(V),
}

impl<S, V> Backend<S, V> {
    /// The soft NIC's object. Fails on a verbs device; `what` names the operation in the error.
    #[inline]
    pub(crate) fn soft(&self, what: &'static str) -> Result<&S, DeviceError> {
        match self {
            Backend::Soft(soft) => Ok(soft),
            Backend::Verbs(_) => Err(DeviceError::needs_soft_nic(what)),
        }
    }

    /// The provider's object, if it is one.
    #[inline]
    pub(crate) fn verbs(&self) -> Option<&V> {
        match self {
            Backend::Soft(_) => None,
            Backend::Verbs(verbs) => Some(verbs),
        }
    }
}
