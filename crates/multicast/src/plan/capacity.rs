//! How many rules a switch needs (section V-B of the paper): three replicas, racks of 16 hosts,
//! replication only at the top of racks.

/// Hosts of a rack, behind a switch of 32 ports.
pub const RACK_HOSTS: u64 = 16;

/// Rules that the paper's switch holds.
pub const TOFINO_RULES: u64 = 40_000;

/// Rules for groups whose backups are both in a given rack, for any primary.
fn in_one_rack(racks: u64) -> u64 {
    let pairs = RACK_HOSTS * (RACK_HOSTS - 1) / 2;
    (RACK_HOSTS * racks).saturating_mul(pairs)
}

/// Rules of a switch if every placement of three replicas is a group: 1920 N + 2048 N (N − 1).
pub fn all_placements(racks: u64) -> u64 {
    let elsewhere = RACK_HOSTS * racks.saturating_sub(1);
    let apart = (RACK_HOSTS * RACK_HOSTS * racks).saturating_mul(elsewhere) / 2;
    in_one_rack(racks).saturating_add(apart)
}

/// Rules of a switch if each host is the primary of so many groups: 1920 N + 16 M.
pub fn limited_groups(racks: u64, groups_per_host: u64) -> u64 {
    in_one_rack(racks).saturating_add(RACK_HOSTS.saturating_mul(groups_per_host))
}

/// The most racks whose rules fit.
pub fn racks_that_fit(rules: u64, needed: impl Fn(u64) -> u64) -> u64 {
    let (mut fits, mut too_many) = (0, 1);
    while too_many < 1 << 32 && needed(too_many) <= rules {
        (fits, too_many) = (too_many, too_many * 2);
    }
    while too_many - fits > 1 {
        let middle = fits + (too_many - fits) / 2;
        if needed(middle) <= rules {
            fits = middle;
        } else {
            too_many = middle;
        }
    }
    fits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_the_paper() {
        for racks in 1..10 {
            assert_eq!(all_placements(racks), 1920 * racks + 2048 * racks * (racks - 1));
        }
        assert_eq!([4, 5].map(all_placements), [32_256, 50_560]);
        // The paper says 64 to 80 hosts; 80 do not fit.
        assert_eq!(racks_that_fit(TOFINO_RULES, all_placements) * RACK_HOSTS, 64);
        // And "more than 320 hosts" at 100 groups a host is just about 320.
        let racks = racks_that_fit(TOFINO_RULES, |racks| limited_groups(racks, 100));
        assert_eq!(racks * RACK_HOSTS, 320);
        assert_eq!(racks_that_fit(0, all_placements), 0);
    }
}
