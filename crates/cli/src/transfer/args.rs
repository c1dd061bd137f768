//! Options of `bowline send` and `bowline recv`.

use std::path::PathBuf;

use bowline::peers::Code;
use bowline::{LaneCount, LinkProfile, RateControl, Via};
use bowline_link::units;
use clap::builder::PossibleValuesParser;
use clap::{Args, builder::TypedValueParser};

use super::dir::Rights;
use super::filter::Filter;
use super::meter::Show;
use super::scan::ScanOptions;
use super::session::Speed;
use crate::nic_name::NicName;
use crate::peers::{Target, Trust};

/// TCP port on which a receiver listens by default.
pub(crate) const PORT: u16 = 18517;

/// Send files and directories to a `bowline recv`
///
/// Both ends authenticate each other, by a one-time code or by their keys. Names, sizes and hashes
/// go over TCP, the contents over a reliable queue pair whose scheme you can choose. Run the same
/// command again to resume an interrupted transfer.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    bowline recv --code                                  on the receiving host: prints a code …\n  \
    bowline send model.bin --code acorn-comet-tulip      … and a file to it, found by itself\n  \
    bowline send runs/ notes.txt nas                     to a host that knows this one's key\n  \
    bowline send runs/ nas:18517 --delete --dry-run      what a mirror would change\n  \
    bowline send big.tar [2001:db8::7]:18517 --bwlimit 200Mbps --progress\n  \
    bowline send model.bin --to gpu1,gpu2,gpu3 --scheme ec-mds --insecure    once, to all of them\n  \
    bowline send model.bin 192.0.2.7 -d verbs:mlx5_0 --insecure   on hardware; the receiver may be on either\n  \
    tar c src | bowline send - nas --name src.tar\n\n\
    With --to or --code every argument is a path; otherwise the last one is the host.\n\
    Every block is checked against its BLAKE3 hash, and the hash of a file is that of `b3sum`. \
    Permissions, modification times, symbolic and hard links are preserved; devices, sockets and \
    pipes are skipped, with a note. Files that cannot be read are skipped, and the rest is sent.\n\n\
    Exit status: 0 everything was sent, 1 failure, 2 wrong usage, 3 something was skipped, 130 interrupted.")]
pub(crate) struct SendArgs {
    /// Files and directories to send, - for stdin, and the host last unless --to or --code names it
    #[arg(required = true, num_args = 1.., value_name = "PATH")]
    arguments: Vec<PathBuf>,
    /// Host where `bowline recv` runs: HOST, HOST:PORT or [IPv6]:PORT. Separate several hosts by
    /// commas to send to all of them at once; a block that any of them lacks is sent to all. This
    /// mode is not encrypted: outside loopback it needs --insecure at all ends
    #[arg(long, value_name = "HOST,…", value_delimiter = ',')]
    to: Vec<String>,
    /// The three words that `bowline recv --code` shows. Without --to, the receiver is discovered
    /// on this host's networks
    #[arg(long, value_name = "WORDS", conflicts_with = "insecure")]
    code: Option<Code>,
    /// Disable authentication and encryption (on loopback they are off by default)
    #[arg(long)]
    insecure: bool,
    /// Authenticate both ends and encrypt, even on loopback
    #[arg(long, conflicts_with = "insecure")]
    secure: bool,
    /// Accept the key of a host that is not known yet, without asking
    #[arg(long)]
    accept_new: bool,
    /// With --code: also trust the receiver's key from now on
    #[arg(long, requires = "code")]
    remember: bool,
    /// This end's NIC: an address of this machine, or verbs:NAME for a RoCE NIC of the system
    /// [default: the address from which it reaches the host]
    #[arg(short, long, value_name = "NIC")]
    pub(super) device: Option<NicName>,
    /// TCP port of the receiver, if HOST names none
    #[arg(short, long, default_value_t = PORT)]
    port: u16,
    /// Skip files that match, e.g. '*.o', 'target/' or '/runs/**'; may be repeated
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
    /// Send files that match, even if --exclude matches them too; may be repeated
    #[arg(long, value_name = "PATTERN")]
    include: Vec<String>,
    /// Delete files at the receiver that do not exist here, in directories that are sent; the
    /// receiver must allow it (--delete)
    #[arg(long)]
    pub(super) delete: bool,
    /// Print what would be sent and deleted, and change nothing
    #[arg(short = 'n', long)]
    pub(super) dry_run: bool,
    /// Send owners and groups; the receiver must be root and accept them (--owner)
    #[arg(long)]
    owner: bool,
    /// Send extended attributes; the receiver must accept them (--xattrs)
    #[arg(long)]
    xattrs: bool,
    /// The name under which stdin arrives
    #[arg(long, default_value = "stdin", value_name = "NAME")]
    pub(super) name: String,
    /// Loss recovery: sr-nack and sr-rto retransmit, ec-mds and ec-xor add parity, auto picks the
    /// scheme that the planner expects to be fastest
    #[arg(long, default_value = "sr-nack", value_parser = schemes())]
    pub(super) scheme: String,
    /// Congestion control: none, fixed:1Gbps, dcqcn, bbr [default: bbr to another host]
    #[arg(long, value_name = "NAME")]
    pub(super) cc: Option<RateControl>,
    /// Send at this fixed rate, e.g. 1Gbps, instead of probing for it [default: as --cc says]
    #[arg(long, value_parser = units::parse_rate)]
    rate: Option<u64>,
    /// Limit the rate, e.g. to 200Mbps
    #[arg(long, value_name = "RATE", value_parser = units::parse_rate)]
    bwlimit: Option<u64>,
    #[command(flatten)]
    pub(super) opening: NicOptions,
    #[command(flatten)]
    shown: Shown,
}

/// How an end opens its NIC.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct NicOptions {
    /// Number of lanes of this end's NIC, or auto. A lane is an engine with its own socket and
    /// core; a transfer uses as many as both ends have
    #[arg(long, default_value_t = LaneCount::default(), value_name = "COUNT")]
    pub(super) lanes: LaneCount,
    /// Packet transport of this end: auto, shared memory to this user's processes on this host and
    /// UDP to all others; udp; xdp [default: auto]
    #[arg(long, value_name = "PORT")]
    pub(super) via: Option<Via>,
    /// Impair what this end sends, e.g. loss=0.1%,delay=10ms,rate=1Gbps,queue=8MiB
    #[arg(long, value_name = "PROFILE")]
    pub(super) link: Option<LinkProfile>,
}

/// Output options, for both ends.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(super) struct Shown {
    /// Print a line each second with the rate and the time left, even without a terminal
    #[arg(long)]
    progress: bool,
    /// Print events and a report as JSON, one object per line (docs/json.md)
    #[arg(long)]
    json: bool,
    /// Print errors only
    #[arg(short, long)]
    quiet: bool,
}

impl Shown {
    /// Turns off output on stdout.
    pub(super) fn be_quiet(&mut self) {
        (self.json, self.quiet) = (false, true);
    }

    fn show(self) -> Show {
        Show { lines: self.progress, json: self.json, quiet: self.quiet }
    }
}

impl SendArgs {
    /// The paths, and the hosts that were named.
    pub(super) fn paths_and_hosts(&self) -> Result<(&[PathBuf], Vec<Target>), String> {
        if self.to.len() > 1 && self.code.is_some() {
            return Err("a code is for one receiver: name one with --to, or none".to_owned());
        }
        if !self.to.is_empty() || self.code.is_some() {
            let targets = self.to.iter().map(|to| Target::parse(to, self.port));
            return Ok((&self.arguments, targets.collect::<Result<_, _>>()?));
        }
        match self.arguments.split_last() {
            Some((host, paths @ [_, ..])) => {
                let host = Target::parse(&host.to_string_lossy(), self.port)?;
                Ok((paths, vec![host]))
            }
            _ => Err(
                "no receiver: name the host last, e.g. `bowline send FILE nas`, or use the code \
                 that `bowline recv --code` shows: `bowline send FILE --code WORDS`"
                    .to_owned(),
            ),
        }
    }

    pub(super) fn trust(&self) -> Trust {
        Trust {
            code: self.code.clone(),
            insecure: self.insecure,
            secure: self.secure,
            accept_new: self.accept_new,
            remember: self.remember,
            early: true,
        }
    }

    pub(super) fn scan_options(&self) -> Result<ScanOptions, String> {
        let filter = Filter::new(&self.exclude, &self.include)?;
        Ok(ScanOptions { filter, owner: self.owner, xattrs: self.xattrs })
    }

    pub(super) fn speed(&self) -> Speed {
        Speed { rate_bps: self.rate, max_rate_bps: self.bwlimit }
    }

    pub(super) fn show(&self) -> Show {
        self.shown.show()
    }
}

/// Receive files and directories from `bowline send`
///
/// Accepts peers whose keys are trusted (`bowline key trust`), one peer with a code, and processes
/// of this host. It runs up to four transfers at a time and writes nothing outside its directory. A
/// file gets its name once it is complete and verified; until then it is called NAME.bowline-part,
/// from which the next attempt resumes.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    bowline recv --code                          into this directory, from whoever has the code\n  \
    bowline recv /data                           from peers whose keys are trusted, on all addresses\n  \
    bowline recv /mirror --overwrite --delete    a mirror that senders keep up to date\n  \
    bowline recv /data --once --json             one transfer, then a report\n  \
    bowline recv - --code > model.bin            to stdout\n\n\
    Existing files that are identical stay as they are. Files that differ are skipped unless \
    --overwrite is given, and existing directories keep their permissions. A transfer without \
    progress for two minutes is aborted.\n\n\
    Exit status: 0 success, 1 failure, 2 wrong usage, 3 something was skipped, 130 interrupted.")]
pub(crate) struct RecvArgs {
    /// Directory to write to, or - for stdout
    #[arg(default_value = ".", value_name = "DIR")]
    pub(super) dir: PathBuf,
    /// Print a one-time code, and accept one transfer from the sender that knows it
    #[arg(long, conflicts_with = "insecure")]
    pub(super) code: bool,
    /// With --code: also trust the sender's key from now on
    #[arg(long, requires = "code")]
    pub(super) remember: bool,
    /// Accept any sender, without authentication and encryption
    #[arg(long)]
    pub(super) insecure: bool,
    /// This end's NIC, and the address to listen on: an address of this machine, or verbs:NAME for
    /// a RoCE NIC of the system [default: all addresses if a key is trusted or --code is given,
    /// where each sender uses the NIC that it reaches; otherwise 127.0.0.1]
    #[arg(short, long, value_name = "NIC")]
    pub(super) device: Option<NicName>,
    /// TCP port to listen on; 0 lets the system pick one
    #[arg(short, long, default_value_t = PORT)]
    pub(super) port: u16,
    /// Exit after one transfer, successful or not
    #[arg(long)]
    pub(super) once: bool,
    /// Replace files that exist and differ, and change the permissions of directories that exist
    #[arg(long)]
    pub(super) overwrite: bool,
    /// Allow senders to delete files that they do not have, in directories that they send
    #[arg(long)]
    pub(super) delete: bool,
    /// Set the owners and groups that the sender reports
    #[arg(long)]
    pub(super) owner: bool,
    /// Set the extended attributes that the sender reports
    #[arg(long)]
    pub(super) xattrs: bool,
    #[command(flatten)]
    pub(super) opening: NicOptions,
    #[command(flatten)]
    pub(super) shown: Shown,
}

impl RecvArgs {
    pub(super) fn rights(&self) -> Rights {
        let RecvArgs { overwrite, delete, owner, xattrs, .. } = *self;
        Rights { overwrite, delete, owner, xattrs }
    }

    pub(super) fn show(&self) -> Show {
        self.shown.show()
    }
}

fn schemes() -> impl TypedValueParser<Value = String> {
    PossibleValuesParser::new(["sr-nack", "sr-rto", "ec-mds", "ec-xor", "auto"])
}
