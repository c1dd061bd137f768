//! What a link does to packets, and how to write it down.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::units;

/// What a link does to packets in one direction.
///
/// As text: `loss=0.1%,delay=10ms,jitter=1ms,rate=1Gbps,reorder=1%,duplicate=1%,corrupt=0.01%,`
/// `queue=8MiB,seed=7`, each part optional. Bursts of loss are `loss=ge(p,r)` or
/// `loss=ge(p,r,bad)` or `loss=ge(p,r,bad,good)`: see [`Loss::GilbertElliott`]. A queue may be
/// written as `queue=1bdp`: as many bytes as the rate carries in a round trip of twice the delay.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LinkProfile {
    /// Which packets are lost.
    pub loss: Loss,
    /// How long a packet takes, besides its transmission.
    pub delay: Duration,
    /// Uniform variation of the delay, both ways. It does not reorder.
    pub jitter: Duration,
    /// Bits per second, IP and UDP headers counted; `None` for no limit.
    pub rate_bps: Option<u64>,
    /// Part of the packets that are held back so that later ones overtake them.
    pub reorder: f64,
    /// Part of the packets that arrive twice.
    pub duplicate: f64,
    /// Part of the packets that arrive with a wrong bit.
    pub corrupt: f64,
    /// Bytes that wait for transmission at most; what comes on top is dropped.
    pub queue_limit_bytes: u64,
    /// Seed of everything random.
    pub seed: u64,
}

impl Default for LinkProfile {
    /// A perfect link.
    fn default() -> LinkProfile {
        LinkProfile {
            loss: Loss::None,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            rate_bps: None,
            reorder: 0.0,
            duplicate: 0.0,
            corrupt: 0.0,
            queue_limit_bytes: 64 << 20,
            seed: 0,
        }
    }
}

/// Which packets are lost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loss {
    /// None.
    None,
    /// Each with this probability.
    Iid(f64),
    /// The link is good or bad, changes with these probabilities at each packet, and loses packets
    /// with a probability of its state.
    GilbertElliott {
        /// From good to bad: one over the packets between bursts.
        good_to_bad: f64,
        /// From bad to good: one over the length of a burst.
        bad_to_good: f64,
        /// Loss while bad; 1 in Gilbert's model.
        loss_bad: f64,
        /// Loss while good; 0 in Gilbert's model.
        loss_good: f64,
    },
}

/// Why a text is no link profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("link profile: `{part}`: {why}; a right one is {EXAMPLE}")]
pub struct ParseLinkError {
    /// The part that is wrong.
    pub part: String,
    /// What is wrong with it.
    pub why: String,
}

const EXAMPLE: &str = "`loss=0.1%,delay=10ms,jitter=1ms,rate=1Gbps,reorder=1%,duplicate=1%,\
                       corrupt=0.01%,queue=8MiB,seed=7`";

impl FromStr for LinkProfile {
    type Err = ParseLinkError;

    fn from_str(text: &str) -> Result<LinkProfile, ParseLinkError> {
        let mut profile = LinkProfile::default();
        let mut queue_in_bdp = None;
        for part in split_parts(text).into_iter().map(str::trim).filter(|p| !p.is_empty()) {
            let error = |why: String| ParseLinkError { part: part.to_owned(), why };
            let (key, value) =
                part.split_once('=').ok_or_else(|| error("no `=` in it".to_owned()))?;
            let (key, value) = (key.trim(), value.trim());
            match value.strip_suffix("bdp") {
                // Rate and delay may come later.
                Some(times) if key == "queue" => queue_in_bdp = Some((part, times.trim())),
                _ => profile.set(key, value).map_err(error)?,
            }
        }
        if let Some((part, times)) = queue_in_bdp {
            let error = |why: String| ParseLinkError { part: part.to_owned(), why };
            profile.queue_limit_bytes = profile.bdp_times(times).map_err(error)?;
        }
        Ok(profile)
    }
}

impl LinkProfile {
    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "loss" => self.loss = parse_loss(value)?,
            "delay" => self.delay = units::parse_duration(value)?,
            "jitter" => self.jitter = units::parse_duration(value)?,
            "rate" => self.rate_bps = Some(units::parse_rate(value)?),
            "reorder" => self.reorder = units::parse_probability(value)?,
            "duplicate" => self.duplicate = units::parse_probability(value)?,
            "corrupt" => self.corrupt = units::parse_probability(value)?,
            "queue" => self.queue_limit_bytes = units::parse_size(value)?,
            "seed" => self.seed = value.parse().map_err(|_| "the seed is a number".to_owned())?,
            _ => {
                return Err(format!(
                    "there is no `{key}`: it is one of loss, delay, jitter, rate, reorder, \
                     duplicate, corrupt, queue, seed"
                ));
            }
        }
        Ok(())
    }
}

impl LinkProfile {
    /// So many times what is in flight when the link is full.
    fn bdp_times(&self, times: &str) -> Result<u64, String> {
        let times: f64 = times.parse().unwrap_or(f64::NAN);
        let rate = self.rate_bps.ok_or("a queue in BDPs takes a rate")?;
        let bytes = times * rate as f64 / 8.0 * 2.0 * self.delay.as_secs_f64();
        if !(1.0..1e15).contains(&bytes) {
            return Err("write 1bdp or 0.5bdp, with a rate and a delay".to_owned());
        }
        Ok(bytes.round() as u64)
    }
}

/// Splits at commas that are not in parentheses.
fn split_parts(text: &str) -> Vec<&str> {
    let mut depth = 0_u32;
    text.split(|c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
    .collect()
}

fn parse_loss(value: &str) -> Result<Loss, String> {
    let Some(inner) = value.strip_prefix("ge(") else {
        let p = units::parse_probability(value)?;
        return Ok(if p == 0.0 { Loss::None } else { Loss::Iid(p) });
    };
    let numbers = inner
        .strip_suffix(')')
        .ok_or("a `)` is missing")?
        .split(',')
        .map(|n| units::parse_probability(n.trim()))
        .collect::<Result<Vec<f64>, String>>()?;
    let (good_to_bad, bad_to_good, loss_bad, loss_good) = match numbers[..] {
        [p, r] => (p, r, 1.0, 0.0),
        [p, r, bad] => (p, r, bad, 0.0),
        [p, r, bad, good] => (p, r, bad, good),
        _ => return Err("bursts of loss are ge(p,r), ge(p,r,bad) or ge(p,r,bad,good)".into()),
    };
    Ok(Loss::GilbertElliott { good_to_bad, bad_to_good, loss_bad, loss_good })
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loss::None => write!(f, "0"),
            Loss::Iid(p) => write!(f, "{p}"),
            Loss::GilbertElliott { good_to_bad, bad_to_good, loss_bad, loss_good } => {
                write!(f, "ge({good_to_bad},{bad_to_good},{loss_bad},{loss_good})")
            }
        }
    }
}

impl fmt::Display for LinkProfile {
    /// Exactly: probabilities are fractions, times nanoseconds, sizes bytes. What is as in a
    /// perfect link is left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let perfect = LinkProfile::default();
        let mut parts = Vec::new();
        if self.loss != perfect.loss {
            parts.push(format!("loss={}", self.loss));
        }
        for (key, value) in [("delay", self.delay), ("jitter", self.jitter)] {
            if !value.is_zero() {
                parts.push(format!("{key}={}ns", value.as_nanos()));
            }
        }
        if let Some(rate) = self.rate_bps {
            parts.push(format!("rate={rate}bps"));
        }
        let probabilities =
            [("reorder", self.reorder), ("duplicate", self.duplicate), ("corrupt", self.corrupt)];
        for (key, value) in probabilities {
            if value != 0.0 {
                parts.push(format!("{key}={value}"));
            }
        }
        if self.queue_limit_bytes != perfect.queue_limit_bytes {
            parts.push(format!("queue={}B", self.queue_limit_bytes));
        }
        if self.seed != perfect.seed {
            parts.push(format!("seed={}", self.seed));
        }
        f.write_str(&parts.join(","))
    }
}
