//! A running switch's answers to `bowline group`.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use bowline::Qpn;
use bowline::multicast::{GroupKey, GroupStatus, GroupSwitch, MemberStatus, Policy, RootStatus};
use bowline_io::control::{ControlServer, SWITCH_PREFIX};
use serde_json::{Value, json};

/// Approximate maximum bytes of groups in one answer, less than a client reads. Further groups are
/// only counted.
const MAX_GROUPS_BYTES: usize = 2 << 20;

/// Listens like a device, for processes of this user on this host, while the server lives.
pub(super) fn start(switch: &Arc<GroupSwitch>, addr: IpAddr) -> io::Result<ControlServer> {
    let switch = Arc::downgrade(switch);
    let answer = move |line: &str| answer(&switch, addr, line).to_string();
    ControlServer::start(&format!("{SWITCH_PREFIX}{addr}"), answer)
}

fn answer(switch: &Weak<GroupSwitch>, addr: IpAddr, line: &str) -> Value {
    let Some(switch) = switch.upgrade() else { return json!({ "error": "it is ending" }) };
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        ["groups"] => state(&switch, addr),
        ["evict", sender, group, member] => match evict(&switch, sender, group, member) {
            Ok(()) => state(&switch, addr),
            Err(why) => json!({ "error": why }),
        },
        _ => json!({ "error": "it does not know this request: run the same release" }),
    }
}

fn evict(switch: &GroupSwitch, sender: &str, group: &str, member: &str) -> Result<(), String> {
    let sender = sender.parse().map_err(|_| format!("{sender:?} is no IP address"))?;
    let key = GroupKey { sender, id: parse_id(group)? };
    switch.evict(&key, parse_id(member)?).map_err(|e| e.to_string())
}

/// Parses a printed ID: 24 bits in hexadecimal.
pub(crate) fn parse_id(text: &str) -> Result<Qpn, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let id = u32::from_str_radix(digits, 16).ok().filter(|id| *id < 1 << 24);
    id.map(Qpn::new).ok_or_else(|| format!("invalid ID `{text}`: write it as 0xfe0001"))
}

fn state(switch: &GroupSwitch, addr: IpAddr) -> Value {
    let all = switch.groups();
    let (mut groups, mut bytes) = (Vec::new(), 0);
    for group in &all {
        bytes += 200 + group.branches.len() * 200;
        if bytes > MAX_GROUPS_BYTES {
            break;
        }
        groups.push(describe(group));
    }
    let counters: serde_json::Map<_, _> =
        switch.counters().iter().map(|(name, n)| (name.to_owned(), n.into())).collect();
    json!({
        "pid": std::process::id(),
        "addr": addr,
        "not_listed": all.len() - groups.len(),
        "groups": groups,
        "counters": counters,
    })
}

fn describe(group: &GroupStatus) -> Value {
    let GroupStatus { key, epoch, root, branches } = group;
    let mut object = json!({
        "id": key.id.to_string(), "sender": key.sender, "epoch": epoch, "branches": branches,
    });
    if let Some(RootStatus { policy, has_failed, outstanding, members, .. }) = root {
        object["policy"] = policy_text(policy).into();
        object["failed"] = (*has_failed).into();
        object["outstanding_packets"] = (*outstanding).into();
        object["members"] = members.iter().map(member).collect();
    }
    object
}

fn member(member: &MemberStatus) -> Value {
    let MemberStatus { id, addr, is_live, lag, holds_back } = member;
    json!({
        "id": id.to_string(), "addr": addr, "live": is_live, "lag_packets": lag,
        "holds_back": holds_back,
    })
}

/// A policy in the syntax of `--policy`.
fn policy_text(policy: &Policy) -> String {
    let ms = |ns: &u64| *ns as f64 / 1e6;
    match policy {
        Policy::Fail => "fail".to_owned(),
        Policy::Evict { after_ns, .. } => format!("evict={}ms", ms(after_ns)),
        Policy::Quorum { k, after_ns } => format!("quorum={k},{}ms", ms(after_ns)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_they_are_printed() {
        assert_eq!(parse_id(&Qpn::new(0xfe_0001).to_string()), Ok(Qpn::new(0xfe_0001)));
        assert_eq!(parse_id("fe0001"), Ok(Qpn::new(0xfe_0001)));
        for wrong in ["", "0x", "0x1000000", "member", "-1"] {
            assert!(parse_id(wrong).unwrap_err().contains("0xfe0001"), "{wrong}");
        }
    }

    #[test]
    fn whatever_is_asked_gets_an_answer() {
        let nobody = Weak::new();
        let addr = IpAddr::from([127, 0, 0, 1]);
        assert!(answer(&nobody, addr, "groups")["error"].is_string());
    }
}
