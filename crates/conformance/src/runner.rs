//! Which checks run on a lab, and their results.

use std::fmt;

use bowline_nic::Mtu;

use crate::{Failure, Lab, Maker, Outcome, Side, checks, quirks};

/// One requirement on a RoCEv2 NIC.
#[derive(Clone, Copy)]
pub struct Check {
    /// What it is, in a few words.
    pub name: &'static str,
    /// The check itself.
    pub run: fn(&mut Lab, &Case) -> Outcome,
    /// Run at every path MTU rather than at one.
    pub every_mtu: bool,
    /// Also holds when packets are lost, duplicated and reordered.
    pub survives_faults: bool,
    /// Needs XP, which only our own NICs support.
    pub needs_xp: bool,
    /// Uses only what a multicast group supports: SENDs and WRITEs, one way.
    pub fits_groups: bool,
    /// Needs a group of several members.
    pub needs_group: bool,
}

/// A check, with its requester and path MTU.
#[derive(Clone, Copy)]
pub struct Case {
    /// The check.
    pub check: &'static Check,
    /// The requester's end.
    pub requester: Side,
    /// Path MTU.
    pub mtu: Mtu,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arrow = match self.requester {
            Side::Left => "->",
            Side::Right => "<-",
        };
        write!(f, "{} {arrow} mtu {}", self.check.name, self.mtu.bytes())
    }
}

/// The link between the ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// It loses nothing and preserves the order.
    Clean,
    /// It may lose, duplicate and reorder packets.
    Faulty,
}

/// The result of a case.
pub struct Row {
    /// The case.
    pub case: Case,
    /// Why it failed, if it did.
    pub result: Outcome,
}

/// All cases for a link to a NIC of this maker: every check that applies, both ways, at the path
/// MTUs that it requires.
pub fn cases(profile: Profile, peer: Maker) -> Vec<Case> {
    let cases = all_cases(profile, peer).into_iter();
    cases.filter(|case| !case.check.needs_group).collect()
}

/// The cases that a multicast group supports: those in which a group of one is equivalent to a
/// connection, and those that need more members.
pub fn group_cases(profile: Profile) -> Vec<Case> {
    let cases = all_cases(profile, Maker::Bowline).into_iter();
    cases.filter(|case| case.check.fits_groups).collect()
}

fn all_cases(profile: Profile, peer: Maker) -> Vec<Case> {
    let mut cases = Vec::new();
    for check in checks::ALL {
        if profile == Profile::Faulty && !check.survives_faults
            || check.needs_xp && !quirks::speaks_xp(peer)
        {
            continue;
        }
        let mtus = if check.every_mtu { &Mtu::ALL[..] } else { &[Mtu::B1024] };
        for mtu in mtus {
            for requester in [Side::Left, Side::Right] {
                cases.push(Case { check, requester, mtu: *mtu });
            }
        }
    }
    cases
}

/// Runs a case and cleans up after it.
pub fn run_case(lab: &mut Lab, case: Case) -> Row {
    let result = (case.check.run)(lab, &case);
    let cleared = lab.clear().map_err(|e| Failure::new(format!("cleaning up: {e}")));
    Row { case, result: result.and(cleared) }
}
