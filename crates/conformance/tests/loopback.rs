//! The checks over two devices of this process, on UDP sockets and through shared memory.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use bowline::Device;
use bowline::multicast::{GroupSwitch, SwitchOptions};
use bowline_conformance::ends::device::{DeviceEnd, WallClock};
use bowline_conformance::ends::groups::Groups;
use bowline_conformance::ends::keys::Keys;
use bowline_conformance::{Case, End, Lab, Maker, Profile, cases, group_cases, run_case};

/// A loopback address that is unlikely to be in use.
fn random_addr() -> IpAddr {
    let [a, b, c, ..] = RandomState::new().hash_one(0).to_le_bytes();
    IpAddr::V4(Ipv4Addr::new(127, a.max(1), b, c.clamp(1, 254)))
}

fn passes(profile: Profile, lanes: &str, link: Option<&str>) {
    judge(lab(lanes, link, "udp", |_, end| end).0, &cases(profile, Maker::Bowline));
}

/// What a group supports passes through a group of one, as between two queue pairs, and reaches all
/// members of a larger one.
fn passes_in_groups(profile: Profile, link: Option<&str>, groups: &Groups) {
    let grouped = |_, end: DeviceEnd| end.with_groups(groups.clone());
    judge(lab("1", link, "udp", grouped).0, &group_cases(profile));
}

/// Passes, with bursts through shared memory.
fn passes_in_memory(profile: Profile, lanes: &str, link: Option<&str>) {
    let (lab, devices) = lab(lanes, link, "shm", |_, end| end);
    judge(lab, &cases(profile, Maker::Bowline));
    for device in devices {
        let counters = device.port_counters().expect("the device lives");
        assert!(counters.shm_tx_bursts * 2 > counters.tx_bursts, "{counters:?}");
        assert_eq!(counters.shm_refused, 0);
    }
}

/// Passes, with sealed connections.
fn passes_sealed(profile: Profile, link: Option<&str>) {
    let keys = Keys::pair();
    let sealed = |side: usize, end: DeviceEnd| end.sealed(keys[side].clone());
    judge(lab("1", link, "udp", sealed).0, &cases(profile, Maker::Bowline));
}

/// Two ends on devices of this process, each finished by `dress`.
fn lab(
    lanes: &str,
    link: Option<&str>,
    via: &str,
    dress: impl Fn(usize, DeviceEnd) -> DeviceEnd,
) -> (Lab, Vec<Device>) {
    let mut devices = Vec::new();
    let ends = [0, 1].map(|side| -> Box<dyn End> {
        let mut builder = Device::builder(random_addr()).lanes(lanes.parse().expect("a number"));
        builder = builder.via(via.parse().expect("it carries packets"));
        if let Some(link) = link {
            builder = builder.link(link.parse().expect("it is a link profile"));
        }
        let device = builder.open().expect("loopback has addresses for everybody");
        devices.push(device.clone());
        let end = DeviceEnd::new(device).expect("a new device has room");
        Box::new(dress(side, end))
    });
    (Lab::new(ends, Box::new(WallClock::start())), devices)
}

fn judge(mut lab: Lab, cases: &[Case]) {
    assert!(!cases.is_empty());
    let mut failures = Vec::new();
    for case in cases {
        if let Err(failure) = run_case(&mut lab, *case).result {
            failures.push(format!("{case}: {failure}"));
        }
    }
    assert!(failures.is_empty(), "{} cases failed:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn over_udp() {
    passes(Profile::Clean, "1", None);
}

#[test]
fn over_udp_that_loses_doubles_and_reorders() {
    passes(Profile::Faulty, "1", Some("loss=1%,duplicate=1%,reorder=1%,delay=50us,seed=3"));
}

#[test]
fn sealed_over_udp() {
    passes_sealed(Profile::Clean, None);
}

#[test]
fn sealed_over_udp_that_loses_doubles_and_reorders() {
    passes_sealed(Profile::Faulty, Some("loss=1%,duplicate=1%,reorder=1%,delay=50us,seed=3"));
}

#[test]
fn over_lanes() {
    passes(Profile::Clean, "3", None);
}

#[test]
fn over_lanes_that_lose_double_and_reorder() {
    passes(Profile::Faulty, "3", Some("loss=1%,duplicate=1%,reorder=1%,delay=50us,seed=3"));
}

const FAULTY: &str = "loss=1%,duplicate=1%,reorder=1%,delay=50us,seed=3";

fn switch() -> Groups {
    let options = SwitchOptions::new(random_addr());
    Groups::Switch(Arc::new(GroupSwitch::open(&options).expect("loopback has addresses")))
}

#[test]
fn over_a_group_behind_a_switch() {
    passes_in_groups(Profile::Clean, None, &switch());
}

#[test]
fn over_a_group_behind_a_switch_that_loses_doubles_and_reorders() {
    passes_in_groups(Profile::Faulty, Some(FAULTY), &switch());
}

#[test]
fn over_a_group_in_the_port() {
    passes_in_groups(Profile::Clean, None, &Groups::Port);
}

#[test]
fn over_a_group_in_the_port_that_loses_doubles_and_reorders() {
    passes_in_groups(Profile::Faulty, Some(FAULTY), &Groups::Port);
}

#[test]
fn over_shared_memory() {
    passes_in_memory(Profile::Clean, "1", None);
}

#[test]
fn over_shared_memory_that_loses_doubles_and_reorders() {
    let link = "loss=1%,duplicate=1%,reorder=1%,corrupt=1%,delay=50us,seed=3";
    passes_in_memory(Profile::Faulty, "1", Some(link));
}

#[test]
fn over_lanes_in_shared_memory() {
    passes_in_memory(Profile::Clean, "3", None);
}
