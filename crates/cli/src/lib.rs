//! The `bowline` program, as a library so that fuzzers can call its parsers.

#![forbid(unsafe_code)]

mod cache;
mod collective;
mod completions;
mod demo;
mod devinfo;
mod dissect;
mod experiment;
mod fault;
#[doc(hidden)]
pub mod fuzzing;
mod group;
mod http;
mod interrupt;
mod log;
mod made;
mod nic_name;
mod output;
mod peers;
mod perf;
mod plan;
mod run;
mod sim;
mod switch;
mod top;
mod transfer;
mod wan;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// RDMA without RDMA hardware: a user-space RoCEv2 NIC, its tests and its tools
#[derive(Parser)]
#[command(
    name = "bowline",
    version,
    propagate_version = true,
    after_help = "Examples:\n  \
        bowline demo                          what loss and distance do to RDMA, in half a minute\n  \
        bowline perf write-bw                 wait for a client on 127.0.0.1 …\n  \
        bowline perf write-bw 127.0.0.1       … and measure against it\n  \
        bowline collective allreduce          collectives between ranks, as nccl-tests do\n  \
        bowline run -- ib_write_bw            a verbs program, unmodified, without an RNIC\n  \
        bowline fault bl0 down --for 5s       how a verbs program behaves when its NIC fails\n  \
        bowline recv --code                   receive a file from another machine: prints a code …\n  \
        bowline send FILE --code …            … and send it there, authenticated and encrypted\n  \
        bowline plan --bandwidth 400Gbps --rtt 25ms --loss 1e-5 --size 128MiB\n                              \
                                      which scheme suits this link, and how long messages take\n  \
        bowline wan --link rate=1Gbps,delay=20ms,loss=0.1% --left 'iperf3 -s -1' --right 'iperf3 -c {left}'\n                              \
                                      any two programs with an emulated WAN between them\n  \
        bowline switch 127.0.0.100 --members 127.0.0.2:18516,127.0.0.3:18517\n                              \
                                      reliable multicast from one sender to all replicas\n  \
        bowline dissect capture.pcap          read RoCEv2 packets, checking every ICRC\n  \
        bowline sim --help                    the same protocol code in virtual time\n\n\
        No command needs root. On loopback every address in 127.0.0.0/8 is a separate NIC."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print the RoCEv2 packets of a capture and check their ICRCs
    Dissect(dissect::DissectArgs),
    /// Run the protocol in virtual time, over lossy links and many seeds
    Sim(sim::SimArgs),
    /// Run an unmodified verbs program on Bowline's user-space NIC
    Run(run::RunArgs),
    /// Show the devices of this host and the counters of live processes
    Devinfo(devinfo::DevinfoArgs),
    /// Watch rates, losses, round trips and failovers of this host's processes
    Top(top::TopArgs),
    /// Inject faults into a device of running processes, and clear them
    Fault(fault::FaultArgs),
    /// Measure bandwidth and latency between two programs, as perftest does
    Perf(Box<perf::PerfArgs>),
    /// Measure collective operations between ranks, as nccl-tests do
    Collective(collective::CollectiveArgs),
    /// Show what loss and distance do to a reliable connection, on this machine alone
    Demo(demo::DemoArgs),
    /// Say which reliability scheme suits a link, and how long messages will take
    Plan(Box<plan::PlanArgs>),
    /// Send files and directories to a `bowline recv`
    Send(Box<transfer::SendArgs>),
    /// Receive files and directories from `bowline send`
    Recv(Box<transfer::RecvArgs>),
    /// Manage this host's key and the keys that it trusts
    Key(peers::KeyArgs),
    /// Print completions for a shell
    Completions(completions::CompletionsArgs),
    /// Write manual pages
    Man(completions::ManArgs),
    /// Replicate one sender's RDMA traffic to several receivers, transparently to all of them
    Switch(Box<switch::SwitchArgs>),
    /// Show the groups of running switches, and take members out of them
    Group(group::GroupArgs),
    /// Run programs in two network namespaces with a long, narrow, lossy link between them
    Wan(Box<wan::WanArgs>),
}

/// The program's commands and options.
fn command() -> clap::Command {
    log::with_options(Cli::command())
}

/// Runs the program with the arguments of the process.
pub fn main() -> ExitCode {
    // clap itself reports usage errors, with exit code 2.
    let matches = command().get_matches();
    log::start(&matches);
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let outcome = match cli.command {
        Command::Dissect(args) => dissect::run(args).map(|()| ExitCode::SUCCESS),
        Command::Sim(args) => sim::run(args),
        Command::Run(args) => Ok(run::run(args)),
        Command::Devinfo(args) => devinfo::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Top(args) => top::run(&args),
        Command::Fault(args) => fault::run(&args),
        Command::Perf(args) => perf::run(*args),
        Command::Collective(args) => collective::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Plan(args) => plan::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Send(args) => transfer::send(&args),
        Command::Recv(args) => transfer::recv(*args),
        Command::Completions(args) => completions::print(&args).map(|()| ExitCode::SUCCESS),
        Command::Man(args) => completions::write_pages(&args).map(|()| ExitCode::SUCCESS),
        Command::Key(args) => peers::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Switch(args) => switch::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Group(args) => group::run(&args),
        Command::Wan(args) => wan::run(&args),
    };
    outcome.unwrap_or_else(|error| {
        output::print_error(&*error);
        ExitCode::FAILURE
    })
}
