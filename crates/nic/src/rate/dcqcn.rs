//! DCQCN, the rate control of RoCEv2 networks: Zhu et al., "Congestion Control for Large-Scale
//! RDMA Deployments", SIGCOMM 2015, section 3. Names are the paper's.

use super::{ControlledConnection, ControllerFactory, RateController, Sent};
use crate::time::Time;

/// DCQCN's constants; the defaults are the paper's (section 4 and its Figure 14).
#[derive(Clone, Debug, PartialEq)]
pub struct DcqcnParams {
    /// Line rate: where a QP starts, and what it never exceeds.
    pub line_rate_bps: u64,
    /// Lower bound of the rate.
    pub min_rate_bps: u64,
    /// Weight of a CNP in the estimate of congestion.
    pub g: f64,
    /// Without a CNP for this long the estimate decays (K).
    pub alpha_timer_ns: u64,
    /// Time between rate increases (T).
    pub increase_timer_ns: u64,
    /// Bytes between rate increases (B).
    pub byte_counter: u64,
    /// Increases that halve the distance to the target before additive ones begin (F).
    pub fast_recovery_steps: u32,
    /// Additive step (R_AI).
    pub additive_bps: u64,
    /// Hyper step (R_HAI).
    pub hyper_bps: u64,
}

impl DcqcnParams {
    /// The paper's constants for a line of this rate.
    pub fn new(line_rate_bps: u64) -> DcqcnParams {
        DcqcnParams {
            line_rate_bps,
            min_rate_bps: 10_000_000.min(line_rate_bps),
            g: 1.0 / 256.0,
            alpha_timer_ns: 55_000,
            increase_timer_ns: 55_000,
            byte_counter: 10_000_000,
            fast_recovery_steps: 5,
            additive_bps: 40_000_000,
            hyper_bps: 400_000_000,
        }
    }
}

impl ControllerFactory for DcqcnParams {
    fn build(&self, now: Time, _connection: &ControlledConnection) -> Box<dyn RateController> {
        Box::new(Dcqcn::new(self.clone(), now))
    }
}

/// Reaction point: the sender's half of DCQCN.
#[derive(Debug)]
struct Dcqcn {
    params: DcqcnParams,
    /// R_C.
    current: f64,
    /// R_T.
    target: f64,
    alpha: f64,
    /// Before the first CNP the QP runs at line rate, and `catch_up` has nothing to do.
    congested: bool,
    alpha_at: Time,
    increase_at: Time,
    bytes: u64,
    time_steps: u32,
    byte_steps: u32,
}

impl Dcqcn {
    fn new(params: DcqcnParams, now: Time) -> Dcqcn {
        let line = params.line_rate_bps as f64;
        Dcqcn {
            params,
            current: line,
            target: line,
            alpha: 1.0,
            congested: false,
            alpha_at: now,
            increase_at: now,
            bytes: 0,
            time_steps: 0,
            byte_steps: 0,
        }
    }

    /// Applies what the two timers would have done by `now`.
    fn catch_up(&mut self, now: Time) {
        if !self.congested {
            return;
        }
        let alphas = now.nanos_since(self.alpha_at) / self.params.alpha_timer_ns.max(1);
        if alphas > 0 {
            self.alpha *= (1.0 - self.params.g).powf(alphas as f64);
            self.alpha_at = self.alpha_at.plus_nanos(alphas * self.params.alpha_timer_ns);
        }
        while self.congested && now.nanos_since(self.increase_at) >= self.params.increase_timer_ns {
            self.increase_at = self.increase_at.plus_nanos(self.params.increase_timer_ns.max(1));
            self.time_steps += 1;
            self.increase();
        }
    }

    /// One increase event, of the timer or of the byte counter.
    fn increase(&mut self) {
        let f = self.params.fast_recovery_steps;
        if self.time_steps.min(self.byte_steps) > f {
            self.target += self.params.hyper_bps as f64;
        } else if self.time_steps.max(self.byte_steps) > f {
            self.target += self.params.additive_bps as f64;
        }
        let line = self.params.line_rate_bps as f64;
        self.target = self.target.min(line);
        self.current = (self.current + self.target) / 2.0;
        // Halving the distance never reaches the target; within a hundredth of a percent the QP
        // counts as recovered, so that catching up costs nothing however long it idles.
        if self.current > line * 0.9999 {
            self.current = line;
            self.congested = false;
        }
    }
}

impl RateController for Dcqcn {
    fn pacing_rate_bps(&mut self, now: Time) -> Option<u64> {
        self.catch_up(now);
        Some(self.current.max(self.params.min_rate_bps as f64) as u64)
    }

    fn on_sent(&mut self, now: Time, sent: &Sent) {
        self.catch_up(now);
        if !self.congested {
            return;
        }
        self.bytes += sent.bytes;
        while self.congested && self.bytes >= self.params.byte_counter.max(1) {
            self.bytes -= self.params.byte_counter.max(1);
            self.byte_steps += 1;
            self.increase();
        }
    }

    fn on_cnp(&mut self, now: Time) {
        self.catch_up(now);
        self.congested = true;
        self.target = self.current;
        self.current =
            (self.current * (1.0 - self.alpha / 2.0)).max(self.params.min_rate_bps as f64);
        self.alpha = (1.0 - self.params.g) * self.alpha + self.params.g;
        self.alpha_at = now;
        self.increase_at = now;
        self.bytes = 0;
        self.time_steps = 0;
        self.byte_steps = 0;
    }

    fn wants_ecn(&self) -> bool {
        true
    }
}
