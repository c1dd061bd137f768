//! Several lanes without a registry directory: the device gets one lane.

use std::net::IpAddr;
use std::sync::Mutex;

use bowline_device::DeviceSpec;

static NOTICES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// A separate test binary, because it changes the environment of the process.
#[test]
fn a_device_has_one_lane_and_says_why() {
    let pid = std::process::id();
    let addr: IpAddr = format!("127.76.{}.{}", pid / 250 % 250, pid % 250 + 1).parse().unwrap();
    // SAFETY: this process has no other thread that reads the environment.
    unsafe { std::env::set_var("XDG_RUNTIME_DIR", "/nowhere/at/all") };
    let mut spec = DeviceSpec::new("t", addr);
    spec.udp.udp_port = 14_797;
    spec.udp.notice = |text| NOTICES.lock().unwrap().push(text.to_owned());
    spec.lanes = "4".parse().unwrap();
    let device = spec.open().expect("it does without");
    assert_eq!(device.lanes().len(), 1);
    let said = NOTICES.lock().unwrap().join("\n");
    assert!(said.contains("one lane, not 4") && said.contains("/nowhere/at/all"), "{said}");
}
