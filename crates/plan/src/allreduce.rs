//! Ring allreduce over N datacenters (section 5.3, appendix C).

use crate::error::PlanError;
use crate::link::Link;
use crate::scheme::Scheme;
use crate::transfer::{Message, Transfer};

/// A ring allreduce: `2N − 2` rounds, in each of which every datacenter sends an N-th of the buffer
/// to the next over a reliable write.
#[derive(Clone, Copy, Debug)]
pub struct Allreduce {
    datacenters: u32,
    stage: Transfer,
}

impl Allreduce {
    /// Over `datacenters` datacenters, of a buffer as long as the message.
    pub fn new(link: Link, buffer: Message, datacenters: u32) -> Result<Allreduce, PlanError> {
        if !(2..=1024).contains(&datacenters) {
            let why = format!("a ring of {datacenters}; give 2 to 1024");
            return Err(PlanError::new("allreduce", why, "4"));
        }
        let part = Message { bytes: buffer.bytes.div_ceil(datacenters.into()), ..buffer };
        Ok(Allreduce { datacenters, stage: Transfer::new(link, part)? })
    }

    /// Datacenters in the ring.
    pub fn datacenters(&self) -> u32 {
        self.datacenters
    }

    /// Rounds: `2N − 2`.
    pub fn rounds(&self) -> u32 {
        2 * self.datacenters - 2
    }

    /// The write of one round.
    pub fn stage(&self) -> &Transfer {
        &self.stage
    }

    /// Time on lossless links: `(2N − 2) C`.
    pub fn ideal_s(&self) -> f64 {
        f64::from(self.rounds()) * self.stage.ideal_s()
    }

    /// `E_{2N−2} ≥ (2N − 2)(C + μ_X)`, equation (5): no allreduce is faster in the mean.
    pub fn lower_bound_s(&self, scheme: &Scheme) -> Result<f64, PlanError> {
        Ok(f64::from(self.rounds()) * self.stage.completion(scheme)?.mean_s())
    }

    /// One allreduce by equation (1), `T(i, r) = max(T(i−1, r−1), T(i, r−1)) + t(i, r−1)`, with
    /// durations from `draw`: returns when the last datacenter is done.
    pub fn run(&self, mut draw: impl FnMut() -> f64) -> f64 {
        let n = self.datacenters as usize;
        let mut finish = vec![0.0_f64; n];
        for _ in 0..self.rounds() {
            let before = finish.clone();
            for (i, at) in finish.iter_mut().enumerate() {
                *at = before[(i + n - 1) % n].max(before[i]) + draw();
            }
        }
        finish.into_iter().fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Loss;

    #[test]
    fn equal_stages_add_up_and_one_late_stage_delays_all() {
        let link = Link { bandwidth_bps: 400e9, rtt_s: 25e-3, loss: Loss::Chunk(0.0) };
        let ring = Allreduce::new(link, Message::new(128 << 20), 4).unwrap();
        assert_eq!(ring.rounds(), 6);
        let stage_s = ring.stage().ideal_s();
        assert!((ring.run(|| stage_s) / ring.ideal_s() - 1.0).abs() < 1e-12);
        assert!(
            (ring.lower_bound_s(&Scheme::sr_rto()).unwrap() / ring.ideal_s() - 1.0).abs() < 1e-9
        );
        let mut stage = 0;
        let late = ring.run(|| {
            stage += 1;
            if stage == 1 { 10.0 } else { 1.0 }
        });
        assert_eq!(late, 15.0);
        assert!(Allreduce::new(link, Message::new(1), 1).is_err());
    }
}
