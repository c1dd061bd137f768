//! Diagnostics on stderr: `-v`, `-q` and `RUST_LOG`.
//!
//! The library reports set-up, failover, congestion and refusals as `tracing` events, but never
//! single packets. Each event is one line on stderr.

use std::fmt;
use std::str::FromStr;

use clap::{Arg, ArgAction, ArgMatches, Command};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use crate::output;

/// The target of the program's own events, which is not printed.
const OWN: &str = "bowline";

/// Adds `-v` and `-q` to a command and its subcommands, where these letters are free.
pub(crate) fn with_options(command: Command) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|c| c.get_name().to_owned()).collect();
    if names.is_empty() {
        return add(command);
    }
    names.into_iter().fold(command, |command, name| command.mut_subcommand(name, with_options))
}

fn add(command: Command) -> Command {
    let is_free = |letter| command.get_arguments().all(|arg| arg.get_short() != Some(letter));
    let lacks = |id: &str| command.get_arguments().all(|arg| arg.get_id() != id);
    let verbose = Arg::new("verbose")
        .long("verbose")
        .action(ArgAction::Count)
        .help("Log more about setup, failover and congestion; repeat for more detail (-vv, -vvv)");
    let quiet =
        Arg::new("quiet").long("quiet").action(ArgAction::SetTrue).help("Print errors only");
    let verbose = if is_free('v') { verbose.short('v') } else { verbose };
    let quiet = if is_free('q') { quiet.short('q') } else { quiet };
    let new: Vec<Arg> = [("verbose", verbose), ("quiet", quiet)]
        .into_iter()
        .filter(|(id, _)| lacks(id))
        .map(|(_, arg)| arg)
        .collect();
    command.args(new)
}

/// Starts logging at the level that the options and `RUST_LOG` ask for.
pub(crate) fn start(matches: &ArgMatches) {
    let (level, is_asked) = level(matches);
    let variable = std::env::var("RUST_LOG").ok().filter(|text| !is_asked && !text.is_empty());
    let (targets, wrong) = match variable.as_deref().map(Targets::from_str) {
        Some(Ok(targets)) => (targets, false),
        // The filter may use another program's syntax.
        Some(Err(_)) => (Targets::new().with_default(level), true),
        None => (Targets::new().with_default(level), false),
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).event_format(Lines);
    // If this program is part of another, a subscriber may exist already.
    let _ = tracing_subscriber::registry().with(targets).with(lines).try_init();
    if wrong {
        let text = variable.unwrap_or_default();
        output::notice(&format!(
            "invalid RUST_LOG `{}`: write a level or targets, e.g. info or bowline::setup=debug",
            output::plain(&text)
        ));
    }
}

/// The level that the options ask for, and whether they ask for one at all.
fn level(matches: &ArgMatches) -> (LevelFilter, bool) {
    let mut innermost = matches;
    while let Some((_, inner)) = innermost.subcommand() {
        innermost = inner;
    }
    let verbose = innermost.try_get_one::<u8>("verbose").ok().flatten().copied().unwrap_or(0);
    let quiet = innermost.try_get_one::<bool>("quiet").ok().flatten().copied().unwrap_or(false);
    match (quiet, verbose) {
        (true, _) => (LevelFilter::ERROR, true),
        (false, 0) => (LevelFilter::WARN, false),
        (false, 1) => (LevelFilter::INFO, true),
        (false, 2) => (LevelFilter::DEBUG, true),
        (false, _) => (LevelFilter::TRACE, true),
    }
}

/// Formats lines as `bowline: what happened`, and as `bowline: setup: what happened` for events of
/// the library.
struct Lines;

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut text = Text::default();
        event.record(&mut text);
        writeln!(writer, "{}", line(event.metadata().target(), *event.metadata().level(), &text))
    }
}

fn line(target: &str, level: Level, text: &Text) -> String {
    // The text may contain strings that a peer sent.
    let said = output::plain(&format!("{}{}", text.message, text.fields));
    match target.strip_prefix("bowline::") {
        _ if target == OWN => format!("bowline: {said}"),
        Some(part) if level <= Level::INFO => format!("bowline: {part}: {said}"),
        Some(part) => format!("bowline: {} {part}: {said}", level.as_str().to_lowercase()),
        None => format!("bowline: {} {target}: {said}", level.as_str().to_lowercase()),
    }
}

/// An event's message and its other fields.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        } else {
            self.fields += &format!(" {}={value:?}", field.name());
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn matches(words: &[&str]) -> ArgMatches {
        with_options(crate::Cli::command()).try_get_matches_from(words).unwrap()
    }

    #[test]
    fn letters_ask_for_more_and_less() {
        let level_of = |words: &[&str]| level(&matches(words));
        assert_eq!(level_of(&["bowline", "devinfo"]), (LevelFilter::WARN, false));
        assert_eq!(level_of(&["bowline", "devinfo", "-v"]), (LevelFilter::INFO, true));
        assert_eq!(level_of(&["bowline", "perf", "write-bw", "-vv"]), (LevelFilter::DEBUG, true));
        assert_eq!(level_of(&["bowline", "sim", "storm", "-q"]), (LevelFilter::ERROR, true));
        assert_eq!(level_of(&["bowline", "send", "a", "b", "-q"]), (LevelFilter::ERROR, true));
        // perftest's letter for queue pairs.
        assert_eq!(level_of(&["bowline", "perf", "write-bw", "-q", "3"]).0, LevelFilter::WARN);
        let quiet = level_of(&["bowline", "perf", "write-bw", "--quiet"]);
        assert_eq!(quiet, (LevelFilter::ERROR, true));
    }

    #[test]
    fn every_command_has_both() {
        fn check(command: &Command) {
            let mut below = command.get_subcommands().filter(|c| c.get_name() != "help").peekable();
            if below.peek().is_none() {
                for id in ["verbose", "quiet"] {
                    let has = command.get_arguments().any(|arg| arg.get_id() == id);
                    assert!(has, "{} has no {id}", command.get_name());
                }
            }
            below.for_each(check);
        }
        let command = with_options(crate::Cli::command());
        command.clone().debug_assert();
        check(&command);
    }

    #[test]
    fn lines_name_what_they_are_about_and_move_no_cursor() {
        let text =
            |message: &str| Text { message: message.to_owned(), fields: " peer=7".to_owned() };
        assert_eq!(line("bowline", Level::WARN, &text("a")), "bowline: a peer=7");
        assert_eq!(line("bowline::setup", Level::INFO, &text("a")), "bowline: setup: a peer=7");
        assert_eq!(
            line("bowline::setup", Level::DEBUG, &text("a")),
            "bowline: debug setup: a peer=7"
        );
        assert!(!line("bowline", Level::WARN, &text("\u{1b}[2J")).contains('\u{1b}'));
    }
}
