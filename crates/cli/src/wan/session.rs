//! The course of a run: what starts when, and what ends it.

use std::error::Error;
use std::time::{Duration, Instant};

use bowline_wan::{Host, Signals, Wan, Woken};
use rustix::process::Signal;

use super::args::WanArgs;
use super::program::Program;

/// How long to wait until something listens on the left.
const LISTEN_PATIENCE: Duration = Duration::from_secs(5);
/// How long the left command may take to exit by itself after the right one has.
const GRACE: Duration = Duration::from_secs(2);
/// How long a command may take to exit when told to.
const KILL_AFTER: Duration = Duration::from_secs(1);

/// How a run ended.
pub(super) struct Ending {
    /// Exit status of the left command; `None` if there was none, or if it was terminated.
    pub(super) left_status: Option<i32>,
    /// Exit status of the right command.
    pub(super) right_status: Option<i32>,
    /// The signal that ended the run.
    signal: Option<i32>,
}

impl Ending {
    /// The overall exit status: the right command's, or the left one's if there is no other.
    pub(super) fn status(&self) -> i32 {
        if let Some(signal) = self.signal {
            return 128 + signal;
        }
        self.right_status.or(self.left_status).unwrap_or(0)
    }
}

/// Prints how to enter the ends.
pub(super) fn print_entrances(wan: &Wan) {
    let is_root = rustix::process::getuid().is_root() && !in_user_namespace();
    let user = format!("-U --preserve-credentials -t {} ", std::process::id());
    for host in [wan.left(), wan.right()] {
        println!(
            "{:5} {}   nsenter {}--net={} bash",
            host.name(),
            host.addr(),
            if is_root { "" } else { &user },
            host.namespace_path()
        );
    }
    println!("The link stays up until you press Ctrl-C.");
}

/// Whether the process is root only in a user namespace of its own.
fn in_user_namespace() -> bool {
    const WHOLE: &str = "4294967295";
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().last() != Some(WHOLE)
}

/// Runs the commands until they exit, or until the user interrupts.
pub(super) fn run(wan: &Wan, args: &WanArgs, signals: &Signals) -> Result<Ending, Box<dyn Error>> {
    let text = |command: &str| {
        command
            .replace("{left}", &wan.left().addr().to_string())
            .replace("{right}", &wan.right().addr().to_string())
    };
    let start = |host: &Host, command: &Option<String>| {
        command.as_deref().map(|c| Program::start(host, &text(c))).transpose()
    };
    let mut run = Run { left: start(wan.left(), &args.left)?, right: None, signal: None };
    if args.right.is_some() {
        run.wait_for_left(wan.left(), args.start_after, signals);
        if run.signal.is_none() {
            run.right = start(wan.right(), &args.right)?;
        }
    }
    run.wait_for_end(args.hold, signals);
    Ok(run.end(signals))
}

struct Run {
    left: Option<Program>,
    right: Option<Program>,
    signal: Option<i32>,
}

impl Run {
    /// Waits until the right command may start.
    fn wait_for_left(&mut self, left: &Host, start_after: Option<Duration>, signals: &Signals) {
        let start = Instant::now();
        while self.signal.is_none() {
            let waited = start.elapsed();
            let is_time = match start_after {
                Some(time) => waited >= time,
                None => {
                    let has_ended = self.left.as_mut().is_none_or(|p| p.status().is_some());
                    has_ended || waited >= LISTEN_PATIENCE || left.is_listening()
                }
            };
            if is_time {
                return;
            }
            self.wait(signals, Duration::from_millis(10));
        }
    }

    /// Waits until the command that decides has exited.
    fn wait_for_end(&mut self, hold: bool, signals: &Signals) {
        while self.signal.is_none() {
            let decides = self.right.as_mut().or(self.left.as_mut());
            if !hold && decides.is_none_or(|p| p.status().is_some()) {
                return;
            }
            self.wait(signals, Duration::from_millis(100));
        }
    }

    /// Terminates what still runs, politely first.
    fn end(mut self, signals: &Signals) -> Ending {
        if self.signal.is_none() {
            self.wait_for_both(GRACE, signals);
        }
        let left_status = self.left.as_mut().and_then(Program::status);
        let right_status = self.right.as_mut().and_then(Program::status);
        for program in self.left.iter().chain(&self.right) {
            program.signal(Signal::TERM);
        }
        self.wait_for_both(KILL_AFTER, signals);
        for program in self.left.into_iter().chain(self.right) {
            program.end();
        }
        Ending { left_status, right_status, signal: self.signal }
    }

    fn wait_for_both(&mut self, patience: Duration, signals: &Signals) {
        let until = Instant::now() + patience;
        while Instant::now() < until {
            let mut programs = self.left.iter_mut().chain(&mut self.right);
            if programs.all(|p| p.status().is_some()) {
                return;
            }
            // The user has asked again.
            if matches!(signals.wait(Duration::from_millis(20)), Woken::End(_)) {
                return;
            }
        }
    }

    fn wait(&mut self, signals: &Signals, time: Duration) {
        if let Woken::End(signal) = signals.wait(time) {
            self.signal = Some(signal);
        }
    }
}
