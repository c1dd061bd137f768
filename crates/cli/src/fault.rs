//! `bowline fault`: makes devices of running processes fail, and work again.

use std::error::Error;
use std::net::IpAddr;
use std::process::ExitCode;
use std::str::FromStr;

use bowline_io::control::{self, Peer};
use bowline_io::{FaultAction, FaultRequest, ParseFaultError};
use clap::Args;
use serde_json::{Value, json};

use crate::devinfo::ask;
use crate::output::{JSON_VERSION, plain};

/// Inject faults into a device of running processes, and clear them
#[derive(Args)]
#[command(after_help = "Actions:\n  \
    down                  no packets in or out, and the device reports it, like an unplugged cable\n  \
    up                    end down or flap\n  \
    flap=200ms            down for 200 ms, up for 200 ms, and so on\n  \
    loss=1%               packets are lost in both directions; loss=ge(0.001,0.1),seed=7 in bursts\n  \
    blackhole=in, =out    packets in this direction disappear silently\n  \
    clear                 end all faults\n  \
    list                  show the current faults; the default\n\n\
    Examples:\n  \
    bowline fault                        every live device, and its faults\n  \
    bowline fault bl0 down --for 5s      bl0 of the process that has one; back in five seconds\n  \
    bowline fault bl0 down --all         bl0 of every process of yours\n  \
    bowline fault 127.0.0.2 loss=0.1%    a device by its address\n  \
    bowline fault bl0 flap=200ms --pid 4711\n  \
    bowline fault bl0 clear\n\n\
    It acts on processes of this user on this host (in this network namespace). Faults of different kinds\n\
    combine; a new fault replaces an old one of the same kind. They end with the process.")]
pub(crate) struct FaultArgs {
    /// The device, by its name in the process or by its address
    device: Option<String>,
    /// What to do: down, up, flap=200ms, loss=1%, blackhole=in, blackhole=out, clear or list
    action: Option<Action>,
    /// Only in this process
    #[arg(long)]
    pid: Option<u32>,
    /// In every process of yours that has the device
    #[arg(long, conflicts_with = "pid")]
    all: bool,
    /// Undo it after this time, e.g. 5s or 200ms
    #[arg(long = "for", value_name = "TIME", requires = "action")]
    lasts: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What to do about a device's faults.
#[derive(Clone, Copy)]
enum Action {
    List,
    Order(FaultAction),
}

impl FromStr for Action {
    type Err = String;

    fn from_str(text: &str) -> Result<Action, String> {
        if text == "list" {
            return Ok(Action::List);
        }
        let loss = text.strip_prefix("loss=").and_then(|loss| loss.split(',').next());
        if loss.is_some_and(|loss| loss.parse() == Ok(1.0_f64) || loss == "100%") {
            return Err(format!(
                "invalid loss `{text}`: it loses every packet; write loss=1% for one in a hundred, or \
                 blackhole=in for all"
            ));
        }
        let order: Result<FaultAction, ParseFaultError> = text.parse();
        order.map(Action::Order).map_err(|e| e.to_string())
    }
}

/// Injects, clears or lists faults.
pub(crate) fn run(args: &FaultArgs) -> Result<ExitCode, Box<dyn Error>> {
    let line = match args.action {
        None | Some(Action::List) if args.lasts.is_some() => {
            return Err("--for needs a fault, e.g. `bowline fault bl0 down --for 5s`".into());
        }
        None | Some(Action::List) => "faults".to_owned(),
        Some(Action::Order(action)) => format!("fault {}", request(action, args.lasts.as_deref())?),
    };
    // People also type `bowline fault list`.
    let is_list = args.action.is_none() && args.device.as_deref() == Some("list");
    let device = args.device.as_deref().filter(|_| !is_list);
    let live: Vec<(Peer, Value)> =
        control::live()?.into_iter().map(|peer| (peer.clone(), ask(&peer, "faults"))).collect();
    let chosen: Vec<&Peer> = live
        .iter()
        .filter(|(peer, state)| device.is_none_or(|name| is_called(name, peer, state)))
        .filter(|(peer, _)| args.pid.is_none_or(|pid| pid == peer.pid))
        .map(|(peer, _)| peer)
        .collect();
    if chosen.is_empty() && (device.is_some() || args.pid.is_some()) {
        return Err(nobody(device, args.pid, &live).into());
    }
    let is_order = matches!(args.action, Some(Action::Order(_)));
    if is_order && chosen.len() > 1 && !args.all {
        let devices = chosen.iter().map(|peer| (peer.device.as_str(), peer.pid));
        return Err(several(devices).into());
    }
    let answers: Vec<Value> = chosen.iter().map(|peer| ask(peer, &line)).collect();
    if args.json {
        println!("{}", json!({ "version": JSON_VERSION, "devices": answers }));
    } else if answers.is_empty() {
        println!("no live process of yours has a device open");
    } else {
        answers.iter().for_each(|answer| println!("{}", plain(&describe(answer))));
    }
    let failed = answers.iter().any(|answer| answer["error"].is_string());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn request(action: FaultAction, lasts: Option<&str>) -> Result<FaultRequest, ParseFaultError> {
    match lasts {
        Some(lasts) => format!("{action} for {lasts}").parse(),
        None => Ok(FaultRequest { action, lasts: None }),
    }
}

/// Whether `name` means this device, by its name or its address.
fn is_called(name: &str, peer: &Peer, state: &Value) -> bool {
    let addr = state["addr"].as_str().and_then(|addr| addr.parse::<IpAddr>().ok());
    name == peer.device || addr.is_some_and(|addr| name.parse() == Ok(addr))
}

/// The error if more than one process has the device.
fn several<'a>(devices: impl Iterator<Item = (&'a str, u32)>) -> String {
    let list: Vec<String> =
        devices.map(|(device, pid)| format!("{device} of process {pid}")).collect();
    format!("{} devices match ({}): say which with --pid, or --all", list.len(), list.join(", "))
}

/// The error if no device matches, with a list of those that exist.
fn nobody(device: Option<&str>, pid: Option<u32>, live: &[(Peer, Value)]) -> String {
    let what = device.map_or("device".to_owned(), |device| format!("device {device}"));
    let who = match pid {
        Some(pid) => format!("process {pid} has no {what}, or is not a running process of yours"),
        None => format!("no live process of yours has a {what}"),
    };
    let others: Vec<String> =
        live.iter().map(|(peer, _)| format!("{} (process {})", peer.device, peer.pid)).collect();
    let instead = if others.is_empty() {
        "no running process has one open".to_owned()
    } else {
        format!("there are {}", others.join(", "))
    };
    format!("{who}; {instead}")
}

/// Describes one device in one line.
fn describe(answer: &Value) -> String {
    let text = |key: &str| answer[key].as_str().unwrap_or("?");
    let process = format!("process {}", answer["pid"]);
    if let Some(error) = answer["error"].as_str() {
        return format!("{} of {process}: {error}", text("device"));
    }
    let faults: Vec<String> =
        answer["faults"].as_array().into_iter().flatten().map(describe_fault).collect();
    let faults = if faults.is_empty() { "no faults".to_owned() } else { faults.join("; ") };
    let (device, addr, program, link) =
        (text("device"), text("addr"), text("program"), text("link"));
    format!("{device} at {addr} of {process} ({program}): link {link}, {faults}")
}

fn describe_fault(fault: &Value) -> String {
    let name = fault["fault"].as_str().unwrap_or("?");
    match fault["left_ms"].as_f64() {
        Some(left_ms) => format!("{name} for another {:.1} s", left_ms / 1000.0),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losing_everything_is_taken_for_a_mistake() {
        for wrong in ["loss=1", "loss=1.0", "loss=100%", "loss=1,seed=3"] {
            let error = wrong.parse::<Action>().err().unwrap();
            assert!(error.contains("loss=1%"), "{error}");
        }
        for right in ["loss=1%", "loss=0.99", "down", "list", "blackhole=in"] {
            assert!(right.parse::<Action>().is_ok(), "{right}");
        }
    }

    #[test]
    fn several_devices_are_named() {
        let text = several([("bl0", 7), ("bl0", 8)].into_iter());
        assert!(text.contains("bl0 of process 7, bl0 of process 8") && text.contains("--all"));
    }

    #[test]
    fn a_device_is_described_in_a_line() {
        let answer = json!({
            "pid": 7, "program": "ib_write_bw", "device": "bl0", "addr": "127.0.0.1", "link": "down",
            "faults": [{"fault": "down", "left_ms": 1500}, {"fault": "loss=0.01", "left_ms": null}],
        });
        assert_eq!(
            describe(&answer),
            "bl0 at 127.0.0.1 of process 7 (ib_write_bw): link down, down for another 1.5 s; loss=0.01"
        );
        let answer = json!({ "pid": 7, "device": "bl0", "error": "no answer: gone" });
        assert_eq!(describe(&answer), "bl0 of process 7: no answer: gone");
    }
}
