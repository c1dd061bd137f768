//! The reliability schemes, by the names that users know.

use crate::error::PlanError;

/// A reliability scheme with its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scheme {
    /// Go-back-N, as RC does: `gbn`.
    GoBackN,
    /// Selective repeat, `sr-rto` or `sr-nack`.
    SelectiveRepeat {
        /// Timeout of a chunk in round trips: RTO = RTT + α RTT.
        rto_rtts: f64,
    },
    /// Erasure coding, `ec-mds` or `ec-xor`.
    Erasure(Erasure),
    /// Go-back-N over LoWAR's repair packets: `lowar`.
    Lowar {
        /// Packets of a block.
        r: u32,
        /// Lanes, and repair packets, of a block.
        c: u32,
    },
    /// Nothing is retransmitted: `best-effort`. Complete when everything has been sent, whatever
    /// arrived.
    BestEffort,
}

/// Erasure coding: k data chunks protected by m parity chunks, with selective repeat as fallback.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Erasure {
    /// Which code.
    pub coding: Coding,
    /// Data chunks of a submessage.
    pub k: u32,
    /// Parity chunks of a submessage.
    pub m: u32,
    /// β: round trips that the receiver waits beyond the injection time.
    pub beta: f64,
    /// Timeout of selective repeat in the fallback, in round trips.
    pub rto_rtts: f64,
}

/// An erasure code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// Any m of k + m chunks may be lost.
    Mds,
    /// One chunk of each modulo group may be lost.
    Xor,
}

/// Round trips until a timeout, as in the paper's `SR RTO`.
const RTO_RTTS: f64 = 3.0;
/// As in its `SR NACK`.
const NACK_RTTS: f64 = 1.0;
/// Round trips that a receiver waits for stragglers before it requests what failed.
const BETA: f64 = 0.5;

impl Scheme {
    /// Selective repeat with a timeout of 3 round trips.
    pub fn sr_rto() -> Scheme {
        Scheme::SelectiveRepeat { rto_rtts: RTO_RTTS }
    }

    /// Selective repeat with NACKs, modelled as a timeout of 1 round trip (section 5.1.1).
    pub fn sr_nack() -> Scheme {
        Scheme::SelectiveRepeat { rto_rtts: NACK_RTTS }
    }

    /// An MDS code.
    pub fn ec_mds(k: u32, m: u32) -> Scheme {
        Scheme::Erasure(Erasure { coding: Coding::Mds, k, m, beta: BETA, rto_rtts: RTO_RTTS })
    }

    /// XOR over modulo groups.
    pub fn ec_xor(k: u32, m: u32) -> Scheme {
        Scheme::Erasure(Erasure { coding: Coding::Xor, k, m, beta: BETA, rto_rtts: RTO_RTTS })
    }

    /// Its user-visible name.
    pub fn name(&self) -> &'static str {
        match self {
            Scheme::GoBackN => "gbn",
            Scheme::SelectiveRepeat { rto_rtts } if *rto_rtts <= NACK_RTTS => "sr-nack",
            Scheme::SelectiveRepeat { .. } => "sr-rto",
            Scheme::Erasure(Erasure { coding: Coding::Mds, .. }) => "ec-mds",
            Scheme::Erasure(Erasure { coding: Coding::Xor, .. }) => "ec-xor",
            Scheme::Lowar { .. } => "lowar",
            Scheme::BestEffort => "best-effort",
        }
    }

    /// Whether every byte arrives in the end.
    pub fn is_reliable(&self) -> bool {
        !matches!(self, Scheme::BestEffort)
    }

    /// The scheme of that name, with the paper's parameters: EC(32,8), LoWAR(32,1).
    pub fn named(name: &str) -> Option<Scheme> {
        Scheme::all().into_iter().find(|scheme| scheme.name() == name)
    }

    /// All schemes with the paper's parameters.
    pub fn all() -> [Scheme; 7] {
        [
            Scheme::GoBackN,
            Scheme::sr_rto(),
            Scheme::sr_nack(),
            Scheme::ec_mds(32, 8),
            Scheme::ec_xor(32, 8),
            Scheme::Lowar { r: 32, c: 1 },
            Scheme::BestEffort,
        ]
    }

    /// Checks that the parameters are consistent.
    pub fn check(&self) -> Result<(), PlanError> {
        let rto = |rtts: f64| {
            if rtts.is_finite() && rtts >= 0.0 {
                return Ok(());
            }
            Err(PlanError::new("rto", format!("{rtts} round trips; give 0 or more"), "3"))
        };
        match self {
            Scheme::SelectiveRepeat { rto_rtts } => rto(*rto_rtts),
            Scheme::Erasure(code) => {
                rto(code.rto_rtts)?;
                code.check()
            }
            Scheme::Lowar { r, c } if !(1..=16).contains(c) || !(*c..=128).contains(r) => {
                let why = format!("{r},{c}; give 1 ≤ c ≤ 16 and c ≤ r ≤ 128");
                Err(PlanError::new("lowar r,c", why, "32,1"))
            }
            _ => Ok(()),
        }
    }
}

impl Erasure {
    fn check(&self) -> Result<(), PlanError> {
        let (k, m) = (self.k, self.m);
        if k == 0 || m == 0 {
            let why = format!("{k},{m}; give at least one data and one parity chunk");
            return Err(PlanError::new("ec k,m", why, "32,8"));
        }
        if k.saturating_add(m) > 256 {
            let why = format!("{k} + {m} chunks; give at most 256 in all");
            return Err(PlanError::new("ec k,m", why, "32,8"));
        }
        if self.coding == Coding::Xor && m > k {
            let why = format!("{k},{m}; XOR takes at most as many parity chunks as data chunks");
            return Err(PlanError::new("ec k,m", why, "32,8"));
        }
        if !(self.beta.is_finite() && self.beta >= 0.0) {
            return Err(PlanError::new("beta", format!("{}; give 0 or more", self.beta), "0.5"));
        }
        Ok(())
    }
}
