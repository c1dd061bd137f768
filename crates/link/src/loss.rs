//! Loss models.

use core::fmt;

use rand::Rng;

use crate::prob::Prob;
use crate::units;

/// Which packets are lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Loss {
    /// None.
    #[default]
    None,
    /// Each with the same probability.
    Iid(Prob),
    /// In bursts of random length.
    GilbertElliott(GilbertElliott),
    /// In bursts of one length.
    Bursts(Bursts),
}

/// The two-state loss model: a good and a bad state, each with its own loss rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GilbertElliott {
    /// From good to bad, per packet: one over the packets between bursts.
    pub good_to_bad: Prob,
    /// From bad to good, per packet: one over the mean length of a burst.
    pub bad_to_good: Prob,
    /// Loss in the good state; 0 in Gilbert's model.
    pub loss_good: Prob,
    /// Loss in the bad state; 1 in Gilbert's model.
    pub loss_bad: Prob,
}

impl GilbertElliott {
    /// Bursts of `mean_burst` packets, all lost, that make up `rate` of all packets.
    pub fn bursts(rate: f64, mean_burst: f64) -> GilbertElliott {
        let bad_to_good = 1.0 / mean_burst;
        // In equilibrium as many packets enter the bad state as leave it.
        let good_to_bad = bad_to_good * rate / (1.0 - rate);
        GilbertElliott {
            good_to_bad: Prob::new(good_to_bad),
            bad_to_good: Prob::new(bad_to_good),
            loss_good: Prob::NEVER,
            loss_bad: Prob::ALWAYS,
        }
    }
}

/// Bursts of a fixed number of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bursts {
    /// Probability per packet that a burst begins, while there is none.
    pub begin: Prob,
    /// Length of a burst in packets.
    pub packets: u32,
    /// Loss during a burst.
    pub loss: Prob,
}

/// The state of a loss model.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LossState {
    is_bad: bool,
    /// Packets left of a burst.
    left: u32,
}

impl LossState {
    #[inline]
    pub(crate) fn loses(&mut self, loss: &Loss, rng: &mut impl Rng) -> bool {
        match loss {
            Loss::None => false,
            Loss::Iid(p) => p.happens(rng),
            Loss::GilbertElliott(model) => {
                let change = if self.is_bad { model.bad_to_good } else { model.good_to_bad };
                self.is_bad ^= change.happens(rng);
                (if self.is_bad { model.loss_bad } else { model.loss_good }).happens(rng)
            }
            Loss::Bursts(model) => {
                if self.left == 0 && model.begin.happens(rng) {
                    self.left = model.packets;
                }
                let is_bad = self.left > 0;
                self.left = self.left.saturating_sub(1);
                is_bad && model.loss.happens(rng)
            }
        }
    }
}

/// Reads `0.1%`, `ge(p,r)`, `ge(p,r,bad)`, `ge(p,r,bad,good)`, `bursts(begin,packets)` or
/// `bursts(begin,packets,loss)`.
pub(crate) fn parse(text: &str) -> Result<Loss, String> {
    if let Some(numbers) = units::arguments(text, "ge")? {
        let numbers = numbers.map(parse_prob).collect::<Result<Vec<Prob>, String>>()?;
        let (good_to_bad, bad_to_good, loss_bad, loss_good) = match numbers[..] {
            [p, r] => (p, r, Prob::ALWAYS, Prob::NEVER),
            [p, r, bad] => (p, r, bad, Prob::NEVER),
            [p, r, bad, good] => (p, r, bad, good),
            _ => return Err("write ge(p,r), ge(p,r,bad) or ge(p,r,bad,good)".into()),
        };
        let model = GilbertElliott { good_to_bad, bad_to_good, loss_good, loss_bad };
        return Ok(Loss::GilbertElliott(model));
    }
    if let Some(parts) = units::arguments(text, "bursts")? {
        let parts: Vec<&str> = parts.collect();
        let (begin, packets, loss) = match parts[..] {
            [begin, packets] => (begin, packets, "1"),
            [begin, packets, loss] => (begin, packets, loss),
            _ => return Err("write bursts(begin,packets) or bursts(begin,packets,loss)".into()),
        };
        let packets = packets
            .parse()
            .map_err(|_| format!("invalid number of packets `{packets}`: write e.g. 8"))?;
        let (begin, loss) = (parse_prob(begin)?, parse_prob(loss)?);
        return Ok(Loss::Bursts(Bursts { begin, packets, loss }));
    }
    let p = parse_prob(text)?;
    Ok(if p == Prob::NEVER { Loss::None } else { Loss::Iid(p) })
}

fn parse_prob(text: &str) -> Result<Prob, String> {
    units::parse_probability(text).map(Prob::new)
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loss::None => write!(f, "0"),
            Loss::Iid(p) => write!(f, "{p}"),
            Loss::GilbertElliott(m) => {
                write!(f, "ge({},{},{},{})", m.good_to_bad, m.bad_to_good, m.loss_bad, m.loss_good)
            }
            Loss::Bursts(m) => write!(f, "bursts({},{},{})", m.begin, m.packets, m.loss),
        }
    }
}
