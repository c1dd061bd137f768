//! Instructions per packet, counted by callgrind: noise does not matter.

use std::path::Path;

use bowline_bench_guard::callgrind::count_each;

use crate::Result;
use crate::bars::Bars;

/// Messages of the two runs of `fec-cost` whose difference counts, and packets of a message.
const MESSAGES: [u32; 2] = [2, 10];
const PACKETS: f64 = 1024.0;
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

/// Counts what `fec-cost` does inside of a function.
fn count(program: &Path, case: &str, function: &str) -> Result<Count> {
    let message = count_each(program, case, &[function], MESSAGES)?;
    Ok(Count { all: message.total() / PACKETS, xor: message.within(XOR) / PACKETS })
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
