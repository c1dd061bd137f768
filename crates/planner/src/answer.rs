//! The answers for the page: one for the text and numbers, one for each drawing.

use bowline_chart::{scheme_colour, text};
use bowline_plan::Goal;
use serde_json::{Value, json};

use crate::heatmap::Grid;
use crate::point::Point;
use crate::receivers::Receivers;
use crate::state::{State, StateError};
use crate::sweep::{Shown, Sweep};

/// Cells of the page's heatmap in each dimension: few enough to follow a slider within some frames.
const SIDE: usize = 28;

/// Everything but the drawings: `plan` is what `bowline plan --json` prints, except the cores,
/// which only the machine itself can know; `view` is what the page shows of it.
///
/// # Errors
/// The invalid value.
pub fn answer(state: &State) -> Result<Value, StateError> {
    let question = &state.question;
    let point = Point::new(question, &|_| None)?;
    let mut plan = point.json();
    let mut view = json!({
        "headline": point.headline(),
        "ideal": text::time(point.transfer.ideal_s()),
        "rtt": text::time(question.link.rtt_s),
        "cli": state.command(),
    });
    if question.receivers == 1 {
        let advice = &point.advice;
        view["recommended"] = recommended(advice.scheme, &advice.reason, &advice.command);
        view["changes"] = advice.crossover_lines(&point.transfer).into();
        view["table"] = table(&point);
    } else {
        let receivers = Receivers::new(question)?;
        let Receivers { recommended: scheme, reason, command, .. } = &receivers;
        view["recommended"] = recommended(scheme, reason, command);
        view["changes"] = Value::Array(Vec::new());
        view["table"] = group_table(&receivers, point.transfer.ideal_s());
        plan["receivers"] = json!(receivers);
    }
    Ok(json!({"plan": plan, "view": view, "at": position(state, &point)}))
}

/// The curves along the state's axis, as SVG.
///
/// # Errors
/// The invalid value.
pub fn curves(state: &State, source: &str) -> Result<String, StateError> {
    let shown = if state.question.goal == Goal::Mean { Shown::Mean } else { Shown::Tail };
    let mut chart = Sweep::new(&state.question, state.axis)?.chart(shown);
    chart.source = source.to_owned();
    Ok(chart.svg())
}

/// The cells of the heatmap.
///
/// # Errors
/// The invalid value.
pub fn grid(state: &State) -> Result<Grid, StateError> {
    Ok(Grid::new(&state.question, SIDE)?)
}

/// The positions of the sliders.
fn position(state: &State, point: &Point) -> Value {
    let link = point.transfer.link();
    json!({
        "bandwidth": link.bandwidth_bps,
        "distance": link.rtt_s / bowline_plan::rtt_of_distance_s(1.0),
        "loss": bowline_plan::Axis::Loss.value(&point.transfer),
        "burst": state.burst,
        "size": point.transfer.message().bytes,
        "receivers": state.question.receivers,
    })
}

fn recommended(scheme: &str, reason: &str, command: &str) -> Value {
    // The heading contains the scheme's name already.
    let reason = reason.strip_prefix(scheme).unwrap_or(reason).trim_start_matches([':', ' ']);
    json!({
        "scheme": scheme,
        "colour": scheme_colour(scheme),
        "reason": reason,
        "run": command,
    })
}

fn table(point: &Point) -> Value {
    // The last column depends on the machine, which a page does not know.
    let head = &Point::HEAD[..Point::HEAD.len() - 1];
    let row = |cells: Vec<String>| {
        let best = cells[0] == point.advice.scheme;
        json!({
            "colour": scheme_colour(&cells[0]),
            "best": best,
            "cells": cells[..head.len()],
        })
    };
    json!({"head": head, "rows": point.cells().into_iter().map(row).collect::<Vec<_>>()})
}

fn group_table(receivers: &Receivers, ideal_s: f64) -> Value {
    let row = |row: &crate::receivers::ReceiversRow| {
        let mut cells = vec![row.name.to_owned()];
        cells.extend([row.group_mean_s, row.group_p99_s].map(text::time));
        cells.push(text::factor(row.group_mean_s / ideal_s));
        cells.extend([row.fan_out_mean_s, row.fan_out_p99_s].map(text::time));
        json!({
            "colour": scheme_colour(row.name),
            "best": row.name == receivers.recommended,
            "cells": cells,
        })
    };
    let head = ["scheme", "mean", "p99", "slowdown", "fan-out mean", "fan-out p99"];
    json!({"head": head, "rows": receivers.schemes.iter().map(row).collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(text: &str) -> State {
        text.parse().unwrap()
    }

    #[test]
    fn an_answer_has_the_plan_and_what_is_shown_of_it() {
        let answer = answer(&state("")).unwrap();
        assert_eq!(answer["plan"]["recommended"], answer["view"]["recommended"]["scheme"]);
        let rows = answer["view"]["table"]["rows"].as_array().unwrap();
        assert_eq!(rows.iter().filter(|row| row["best"] == true).count(), 1);
        assert_eq!(rows.len(), 7);
        assert!((answer["at"]["distance"].as_f64().unwrap() - 3750.0).abs() < 1e-6);
        assert!(!answer["view"]["changes"].as_array().unwrap().is_empty());
    }

    #[test]
    fn many_receivers_have_a_table_and_a_choice_of_their_own() {
        let text = "bandwidth=10Gbps\nrtt=40ms\nloss=0.1%\nsize=16MiB\nreceivers=64";
        let answer = answer(&state(text)).unwrap();
        let receivers = &answer["plan"]["receivers"];
        assert_eq!(receivers["receivers"], 64);
        assert_eq!(receivers["recommended"], answer["view"]["recommended"]["scheme"]);
        assert_eq!(answer["view"]["table"]["rows"].as_array().unwrap().len(), 6);
    }

    #[test]
    fn drawings_carry_their_source_and_the_schemes_colours() {
        let svg = curves(&state("x=size"), "a command").unwrap();
        assert!(svg.ends_with(">a command</text></svg>"));
        let colour = format!("var(--s{})", scheme_colour("ec-mds"));
        assert!(svg.contains(&colour), "{svg}");
        let grid = grid(&state("burst=8\nreceivers=4")).unwrap();
        let map = grid.heatmap((0..grid.rows()).map(|row| grid.row(row)).collect());
        assert!(map.svg().contains("coding leads") && map.svg().contains("<circle"));
        assert_eq!(map.rows.iter().flatten().filter(|value| value.is_nan()).count(), 0);
    }
}
