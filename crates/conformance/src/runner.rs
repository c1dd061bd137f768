//! Which checks are run on a lab, and what came of each.

use std::fmt;

use bowline_nic::Mtu;

use crate::{Failure, Lab, Maker, Outcome, Side, checks, quirks};

/// One thing that a RoCEv2 NIC must do.
#[derive(Clone, Copy)]
pub struct Check {
    /// What it is, in a few words.
    pub name: &'static str,
    /// Does it.
    pub run: fn(&mut Lab, &Case) -> Outcome,
    /// Run at every path MTU rather than at one.
    pub every_mtu: bool,
    /// Holds as well when packets are lost, doubled and overtaken.
    pub survives_faults: bool,
    /// Asks for XP, which only our own NICs speak.
    pub needs_xp: bool,
    /// Asks for nothing but what a multicast group carries: SENDs and WRITEs, one way.
    pub fits_groups: bool,
    /// Asks for a group of several members.
    pub needs_group: bool,
}

/// A check, with who asks and how long packets are.
#[derive(Clone, Copy)]
pub struct Case {
    /// The check.
    pub check: &'static Check,
    /// The end that asks.
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

/// What the link between the ends is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// It loses nothing and keeps the order.
    Clean,
    /// It may lose, double and reorder packets.
    Faulty,
}

/// What became of a case.
pub struct Row {
    /// The case.
    pub case: Case,
    /// Why it failed, if it did.
    pub result: Outcome,
}

/// All cases for a link to a NIC of this maker: every check that applies, both ways, at the path
/// MTUs that it asks for.
pub fn cases(profile: Profile, peer: Maker) -> Vec<Case> {
    let cases = all_cases(profile, peer).into_iter();
    cases.filter(|case| !case.check.needs_group).collect()
}

/// The cases that a multicast group carries: those in which a group of one is as good as a
/// connection, and those that ask for more members.
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
