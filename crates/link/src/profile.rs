//! The text form of a link's properties.

use core::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::config::{Ecn, LinkConfig};
use crate::faults::Faults;
use crate::loss::{self, Loss};
use crate::prob::Prob;
use crate::units;

/// Longest delay of reordered packets if a profile says `reorder` but not `hold`.
const DEFAULT_HOLD_NS: u64 = 400_000;

/// The properties of one direction of a link.
///
/// As text: `rate=1Gbps,delay=10ms,queue=8MiB,loss=0.1%,jitter=1ms,reorder=1%,duplicate=1%,`
/// `corrupt=0.01%,ecn=red(100KiB,400KiB,20%),seed=7`, each part optional.
///
/// - `queue=1bdp` is a queue of as many bytes as the rate carries in a round trip of twice the
///   delay.
/// - `loss=ge(p,r)`, `ge(p,r,bad)` or `ge(p,r,bad,good)` are bursts of random length
///   ([`GilbertElliott`](crate::GilbertElliott)); `loss=bursts(begin,packets)` or
///   `bursts(begin,packets,loss)` those of one length ([`Bursts`](crate::Bursts)).
/// - `ecn=red(kmin,kmax,pmax)` marks as [`Ecn`] says.
/// - `hold=300us` is the longest time that a reordered packet is delayed; the default is 400us.
///
/// Corruption always flips one bit: the text form cannot express [`Corruption`](crate::Corruption).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkProfile {
    /// Rate, delay, queue, marking.
    pub config: LinkConfig,
    /// Loss and all other faults.
    pub faults: Faults,
    /// Seed of everything random.
    pub seed: u64,
}

/// Why a text is not a link profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid link profile: `{part}`: {why}; an example is {EXAMPLE}")]
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
        let mut has_hold = false;
        for part in split_parts(text).into_iter().map(str::trim).filter(|p| !p.is_empty()) {
            let error = |why: String| ParseLinkError { part: part.to_owned(), why };
            let (key, value) =
                part.split_once('=').ok_or_else(|| error("no `=` in it".to_owned()))?;
            let (key, value) = (key.trim(), value.trim());
            has_hold |= key == "hold";
            match value.strip_suffix("bdp") {
                // Rate and delay may come later.
                Some(times) if key == "queue" => queue_in_bdp = Some((part, times.trim())),
                _ => profile.set(key, value).map_err(error)?,
            }
        }
        if let Some((part, times)) = queue_in_bdp {
            let error = |why: String| ParseLinkError { part: part.to_owned(), why };
            profile.config.queue_bytes = profile.bdp_times(times).map_err(error)?;
        }
        if profile.faults.reorder != Prob::NEVER && !has_hold {
            profile.faults.reorder_ns = DEFAULT_HOLD_NS;
        }
        Ok(profile)
    }
}

impl LinkProfile {
    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let prob = || units::parse_probability(value).map(Prob::new);
        let nanos = || units::parse_duration(value).map(nanos);
        match key {
            "loss" => self.faults.loss = loss::parse(value)?,
            "delay" => self.config.delay_ns = nanos()?,
            "jitter" => self.faults.jitter_ns = nanos()?,
            "hold" => self.faults.reorder_ns = nanos()?,
            "rate" => self.config.rate_bps = Some(units::parse_rate(value)?),
            "reorder" => self.faults.reorder = prob()?,
            "duplicate" => self.faults.duplicate = prob()?,
            "corrupt" => self.faults.corrupt = prob()?,
            "queue" => self.config.queue_bytes = units::parse_size(value)?,
            "ecn" => self.config.ecn = Some(parse_ecn(value)?),
            "seed" => {
                let error = || format!("invalid seed `{value}`: write a whole number, e.g. 7");
                self.seed = value.parse().map_err(|_| error())?;
            }
            _ => {
                return Err(format!(
                    "unknown key `{key}`: write one of loss, delay, jitter, rate, reorder, hold, \
                     duplicate, corrupt, queue, ecn, seed"
                ));
            }
        }
        Ok(())
    }

    /// This many times the bandwidth-delay product.
    fn bdp_times(&self, times: &str) -> Result<u64, String> {
        let times: f64 = times.parse().unwrap_or(f64::NAN);
        let rate = self.config.rate_bps.ok_or("a queue in BDPs takes a rate")?;
        let bytes = times * rate as f64 / 8.0 * 2.0 * self.config.delay_ns as f64 / 1e9;
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

fn parse_ecn(value: &str) -> Result<Ecn, String> {
    const HOW: &str = "write red(kmin,kmax,pmax), e.g. red(100KiB,400KiB,20%)";
    let parts: Vec<&str> = units::arguments(value, "red")?.ok_or(HOW)?.collect();
    let [kmin, kmax, pmax] = parts[..] else { return Err(HOW.to_owned()) };
    let (kmin_bytes, kmax_bytes) = (units::parse_size(kmin)?, units::parse_size(kmax)?);
    if kmin_bytes >= kmax_bytes {
        return Err(format!("kmin `{kmin}` must be below kmax `{kmax}`: {HOW}"));
    }
    Ok(Ecn { kmin_bytes, kmax_bytes, pmax: Prob::new(units::parse_probability(pmax)?) })
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl fmt::Display for LinkProfile {
    /// Exact: probabilities are fractions, times nanoseconds, sizes bytes. Defaults are omitted.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (config, faults) = (&self.config, &self.faults);
        let mut parts = Vec::new();
        if faults.loss != Loss::None {
            parts.push(format!("loss={}", faults.loss));
        }
        for (key, value) in [("delay", config.delay_ns), ("jitter", faults.jitter_ns)] {
            if value != 0 {
                parts.push(format!("{key}={value}ns"));
            }
        }
        if let Some(rate) = config.rate_bps {
            parts.push(format!("rate={rate}bps"));
        }
        let probabilities = [
            ("reorder", faults.reorder),
            ("duplicate", faults.duplicate),
            ("corrupt", faults.corrupt),
        ];
        for (key, value) in probabilities.into_iter().filter(|(_, value)| *value != Prob::NEVER) {
            parts.push(format!("{key}={value}"));
        }
        // If it were omitted, it would be read as the default wherever packets are reordered.
        if faults.reorder_ns != 0 || faults.reorder != Prob::NEVER {
            parts.push(format!("hold={}ns", faults.reorder_ns));
        }
        if config.queue_bytes != LinkConfig::default().queue_bytes {
            parts.push(format!("queue={}B", config.queue_bytes));
        }
        if let Some(Ecn { kmin_bytes, kmax_bytes, pmax }) = config.ecn {
            parts.push(format!("ecn=red({kmin_bytes}B,{kmax_bytes}B,{pmax})"));
        }
        if self.seed != 0 {
            parts.push(format!("seed={}", self.seed));
        }
        f.write_str(&parts.join(","))
    }
}
