//! Shows devices as a table.

use std::collections::BTreeSet;
use std::time::Duration;

use bowline_chart::text;

use super::sample::{Moves, Row};
use crate::output::plain;

/// Columns for an address: at least as many as an IPv4 address needs, at most as many as an IPv6
/// address needs.
const MIN_ADDR: usize = 15;
const MAX_ADDR: usize = 39;

/// A heading, and the table below it.
pub(super) fn page(rows: &[Row], interval: Duration) -> Vec<String> {
    let processes: BTreeSet<u32> = rows.iter().map(|row| row.pid).collect();
    let title = format!(
        "bowline top   {} of {}, every {}   q quits",
        counted(rows.len(), "device", "devices"),
        counted(processes.len(), "process", "processes"),
        text::time(interval.as_secs_f64())
    );
    let mut lines = vec![title, String::new()];
    lines.extend(table(rows));
    lines
}

/// A line for each device, below a line of column names.
pub(super) fn table(rows: &[Row]) -> Vec<String> {
    if rows.is_empty() {
        return vec!["no live process of yours has a device open".to_owned()];
    }
    let longest = rows.iter().map(|row| row.addr.len()).max().unwrap_or(0);
    let width = longest.clamp(MIN_ADDR, MAX_ADDR);
    let mut lines = vec![format!(
        "{:>7} {:<14} {:<8} {:<width$} {:>5} {:>8} {:>8} {:>9} {:>9} {:>9} {:>10} {:>8} {:>17} {:>10}",
        "PID",
        "PROGRAM",
        "DEVICE",
        "ADDRESS",
        "QPS",
        "TX Gb/s",
        "RX Gb/s",
        "TX pkt/s",
        "RX pkt/s",
        "RESENT/s",
        "DROPPED/s",
        "TIMEOUTS",
        "RTT",
        "MOVED"
    )];
    lines.extend(rows.iter().map(|row| line(row, width)));
    lines
}

fn line(row: &Row, width: usize) -> String {
    // Devices of the library have no name other than their address.
    let name = if row.device == row.addr { "-" } else { &row.device };
    // Another process supplied these names, so they cannot be trusted.
    let (program, device) = (cut(&plain(&row.program), 14), cut(&plain(name), 8));
    let head = format!("{:>7} {program:<14} {device:<8}", row.pid);
    if let Some(error) = &row.error {
        return format!("{head} {}", plain(error));
    }
    let rates: Vec<String> = match row.rates {
        Some(r) => vec![
            format!("{:.3}", r.tx_gbps),
            format!("{:.3}", r.rx_gbps),
            format!("{:.0}", r.tx_packets_per_s),
            format!("{:.0}", r.rx_packets_per_s),
            format!("{:.0}", r.resent_per_s),
            format!("{:.0}", r.dropped_per_s),
        ],
        None => vec!["-".to_owned(); 6],
    };
    let [tx, rx, tx_packets, rx_packets, resent, dropped] = &rates[..] else { return head };
    format!(
        "{head} {:<width$} {:>5} {tx:>8} {rx:>8} {tx_packets:>9} {rx_packets:>9} {resent:>9} {dropped:>10} \
         {:>8} {:>17} {:>10}",
        cut(&plain(&row.addr), width),
        row.qps,
        row.timeouts,
        round_trip(row),
        row.failover.as_ref().map_or("-".to_owned(), moved),
    )
}

fn round_trip(row: &Row) -> String {
    let (Some(min), Some(max)) = (row.rtt_min_us, row.rtt_max_us) else { return "-".to_owned() };
    let (min, max) = (text::time(min / 1e6), text::time(max / 1e6));
    if min == max { min } else { format!("{min}-{max}") }
}

/// How many connections have moved. Those that are on the backup or could not move are listed
/// separately.
fn moved(moves: &Moves) -> String {
    let mut text = (moves.to_backup + moves.back).to_string();
    if moves.failed > 0 {
        text += &format!(" ({} failed)", moves.failed);
    } else if moves.away > 0 {
        text += &format!(" ({} away)", moves.away);
    }
    text
}

fn cut(text: &str, width: usize) -> String {
    text.chars().take(width).collect()
}

fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::super::sample::Rates;
    use super::*;

    fn row() -> Row {
        let rates = Rates { tx_gbps: 12.5, resent_per_s: 30.0, ..Rates::default() };
        Row {
            pid: 7,
            program: "ib_write_bw".to_owned(),
            device: "bl0".to_owned(),
            addr: "127.0.0.1".to_owned(),
            qps: 4,
            rates: Some(rates),
            rtt_min_us: Some(20.0),
            rtt_max_us: Some(40_000.0),
            failover: Some(Moves { to_backup: 2, back: 1, failed: 0, away: 1 }),
            ..Row::default()
        }
    }

    #[test]
    fn columns_are_below_their_names() {
        let lines = table(&[row()]);
        let end_of = |name: &str| lines[0].find(name).unwrap() + name.len();
        for (name, value) in [
            ("QPS", "4"),
            ("TX Gb/s", "12.500"),
            ("RESENT/s", "30"),
            ("RTT", "40 ms"),
            ("MOVED", "3 (1 away)"),
        ] {
            // Right-aligned values end where the column's name ends. µ takes two bytes.
            let shown: String = lines[1].chars().take(end_of(name)).collect();
            assert!(shown.ends_with(value), "{name}: {shown:?}");
        }
    }

    #[test]
    fn a_device_without_a_name_is_known_by_its_address() {
        let addr = "2001:db8:1234:5678:9abc:def0:1234:5678".to_owned();
        let lines = table(&[Row { device: addr.clone(), addr: addr.clone(), ..row() }, row()]);
        assert_eq!(lines[1].matches(&addr).count(), 1, "{}", lines[1]);
        assert_eq!(lines[0].find("QPS"), lines[2].find("    4 ").map(|at| at + 2), "{lines:#?}");
    }

    #[test]
    fn a_process_that_does_not_answer_is_shown_and_moves_no_cursor() {
        let error = Some("no answer: \u{1b}[2J".to_owned());
        let lines = table(&[Row { program: "a\u{1b}b".to_owned(), error, ..row() }]);
        assert!(lines[1].contains("no answer"), "{}", lines[1]);
        assert!(!lines[1].contains('\u{1b}'), "{:?}", lines[1]);
        assert!(table(&[])[0].contains("no live process"));
    }

    #[test]
    fn a_new_device_has_no_rates() {
        let lines = page(&[Row { rates: None, ..row() }], Duration::from_secs(1));
        assert!(lines[0].contains("1 device of 1 process, every 1 s"), "{}", lines[0]);
        assert_eq!(lines[3].matches(" -").count(), 6, "{}", lines[3]);
    }
}
