//! A link that really goes down: a pair of virtual interfaces in their own network namespace.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline_io::{EventChannel, FaultPort, Lane, LaneConfig, LinkState, UdpConfig, UdpPort};
use bowline_nic::{Nic, NicConfig};

const VARIABLE: &str = "BOWLINE_TEST_IN_NAMESPACE";
const PATIENCE: Duration = Duration::from_secs(5);

#[test]
fn a_lane_knows_when_its_interface_is_down_or_has_no_carrier() {
    if std::env::var_os(VARIABLE).is_some() {
        return in_namespace();
    }
    let possible = Command::new("unshare")
        .args("-rn ip link add bl-a type veth peer name bl-b".split(' '))
        .output();
    if !possible.is_ok_and(|done| done.status.success()) {
        println!("skipped: no network namespaces for this user here, or no iproute2");
        return;
    }
    let done = Command::new("unshare")
        .arg("-rn")
        .arg(std::env::current_exe().unwrap())
        .args(["--nocapture", "a_lane_knows"])
        .env(VARIABLE, "yes")
        .status();
    assert!(done.unwrap().success());
}

fn in_namespace() {
    ip("link add bl-a type veth peer name bl-b");
    ip("addr add 10.77.0.1/24 dev bl-a");
    ip("link set bl-a up");
    ip("link set bl-b up");
    let lane = lane("10.77.0.1");
    becomes(&lane, LinkState::Up);
    // The cable's other end.
    ip("link set bl-b down");
    becomes(&lane, LinkState::Down);
    ip("link set bl-b up");
    becomes(&lane, LinkState::Up);
    ip("link set bl-a down");
    becomes(&lane, LinkState::Down);
    ip("link set bl-a up");
    becomes(&lane, LinkState::Up);
    lane.faults().unwrap().apply(&"down".parse().unwrap());
    becomes(&lane, LinkState::Down);
    lane.faults().unwrap().apply(&"clear".parse().unwrap());
    becomes(&lane, LinkState::Up);
    ip("link del bl-a");
    becomes(&lane, LinkState::Down);
    lane.with(|_, _| ()).expect("it outlives its interface");
}

fn ip(args: &str) {
    assert!(Command::new("ip").args(args.split(' ')).status().unwrap().success(), "ip {args}");
}

fn lane(addr: &str) -> Arc<Lane> {
    let port = UdpPort::open(&UdpConfig::new(addr.parse().unwrap())).unwrap();
    let nic = Nic::new(NicConfig::new(addr.parse().unwrap(), [1; 32])).unwrap();
    let events = Arc::new(EventChannel::new(64).unwrap());
    Lane::start(nic, Box::new(FaultPort::new(port)), LaneConfig::default(), events).unwrap()
}

fn becomes(lane: &Lane, state: LinkState) {
    let start = Instant::now();
    while lane.link() != state {
        assert!(start.elapsed() < PATIENCE, "the link does not become {state:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
