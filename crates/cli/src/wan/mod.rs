//! `bowline wan`: a link between two network namespaces.

mod args;
mod capture;
mod program;
mod report;
mod session;

use std::error::Error;
use std::process::ExitCode;

use bowline_wan::{Signals, Wan, WanConfig};

pub(crate) use args::WanArgs;
use report::Outcome;
use session::Ending;

/// The exit status of a run that was too late to be trusted: EX_TEMPFAIL, try again.
const REFUSED: u8 = 75;

/// Creates the link, runs the commands, and reports.
pub(crate) fn run(args: &WanArgs) -> Result<ExitCode, Box<dyn Error>> {
    if args.left.is_none() && args.right.is_none() && !args.hold {
        return Err("nothing to run: give --left and --right, or --hold".into());
    }
    let signals = Signals::take_over()?;
    let (to_right, to_left) = args.links();
    let mut config = WanConfig::new(to_right);
    config.to_left = to_left;
    config.mtu = args.mtu;
    config.ipv6 = args.ipv6;
    config.step = args.then.as_ref().map(|step| (step.after, step.link.config));
    config.tap = args.pcap.as_deref().map(capture::tap).transpose()?;
    let wan = Wan::start(config)?;
    if args.hold {
        session::print_entrances(&wan);
    }
    let ending = session::run(&wan, args, &signals)?;
    let report = wan.finish().ok_or("a thread of the link failed: this is a bug")?;
    let refusal = report.refusal(args.late_limit());
    let outcome = Outcome {
        version: crate::output::JSON_VERSION,
        report,
        late_limit_us: args.late_limit().as_secs_f64() * 1e6,
        seed: args.links().0.seed,
        left_status: ending.left_status,
        right_status: ending.right_status,
        refused: refusal,
    };
    outcome.print(args.json)?;
    Ok(exit_code(&ending, &outcome))
}

/// A failure of the programs takes precedence over one of the link, which may be its consequence.
fn exit_code(ending: &Ending, outcome: &Outcome) -> ExitCode {
    match ending.status() {
        0 if outcome.refused.is_some() => ExitCode::from(REFUSED),
        status => ExitCode::from(u8::try_from(status).unwrap_or(1)),
    }
}
