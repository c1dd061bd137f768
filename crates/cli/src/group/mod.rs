//! `bowline group`: lists the groups of running switches, finds members that hold a group back, and
//! evicts them.

use std::error::Error;
use std::net::IpAddr;
use std::process::ExitCode;

use bowline_io::control::{self, Peer};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::devinfo::ask;
use crate::output::{JSON_VERSION, plain, say};
use crate::switch::parse_id;

/// Show the groups of running switches, and take members out of them
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    bowline group ls                             every group and its members\n  \
    bowline group stats                          how far each member is behind, and what switches have done\n  \
    bowline group stats --json | jq '.switches[].groups[].members[] | select(.holds_back)'\n  \
    bowline group evict 0xfe0000 0xfe0002        go on without this member …\n  \
    bowline group evict 0xfe0000 192.0.2.8       … or by its address, if no other member has it\n\n\
    It asks the `bowline switch` processes of this user on this host (in this network namespace). After an \
    eviction, writes complete once the remaining members have them. The sender is not told; the switch prints it.\n\n\
    Exit status: 0 success, 1 failure, 2 wrong usage.")]
pub(crate) struct GroupArgs {
    #[command(subcommand)]
    action: Action,
    /// Ask only the switch at this address
    #[arg(long, global = true, value_name = "ADDRESS")]
    switch: Option<IpAddr>,
    /// Print one JSON object
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Action {
    /// List groups and members
    Ls,
    /// Show each member's lag, which member holds the others back, and counters
    Stats,
    /// Take a member out of a group
    Evict {
        /// The group's ID, as `ls` shows it
        #[arg(value_name = "GROUP")]
        group: String,
        /// The member's ID or address
        #[arg(value_name = "MEMBER")]
        member: String,
    },
}

/// Runs `bowline group`.
pub(crate) fn run(args: &GroupArgs) -> Result<ExitCode, Box<dyn Error>> {
    let switches: Vec<(Peer, Value)> = control::live_switches()?
        .into_iter()
        .filter(|peer| args.switch.is_none_or(|addr| is_at(peer, addr)))
        .map(|peer| (peer.clone(), ask(&peer, "groups")))
        .collect();
    if let Some(addr) = args.switch.filter(|_| switches.is_empty()) {
        return Err(format!("no `bowline switch` of yours runs at {addr} on this host").into());
    }
    let answers = match &args.action {
        Action::Evict { group, member } => vec![evict(&switches, group, member)?],
        Action::Ls | Action::Stats => switches.into_iter().map(|(_, answer)| answer).collect(),
    };
    let failed = answers.iter().any(|answer| answer["error"].is_string());
    let status = if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    if args.json {
        say(&json!({ "version": JSON_VERSION, "switches": answers }).to_string());
        return Ok(status);
    }
    if answers.is_empty() {
        say("no `bowline switch` of yours runs on this host");
    }
    let with_counters = matches!(args.action, Action::Stats);
    answers.iter().for_each(|answer| describe(answer, with_counters));
    Ok(status)
}

fn is_at(peer: &Peer, addr: IpAddr) -> bool {
    peer.device.strip_prefix(control::SWITCH_PREFIX).is_some_and(|at| at == addr.to_string())
}

/// Orders the switch that has the group to continue without a member. Returns its answer.
fn evict(switches: &[(Peer, Value)], group: &str, member: &str) -> Result<Value, String> {
    let id = parse_id(group)?.to_string();
    let mut found = switches.iter().flat_map(|(peer, answer)| {
        let groups = answer["groups"].as_array().into_iter().flatten();
        groups.filter(|group| group["id"] == *id).map(move |group| (peer, group))
    });
    let (peer, group) = found
        .next()
        .ok_or_else(|| format!("no switch has a group {id}: see `bowline group ls`"))?;
    if found.next().is_some() {
        return Err(format!("several switches or senders have a group {id}: name one by --switch"));
    }
    let member = find_member(group, member)?;
    let sender = group["sender"].as_str().unwrap_or_default();
    let answer = ask(peer, &format!("evict {sender} {id} {member}"));
    match answer["error"].as_str() {
        Some(why) => Err(why.to_owned()),
        None => Ok(answer),
    }
}

/// The ID of a member, given its ID or its address.
fn find_member(group: &Value, member: &str) -> Result<String, String> {
    let Ok(addr) = member.parse::<IpAddr>() else { return Ok(parse_id(member)?.to_string()) };
    let members = group["members"].as_array().into_iter().flatten();
    let ids: Vec<&str> = members
        .filter(|member| member["addr"] == addr.to_string() && member["live"] == true)
        .filter_map(|member| member["id"].as_str())
        .collect();
    match ids[..] {
        [id] => Ok(id.to_owned()),
        [] => Err(format!("no live member of the group is at {addr}")),
        _ => Err(format!("several members are at {addr}: take one of {}", ids.join(", "))),
    }
}

fn describe(answer: &Value, with_counters: bool) {
    let line = |text: String| say(&plain(&text));
    if let Some(error) = answer["error"].as_str() {
        return line(format!("switch: {error}"));
    }
    let addr = answer["addr"].as_str().unwrap_or("?");
    line(format!("switch {addr} (process {})", answer["pid"]));
    for group in answer["groups"].as_array().into_iter().flatten() {
        line(format!("  {}", group_line(group)));
        for member in group["members"].as_array().into_iter().flatten() {
            line(format!("    {}", member_line(member)));
        }
    }
    if let Some(more @ 1..) = answer["not_listed"].as_u64() {
        line(format!("  and {more} more groups"));
    }
    if with_counters {
        let counters = answer["counters"].as_object().into_iter().flatten();
        for (name, n) in counters.filter(|(_, n)| n.as_u64() != Some(0)) {
            line(format!("  {name:<16} {n}"));
        }
    }
}

fn group_line(group: &Value) -> String {
    let text = |key: &str| group[key].as_str().unwrap_or("?").to_owned();
    let head = format!("group {} of {}, epoch {}", text("id"), text("sender"), group["epoch"]);
    if group["members"].is_null() {
        let branches = group["branches"].as_array().into_iter().flatten();
        let to: Vec<&str> = branches.filter_map(Value::as_str).collect();
        return format!("{head}: unreliable packets, copied to {}", to.join(", "));
    }
    let outstanding = match group["outstanding_packets"].as_u64() {
        Some(n) => format!("{n} packets outstanding"),
        None => "waiting for its members since a restart".to_owned(),
    };
    let failed = if group["failed"] == true { ", FAILED" } else { "" };
    format!("{head}, policy {}: {outstanding}{failed}", text("policy"))
}

fn member_line(member: &Value) -> String {
    let text = |key: &str| member[key].as_str().unwrap_or("?");
    let head = format!("member {} at {}", text("id"), text("addr"));
    if member["live"] != true {
        return format!("{head}: evicted");
    }
    let lag = match member["lag_packets"].as_u64() {
        Some(0) => "has everything".to_owned(),
        Some(n) => format!("{n} packets behind"),
        None => "has not spoken yet".to_owned(),
    };
    let holds_back = if member["holds_back"] == true { ", holds the group back" } else { "" };
    format!("{head}: {lag}{holds_back}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group() -> Value {
        json!({ "id": "0xfe0000", "sender": "127.0.0.1", "epoch": 1, "policy": "fail",
            "outstanding_packets": 7, "failed": false, "members": [
                { "id": "0xfe0001", "addr": "127.0.0.2", "live": true, "lag_packets": 7,
                  "holds_back": true },
                { "id": "0xfe0002", "addr": "127.0.0.3", "live": true, "lag_packets": 0,
                  "holds_back": false },
                { "id": "0xfe0003", "addr": "127.0.0.3", "live": true, "lag_packets": null,
                  "holds_back": false },
                { "id": "0xfe0004", "addr": "127.0.0.4", "live": false, "lag_packets": 1,
                  "holds_back": false },
            ] })
    }

    #[test]
    fn members_are_found_by_id_and_by_an_address_of_their_own() {
        let find = |member: &str| find_member(&group(), member);
        assert_eq!(find("0xfe0002"), Ok("0xfe0002".to_owned()));
        assert_eq!(find("127.0.0.2"), Ok("0xfe0001".to_owned()));
        assert!(find("127.0.0.3").unwrap_err().contains("0xfe0002, 0xfe0003"));
        assert!(find("127.0.0.4").unwrap_err().contains("no live member"));
        assert!(find("nobody").unwrap_err().contains("0xfe0001"));
    }

    #[test]
    fn lines_say_who_holds_the_group_back() {
        let group = group();
        assert_eq!(
            group_line(&group),
            "group 0xfe0000 of 127.0.0.1, epoch 1, policy fail: 7 packets outstanding"
        );
        let lines: Vec<String> =
            group["members"].as_array().unwrap().iter().map(member_line).collect();
        assert!(lines[0].ends_with("7 packets behind, holds the group back"), "{lines:?}");
        assert!(lines[1].ends_with("has everything"), "{lines:?}");
        assert!(lines[2].ends_with("has not spoken yet"), "{lines:?}");
        assert!(lines[3].ends_with("evicted"), "{lines:?}");
        let copied = json!({ "id": "0xfe0000", "sender": "::1", "epoch": 2, "branches": ["::2"] });
        assert!(group_line(&copied).ends_with("copied to ::2"));
    }
}
