//! Parses the policy of a group.

use std::str::FromStr;

use bowline::multicast::Policy;

/// `fail`, `evict=500ms` or `quorum=2,500ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PolicyArg(pub(super) Policy);

impl FromStr for PolicyArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("invalid policy `{text}`: write `fail`, `evict=500ms` or `quorum=2,500ms`");
        let policy = match text.split_once('=') {
            None if text == "fail" => Policy::Fail,
            Some(("evict", time)) => {
                Policy::Evict { after_ns: nanos(time).ok_or_else(wrong)?, least: 1 }
            }
            Some(("quorum", rest)) => {
                let (k, time) = rest.split_once(',').ok_or_else(wrong)?;
                let k = k.parse().ok().filter(|k| *k > 0).ok_or_else(wrong)?;
                Policy::Quorum { k, after_ns: nanos(time).ok_or_else(wrong)? }
            }
            _ => return Err(wrong()),
        };
        Ok(PolicyArg(policy))
    }
}

fn nanos(text: &str) -> Option<u64> {
    let units = [("ms", 1_000_000), ("us", 1_000), ("s", 1_000_000_000)];
    let (number, unit) = units.iter().find_map(|(unit, n)| Some((text.strip_suffix(unit)?, *n)))?;
    number.parse::<u64>().ok()?.checked_mul(unit).filter(|ns| *ns > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_and_mistakes_explained() {
        let read = |text: &str| text.parse::<PolicyArg>().map(|arg| arg.0);
        assert_eq!(read("fail"), Ok(Policy::Fail));
        let evict = Policy::Evict { after_ns: 500_000_000, least: 1 };
        assert_eq!(read("evict=500ms"), Ok(evict));
        assert_eq!(read("quorum=2,1s"), Ok(Policy::Quorum { k: 2, after_ns: 1_000_000_000 }));
        for wrong in ["", "evict", "evict=5", "evict=0ms", "quorum=0,5ms", "quorum=2", "fail=1"] {
            let error = read(wrong).expect_err(wrong);
            assert!(error.contains("evict=500ms"), "{error}");
        }
    }
}
