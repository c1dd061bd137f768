//! The recommendation, and where it changes.

use bowline_chart::text;
use bowline_plan::{Axis, Crossover, Goal, Loss, PlanError, Scheme, Transfer, choose, crossovers};
use serde_json::{Value, json};

use crate::needs::command;

/// Which scheme to take, why, and where the answer changes.
pub struct Advice {
    /// The scheme's name.
    pub scheme: &'static str,
    /// Why, in a sentence.
    pub reason: String,
    /// How to run it.
    pub command: String,
    /// The nearest points where another scheme is recommended, and its name.
    pub crossovers: Vec<(Crossover, &'static str)>,
}

impl Advice {
    /// For a message to one receiver. Candidates are in order of preference.
    ///
    /// # Errors
    /// Candidates that do not fit the message, or none.
    pub fn new(
        transfer: &Transfer,
        candidates: &[Scheme],
        goal: Goal,
    ) -> Result<Advice, PlanError> {
        let chosen = choose(transfer, candidates, goal)?;
        let found = crossovers(transfer, candidates, goal)?;
        let crossovers = found.into_iter().map(|c| (c, candidates[c.scheme].name())).collect();
        let reason = reason(transfer, candidates, chosen, goal)?;
        let command = command(&candidates[chosen]);
        Ok(Advice { scheme: candidates[chosen].name(), reason, command, crossovers })
    }

    /// One line for each point where the recommendation changes.
    pub fn crossover_lines(&self, transfer: &Transfer) -> Vec<String> {
        let line = |(crossover, scheme): &(Crossover, &'static str)| {
            let side = if crossover.above { "above" } else { "below" };
            let value = axis_value(crossover.axis, crossover.value, transfer);
            format!("{side} {value} choose {scheme}")
        };
        self.crossovers.iter().map(line).collect()
    }

    /// The crossovers.
    pub(crate) fn json(&self) -> Value {
        let rows: Vec<Value> = self
            .crossovers
            .iter()
            .map(|(crossover, scheme)| {
                json!({
                    "axis": axis_name(crossover.axis),
                    "value": crossover.value,
                    "direction": if crossover.above { "above" } else { "below" },
                    "choose": scheme,
                })
            })
            .collect();
        Value::Array(rows)
    }
}

/// What the loss rate refers to.
pub(crate) fn loss_kind(loss: &Loss) -> &'static str {
    match loss {
        Loss::Packet(_) => "packet loss",
        Loss::Chunk(_) => "chunk loss",
        Loss::Bursts(_) => "packet loss in such bursts",
    }
}

/// The name in the JSON, with the unit of the value.
fn axis_name(axis: Axis) -> &'static str {
    match axis {
        Axis::Loss => "loss",
        Axis::Size => "size_bytes",
        Axis::Distance => "rtt_s",
        Axis::Bandwidth => "bandwidth_bps",
    }
}

fn axis_value(axis: Axis, value: f64, transfer: &Transfer) -> String {
    match axis {
        Axis::Loss => format!("{} {}", text::loss(value), loss_kind(&transfer.link().loss)),
        Axis::Size => text::size(value),
        Axis::Distance => format!("{} of round trip", text::time(value)),
        Axis::Bandwidth => text::rate(value),
    }
}

/// Which time is minimised.
pub(crate) fn goal_text(goal: Goal) -> String {
    match goal {
        Goal::Mean => "in the mean".to_owned(),
        Goal::Quantile(q) => format!("at p{}", q * 100.0),
    }
}

/// The reason: the chosen scheme compared with the best one of the other kind.
fn reason(
    transfer: &Transfer,
    candidates: &[Scheme],
    chosen: usize,
    goal: Goal,
) -> Result<String, PlanError> {
    let scheme = &candidates[chosen];
    let law = transfer.completion(scheme)?;
    let time_s = goal.of(transfer, scheme)?;
    let what = goal_text(goal);
    let head = format!(
        "{}: {} {what}, {} the ideal",
        scheme.name(),
        text::time(time_s),
        text::factor(time_s / transfer.ideal_s())
    );
    let coded = is_coded(scheme);
    let mut rival: Option<(&Scheme, f64)> = None;
    for other in candidates.iter().filter(|other| is_coded(other) != coded) {
        let other_s = goal.of(transfer, other)?;
        if rival.is_none_or(|(_, best_s)| other_s < best_s) {
            rival = Some((other, other_s));
        }
    }
    let Some((rival, rival_s)) = rival else { return Ok(format!("{head}.")) };
    let lost = text::share(transfer.completion(&Scheme::sr_nack())?.repair_probability());
    let parity_s =
        transfer.completion(if coded { scheme } else { rival })?.least_s() - transfer.ideal_s();
    let parity = text::time(parity_s);
    let against = format!("{} would take {}", rival.name(), text::time(rival_s));
    let because = if coded {
        let piece = if matches!(scheme, Scheme::Lowar { .. }) { "packet" } else { "chunk" };
        format!(
            "{lost} of messages lose a {piece}, which parity repairs in place for {parity} more on \
             the wire, while each repetition costs a round trip",
        )
    } else if law.mean_s() < 1.05 * transfer.ideal_s()
        && transfer.ideal_s() < 2.0 * transfer.link().rtt_s
    {
        format!("only {lost} of messages lose a chunk, not worth {parity} of parity")
    } else if *scheme == Scheme::GoBackN {
        format!("so little is lost that going back takes less than {parity} of parity")
    } else if transfer.ideal_s() > 2.0 * transfer.link().rtt_s {
        format!("repetitions hide behind the injection of the rest, while parity adds {parity}")
    } else {
        "so much is lost that parity does not suffice, and coding repeats on top of it".to_owned()
    };
    Ok(format!("{head}; {against}: {because}."))
}

/// Whether repairs are sent proactively, before any loss is known.
pub(crate) fn is_coded(scheme: &Scheme) -> bool {
    matches!(scheme, Scheme::Erasure(_) | Scheme::Lowar { .. })
}
