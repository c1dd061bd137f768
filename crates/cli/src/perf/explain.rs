//! Explains the decisions of `--scheme auto`.

use bowline::Decision;
use bowline_chart::text;

/// A line for each decision: the known state of the path, the expected time of each scheme, and the
/// scheme that was chosen.
pub(super) fn text(names: &[String], decisions: &[Decision]) -> String {
    let mut out = format!(
        " {:>8} {:>9} {:>10} {:>10} {:>10} {:>9}  {:<8} {:<18} expected\n",
        "message", "messages", "size", "round trip", "rate", "loss", "scheme", "why",
    );
    for decision in decisions {
        let path = &decision.path;
        let unknown = || "unknown".to_owned();
        let expected: Vec<String> = names
            .iter()
            .zip(&decision.choice.expected_s)
            .filter_map(|(name, time)| Some(format!("{name} {}", text::time((*time)?))))
            .collect();
        out += &format!(
            " {:>8} {:>9} {:>10} {:>10} {:>10} {:>9}  {:<8} {:<18} {}\n",
            decision.id.0,
            decision.messages,
            text::size(decision.bytes as f64),
            path.rtt_ns.map_or_else(unknown, |ns| text::time(ns as f64 / 1e9)),
            path.bandwidth_bps.map_or_else(unknown, text::rate),
            text::loss(path.packet_loss),
            names.get(decision.choice.scheme).map_or("auto", String::as_str),
            decision.choice.why.to_string(),
            expected.join(", "),
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use bowline::scheme::{Choice, KnownPath, Why};

    use super::*;

    #[test]
    fn a_decision_says_what_was_known_what_was_expected_and_what_was_taken() {
        let path =
            KnownPath { rtt_ns: Some(25_000_000), bandwidth_bps: Some(1e9), packet_loss: 1e-3 };
        let expected_s = vec![Some(0.2), Some(0.1), None];
        let decision = Decision {
            at: bowline_nic::Time::ZERO,
            id: bowline::WriteId(7),
            messages: 3,
            bytes: 1 << 20,
            path,
            choice: Choice { scheme: 1, why: Why::Better, expected_s },
        };
        let names = ["sr-nack", "ec-mds", "auto"].map(str::to_owned);
        let text = text(&names, &[decision]);
        let line = text.lines().nth(1).unwrap();
        for part in ["7", "1 MiB", "25 ms", "ec-mds", "better", "sr-nack 200"] {
            assert!(line.contains(part), "{part} is not in {line:?}");
        }
    }
}
