//! Options of `bowline send` and `bowline recv`.

use std::net::IpAddr;
use std::path::PathBuf;

use bowline::{LaneCount, LinkProfile, RateControl};
use clap::builder::PossibleValuesParser;
use clap::{Args, builder::TypedValueParser};

/// TCP port on which a receiver listens, unless told otherwise.
const PORT: u16 = 18517;

/// Send files and directories to a `bowline recv`
///
/// Names, sizes and hashes go over TCP, the contents over a reliable queue pair whose scheme is a
/// choice. What was interrupted goes on where it stopped when the same command is run again.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    bowline recv /data -d 192.0.2.7                      on the receiving host …\n  \
    bowline send model.bin 192.0.2.7                     … a file to it\n  \
    bowline send runs/ notes.txt 192.0.2.7 --json        a directory and a file\n  \
    bowline send big.tar 192.0.2.7 --scheme ec-mds\n\n\
    Every block is checked against its BLAKE3 hash, and the hash of a file is that of `b3sum`. \
    Permissions and modification times go along; symbolic links and special files are skipped, \
    with a note. Nothing is encrypted.")]
pub(crate) struct SendArgs {
    /// Files and directories to send
    #[arg(required = true, num_args = 1.., value_name = "PATH")]
    pub(super) paths: Vec<PathBuf>,
    /// Host where `bowline recv` runs
    #[arg(required = true)]
    pub(super) host: String,
    /// Address of this end's NIC [default: the address it reaches the host from]
    #[arg(short, long, value_name = "ADDRESS")]
    pub(super) device: Option<IpAddr>,
    /// TCP port of the receiver
    #[arg(short, long, default_value_t = PORT)]
    pub(super) port: u16,
    /// What is done about losses: sr-nack and sr-rto repeat, ec-mds and ec-xor send parity along, auto
    /// takes the one that the planner expects to be fastest
    #[arg(long, default_value = "sr-nack", value_parser = schemes())]
    pub(super) scheme: String,
    /// What limits how fast it sends: none, fixed:1Gbps, dcqcn, bbr [default: bbr to another host]
    #[arg(long, value_name = "NAME")]
    pub(super) cc: Option<RateControl>,
    /// Send at this rate, as 1Gbps: where nobody has to find it out [default: as --cc says]
    #[arg(long, value_parser = parse_rate)]
    pub(super) rate: Option<u64>,
    /// Lanes of this end's NIC, each with a socket and a core of its own: a number, or auto. As many
    /// as both ends have carry every block together
    #[arg(long, default_value_t = LaneCount::default(), value_name = "COUNT")]
    pub(super) lanes: LaneCount,
    /// Impair what this end sends, as loss=0.1%,delay=10ms,rate=1Gbps,queue=8MiB
    #[arg(long, value_name = "PROFILE")]
    pub(super) link: Option<LinkProfile>,
    /// Print one JSON object as the last line
    #[arg(long)]
    pub(super) json: bool,
}

/// Receive files and directories from `bowline send`
///
/// Takes up to four transfers at a time, from whoever can connect, and writes nothing outside of its
/// directory. A file appears under its name when all of it is there and checked; until then it is
/// NAME.bowline-part, which the next attempt goes on with.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    bowline recv                                 into this directory, from this host\n  \
    bowline recv /data -d 192.0.2.7              from the network of that address\n  \
    bowline recv /data --once --json             one transfer, then a report\n\n\
    A file that exists and is the same is left alone. One that differs is an error unless \
    --overwrite is given, and a directory that exists keeps its permissions. A sender that makes \
    no progress for two minutes is given up. Use it where you trust those who can reach the port: senders are not \
    asked who they are.")]
pub(crate) struct RecvArgs {
    /// Directory to write to
    #[arg(default_value = ".", value_name = "DIR")]
    pub(super) dir: PathBuf,
    /// Address of this end's NIC, on which it also listens
    #[arg(short, long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub(super) device: IpAddr,
    /// TCP port to listen on; 0 lets the system pick one
    #[arg(short, long, default_value_t = PORT)]
    pub(super) port: u16,
    /// End after one transfer, successful or not
    #[arg(long)]
    pub(super) once: bool,
    /// Replace files that exist and differ, and change the permissions of directories that exist
    #[arg(long)]
    pub(super) overwrite: bool,
    /// Lanes of this end's NIC, each with a socket and a core of its own: a number, or auto. As many
    /// as both ends have carry every block together
    #[arg(long, default_value_t = LaneCount::default(), value_name = "COUNT")]
    pub(super) lanes: LaneCount,
    /// Impair what this end sends, as loss=0.1%,delay=10ms,rate=1Gbps,queue=8MiB
    #[arg(long, value_name = "PROFILE")]
    pub(super) link: Option<LinkProfile>,
    /// Print one JSON object for each transfer
    #[arg(long)]
    pub(super) json: bool,
}

fn schemes() -> impl TypedValueParser<Value = String> {
    PossibleValuesParser::new(["sr-nack", "sr-rto", "ec-mds", "ec-xor", "auto"])
}

/// A rate is written as in a link profile.
fn parse_rate(text: &str) -> Result<u64, String> {
    let profile: LinkProfile =
        format!("rate={text}").parse().map_err(|e: bowline::ParseLinkError| e.to_string())?;
    profile.config.rate_bps.ok_or_else(|| "write 1Gbps or 100Mbps".to_owned())
}
