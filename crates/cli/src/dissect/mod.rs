//! `bowline dissect`: prints a capture packet by packet, and checks each ICRC.

mod capture;
mod ext;
mod record;
#[cfg(test)]
mod tests;
mod text;

use std::error::Error;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::PathBuf;

pub(crate) use capture::Capture;
use record::{Record, Totals};

use crate::output::JSON_VERSION;

/// Prints the RoCEv2 packets of a capture and checks their ICRCs.
#[derive(Debug, clap::Args)]
pub(crate) struct DissectArgs {
    /// Capture to read: pcap or pcapng, as tcpdump, Wireshark and `bowline` write them
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Print one JSON object instead of text; 64-bit values are strings in hexadecimal
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub(crate) fn run(args: DissectArgs) -> Result<(), Box<dyn Error>> {
    let capture = Capture::open(&args.file)?;
    let mut out = BufWriter::new(io::stdout().lock());
    dissect(capture, &args.file.display().to_string(), args.json, &mut out)
}

/// Dissects a capture; `name` is for messages.
pub(crate) fn dissect(
    mut capture: Capture,
    name: &str,
    json: bool,
    out: &mut impl Write,
) -> Result<(), Box<dyn Error>> {
    let written =
        if json { write_json(&mut capture, name, out) } else { write_text(&mut capture, out) };
    match written.and_then(|()| out.flush()) {
        // The reader, e.g. `head`, has seen enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(error.into()),
        // Everything that could be read has been printed, but an incomplete capture is still a
        // failure.
        Ok(()) => capture.into_error().map_or(Ok(()), |error| Err(error.into())),
    }
}

fn write_text(capture: &mut Capture, out: &mut impl Write) -> io::Result<()> {
    let mut totals = Totals::default();
    while let Some(frame) = capture.next_frame() {
        if let Some(record) = totals.take(&frame) {
            text::write_record(out, &record)?;
        }
    }
    text::write_totals(out, &totals)
}

/// Writes each record as it is read, because a capture may be larger than memory.
fn write_json(capture: &mut Capture, name: &str, out: &mut impl Write) -> io::Result<()> {
    let mut totals = Totals::default();
    write!(
        out,
        "{{\"version\":{JSON_VERSION},\"file\":{},\"packets\":[",
        serde_json::to_string(name)?
    )?;
    let mut separator = "\n";
    while let Some(frame) = capture.next_frame() {
        if let Some(record) = totals.take(&frame) {
            out.write_all(separator.as_bytes())?;
            serde_json::to_writer::<_, Record>(&mut *out, &record)?;
            separator = ",\n";
        }
    }
    out.write_all(b"\n],\"totals\":")?;
    serde_json::to_writer(&mut *out, &totals)?;
    out.write_all(b"}\n")
}
