//! Instructions per packet, counted by callgrind: noise does not matter.

use std::path::Path;
use std::process::Command;

use crate::Result;
use crate::bars::Bars;

/// Data packets of a counted run of `fec-cost`.
const PACKETS: f64 = 8.0 * 1024.0;
/// All packets over the counted ones: two messages of ten go before.
const WARM_UP: f64 = 10.0 / 8.0;
/// What FEC may cost a packet beyond one XOR pass over its payload.
const BAR: f64 = 60.0;

/// Instructions a packet inside of functions whose names match.
fn count(program: &Path, mode: &str, functions: &str) -> Result<f64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(format!("--toggle-collect={functions}"))
        .arg(program)
        .arg(mode)
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let collected =
        text.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse::<f64>().ok());
    let instructions = collected.ok_or_else(|| format!("callgrind said nothing:\n{text}"))?;
    Ok(instructions / PACKETS)
}

pub(crate) fn cost(bars: &mut Bars) -> Result<()> {
    let program = std::env::current_exe()?.with_file_name("fec-cost");
    println!("\ninstructions a packet of 1024 bytes when nothing is lost (callgrind)");
    println!(
        "{:>10} {:>8} {:>8} {:>12} {:>10} {:>8}",
        "side", "no FEC", "(32,1)", "XOR pass", "beyond", "share"
    );
    // The inner loop alone. Sums on the way out and in are the same pass, half of the calls each.
    let passes = count(&program, "32,1", "*kernel::*::xor_into_*")?;
    for (side, function) in [("sender", "*send_side*"), ("receiver", "*receive_side*")] {
        let without = count(&program, "none", function)?;
        let with = count(&program, "32,1", function)?;
        let xor = passes / 2.0 / WARM_UP;
        let beyond = with - without - xor;
        println!(
            "{side:>10} {without:>8.1} {with:>8.1} {xor:>12.1} {beyond:>10.1} {:>8.2}",
            with / without
        );
        bars.note(format!("{side}: instructions a packet without FEC"), without);
        bars.note(format!("{side}: instructions a packet with FEC(32,1)"), with);
        bars.at_least(
            format!("{side}: {BAR} instructions less those beyond one XOR pass"),
            BAR - beyond,
            0.0,
        );
    }
    Ok(())
}
