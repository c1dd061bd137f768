//! A command at an end of the link.

use std::error::Error;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bowline_wan::Host;
use rustix::process::{Pid, Signal, kill_process_group};

/// How long the remaining output may take after the program has exited.
const OUTPUT_PATIENCE: Duration = Duration::from_secs(1);

/// A running command. Its output is forwarded line by line.
pub(super) struct Program {
    child: Child,
    readers: Vec<JoinHandle<()>>,
    status: Option<i32>,
}

impl Program {
    /// Starts a shell command at one end.
    pub(super) fn start(host: &Host, text: &str) -> Result<Program, Box<dyn Error>> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", text]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Use a separate process group, so that its children can be terminated with it.
        command.process_group(0);
        let mut child =
            host.spawn(command).map_err(|e| format!("cannot start a shell for `{text}`: {e}"))?;
        let prefix = format!("{:5} | ", host.name());
        let mut readers = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            let prefix = prefix.clone();
            readers.push(pass_on(stdout, move |line| println!("{prefix}{line}")));
        }
        if let Some(stderr) = child.stderr.take() {
            readers.push(pass_on(stderr, move |line| eprintln!("{prefix}{line}")));
        }
        Ok(Program { child, readers, status: None })
    }

    /// Its exit status as a shell would report it, if it has exited.
    pub(super) fn status(&mut self) -> Option<i32> {
        if self.status.is_none()
            && let Ok(Some(status)) = self.child.try_wait()
        {
            self.status = status.code().or_else(|| status.signal().map(|s| 128 + s)).or(Some(1));
        }
        self.status
    }

    /// Sends a signal to the program and everything that it started.
    pub(super) fn signal(&self, signal: Signal) {
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // The program may have exited already.
            let _ = kill_process_group(group, signal);
        }
    }

    /// Terminates what is left of the program, and waits for the rest of its output.
    pub(super) fn end(mut self) {
        self.signal(Signal::KILL);
        // Fails for a program that was already waited for.
        let _ = self.child.wait();
        let until = Instant::now() + OUTPUT_PATIENCE;
        for reader in self.readers {
            // A process that left the group may hold the pipe open forever.
            while !reader.is_finished() && Instant::now() < until {
                thread::sleep(Duration::from_millis(2));
            }
        }
    }
}

fn pass_on(from: impl Read + Send + 'static, to: impl Fn(&str) + Send + 'static) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        while from.read_until(b'\n', &mut line).is_ok_and(|len| len > 0) {
            to(String::from_utf8_lossy(&line).trim_end());
            line.clear();
        }
    })
}
