//! One message to many receivers, by scheme: through a group, and by fan-out.

use std::fmt::Write;

use bowline_chart::text;
use bowline_plan::{Group, Scheme, Spread};
use serde::Serialize;

use super::args::{PlanArgs, named};

/// What is said about it.
#[derive(Serialize)]
pub(super) struct Receivers {
    receivers: u32,
    schemes: Vec<ReceiversRow>,
}

#[derive(Serialize)]
struct ReceiversRow {
    name: &'static str,
    group_mean_s: f64,
    group_p99_s: f64,
    fan_out_mean_s: f64,
    fan_out_p99_s: f64,
}

impl Receivers {
    pub(super) fn new(args: &PlanArgs, receivers: u32) -> Result<Receivers, String> {
        let transfer = args.transfer()?;
        let row = |scheme: &Scheme| -> Result<ReceiversRow, String> {
            let law = |spread| Group::new(&transfer, scheme, receivers, spread).map_err(named);
            let (group, fan_out) = (law(Spread::Group)?, law(Spread::FanOut)?);
            Ok(ReceiversRow {
                name: scheme.name(),
                group_mean_s: group.mean_s(),
                group_p99_s: group.quantile_s(0.99),
                fan_out_mean_s: fan_out.mean_s(),
                fan_out_p99_s: fan_out.quantile_s(0.99),
            })
        };
        let schemes: Vec<Scheme> =
            args.schemes()?.into_iter().filter(Scheme::is_reliable).collect();
        Ok(Receivers { receivers, schemes: schemes.iter().map(row).collect::<Result<_, _>>()? })
    }

    pub(super) fn text(&self) -> String {
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
        out
    }
}
