//! Instructions per packet, counted by callgrind: noise does not matter.

use std::path::Path;
use std::process::Command;

use crate::Result;
use crate::bars::Bars;

/// Data packets of a counted run of `fec-cost`.
const PACKETS: f64 = 8.0 * 1024.0;
/// Packets of a block, and thus those that share the cost of a repair.
const BLOCK: f64 = 32.0;
/// What FEC may cost a packet beyond one XOR pass over its payload.
const BAR: f64 = 60.0;
/// The kernel's inner loops, by name.
const XOR: &str = "xor_all_into_";

/// Instructions a packet.
#[derive(Clone, Copy)]
struct Count {
    /// Inside of the counted function.
    all: f64,
    /// Of those, in the XOR kernel.
    xor: f64,
}

/// Runs `fec-cost` and counts what happens inside of a function.
fn count(program: &Path, mode: &str, function: &str) -> Result<Count> {
    let file = std::env::temp_dir().join(format!("fec-cost-{}.callgrind", std::process::id()));
    let output = Command::new("valgrind")
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(format!("--toggle-collect=*{function}*"))
        .arg(program)
        .arg(mode)
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(format!("valgrind failed:\n{text}").into());
    }
    let profile = std::fs::read_to_string(&file)?;
    std::fs::remove_file(&file)?;
    Ok(read(&profile))
}

/// Adds up a profile in callgrind's format: costs stand by function, and a line that follows a call has
/// the callee's, which is counted where it happens.
fn read(profile: &str) -> Count {
    let mut xor_ids = Vec::new();
    let mut in_xor = false;
    let mut of_callee = false;
    let mut count = Count { all: 0.0, xor: 0.0 };
    for line in profile.lines() {
        if let Some((kind, name)) = line.split_once('=') {
            let (id, name) = name.split_once(' ').unwrap_or((name, ""));
            if matches!(kind, "fn" | "cfn") && name.contains(XOR) {
                xor_ids.push(id.to_owned());
            }
            if kind == "fn" {
                in_xor = xor_ids.iter().any(|known| known == id);
            }
            of_callee = kind == "calls";
        } else if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) {
            let cost = line.split(' ').nth(1).and_then(|cost| cost.parse().ok()).unwrap_or(0.0);
            if !core::mem::replace(&mut of_callee, false) {
                count.all += cost;
                count.xor += if in_xor { cost } else { 0.0 };
            }
        }
    }
    Count { all: count.all / PACKETS, xor: count.xor / PACKETS }
}

pub(crate) fn cost(bars: &mut Bars) -> Result<()> {
    let program = std::env::current_exe()?.with_file_name("fec-cost");
    let pass = count(&program, "xor", "xor_pass")?.all;
    println!(
        "\ninstructions a packet of 1024 bytes when nothing is lost, FEC(32,1) (callgrind, which has AVX2)\n\
         one XOR pass over the payload, measured alone: {pass:.1}\n\
         beyond = FEC - none - one XOR pass; with it goes a repair packet in 32, about none / 32"
    );
    println!(
        "{:>10} {:>8} {:>8} {:>8} {:>8} {:>8} {:>11} {:>11}",
        "side", "none", "FEC", "more", "beyond", "XOR", "none / 32", "all else"
    );
    bars.note("one XOR pass over 1024 bytes, instructions", pass);
    for side in ["send", "receive"] {
        let without = count(&program, "none", &format!("{side}_side"))?;
        let with = count(&program, "32,1", &format!("{side}_side"))?;
        let more = with.all - without.all;
        let beyond = more - pass;
        let repair = without.all / BLOCK;
        let rest = more - with.xor - repair;
        println!(
            "{side:>10} {:>8.1} {:>8.1} {more:>8.1} {beyond:>8.1} {:>8.1} {repair:>11.1} {rest:>11.1}",
            without.all, with.all, with.xor
        );
        bars.note(format!("{side}: instructions a packet without FEC"), without.all);
        bars.note(format!("{side}: instructions a packet with FEC(32,1)"), with.all);
        bars.note(format!("{side}: of these in the XOR kernel"), with.xor);
        bars.at_least(
            format!("{side}: {BAR} instructions less those beyond one XOR pass"),
            BAR - beyond,
            0.0,
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_of_callees_are_counted_once() {
        let profile = "version: 1\nfn=(1) send_side\n10 8192\ncfn=(2) a::xor_all_into_avx2\n\
                       calls=1 20\n+2 16384\n* 8192\n\nfn=(2)\n20 16384\n";
        let count = read(profile);
        assert_eq!((count.all, count.xor), (4.0, 2.0));
    }
}
