//! What a device's objects stand on: Bowline's own engines, or verbs.

use crate::DeviceError;

/// An object of the soft NIC, or one of verbs. All objects of a device are of one kind.
///
/// An enum rather than a trait object: on the soft NIC's data path it costs a comparison, and no
/// call.
pub(crate) enum Backend<S, V> {
    /// On every engine of the device.
    Soft(S),
    /// One of the provider's.
    Verbs(V),
}

impl<S, V> Backend<S, V> {
    /// The soft NIC's; refused on a verbs device, of which `what` is asked.
    #[inline]
    pub(crate) fn soft(&self, what: &'static str) -> Result<&S, DeviceError> {
        match self {
            Backend::Soft(soft) => Ok(soft),
            Backend::Verbs(_) => Err(DeviceError::needs_soft_nic(what)),
        }
    }

    /// The provider's, if it is one.
    #[inline]
    pub(crate) fn verbs(&self) -> Option<&V> {
        match self {
            Backend::Soft(_) => None,
            Backend::Verbs(verbs) => Some(verbs),
        }
    }
}
