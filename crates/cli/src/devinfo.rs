//! `bowline devinfo`: the devices of this host, and the counters of running processes that use
//! them.

use std::error::Error;
use std::net::IpAddr;
use std::time::Duration;

use bowline::{Mtu, QpType};
use bowline_ibverbs::{ListedDevice, ListedPort};
use bowline_io::control::{self, Peer};
use clap::Args;
use serde_json::{Value, json};

use crate::output::{plain, say, versioned};
use crate::run::describe_report;

/// How long to wait for a process to answer.
const PATIENCE: Duration = Duration::from_millis(500);

/// Show the devices of this host and the counters of live processes
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    bowline devinfo\n  \
    bowline devinfo --json | jq '.processes[].nic.retransmitted_packets'")]
pub(crate) struct DevinfoArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Prints devices and processes.
pub(crate) fn run(args: &DevinfoArgs) -> Result<(), Box<dyn Error>> {
    let devices = devices()?;
    let verbs = verbs();
    let processes: Vec<Value> = control::live()?.iter().map(|peer| ask(peer, "counters")).collect();
    if args.json {
        let object = json!({ "devices": devices, "verbs": verbs, "processes": processes });
        say(&versioned(object).to_string());
        return Ok(());
    }
    for device in &devices {
        print_device(device);
    }
    print_verbs(&verbs);
    if processes.is_empty() {
        println!("no live process of yours has a device open");
    }
    for process in &processes {
        let program = plain(process["program"].as_str().unwrap_or("?"));
        println!("process {} ({program})", plain(&process["pid"].to_string()));
        match process["error"].as_str() {
            Some(error) => println!("  {}", plain(error)),
            None => describe_report(process).lines().for_each(|line| println!("{}", plain(line))),
        }
    }
    Ok(())
}

/// Every address of an interface that is up, as an unconfigured program would see it.
fn devices() -> Result<Vec<Value>, Box<dyn Error>> {
    let addresses = bowline_io::local_addresses()?;
    let qp_types = QpType::ALL.map(|qp_type| qp_type.descriptor().name);
    Ok(addresses
        .iter()
        .enumerate()
        .map(|(i, a)| {
            let mtu = Mtu::for_ip_mtu(a.mtu).map(Mtu::bytes);
            json!({
                "name": format!("bl{i}"), "addr": a.addr, "interface": a.interface,
                "gid": gid(a.addr), "active_mtu": mtu, "ip_mtu": a.mtu, "state": "PORT_ACTIVE",
                "link_layer": "Ethernet", "transport": "RoCE v2", "qp_types": qp_types,
            })
        })
        .collect())
}

/// The RoCE devices of the system's libibverbs, or the reason why there are none.
fn verbs() -> Value {
    match bowline_ibverbs::list() {
        Ok(devices) => json!({ "devices": devices.iter().map(verbs_device).collect::<Vec<_>>() }),
        Err(error) => json!({ "devices": [], "error": error.to_string() }),
    }
}

fn verbs_device(device: &ListedDevice) -> Value {
    let port = |port: &ListedPort| {
        json!({
            "port": port.number,
            "state": if port.is_active { "PORT_ACTIVE" } else { "PORT_DOWN" },
            "link_layer": if port.is_ethernet { "Ethernet" } else { "InfiniBand" },
            "active_mtu": port.mtu.map(Mtu::bytes),
            "addresses": port.addresses.iter().map(|(_, addr)| addr).collect::<Vec<_>>(),
        })
    };
    let ports = device.ports.as_ref().map(|ports| ports.iter().map(port).collect::<Vec<_>>());
    json!({
        "name": format!("verbs:{}", device.name),
        "ports": ports.clone().unwrap_or_default(),
        "error": ports.err(),
        "qp_types": ["RC", "UC", "UD"],
    })
}

fn print_verbs(verbs: &Value) {
    if let Some(error) = verbs["error"].as_str() {
        println!("no verbs devices: {}\n", plain(error));
        return;
    }
    let devices = verbs["devices"].as_array().map_or(&[][..], Vec::as_slice);
    if devices.is_empty() {
        println!("no verbs devices: libibverbs finds none\n");
    }
    for device in devices {
        println!("hca_id: {}", plain(device["name"].as_str().unwrap_or("?")));
        if let Some(error) = device["error"].as_str() {
            println!("    {}", plain(error));
        }
        for port in device["ports"].as_array().into_iter().flatten() {
            println!("    port {}", port["port"]);
            for (label, key) in [
                ("state", "state"),
                ("link_layer", "link_layer"),
                ("active_mtu", "active_mtu"),
                ("addresses", "addresses"),
            ] {
                println!("        {label:12} {}", text(&port[key]));
            }
        }
        println!();
    }
}

/// A value as text.
fn text(value: &Value) -> String {
    match value {
        Value::String(s) => plain(s),
        Value::Array(of) => of.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

/// The GID of an address. IPv4 addresses are mapped to IPv6.
fn gid(addr: IpAddr) -> String {
    match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_string(),
        IpAddr::V6(v6) => v6.to_string(),
    }
}

fn print_device(d: &Value) {
    println!("hca_id: {}", text(&d["name"]));
    for (label, key) in [
        ("transport", "transport"),
        ("address", "addr"),
        ("interface", "interface"),
        ("GID[0]", "gid"),
        ("state", "state"),
        ("active_mtu", "active_mtu"),
        ("link_layer", "link_layer"),
        ("QP types", "qp_types"),
    ] {
        println!("    {label:12} {}", text(&d[key]));
    }
    println!();
}

/// A process's answer about its device, or the error.
pub(crate) fn ask(peer: &Peer, request: &str) -> Value {
    let failed = |error: String| json!({ "pid": peer.pid, "device": peer.device, "error": error });
    match control::ask(peer, request, PATIENCE) {
        Ok(answer) if answer.is_empty() => {
            failed("unknown request: the process runs another release, or is exiting".into())
        }
        Ok(answer) => {
            serde_json::from_str(&answer).unwrap_or_else(|e| failed(format!("invalid answer: {e}")))
        }
        Err(error) => failed(format!("no answer: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_address_has_a_mapped_gid() {
        assert_eq!(gid([127, 0, 0, 1].into()), "::ffff:127.0.0.1");
    }

    #[test]
    fn loopback_is_a_device() {
        let devices = devices().unwrap();
        let loopback = devices.iter().find(|d| d["addr"] == "127.0.0.1");
        let loopback = loopback.unwrap_or_else(|| panic!("{devices:?}"));
        assert_eq!(loopback["qp_types"], json!(["RC", "UC", "UD", "XP", "XRC"]));
    }
}
