//! `bowline switch`: reliable multicast, transparent to programs.

mod control;
mod perftest;
mod policy;
mod proxy;

use std::error::Error;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use bowline::multicast::{Event, GroupOptions, GroupSwitch, SwitchOptions};
use bowline::{LinkProfile, Via};
use clap::{Args, ValueEnum};

pub(crate) use control::parse_id;
use policy::PolicyArg;
use proxy::Proxy;

/// Maximum number of senders that set up connections at the same time.
const MAX_SENDERS: usize = 64;

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
    bowline perf write-bw 127.0.0.100 -d 127.0.0.1\n\n\
    bowline switch 127.0.0.101 --members 127.0.0.100:18515,127.0.0.4:18516 --listen 18519\n                              \
                                  a switch with another one as a member\n\n\
    A completion at the sender means that all members have the message. Root is not needed: ADDR may be any\n\
    address of this machine that no device uses. With --via xdp it is needed, and packets bypass the kernel's\n\
    network stack. While it runs, `bowline group` shows its groups and evicts members.")]
pub(crate) struct SwitchArgs {
    /// The switch's own address
    addr: IpAddr,
    /// Addresses where the members listen for their peer, e.g. 127.0.0.2:18516,127.0.0.3:18517
    #[arg(long, required = true, value_delimiter = ',', value_name = "HOST:PORT")]
    members: Vec<SocketAddr>,
    /// TCP port on which senders set up their connections
    #[arg(long, default_value_t = 18515, value_name = "PORT")]
    listen: u16,
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
    let listener = TcpListener::bind((args.addr, args.listen))
        .map_err(|e| format!("cannot listen on {}:{}: {e}", args.addr, args.listen))?;
    let policy = args.policy.0;
    let as_in_the_paper = args.merge == MergeArg::Paper;
    let options = GroupOptions { policy, as_in_the_paper, ..GroupOptions::default() };
    report_events(&switch);
    // The switch also works without it.
    let _control = control::start(&switch, args.addr)
        .map_err(|e| eprintln!("`bowline group` will not find this switch: {e}"));
    let via = switch.via();
    say(&format!("{} ({via}): waiting for senders on port {}", args.addr, args.listen))?;
    loop {
        let (client, from) = listener.accept()?;
        let proxy = Proxy { switch: Arc::clone(&switch), members: args.members.clone(), options };
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
