//! Invalid parameters.

/// An invalid parameter: its name, what is wrong with its value, and a valid example.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid {what}: {why}, e.g. {example}")]
pub struct PlanError {
    /// The parameter, by the name that it has in the API: `loss`, `bandwidth`, `k,m`, …
    pub what: &'static str,
    /// What is wrong with the value that was given.
    pub why: String,
    /// A valid value.
    pub example: &'static str,
}

impl PlanError {
    pub(crate) fn new(what: &'static str, why: String, example: &'static str) -> PlanError {
        PlanError { what, why, example }
    }
}
