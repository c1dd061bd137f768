//! `bowline run`: runs an unmodified verbs program on Bowline's NIC.

mod failover;
mod hardware;
mod library;
mod report;
mod timeline;

use std::error::Error;
use std::ffi::OsString;
use std::net::{IpAddr, UdpSocket};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use bowline::VerbsName;
use bowline_io::{LinkProfile, Via};
use bowline_link::units;
use clap::Args;
use failover::FailoverArgs;

use crate::output;

pub(crate) use report::describe as describe_report;

/// Run an unmodified verbs program on Bowline's user-space NIC
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    bowline run -- ibv_devinfo\n  \
    bowline run --device bl0=127.0.0.1 -- ib_write_bw                the server …\n  \
    bowline run --device bl0=127.0.0.2 -- ib_write_bw 127.0.0.1      … and its client\n  \
    bowline run --link loss=0.1%,delay=10ms --report -- ib_send_bw 127.0.0.1\n  \
    bowline run --pcap trace.pcap -- ibv_rc_pingpong -g 0\n  \
    bowline run --device bl0=10.0.0.1 --failover --backup bl0=10.0.1.1 --report -- ib_write_bw -D 20\n  \
    bowline run --failover=shift --store file:///mnt/shared/job --job train-7 -- ./train\n  \
    bowline run --failover=shift --hardware=mlx5_0,mlx5_1 --report -- ib_write_bw -d mlx5_0\n\n\
    Without --device, every address of every interface that is up becomes a device, loopback included.\n\
    To use Bowline without this command, set the variables that it sets:\n\
    LD_PRELOAD, BOWLINE_DEVICES, BOWLINE_VIA, BOWLINE_LANES, BOWLINE_LINK, BOWLINE_FEC, BOWLINE_CC, BOWLINE_KEEPALIVE, BOWLINE_FILES, BOWLINE_PCAP and BOWLINE_REPORT;\n\
    for failover BOWLINE_FAILOVER, BOWLINE_BACKUP, BOWLINE_HARDWARE, BOWLINE_STORE and BOWLINE_JOB.\n\n\
    Exit status: the program's, or 128 + n if signal n ended it; 125 if this command itself failed, 126 if the\n\
    program cannot be executed, 127 if there is no such program.")]
pub(crate) struct RunArgs {
    /// A device and its address; may be repeated
    #[arg(long = "device", value_name = "NAME=ADDRESS", value_parser = parse_device)]
    devices: Vec<(String, IpAddr)>,
    /// Packet transport: auto (shared memory between processes of this user on this host that both
    /// support it, else udp); udp (always, so that tcpdump and tc see every packet); shm (as auto,
    /// but an error where there is none); or, on a physical NIC and as root,
    /// xdp[:mode=auto|copy|zerocopy,queue=N] [default: auto]
    #[arg(long, value_name = "PORT")]
    via: Option<Via>,
    /// Number of lanes per device, or auto. A lane is an engine with its own socket and core
    /// [default: 1]
    #[arg(long, value_name = "COUNT")]
    lanes: Option<bowline::LaneCount>,
    /// Write every packet, in and out, to a capture file
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Impair what the program sends: loss=0.1%,delay=10ms,rate=1Gbps,…
    #[arg(long, value_name = "PROFILE", value_parser = parse_link)]
    link: Option<String>,
    /// Forward error correction towards peers that have it too: r,c (e.g. 32,1), auto or off
    #[arg(long, value_name = "R,C")]
    fec: Option<bowline::FecMode>,
    /// Congestion control of all its queue pairs: none, fixed:1Gbps, dcqcn, bbr, swift [default:
    /// none]
    #[arg(long, value_name = "NAME")]
    cc: Option<bowline::RateControl>,
    /// How often its librdmacm connections probe a silent peer: a time, or off [default: 4s]
    #[arg(long, value_name = "TIME", value_parser = parse_keepalive)]
    keepalive: Option<String>,
    /// Do not emulate device files in /dev/infiniband and /sys/class/infiniband
    #[arg(long)]
    no_device_files: bool,
    #[command(flatten)]
    failover: FailoverArgs,
    /// Log which local peers are reached by UDP and why; same as BOWLINE_LOG=info
    #[arg(short, long)]
    verbose: bool,
    /// Print a summary at exit: the NIC's counters, and which connections moved, when and why
    #[arg(long)]
    report: bool,
    /// Print the report as JSON, one object per device
    #[arg(long, requires = "report")]
    json: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

fn parse_device(text: &str) -> Result<(String, IpAddr), String> {
    let example = "write NAME=ADDRESS, as in bl0=127.0.0.1";
    let (name, addr) = text.split_once('=').ok_or_else(|| example.to_owned())?;
    let valid = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || name.len() > 32 || !name.chars().all(valid) {
        return Err(format!("invalid device name {name:?}: {example}"));
    }
    if VerbsName::is_meant(addr) {
        return Err(format!(
            "an unmodified program reaches {addr} by the system's own libibverbs: run it without \
             `bowline run`; `bowline perf -d {addr}` runs Bowline over it"
        ));
    }
    let addr = addr.parse().map_err(|_| format!("invalid IP address {addr:?}: {example}"))?;
    Ok((name.to_owned(), addr))
}

/// Checks a link profile here, so that the user sees mistakes at once, and passes it on unchanged.
fn parse_link(text: &str) -> Result<String, String> {
    text.parse::<LinkProfile>().map(|_| text.to_owned()).map_err(|e| e.to_string())
}

/// Checks a time here, so that the user sees mistakes at once, and passes it on unchanged.
fn parse_keepalive(text: &str) -> Result<String, String> {
    match text {
        "off" => Ok(text.to_owned()),
        time => match units::parse_duration(time)? {
            interval if interval.is_zero() => Err("use a longer time, e.g. 4s, or off".to_owned()),
            _ => Ok(text.to_owned()),
        },
    }
}

/// Exit statuses that say that the program itself did not fail, as in `env` and `timeout`.
const OWN_ERROR: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Runs the program. Its exit status becomes the command's.
pub(crate) fn run(args: RunArgs) -> ExitCode {
    match try_run(args) {
        Ok(status) => status,
        Err(Failure { error, status }) => {
            output::print_error(&*error);
            ExitCode::from(status)
        }
    }
}

/// Why the program did not run, or why its report is missing.
struct Failure {
    error: Box<dyn Error>,
    status: u8,
}

impl Failure {
    fn own(error: impl Into<Box<dyn Error>>) -> Failure {
        Failure { error: error.into(), status: OWN_ERROR }
    }
}

/// Rejects an address that this machine does not have: the program would find no device.
fn check_devices(devices: &[(String, IpAddr)]) -> Result<(), String> {
    for (name, addr) in devices {
        UdpSocket::bind((*addr, 0)).map_err(|e| {
            format!("cannot use {name}={addr}: {e}; `ip addr` lists the addresses of this machine")
        })?;
    }
    Ok(())
}

/// Rejects options that only Bowline's soft NIC supports.
fn check_soft_only(args: &RunArgs) -> Result<(), String> {
    let given = [
        (!args.devices.is_empty(), "--device"),
        (args.via.is_some(), "--via"),
        (args.lanes.is_some(), "--lanes"),
        (args.pcap.is_some(), "--pcap"),
        (args.link.is_some(), "--link"),
        (args.fec.is_some(), "--fec"),
        (args.cc.is_some(), "--cc"),
        (args.keepalive.is_some(), "--keepalive"),
        (args.no_device_files, "--no-device-files"),
    ];
    match given.into_iter().find(|(is_given, _)| *is_given) {
        Some((_, option)) => Err(format!(
            "{option} is for Bowline's soft NIC: with --hardware the program keeps the system's \
             devices; leave one of the two out"
        )),
        None => Ok(()),
    }
}

fn try_run(args: RunArgs) -> Result<ExitCode, Failure> {
    let is_hardware = args.failover.hardware.is_some();
    if is_hardware {
        check_soft_only(&args).map_err(Failure::own)?;
    }
    let library = if is_hardware { library::find_shift() } else { library::find() };
    let library = library.map_err(Failure::own)?;
    check_devices(&args.devices).map_err(Failure::own)?;
    let (program, rest) = args.program.split_first().expect("clap requires a program");
    let mut command = Command::new(program);
    command.args(rest);
    library.preload_into(&mut command);
    if !args.devices.is_empty() {
        let devices: Vec<String> =
            args.devices.iter().map(|(name, addr)| format!("{name}={addr}")).collect();
        command.env("BOWLINE_DEVICES", devices.join(","));
    }
    if let Some(via) = &args.via {
        command.env("BOWLINE_VIA", via.to_string());
    }
    if args.verbose {
        command.env("BOWLINE_LOG", "info");
    }
    if let Some(lanes) = &args.lanes {
        command.env("BOWLINE_LANES", lanes.to_string());
    }
    if let Some(link) = &args.link {
        command.env("BOWLINE_LINK", link);
    }
    if let Some(fec) = &args.fec {
        command.env("BOWLINE_FEC", fec.to_string());
    }
    if let Some(cc) = &args.cc {
        command.env("BOWLINE_CC", cc.to_string());
    }
    if let Some(keepalive) = &args.keepalive {
        command.env("BOWLINE_KEEPALIVE", keepalive);
    }
    if args.no_device_files {
        command.env("BOWLINE_FILES", "off");
    }
    if let Some(pcap) = &args.pcap {
        command.env("BOWLINE_PCAP", pcap);
    }
    args.failover.pass_to(&mut command, &args.devices).map_err(Failure::own)?;
    if !args.report {
        // There is nothing to do afterwards, so the program replaces this process and keeps its
        // signals and terminal. From the PID the library knows that it is in the program itself,
        // and not in a child that the program starts.
        command.env("BOWLINE_RUN", std::process::id().to_string());
        let error = command.exec();
        return Err(cannot_start(program, &error));
    }
    let file = report::File::new().map_err(Failure::own)?;
    command.env("BOWLINE_REPORT", file.path());
    let status = command.status().map_err(|e| cannot_start(program, &e))?;
    match report::print(&file, args.json) {
        // The program's failure matters more than a failed report.
        Err(error) if !status.success() => output::print_error(&*error),
        printed => printed.map_err(Failure::own)?,
    }
    Ok(exit_code(status))
}

fn cannot_start(program: &OsString, error: &std::io::Error) -> Failure {
    let program = program.to_string_lossy();
    match error.kind() {
        std::io::ErrorKind::NotFound => {
            let why = "is not installed, or not in PATH: perftest and ibverbs-utils have most verbs programs";
            Failure { error: format!("{program} {why}").into(), status: NOT_FOUND }
        }
        _ => {
            let error = format!("cannot start {program}: {error}").into();
            Failure { error, status: NOT_EXECUTABLE }
        }
    }
}

/// A program's exit status as a shell would report it.
fn exit_code(status: std::process::ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|s| 128 + s)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_names_with_addresses() {
        assert!(parse_device("bl0=127.0.0.1").is_ok());
        assert!(parse_device("bl0=::1").is_ok());
        for wrong in ["127.0.0.1", "=127.0.0.1", "bl0=", "bl0=localhost", "b,l=1.2.3.4"] {
            let error = parse_device(wrong).unwrap_err();
            assert!(error.contains("bl0=127.0.0.1"), "{error}");
        }
    }

    #[test]
    fn a_wrong_link_is_noticed_before_the_program_starts() {
        assert!(parse_link("loss=0.1%,delay=10ms").is_ok());
        assert!(parse_link("lose=0.1%").is_err());
    }
}
