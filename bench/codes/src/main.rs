//! Measures the erasure codes against ISA-L, and against what memory allows, in one run.
//!
//! Everything runs on one core. Rounds are interleaved, so that a slow moment of a shared machine
//! hits all alike; medians are compared. Rates are GB/s of data: parity comes on top.

mod blocks;
mod isal;
mod memory;
mod report;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use bowline_bench_common::bars::status;
use bowline_codes::{ChunkSet, Code, Kernel, Plan};
use clap::Parser;

use crate::blocks::{Blocks, K, M};
use crate::isal::Isal;
use crate::memory::Way;
use crate::report::{Report, Where};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Measures MDS(32,8) and XOR(32,8) on one core: encoding against ISA-L, decoding against encoding,
/// XOR against memory.
#[derive(Parser)]
#[command(name = "codes")]
struct Args {
    /// Print one JSON object as the last line
    #[arg(long)]
    json: bool,
    /// Exit with 1 if a bar does not hold or could not be measured
    #[arg(long)]
    check: bool,
    /// Rounds; medians over them are compared
    #[arg(long, default_value_t = 31, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    runs: u32,
    /// ISA-L's shared library; bench/codes/run builds it
    #[arg(long)]
    isal: Option<PathBuf>,
    /// The CPU to run on
    #[arg(long, default_value_t = 0)]
    cpu: usize,
}

fn main() -> ExitCode {
    let args = Args::parse();
    status("codes", measure(&args))
}

/// Runs all rounds and prints the report; `false` if `--check` found a bar that does not hold.
fn measure(args: &Args) -> Result<bool> {
    bowline_bench_common::pin(args.cpu).map_err(|e| format!("CPU {}: {e}", args.cpu))?;
    let codes = Codes::new(args.isal.as_deref())?;
    let mut places = Where::ALL.map(|place| (place, Blocks::new(place.blocks(), place.chunk())));
    for (_, blocks) in &mut places {
        codes.check(blocks)?;
    }
    let mut report = Report::new(args.runs, Kernel::best().name(), codes.isal.is_some());
    for _ in 0..args.runs {
        for (place, blocks) in &mut places {
            codes.round(*place, blocks, &mut report);
        }
    }
    print!("{}", report.table());
    if args.json {
        println!("{}", report.json());
    }
    Ok(!args.check || report.holds())
}

/// What is measured.
struct Codes {
    mds: Code,
    xor: Code,
    /// Computes 8 data chunks that were lost.
    decode: Plan,
    isal: Option<Isal>,
}

impl Codes {
    fn new(isal: Option<&std::path::Path>) -> Result<Self> {
        let mds = Code::mds(K, M)?;
        let xor = Code::xor(K, M)?;
        // Every fourth chunk is lost.
        let present: ChunkSet = (0..K + M).filter(|i| *i >= K || i % (K / M) != 1).collect();
        let decode = mds.plan(&present)?;
        let isal = match isal {
            None => Err("no --isal given".into()),
            Some(path) => Isal::load(path, K, M, &parity_rows(&mds)?),
        };
        if let Err(why) = &isal {
            eprintln!("codes: ISA-L is not there, so nothing is compared with it: {why}");
        }
        Ok(Self { mds, xor, decode, isal: isal.ok() })
    }

    /// ISA-L must compute the same parity, and the plan the same data.
    fn check(&self, blocks: &mut Blocks) -> Result<()> {
        for (mut data, mut parity) in blocks.split() {
            if let Some(isal) = &self.isal {
                isal.encode(&shared(&data), &mut parity);
            }
            let theirs: Vec<Vec<u8>> = parity.iter().map(|chunk| chunk.to_vec()).collect();
            self.mds.encode(&data, &mut parity)?;
            if self.isal.is_some() && theirs != parity {
                return Err("ISA-L computes other parity with the same matrix".into());
            }
            let before: Vec<Vec<u8>> = data.iter().map(|chunk| chunk.to_vec()).collect();
            self.decode.missing().iter().for_each(|j| data[*j].fill(0));
            self.decode.reconstruct(&mut data, &parity)?;
            if before != data {
                return Err("what was reconstructed is not what was lost".into());
            }
        }
        Ok(())
    }

    /// Measures everything once.
    fn round(&self, place: Where, blocks: &mut Blocks, report: &mut Report) {
        let min_s = place.min_s();
        let sound = "shapes were checked before the first round";
        if let Some(isal) = &self.isal {
            let rate = blocks.rate(min_s, |data, parity| isal.encode(&shared(data), parity));
            report.add(place, "MDS encode, ISA-L", rate);
        }
        let rate = blocks.rate(min_s, |data, parity| self.mds.encode(data, parity).expect(sound));
        report.add(place, "MDS encode", rate);
        let rate =
            blocks.rate(min_s, |data, parity| self.decode.reconstruct(data, parity).expect(sound));
        report.add(place, "MDS decode, 8 lost", rate);
        let rate = blocks.rate(min_s, |data, parity| {
            for (j, data) in data.iter().enumerate() {
                self.mds.update(j, data, parity).expect(sound);
            }
        });
        report.add(place, "MDS encode, chunk by chunk", rate);
        let rate = blocks.rate(min_s, |data, parity| {
            for (first, data) in (0..).step_by(4).zip(data.chunks(4)) {
                self.mds.update_run(first, data, parity).expect(sound);
            }
        });
        report.add(place, "MDS encode, by 4 chunks", rate);
        let rate = blocks.rate(min_s, |data, parity| self.xor.encode(data, parity).expect(sound));
        report.add(place, "XOR encode", rate);
        for way in Way::ALL {
            let rate = blocks.rate(min_s, |data, parity| {
                groups(data, parity, |sources, out| way.run(sources, out));
            });
            report.add(place, way.name(), rate);
        }
    }
}

/// The groups of the XOR code: the data chunks of each, and its parity.
fn groups(data: &[&mut [u8]], parity: &mut [&mut [u8]], mut run: impl FnMut(&[&[u8]], &mut [u8])) {
    for (group, out) in parity.iter_mut().enumerate() {
        let sources: Vec<&[u8]> =
            data.iter().skip(group).step_by(M).map(|chunk| &**chunk).collect();
        run(&sources, out);
    }
}

fn shared<'a>(chunks: &'a [&mut [u8]]) -> Vec<&'a [u8]> {
    chunks.iter().map(|chunk| &**chunk).collect()
}

/// The code's coefficients, row by row, as the parity of chunks with a single one among zeros.
fn parity_rows(code: &Code) -> Result<Vec<u8>> {
    let mut rows = vec![0; K * M];
    for j in 0..K {
        let mut parity = [[0]; M];
        code.update(j, &[1], &mut parity)?;
        parity.iter().enumerate().for_each(|(i, [c])| rows[i * K + j] = *c);
    }
    Ok(rows)
}
