//! What FEC costs `bowline perf write-bw` between two processes on loopback when nothing is lost.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::Result;
use crate::bars::Bars;

const ROUNDS: usize = 9;
const DURATION: &str = "500ms";
/// Part of the bandwidth that must be left.
const BAR: f64 = 0.8;

/// Gbit/s of 1 MiB WRITEs at MTU 4096; the sender on CPU 0, the receiver on CPU 1.
fn write_bw(program: &Path, fec: &str) -> Result<f64> {
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
    let perf = |cpu: &str| {
        let mut command = Command::new("taskset");
        command.args(["-c", cpu]).arg(program).args(["perf", "write-bw", "-p", &port]);
        command.args(["-s", "1M", "-m", "4096", "-D", DURATION, "--fec", fec]);
        command
    };
    let mut server = perf("1")
        .args(["-d", "127.0.0.1"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("taskset, {}: {error}", program.display()))?;
    // It says so when it listens: a client that comes earlier is refused.
    let said = server.stderr.take().expect("stderr is piped");
    BufReader::new(said).read_line(&mut String::new())?;
    let client = perf("0").args(["127.0.0.1", "-d", "127.0.0.2", "--json"]).output()?;
    if !client.status.success() {
        // It may have ended by itself.
        let _ = server.kill();
    }
    server.wait()?;
    let text = String::from_utf8_lossy(&client.stdout);
    let json: Value = serde_json::from_str(text.lines().last().unwrap_or_default())?;
    json["results"][0]["bw_average_gbps"].as_f64().ok_or_else(|| "no bandwidth".into())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Off and on by turns: the machine is not the same from one second to the next.
pub(crate) fn bandwidth(bars: &mut Bars) -> Result<()> {
    let program = std::env::current_exe()?.with_file_name("bowline");
    let (mut off, mut on, mut kept) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let pair = (write_bw(&program, "off")?, write_bw(&program, "32,1")?);
        off.push(pair.0);
        on.push(pair.1);
        kept.push(pair.1 / pair.0);
    }
    let (off, on, kept) = (median(off), median(on), median(kept));
    println!(
        "\nwrite-bw on loopback, 1 MiB, MTU 4096, medians of {ROUNDS} rounds by turns [Gbit/s]\n\
         FEC off {off:.2}, FEC(32,1) {on:.2}; of one round to the other {kept:.2}"
    );
    bars.note("loopback, FEC off [Gbit/s]", off);
    bars.note("loopback, FEC(32,1) [Gbit/s]", on);
    bars.at_least("loopback: FEC(32,1) of FEC off, medians", on / off, BAR);
    Ok(())
}
