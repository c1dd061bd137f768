//! `bowline switch`: reliable multicast, transparent to programs.

mod control;
mod managed;
mod perftest;
mod policy;
mod proxy;
mod through;

use std::error::Error;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use bowline::multicast::{Event, GroupOptions, GroupSwitch, Policy, SwitchOptions};
use bowline::{LinkProfile, Via};
use bowline_io::control::ControlServer;
use clap::{Args, ValueEnum};

pub(crate) use control::parse_id;
use policy::PolicyArg;
use proxy::Proxy;
use through::{Through, ThroughArg};

use crate::peers::Trust;

/// Maximum number of senders that set up connections at the same time, or of controllers.
const MAX_SENDERS: usize = 64;
/// The port of a switch that is not told another one.
const DEFAULT_PORT: u16 = 18515;

/// How often the switch checks for events to report.
const LOOK: Duration = Duration::from_millis(50);

/// Arguments of `bowline switch`.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    bowline run --device bl0=127.0.0.2 -- ib_write_bw -p 18516       a member …\n  \
    bowline run --device bl0=127.0.0.3 -- ib_write_bw -p 18517       … another one …\n  \
    bowline switch 127.0.0.100 --members 127.0.0.1:18516,127.0.0.1:18517\n                              \
                                  … a switch that makes them one …\n  \
    bowline run --device bl0=127.0.0.1 -- ib_write_bw 127.0.0.100    … and a sender\n\n  \
    bowline perf write-bw -d 127.0.0.2 -p 18516                      likewise with Bowline's own\n  \
    bowline perf write-bw 127.0.0.100 -d 127.0.0.1\n\n  \
    bowline switch 127.0.0.101 --members 127.0.0.100:18515,127.0.0.4:18516 --listen 18519\n                              \
                                  a switch with another one as a member\n\n  \
    bowline switch 10.0.2.100 --managed                              in the rack of the members …\n  \
    bowline switch 10.0.1.100 --members 10.0.2.2:18516,10.0.2.3:18516 --through 10.0.2.100=10.0.2.2,10.0.2.3\n                              \
                                  … and near the sender: one copy goes to that rack\n\n\
    A completion at the sender means that all members have the message. Root is not needed: ADDR may be any\n\
    address of this machine that no device uses. With --via xdp it is needed, and packets bypass the kernel's\n\
    network stack. While it runs, `bowline group` shows its groups and evicts members. A managed\n\
    switch and the one that uses it authenticate each other: see `bowline key`.")]
pub(crate) struct SwitchArgs {
    /// The switch's own address
    addr: IpAddr,
    /// Addresses where the members listen for their peer, e.g. 127.0.0.2:18516,127.0.0.3:18517
    #[arg(
        long,
        required_unless_present = "managed",
        value_delimiter = ',',
        value_name = "HOST:PORT"
    )]
    members: Vec<SocketAddr>,
    /// Copy to these members through a managed switch (HOST or HOST:PORT), which may also be behind
    /// another one. Members are those of --members, by address or with their port. May be repeated
    #[arg(long, value_name = "SWITCH=MEMBER,…", conflicts_with = "managed")]
    through: Vec<ThroughArg>,
    /// Get the groups from switches that name this one in --through, instead of having members
    #[arg(long, conflicts_with_all = ["members", "policy", "merge", "once"])]
    managed: bool,
    /// TCP port on which senders set up their connections, or controllers connect
    #[arg(long, default_value_t = DEFAULT_PORT, value_name = "PORT")]
    listen: u16,
    /// Between managed switches and their controllers: disable authentication and encryption (on
    /// loopback they are off by default)
    #[arg(long)]
    insecure: bool,
    /// Authenticate managed switches and their controllers on loopback too
    #[arg(long, visible_alias = "seal", conflicts_with = "insecure")]
    secure: bool,
    /// Accept the key of a managed switch that is not known yet, without asking
    #[arg(long, conflicts_with = "insecure")]
    accept_new: bool,
    /// What to do with members that fail or lag: `fail` the group, `evict=TIME` them, or accept a
    /// quorum with `quorum=K,TIME`
    #[arg(long, default_value = "fail", value_name = "POLICY")]
    policy: PolicyArg,
    /// How to merge acknowledgements
    #[arg(long, value_enum, default_value_t = MergeArg::Minimum)]
    merge: MergeArg,
    /// Packet transport: udp, or, on a physical NIC and as root,
    /// xdp[:mode=auto|copy|zerocopy,queue=N]
    #[arg(long, default_value_t = Via::Udp, value_name = "PORT")]
    via: Via,
    /// Impair what the switch sends, e.g. loss=0.1%
    #[arg(long, value_name = "PROFILE")]
    link: Option<LinkProfile>,
    /// Exit when the first sender disconnects, and print statistics
    #[arg(long)]
    once: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum MergeArg {
    /// Forward the minimum whenever it rises
    Minimum,
    /// Follow the paper's rules, for comparison
    Paper,
}

/// Runs `bowline switch`.
pub(crate) fn run(args: &SwitchArgs) -> Result<(), Box<dyn Error>> {
    if matches!(args.via, Via::Shm | Via::Auto) {
        return Err(format!("invalid --via {}: a switch supports udp and xdp", args.via).into());
    }
    if args.members.contains(&SocketAddr::new(args.addr, args.listen)) {
        let why = "the switch cannot be its own member";
        return Err(format!("invalid --members {}:{}: {why}", args.addr, args.listen).into());
    }
    let (via, link) = (args.via, args.link.clone());
    let options = SwitchOptions { via, link, ..SwitchOptions::new(args.addr) };
    let switch = Arc::new(GroupSwitch::open(&options)?);
    if args.managed {
        report_events(&switch);
        let _control = start_control(&switch, args.addr);
        return managed::serve(&switch, args);
    }
    let through = Arc::new(through(args)?);
    let listener = TcpListener::bind((args.addr, args.listen))
        .map_err(|e| format!("cannot listen on {}:{}: {e}", args.addr, args.listen))?;
    let policy = args.policy.0;
    let as_in_the_paper = args.merge == MergeArg::Paper;
    let options = GroupOptions { policy, as_in_the_paper, ..GroupOptions::default() };
    report_events(&switch);
    let _control = start_control(&switch, args.addr);
    let via = switch.via();
    say(&format!("{} ({via}): waiting for senders on port {}", args.addr, args.listen))?;
    loop {
        let (client, from) = listener.accept()?;
        let (switch_too, through) = (Arc::clone(&switch), Arc::clone(&through));
        let members = args.members.clone();
        let proxy = Proxy { switch: switch_too, through, members, options };
        if args.once {
            let outcome = proxy.serve(client);
            say(&totals(&switch))?;
            return outcome.map_err(Into::into);
        }
        // This loop and the reporter hold the other two references.
        if Arc::strong_count(&switch) > MAX_SENDERS + 2 {
            eprintln!("{from}: refused, {MAX_SENDERS} senders are connected");
            continue;
        }
        std::thread::spawn(move || {
            if let Err(error) = proxy.serve(client) {
                eprintln!("{from}: {error}");
            }
        });
    }
}

/// The managed switches behind this one, which must be there when it starts.
fn through(args: &SwitchArgs) -> Result<Through, String> {
    if !args.through.is_empty() && matches!(args.policy.0, Policy::Quorum { .. }) {
        let why = "switches do not count members together";
        return Err(format!("--policy quorum does not go with --through: {why}; use evict=TIME"));
    }
    let SwitchArgs { insecure, secure, accept_new, .. } = *args;
    let trust = Trust { insecure, secure, accept_new, ..Trust::default() };
    let through = Through::new(&args.members, &args.through, trust)?;
    through.connect()?;
    Ok(through)
}

/// Answers `bowline group`. The switch also works without it.
fn start_control(switch: &Arc<GroupSwitch>, addr: IpAddr) -> Option<ControlServer> {
    control::start(switch, addr)
        .inspect_err(|e| eprintln!("`bowline group` will not find this switch: {e}"))
        .ok()
}

/// Prints the switch's events while it runs, and exits the process when it fails.
fn report_events(switch: &Arc<GroupSwitch>) {
    let switch = Arc::downgrade(switch);
    std::thread::spawn(move || {
        while let Some(switch) = switch.upgrade() {
            while let Some(event) = switch.poll_event() {
                eprintln!("{}", describe(&event));
            }
            if switch.has_ended() {
                eprintln!("the switch's socket failed; forwarding has stopped");
                std::process::exit(1);
            }
            drop(switch);
            std::thread::sleep(LOOK);
        }
    });
}

fn describe(event: &Event) -> String {
    match event {
        Event::Evicted { group, member, cause, .. } => {
            format!("group {} of {}: evicted member {member}: {cause:?}", group.id, group.sender)
        }
        Event::Failed { group, member, cause } => {
            format!("group {} of {}: failed, member {member}: {cause:?}", group.id, group.sender)
        }
    }
}

fn totals(switch: &GroupSwitch) -> String {
    let counters = switch.counters();
    let rows = counters.iter().filter(|(_, n)| *n > 0);
    rows.map(|(name, n)| format!("{name:<16} {n}")).collect::<Vec<_>>().join("\n")
}

fn say(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}
