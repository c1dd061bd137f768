//! The planner's input.

use bowline_plan::{Coding, Erasure, Goal, Link, Message, PlanError, Scheme, Transfer};

/// A message on a link, the schemes to compare, and the time to minimise.
#[derive(Clone, Debug)]
pub struct Question {
    /// The link.
    pub link: Link,
    /// The message.
    pub message: Message,
    /// Names of the schemes to compare; empty for all.
    pub only: Vec<&'static str>,
    /// Parameters of the schemes.
    pub parameters: Parameters,
    /// What the recommended scheme minimises.
    pub goal: Goal,
    /// Receivers of the message; more than one are served through a multicast group.
    pub receivers: u32,
}

/// Parameters of the schemes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// Data and parity chunks of a submessage.
    pub ec: (u32, u32),
    /// Round trips that a receiver of coded messages waits before it requests what failed.
    pub beta: f64,
    /// Timeout of sr-rto, and of coding's fallback, in round trips.
    pub rto: f64,
    /// Packets and lanes of a block of LoWAR.
    pub lowar: (u32, u32),
}

impl Default for Parameters {
    /// The paper's.
    fn default() -> Parameters {
        Parameters { ec: (32, 8), beta: 0.5, rto: 3.0, lowar: (32, 1) }
    }
}

impl Question {
    /// All schemes with the paper's parameters, for one receiver, minimising the mean.
    pub fn new(link: Link, message: Message) -> Question {
        let (only, parameters) = (Vec::new(), Parameters::default());
        Question { link, message, only, parameters, goal: Goal::Mean, receivers: 1 }
    }

    /// The message on its link.
    ///
    /// # Errors
    /// A number that is out of range.
    pub fn transfer(&self) -> Result<Transfer, PlanError> {
        Transfer::new(self.link, self.message)
    }

    /// The schemes of the table.
    ///
    /// # Errors
    /// Inconsistent parameters.
    pub fn schemes(&self) -> Result<Vec<Scheme>, PlanError> {
        let schemes = Scheme::all().map(|scheme| self.parameters.of(scheme));
        for scheme in &schemes {
            scheme.check()?;
        }
        let wanted = |scheme: &Scheme| self.only.is_empty() || self.only.contains(&scheme.name());
        Ok(schemes.into_iter().filter(wanted).collect())
    }

    /// The schemes to choose from, the least demanding first: of the other end, and of the CPU. All
    /// of them can be run.
    ///
    /// # Errors
    /// Inconsistent parameters, or no reliable scheme at all.
    pub fn candidates(&self) -> Result<Vec<Scheme>, PlanError> {
        const SIMPLEST_FIRST: [&str; 6] = ["gbn", "sr-nack", "sr-rto", "lowar", "ec-xor", "ec-mds"];
        let mut schemes = self.schemes()?;
        schemes.retain(Scheme::is_reliable);
        schemes.sort_by_key(|scheme| SIMPLEST_FIRST.iter().position(|n| *n == scheme.name()));
        if schemes.is_empty() {
            let why = "best-effort is not reliable; add a scheme that is".to_owned();
            return Err(PlanError { what: "scheme", why, example: "best-effort,sr-nack" });
        }
        Ok(schemes)
    }
}

impl Parameters {
    fn of(&self, scheme: Scheme) -> Scheme {
        match scheme {
            Scheme::SelectiveRepeat { .. } if scheme.name() == "sr-rto" => {
                Scheme::SelectiveRepeat { rto_rtts: self.rto }
            }
            Scheme::Erasure(Erasure { coding, .. }) => self.coded(coding),
            Scheme::Lowar { .. } => Scheme::Lowar { r: self.lowar.0, c: self.lowar.1 },
            other => other,
        }
    }

    fn coded(&self, coding: Coding) -> Scheme {
        let (k, m) = self.ec;
        Scheme::Erasure(Erasure { coding, k, m, beta: self.beta, rto_rtts: self.rto })
    }
}
