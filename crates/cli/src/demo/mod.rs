//! `bowline demo`: shows what loss and distance do to RDMA, on one machine.
//!
//! Two NICs on loopback move real data over an impaired link, and every byte is checked. A row of
//! the table is one scheme on one link. Add new ones to [`link::LINKS`] and [`scheme::SCHEMES`].
//! [`allreduce`] uses four NICs and has its own table.

mod allreduce;
mod link;
mod load;
mod rc;
mod scheme;
mod sdr;
mod table;

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use self::link::LINKS;
use self::load::Load;
use self::scheme::{SCHEMES, Stage};
use self::table::{Row, Table};
use crate::output;

/// Show what loss, distance and a dying NIC do to a reliable connection, on this machine alone
///
/// Two NICs in this process, on two loopback addresses, move data over RDMA WRITEs through a link
/// that loses, delays and limits packets as a long-haul link does. It takes less than half a minute
/// and needs no privileges.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    bowline demo\n  \
    bowline demo --seed 7 --json | jq '.rows[].goodput_gbps'\n  \
    bowline demo --pcap demo.pcap && bowline dissect demo.pcap | head")]
pub(crate) struct DemoArgs {
    /// Random seed for losses and data; the same seed loses the same packets in every row
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Address of the sending NIC
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::new(127, 0, 77, 1)), value_name = "ADDRESS")]
    from: IpAddr,
    /// Address of the receiving NIC
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::new(127, 0, 77, 2)), value_name = "ADDRESS")]
    to: IpAddr,
    /// Addresses of the backup NICs that take over when one is killed: the sender's, then the
    /// receiver's
    #[arg(long, num_args = 2, default_values_t = [IpAddr::V4(Ipv4Addr::new(127, 0, 77, 3)), IpAddr::V4(Ipv4Addr::new(127, 0, 77, 4))], value_name = "ADDRESS")]
    backups: Vec<IpAddr>,
    /// Capture the sending NIC's packets, one file per row
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Print one JSON object and nothing else
    #[arg(long)]
    json: bool,
}

/// Runs every scheme over every link. Fails if a byte arrived wrong.
pub(crate) fn run(args: &DemoArgs) -> Result<ExitCode, Box<dyn Error>> {
    let load = Load::new(args.seed);
    let &[from, to] = &args.backups[..] else {
        return Err("--backups takes two addresses".into());
    };
    let backups = [from, to];
    let rows: Vec<_> = LINKS
        .iter()
        .flat_map(|link| SCHEMES.iter().filter(|s| s.suits(link)).map(move |s| (link, s)))
        .collect();
    let bar = output::progress(rows.len() as u64 * load.messages, "");
    // Print each row as soon as it is measured, between two redraws of the progress bar.
    let show = |text: &str| {
        if !args.json {
            bar.suspend(|| text.lines().for_each(output::say));
        }
    };
    show(&table::header());
    let mut table = Table::new(args.seed);
    for (link, scheme) in rows {
        bar.set_message(link.name);
        let pcap = args.pcap.as_ref().map(|file| numbered(file, table.len()));
        let (from, to) = (args.from, args.to);
        let stage = Stage { from, to, backups, link, load: &load, pcap, bar: &bar };
        let outcome = scheme.run(&stage)?;
        let row = Row::new(link, scheme.name(), &load, &outcome);
        show(&row.text());
        table.add(row);
    }
    show(&table.conclusion());
    bar.set_message("allreduce");
    show(&allreduce::header());
    for transport in allreduce::TRANSPORTS {
        let row = allreduce::measure(transport, args.seed)?;
        show(&row.text());
        table.add_allreduce(row);
    }
    bar.finish_and_clear();
    if args.json {
        output::say(&table.json());
    }
    Ok(if table.all_verified() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The first row's file has the given name; later ones get a number before the extension.
fn numbered(file: &std::path::Path, row: usize) -> PathBuf {
    if row == 0 {
        return file.to_owned();
    }
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let extension = file.extension().unwrap_or("pcap".as_ref()).to_string_lossy();
    file.with_file_name(format!("{stem}-{}.{extension}", row + 1))
}
