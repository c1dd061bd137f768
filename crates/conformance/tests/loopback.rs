//! The body over two devices of this process, on UDP sockets.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr};

use bowline::Device;
use bowline_conformance::ends::device::{DeviceEnd, WallClock};
use bowline_conformance::{End, Lab, Maker, Profile, cases, run_case};

/// An address of loopback that nobody else is likely to use at the moment.
fn random_addr() -> IpAddr {
    let [a, b, c, ..] = RandomState::new().hash_one(0).to_le_bytes();
    IpAddr::V4(Ipv4Addr::new(127, a.max(1), b, c.clamp(1, 254)))
}

fn passes(profile: Profile, lanes: &str, link: Option<&str>) {
    let ends = [0, 1].map(|_| -> Box<dyn End> {
        let mut builder = Device::builder(random_addr()).lanes(lanes.parse().expect("a number"));
        if let Some(link) = link {
            builder = builder.link(link.parse().expect("it is a link profile"));
        }
        let device = builder.open().expect("loopback has addresses for everybody");
        Box::new(DeviceEnd::new(device).expect("a new device has room"))
    });
    let mut lab = Lab::new(ends, Box::new(WallClock::start()));
    let mut failures = Vec::new();
    for case in cases(profile, Maker::Bowline) {
        if let Err(failure) = run_case(&mut lab, case).result {
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
fn over_lanes() {
    passes(Profile::Clean, "3", None);
}

#[test]
fn over_lanes_that_lose_double_and_reorder() {
    passes(Profile::Faulty, "3", Some("loss=1%,duplicate=1%,reorder=1%,delay=50us,seed=3"));
}
