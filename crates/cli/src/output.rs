//! What all commands share in talking to people.

use std::error::Error;
use std::io::IsTerminal;
use std::time::Duration;

use bowline::Fault;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Prints what does not work as it should but can be done without.
pub(crate) fn notice(text: &str) {
    eprintln!("bowline: {text}");
}

/// Text that others have written, for a terminal: what would move the cursor, change colours or turn the
/// direction of writing is shown as its code instead. File names and messages of a peer may have any.
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

/// Separators of lines, and marks that turn the direction of what follows.
fn is_format(c: char) -> bool {
    matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Prints an error as one line, and one with what to try.
pub(crate) fn print_error(error: &(dyn Error + 'static)) {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        // Most of our errors quote their cause already.
        if !text.contains(&inner_text) {
            text.push_str(": ");
            text.push_str(&inner_text);
        }
        cause = inner.source();
    }
    eprintln!("bowline: {}", plain(&text.replace('\n', " ")));
    if let Some(hint) = error.downcast_ref::<bowline::Error>().map(|e| hint(e.fault())) {
        eprintln!("hint: {hint}");
    }
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

/// A progress bar over bytes to be moved, in the same manner.
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

/// Parses a number of seconds.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(s) if (0.01..=86_400.0).contains(&s) => Ok(Duration::from_secs_f64(s)),
        _ => Err("must be a number of seconds between 0.01 and 86400".to_owned()),
    }
}

/// Parses a size in bytes, with `K`, `M` or `G` for powers of 1024.
pub(crate) fn parse_bytes(text: &str) -> Result<u32, String> {
    let (digits, shift) = match text.trim_end_matches("iB").char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 10),
        Some((at, 'm' | 'M')) => (&text[..at], 20),
        Some((at, 'g' | 'G')) => (&text[..at], 30),
        _ => (text, 0),
    };
    digits
        .parse::<u32>()
        .ok()
        .and_then(|n| n.checked_mul(1 << shift))
        .filter(|n| (1..=1 << 30).contains(n))
        .ok_or_else(|| "must be a size from 1 to 1G, as 8, 64K or 1M".to_owned())
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
        for wrong in ["", "0", "-1", "4G", "K", "1X"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }
}
