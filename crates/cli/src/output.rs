//! Output functions that all commands share.

use std::error::Error;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use bowline::Fault;
use bowline_link::units;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::Value;

/// Version of every JSON object that the program prints; `docs/json.md` says what changes with it.
pub(crate) const JSON_VERSION: u32 = 1;

/// Prints a warning: something does not work as it should but is not essential, or the user should
/// know it. Suppressed by `-q`.
pub(crate) fn notice(text: &str) {
    tracing::warn!(target: "bowline", "{text}");
}

/// Prints something that works, but that the user might not expect. Only with `-v`.
pub(crate) fn detail(text: &str) {
    tracing::info!(target: "bowline", "{text}");
}

/// Whether output on stdout may be coloured (https://no-color.org).
pub(crate) fn has_colours() -> bool {
    let is_refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    std::io::stdout().is_terminal() && !is_refused
}

/// Adds the JSON version to an object.
pub(crate) fn versioned(mut object: Value) -> Value {
    if let Value::Object(fields) = &mut object {
        fields.insert("version".to_owned(), JSON_VERSION.into());
    }
    object
}

/// Prints a line of a result. A reader that has seen enough may close the pipe, which is not an
/// error.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Makes text from others safe for a terminal. Characters that would move the cursor, change
/// colours or reverse the writing direction are replaced by their codes. File names and messages
/// from a peer may contain any of them.
pub(crate) fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || is_format(c) {
            out.extend(c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    out
}

/// Whether this is a line separator, or a mark that changes the direction of the following text.
fn is_format(c: char) -> bool {
    matches!(
        c,
        '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    )
}

/// Prints an error on one line, and a suggestion on another.
pub(crate) fn print_error(error: &(dyn Error + 'static)) {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        // Most of our errors already quote their cause.
        if !text.contains(&inner_text) {
            text.push_str(": ");
            text.push_str(&inner_text);
        }
        cause = inner.source();
    }
    eprintln!("bowline: {}", plain(&text.replace('\n', " ")));
    let known = error.downcast_ref::<bowline::Error>().filter(|e| !says_what_to_do(e));
    if let Some(hint) = known.map(|e| hint(e.fault())) {
        eprintln!("hint: {hint}");
    }
}

/// Whether the error itself names the command that helps, as refusals do.
fn says_what_to_do(error: &bowline::Error) -> bool {
    use bowline::{Error, SetupError};
    let Error::Setup(setup) = error else { return false };
    matches!(setup, SetupError::Peer(_) | SetupError::Refused { .. } | SetupError::Rejected { .. })
}

fn hint(fault: Fault) -> &'static str {
    match fault {
        Fault::Caller => "check the options; `--help` says what each one takes",
        Fault::Peer => "look at the other end: it must run the same release and the same test",
        Fault::Resource => "this machine refused something; another address or port may be free",
        Fault::Path => "check that both ends run and that UDP port 4791 passes between them",
        _ => "run again with --pcap FILE and look at the packets with `bowline dissect FILE`",
    }
}

/// A progress bar over `len` steps on stderr, invisible unless stderr is a terminal.
pub(crate) fn progress(len: u64, message: &str) -> ProgressBar {
    bar(len, message, "{msg:24} [{bar:40}] {elapsed}")
}

/// A progress bar over bytes, also on stderr and invisible unless stderr is a terminal.
pub(crate) fn progress_bytes(len: u64, message: &str) -> ProgressBar {
    let template = "{msg:24} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta} left";
    bar(len, message, template)
}

fn bar(len: u64, message: &str, template: &str) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(Some(len), target);
    let style = ProgressStyle::with_template(template)
        .expect("the templates are constants that parse")
        .progress_chars("=> ");
    bar.set_style(style);
    bar.set_message(message.to_owned());
    bar.tick();
    bar
}

/// Parses the duration of a test.
pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    let time = units::parse_duration(text).map_err(|error| {
        // Tests usually take seconds.
        error.replace(&format!("e.g. {text}ms"), &format!("e.g. {text}s"))
    })?;
    if (Duration::from_millis(10)..=Duration::from_secs(86_400)).contains(&time) {
        return Ok(time);
    }
    Err(format!("invalid duration `{text}`: it must be from 10ms to 86400s"))
}

/// Parses a size. A bare number is in bytes, as in perftest and nccl-tests.
pub(crate) fn parse_bytes(text: &str) -> Result<u32, String> {
    let bytes = text.parse::<u64>().or_else(|_| units::parse_size(text));
    let bytes = bytes.ok().filter(|n| (1..=1 << 30).contains(n));
    bytes
        .map(|n| n as u32)
        .ok_or_else(|| format!("invalid size `{text}`: write 8, 64K or 1MiB, at most 1G"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peers_text_moves_no_cursor() {
        let text = "a\u{1b}[2J\u{1b}]0;title\u{7}b\rc\u{9b}31m\u{202e}d\u{7f}";
        let shown = plain(text);
        assert_eq!(shown, r"a\u{1b}[2J\u{1b}]0;title\u{7}b\u{d}c\u{9b}31m\u{202e}d\u{7f}");
        assert!(!shown.chars().any(char::is_control));
        assert_eq!(plain("naïve — 名前 \u{1f600}"), "naïve — 名前 \u{1f600}");
    }

    #[test]
    fn sizes_have_suffixes() {
        assert_eq!(parse_bytes("8"), Ok(8));
        assert_eq!(parse_bytes("64K"), Ok(65_536));
        assert_eq!(parse_bytes("1MiB"), Ok(1 << 20));
        assert_eq!(parse_bytes("1500B"), Ok(1500));
        let text = parse_time("25").unwrap_err();
        assert_eq!(text, "invalid duration `25`: add a unit, e.g. 25s");
        assert_eq!(parse_time("500ms"), Ok(Duration::from_millis(500)));
        for wrong in ["", "0", "-1", "4G", "K", "1X"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }
}
