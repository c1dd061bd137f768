//! Distribution of a completion time.

use crate::erasure::Coded;
use crate::go_back::GoBack;
use crate::link::any_of;
use crate::numeric::{TEN_DIGITS, invert};
use crate::repeat::Repeat;
use crate::scheme::Scheme;
use crate::transfer::Transfer;

/// How long a message takes: a distribution with computed mean and quantiles.
#[derive(Clone, Debug)]
pub struct Completion {
    law: Law,
    rtt_s: f64,
    least_s: f64,
    bandwidth_overhead: f64,
    repair: f64,
}

#[derive(Clone, Debug)]
enum Law {
    Fixed(f64),
    Repeat(Repeat),
    Coded(Box<Coded>),
    GoBack(Box<GoBack>),
}

impl Completion {
    pub(crate) fn new(transfer: &Transfer, scheme: &Scheme) -> Completion {
        let rtt_s = transfer.link().rtt_s;
        let loss = transfer.chunk_loss();
        let chunks = transfer.chunks() as f64;
        let (law, bandwidth_overhead, repair) = match scheme {
            Scheme::SelectiveRepeat { rto_rtts } => {
                let rounds = transfer.rounds(rto_rtts * rtt_s);
                let law = Repeat::new(transfer.chunks(), transfer.inject_s(), rounds);
                let repair = law.any_repeated();
                (Law::Repeat(law), Repeat::repeated_share(loss), repair)
            }
            Scheme::Erasure(code) => {
                let law = Coded::new(transfer, code);
                let parity = (chunks * f64::from(code.m) / f64::from(code.k)).ceil() / chunks;
                let repeated = law.repeated_chunks() / chunks / (1.0 - loss);
                let repair = law.fallback();
                (Law::Coded(Box::new(law)), parity + repeated, repair)
            }
            Scheme::GoBackN => {
                let law = GoBack::plain(transfer);
                let overhead = law.overhead();
                (Law::GoBack(Box::new(law)), overhead, f64::NAN)
            }
            Scheme::Lowar { r, c } => {
                let law = GoBack::lowar(transfer, *r, *c);
                let overhead = law.overhead();
                (Law::GoBack(Box::new(law)), overhead, f64::NAN)
            }
            Scheme::BestEffort => (Law::Fixed(transfer.ideal_s()), 0.0, any_of(loss, chunks)),
        };
        let mut completion = Completion { law, rtt_s, least_s: 0.0, bandwidth_overhead, repair };
        completion.least_s = match &completion.law {
            Law::Fixed(t) => *t,
            Law::Repeat(law) => law.least_s() + rtt_s,
            Law::Coded(law) => law.least_s(),
            Law::GoBack(law) => law.least_s(),
        };
        if completion.repair.is_nan() {
            completion.repair = 1.0 - completion.cdf(completion.least_s);
        }
        completion
    }

    /// Expectation in seconds.
    ///
    /// Selective repeat: appendix A. Coding: section 4.2.3, weighted by the number of submessages
    /// that fail rather than evaluated at its mean, see [`Completion::paper_mean_s`].
    pub fn mean_s(&self) -> f64 {
        match &self.law {
            Law::Fixed(t) => *t,
            Law::Repeat(law) => law.mean_s() + self.rtt_s,
            Law::Coded(law) => law.mean_s(),
            Law::GoBack(law) => law.mean_s(),
        }
    }

    /// For coding, the paper's sum of three terms as printed in section 4.2.3, whose last is
    /// `E[T_SR(E[failures] · k)]`; otherwise the mean.
    pub fn paper_mean_s(&self) -> f64 {
        match &self.law {
            Law::Coded(law) => law.paper_mean_s(),
            _ => self.mean_s(),
        }
    }

    /// Probability that the message is complete after `t_s` seconds.
    pub fn cdf(&self, t_s: f64) -> f64 {
        match &self.law {
            Law::Fixed(t) => f64::from(u8::from(t_s >= *t)),
            Law::Repeat(law) => law.cdf(t_s - self.rtt_s),
            Law::Coded(law) => law.cdf(t_s),
            Law::GoBack(law) => law.cdf(t_s),
        }
    }

    /// The shortest time within which a share `q` of messages is complete, `0 < q < 1`.
    pub fn quantile_s(&self, q: f64) -> f64 {
        self.quantile_to(q, TEN_DIGITS)
    }

    /// [`Completion::quantile_s`] with a relative error of at most `tolerance`.
    pub(crate) fn quantile_to(&self, q: f64, tolerance: f64) -> f64 {
        let (q, scale_s) = (q.clamp(0.0, 1.0 - 1e-12), 0.5 * self.rtt_s + 1e-9);
        invert(|t| self.cdf(t), q, self.least_s, scale_s, tolerance)
    }

    /// The shortest time that is possible.
    pub fn least_s(&self) -> f64 {
        self.least_s
    }

    /// Mean bytes sent besides the message's own, relative to those: parity and retransmissions.
    pub fn bandwidth_overhead(&self) -> f64 {
        self.bandwidth_overhead
    }

    /// Probability that something has to be retransmitted: for coding `P_fallback`. For best
    /// effort, that something is missing in the end.
    pub fn repair_probability(&self) -> f64 {
        self.repair
    }
}
