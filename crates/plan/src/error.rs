//! What a caller can get wrong.

/// A parameter that makes no sense: which one, what is wrong with it, and one that would do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}: take {example}")]
pub struct PlanError {
    /// The parameter, by the name that it has in the API: `loss`, `bandwidth`, `k,m`, …
    pub what: &'static str,
    /// What is wrong with the value that was given.
    pub why: String,
    /// One that would do.
    pub example: &'static str,
}

impl PlanError {
    pub(crate) fn new(what: &'static str, why: String, example: &'static str) -> PlanError {
        PlanError { what, why, example }
    }
}
