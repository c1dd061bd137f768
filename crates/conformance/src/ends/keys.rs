//! Keys of ends whose connections are sealed.

use bowline_nic::{PacketSeal, Time};
use bowline_seal::{Role, SealConfig, SessionSecret, Suite, seal};

/// What an end seals its connections with.
#[derive(Clone)]
pub struct Keys {
    pub(super) session: SessionSecret,
    pub(super) role: Role,
    pub(super) config: SealConfig,
}

impl Keys {
    /// For two ends.
    pub fn pair() -> [Keys; 2] {
        [Role::Initiator, Role::Responder].map(|role| Keys {
            session: SessionSecret::from_bytes([7; SessionSecret::LEN]),
            role,
            config: SealConfig::new(Suite::best()),
        })
    }

    /// The number of the connection between two queue pairs: each is connected only once.
    pub(super) fn number(&self, ours: u32, theirs: u32) -> u64 {
        let (first, second) = match self.role {
            Role::Initiator => (ours, theirs),
            Role::Responder => (theirs, ours),
        };
        u64::from(first) << 32 | u64::from(second)
    }

    pub(super) fn seal(&self, ours: u32, theirs: u32, now: Time) -> PacketSeal {
        seal(&self.session, self.number(ours, theirs), self.role, &self.config, now)
    }
}
