//! The two NICs that a connection can use.

use core::fmt;

use bowline_nic::Time;

use crate::nic::RailNic;

/// One of a host's two NICs, as seen from a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rail {
    /// The one that the program chose.
    Default,
    /// The one that replaces it.
    Backup,
}

impl Rail {
    /// Both rails.
    pub const ALL: [Rail; 2] = [Rail::Default, Rail::Backup];

    /// 0 for the default, 1 for the backup.
    pub fn index(self) -> usize {
        match self {
            Rail::Default => 0,
            Rail::Backup => 1,
        }
    }

    /// The other rail.
    pub fn other(self) -> Rail {
        match self {
            Rail::Default => Rail::Backup,
            Rail::Backup => Rail::Default,
        }
    }

    pub(crate) fn from_index(index: u8) -> Option<Rail> {
        Rail::ALL.get(usize::from(index)).copied()
    }
}

impl fmt::Display for Rail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rail::Default => "default",
            Rail::Backup => "backup",
        })
    }
}

/// Lends an agent its NICs, one at a time.
pub trait Rails {
    /// Calls `f` with the NIC of a rail and that NIC's clock. Does not call `f` if the NIC is gone
    /// for good.
    fn with(&mut self, rail: Rail, f: &mut dyn FnMut(&mut dyn RailNic, Time));
}

/// Calls a NIC and returns the result; `None` if the NIC is gone.
pub(crate) fn on<R>(
    rails: &mut dyn Rails,
    rail: Rail,
    mut f: impl FnMut(&mut dyn RailNic, Time) -> R,
) -> Option<R> {
    let mut result = None;
    rails.with(rail, &mut |nic, now| result = Some(f(nic, now)));
    result
}
