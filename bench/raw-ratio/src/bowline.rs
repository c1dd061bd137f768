//! The `bowline` program as the thing measured.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{RECEIVER_CPU, Result, SENDER_CPU};

/// Goodput of 1 MiB writes in Gbit/s.
pub(crate) fn write_bw(program: &Path, seconds: f64, pin: bool) -> Result<f64> {
    let args = ["-s", "1048576", "-m", "4096", "-D", &format!("{seconds}s")];
    perf(program, "write-bw", &args, pin, "bw_average_gbps")
}

/// Half the round trip of 8-byte writes, median, in µs.
pub(crate) fn write_lat(program: &Path, seconds: f64, pin: bool) -> Result<f64> {
    let args = ["-s", "8", "-m", "4096", "-D", &format!("{seconds}s")];
    perf(program, "write-lat", &args, pin, "t_typical_us")
}

/// Runs a test between two processes and takes a field of the client's first result.
fn perf(program: &Path, test: &str, args: &[&str], pin: bool, field: &str) -> Result<f64> {
    let port = free_port()?.to_string();
    let mut server = command(program, pin.then_some(RECEIVER_CPU))
        .args(["perf", test, "-d", "127.0.0.1", "-p", &port])
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("cannot start {}: {e}", program.display()))?;
    // It says so when it listens: a client that comes earlier is refused.
    let said = server.stderr.take().expect("stderr is piped");
    let mut said = BufReader::new(said);
    said.read_line(&mut String::new())?;
    let mut client = command(program, pin.then_some(SENDER_CPU))
        .args(["perf", test, "127.0.0.1", "-d", "127.0.0.2", "-p", &port, "--json"])
        .args(args)
        .stdout(Stdio::piped())
        .spawn()?;
    let ended = wait(&mut client).and_then(|()| wait(&mut server));
    if ended.is_err() {
        for child in [&mut client, &mut server] {
            // Either may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
    ended?;
    let mut text = String::new();
    client.stdout.take().expect("stdout is piped").read_to_string(&mut text)?;
    let last = text.lines().last().ok_or("bowline perf printed nothing")?;
    let json: Value = serde_json::from_str(last)?;
    let value = json["results"][0][field].as_f64();
    value.ok_or_else(|| format!("no {field} in the output of bowline perf {test}: {last}").into())
}

/// Waits for a process to succeed, but not for ever.
fn wait(child: &mut Child) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(3700);
    while Instant::now() < deadline {
        match child.try_wait()? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(format!("bowline perf failed: {status}").into()),
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    }
    Err("bowline perf did not end".into())
}

fn command(program: &Path, cpu: Option<usize>) -> Command {
    match cpu {
        Some(cpu) => {
            let mut command = Command::new("taskset");
            command.args(["-c", &cpu.to_string()]).arg(program);
            command
        }
        None => Command::new(program),
    }
}

/// A TCP port that was free a moment ago.
fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
