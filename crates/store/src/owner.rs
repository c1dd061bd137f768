//! The owner of an entry.

use std::fmt;
use std::fs;

/// The process that has put an entry: enough to identify and to describe it.
#[derive(Clone, Debug)]
pub struct Owner {
    /// Its host's name, for humans.
    pub host: String,
    /// Its process ID there.
    pub pid: u32,
    /// Its program's name, for humans.
    pub program: String,
    /// The boot, machine and process namespace that the process ID belongs to.
    space: String,
    /// When it was started, in the kernel's ticks since boot: process IDs are reused.
    started: u64,
}

impl Owner {
    /// The calling process.
    pub(crate) fn this_process() -> Owner {
        Owner::of_process(std::process::id())
    }

    /// A process of this host, as if it called.
    pub(crate) fn of_process(pid: u32) -> Owner {
        Owner {
            host: word(&read("/proc/sys/kernel/hostname")),
            pid,
            program: program_name(),
            space: space(),
            started: started(pid).unwrap_or(0),
        }
    }

    /// Whether both are the same process.
    pub(crate) fn is(&self, other: &Owner) -> bool {
        self.pid == other.pid && self.started == other.started && self.space == other.space
    }

    /// Whether it has ended, as far as this process (`me`) can see: a process on another host
    /// counts as alive until its entries expire.
    pub(crate) fn has_ended(&self, me: &Owner) -> bool {
        let visible = self.space == me.space && self.space != UNKNOWN;
        visible && started(self.pid) != Some(self.started)
    }

    /// Its fields in one line.
    pub(crate) fn to_line(&self) -> String {
        format!("{} {} {} {} {}", self.space, self.pid, self.started, self.host, self.program)
    }

    /// The reverse of [`to_line`](Owner::to_line).
    pub(crate) fn from_line(line: &str) -> Option<Owner> {
        let mut fields = line.splitn(5, ' ');
        let mut field = || fields.next().filter(|f| !f.is_empty());
        Some(Owner {
            space: field()?.to_owned(),
            pid: field()?.parse().ok()?,
            started: field()?.parse().ok()?,
            host: field()?.to_owned(),
            program: field()?.to_owned(),
        })
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({}) on {}", self.pid, self.program, self.host)
    }
}

const UNKNOWN: &str = "?";

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// A text as one field of a line.
fn word(text: &str) -> String {
    let clean: String = text
        .trim()
        .chars()
        .map(|c| if c.is_whitespace() || c.is_control() { '_' } else { c })
        .take(100)
        .collect();
    if clean.is_empty() { UNKNOWN.to_owned() } else { clean }
}

fn program_name() -> String {
    let path = std::env::args_os().next().unwrap_or_default();
    word(path.to_string_lossy().rsplit('/').next().unwrap_or_default())
}

/// This boot of this machine, and this process namespace.
fn space() -> String {
    let boot = word(&read("/proc/sys/kernel/random/boot_id"));
    let namespace = fs::read_link("/proc/self/ns/pid");
    match namespace {
        Ok(name) if boot != UNKNOWN => format!("{boot},{}", word(&name.to_string_lossy())),
        _ => UNKNOWN.to_owned(),
    }
}

/// When a process was started; `None` if no process has that ID, or only a zombie.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything: the fields follow the last parenthesis.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let started = fields.nth(18)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(started)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_itself_and_goes_through_a_line() {
        let me = Owner::this_process();
        assert!(!me.has_ended(&me));
        assert_ne!(me.started, 0);
        let again = Owner::from_line(&me.to_line()).unwrap();
        assert!(again.is(&me));
        assert_eq!(again.to_string(), me.to_string());
    }

    #[test]
    fn a_child_is_somebody_else_and_is_known_to_have_ended() {
        let me = Owner::this_process();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let other = Owner::of_process(child.id());
        assert!(!other.is(&me) && !other.has_ended(&me));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(other.has_ended(&me));
        let elsewhere = Owner { space: "another-host,pid:[1]".into(), ..other };
        assert!(!elsewhere.has_ended(&me), "nobody can know from here");
    }

    #[test]
    fn a_number_that_is_used_again_is_another_process() {
        let me = Owner::this_process();
        let before = Owner { started: me.started - 1, ..me.clone() };
        assert!(!before.is(&me) && before.has_ended(&me));
    }

    #[test]
    fn lines_that_are_none_are_refused() {
        for bad in ["", "a", "a 1 2 h", "a x 2 h p", "a 1 y h p", "a  1 2 h p"] {
            assert!(Owner::from_line(bad).is_none(), "{bad:?}");
        }
    }
}
