//! Managed switches behind a switch: which they are, and which members are behind each.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use bowline::multicast::{RemoteSwitch, Shape};

use crate::peers::{self, Target, Trust};

use super::DEFAULT_PORT;

/// `SWITCH=MEMBER,…`: a managed switch, and what is behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ThroughArg {
    switch: Target,
    behind: Vec<String>,
}

impl FromStr for ThroughArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = "write SWITCH=MEMBER,MEMBER, e.g. 10.0.2.100=10.0.2.2,10.0.2.3";
        let (switch, behind) =
            text.split_once('=').ok_or_else(|| format!("invalid `{text}`: {wrong}"))?;
        let behind: Vec<String> = behind.split(',').map(|name| name.trim().to_owned()).collect();
        if behind.iter().any(String::is_empty) {
            return Err(format!("invalid `{text}`: {wrong}"));
        }
        Ok(ThroughArg { switch: Target::parse(switch, DEFAULT_PORT)?, behind })
    }
}

/// The switches behind a switch.
#[derive(Debug)]
pub(super) struct Through {
    switches: Vec<Target>,
    shape: Shape,
    trust: Trust,
}

impl Through {
    pub(super) fn new(
        members: &[SocketAddr],
        args: &[ThroughArg],
        trust: Trust,
    ) -> Result<Through, String> {
        let switches: Vec<Target> = args.iter().map(|arg| arg.switch.clone()).collect();
        for (index, switch) in switches.iter().enumerate() {
            if switches[..index].contains(switch) {
                return Err(format!("--through names {switch} twice: list all behind it in one"));
            }
        }
        let mut before_members = vec![None; members.len()];
        let mut before_switches = vec![None; switches.len()];
        for (at, arg) in args.iter().enumerate() {
            for name in &arg.behind {
                let found = members.iter().enumerate().filter(|(_, member)| is(name, **member));
                let found: Vec<usize> = found.map(|(index, _)| index).collect();
                let below = Target::parse(name, DEFAULT_PORT)?;
                let below = switches.iter().position(|switch| *switch == below);
                if found.is_empty() && below.is_none() {
                    return Err(format!(
                        "--through {}: `{name}` is neither in --members nor a switch of --through",
                        arg.switch
                    ));
                }
                for index in found {
                    put(&mut before_members[index], at, name)?;
                }
                if let Some(below) = below {
                    put(&mut before_switches[below], at, name)?;
                }
            }
        }
        let shape = Shape::new(before_members, before_switches);
        let shape = shape.map_err(|error| format!("--through: {error}"))?;
        Ok(Through { switches, shape, trust })
    }

    pub(super) fn shape(&self) -> Shape {
        self.shape.clone()
    }

    /// Connects to all of them.
    pub(super) fn connect(&self) -> Result<Vec<RemoteSwitch>, String> {
        let connect = |switch: &Target| {
            let channel = peers::connect(switch, &self.trust).map_err(|e| e.to_string());
            let remote = channel.and_then(|c| RemoteSwitch::new(c).map_err(|e| e.to_string()));
            remote.map_err(|why| format!("switch {switch}: {why}"))
        };
        self.switches.iter().map(connect).collect()
    }
}

/// Whether a name is a member's: its address, with or without its port.
fn is(name: &str, member: SocketAddr) -> bool {
    name.parse() == Ok(member) || name.parse::<IpAddr>() == Ok(member.ip())
}

fn put(place: &mut Option<usize>, at: usize, name: &str) -> Result<(), String> {
    if place.replace(at).is_some() {
        return Err(format!("--through names `{name}` twice: it has one place in the tree"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(args: &[&str]) -> Result<Shape, String> {
        let members: Vec<SocketAddr> = ["10.0.2.2:1", "10.0.2.3:1", "10.0.1.4:1", "10.0.1.4:2"]
            .iter()
            .map(|text| text.parse().unwrap())
            .collect();
        let args = args.iter().map(|text| text.parse()).collect::<Result<Vec<ThroughArg>, _>>()?;
        Through::new(&members, &args, Trust::default()).map(|through| through.shape())
    }

    #[test]
    fn members_are_named_by_address_or_with_their_port() {
        let expected = Shape::new(vec![Some(0), Some(0), Some(1), None], vec![Some(1), None]);
        let args = ["10.0.2.100=10.0.2.2,10.0.2.3:1", "10.0.1.100:7=10.0.1.4:1,10.0.2.100"];
        assert_eq!(shape(&args), Ok(expected.unwrap()));
        let both = Shape::new(vec![None, None, Some(0), Some(0)], vec![None]);
        assert_eq!(shape(&["10.0.1.100=10.0.1.4"]), Ok(both.unwrap()));
    }

    #[test]
    fn mistakes_are_explained() {
        for (args, why) in [
            (&["10.0.2.100"][..], "SWITCH=MEMBER"),
            (&["10.0.2.100="], "SWITCH=MEMBER"),
            (&["10.0.2.100=10.0.2.9"], "neither in --members"),
            (&["10.0.2.100=10.0.2.2", "10.0.2.101=10.0.2.2"], "`10.0.2.2` twice"),
            (&["10.0.2.100=10.0.2.2", "10.0.2.100=10.0.2.3"], "names 10.0.2.100:18515 twice"),
            (&["10.0.2.100=10.0.2.100"], "behind itself"),
        ] {
            let error = shape(args).expect_err(args[0]);
            assert!(error.contains(why), "{error}");
        }
    }
}
