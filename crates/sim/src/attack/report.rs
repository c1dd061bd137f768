//! What an attacker did.

use super::forgery::Forgery;

/// Forgeries by kind, and their outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttackCoverage {
    sent: [u64; Forgery::ALL.len()],
    /// Forged messages that an unreliable QP received, as the standard allows.
    pub received: u64,
    /// Ends of hostage connections that failed.
    pub hostages_failed: u64,
    /// Hostage connections that completed.
    pub hostages_released: u64,
    /// Control messages without the token.
    pub refused: u64,
}

impl AttackCoverage {
    pub(crate) fn count(&mut self, forgery: Forgery) {
        self.sent[forgery as usize] += 1;
    }

    /// Whether there was an attacker at all.
    pub fn is_empty(&self) -> bool {
        *self == AttackCoverage::default()
    }

    /// Names and numbers.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let sent = Forgery::ALL.iter().map(|kind| kind.name()).zip(self.sent);
        sent.chain([
            ("forged messages received", self.received),
            ("hostage ends failed", self.hostages_failed),
            ("hostages released", self.hostages_released),
            ("control messages refused", self.refused),
        ])
    }

    /// Adds another's.
    pub fn merge(&mut self, other: &AttackCoverage) {
        for (mine, theirs) in self.sent.iter_mut().zip(other.sent) {
            *mine += theirs;
        }
        self.received += other.received;
        self.hostages_failed += other.hostages_failed;
        self.hostages_released += other.hostages_released;
        self.refused += other.refused;
    }
}
