//! One message to many receivers, by scheme: through a multicast group, and by fan-out.

use std::fmt::Write;

use bowline_chart::text;
use bowline_plan::{Group, PlanError, Scheme, Spread, choose_group};
use serde::Serialize;

use crate::advice::goal_text;
use crate::needs::command;
use crate::question::Question;

/// The answer for many receivers.
#[derive(Clone, Debug, Serialize)]
pub struct Receivers {
    /// How many.
    pub receivers: u32,
    /// The recommended scheme for a group.
    pub recommended: &'static str,
    /// Why, in a sentence.
    pub reason: String,
    /// How to run it.
    pub command: String,
    /// Scheme by scheme.
    pub schemes: Vec<ReceiversRow>,
}

/// One scheme.
#[derive(Clone, Debug, Serialize)]
pub struct ReceiversRow {
    /// Its name.
    pub name: &'static str,
    /// Through a group.
    pub group_mean_s: f64,
    /// 99th percentile.
    pub group_p99_s: f64,
    /// To each receiver over its share of the link.
    pub fan_out_mean_s: f64,
    /// 99th percentile.
    pub fan_out_p99_s: f64,
}

impl Receivers {
    /// Computes the answer for all of the question's receivers.
    ///
    /// # Errors
    /// What cannot be planned.
    pub fn new(question: &Question) -> Result<Receivers, PlanError> {
        let transfer = question.transfer()?;
        let receivers = question.receivers;
        let law = |scheme: &Scheme, spread| Group::new(&transfer, scheme, receivers, spread);
        let row = |scheme: &Scheme| -> Result<ReceiversRow, PlanError> {
            let (group, fan_out) = (law(scheme, Spread::Group)?, law(scheme, Spread::FanOut)?);
            Ok(ReceiversRow {
                name: scheme.name(),
                group_mean_s: group.mean_s(),
                group_p99_s: group.quantile_s(0.99),
                fan_out_mean_s: fan_out.mean_s(),
                fan_out_p99_s: fan_out.quantile_s(0.99),
            })
        };
        let schemes: Vec<Scheme> =
            question.schemes()?.into_iter().filter(Scheme::is_reliable).collect();
        let rows = schemes.iter().map(row).collect::<Result<_, _>>()?;
        let (candidates, goal) = (question.candidates()?, question.goal);
        let chosen = &candidates[choose_group(&transfer, &candidates, goal, receivers)?];
        let group_s = goal.of_group(&law(chosen, Spread::Group)?);
        let fan_out_s = goal.of_group(&law(chosen, Spread::FanOut)?);
        let reason = format!(
            "{}: {} {} until {receivers} receivers have it through a multicast group, {} the ideal; \
             by fan-out it would take {}.",
            chosen.name(),
            text::time(group_s),
            goal_text(goal),
            text::factor(group_s / transfer.ideal_s()),
            text::time(fan_out_s),
        );
        let (recommended, command) = (chosen.name(), command(chosen));
        Ok(Receivers { receivers, recommended, reason, command, schemes: rows })
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "\nto {} receivers that lose packets independently, until all have it",
            self.receivers
        );
        let head = ["scheme", "group mean", "p99", "fan-out mean", "p99"].map(str::to_owned);
        let mut line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|cell| format!("{cell:>12}")).collect();
            let _ = writeln!(out, "{}", cells.join(" "));
        };
        line(&head);
        for row in &self.schemes {
            let times = [row.group_mean_s, row.group_p99_s, row.fan_out_mean_s, row.fan_out_p99_s];
            let cells = [&[row.name.to_owned()][..], &times.map(text::time)].concat();
            line(&cells);
        }
        let _ = writeln!(out, "recommended: {}", self.reason);
        out
    }
}
