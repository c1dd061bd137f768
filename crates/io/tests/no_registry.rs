//! A port where the default registry directory cannot be used: it opens, alone on its address, and
//! reports why.

use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::sync::Mutex;

use bowline_io::{Port, PortError, RegistryError, Sharing, UdpConfig, UdpPort, Via};

static NOTICES: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn notices() -> Vec<String> {
    std::mem::take(&mut NOTICES.lock().expect("nobody panics with it"))
}

fn config(addr: IpAddr) -> UdpConfig {
    UdpConfig {
        udp_port: 14_793,
        sharing: Sharing::SameUser { registry_dir: None },
        notice: |text| NOTICES.lock().expect("nobody panics with it").push(text.to_owned()),
        ..UdpConfig::new(addr)
    }
}

fn open(addr: IpAddr) -> Result<UdpPort, PortError> {
    UdpPort::open(&config(addr))
}

/// One test, since all of it depends on the environment of the process.
#[test]
fn a_port_opens_without_a_place_to_meet() {
    let base = std::env::temp_dir().join(format!("bowline-no-registry-{}", std::process::id()));
    std::fs::create_dir_all(&base).expect("the temporary directory is writable");
    let pid = std::process::id();
    let addr: IpAddr =
        format!("127.75.{}.{}", pid / 250 % 250, pid % 250 + 1).parse().expect("one");

    // SAFETY: this process has no other thread that reads the environment.
    unsafe { std::env::set_var("XDG_RUNTIME_DIR", base.join("not-there")) };
    let port = open(addr).expect("it does without");
    assert_eq!(port.qpn_prefix(), 0, "it has all QPNs");
    assert_eq!(port.caps().addr, addr);
    let said = notices();
    assert!(said.len() == 1 && said[0].contains("not-there"), "{said:?}");
    drop(port);

    // Without names there are no rings, which is said once as well.
    let (port, prefix) = Via::Auto.open(&config(addr)).expect("it does without rings");
    assert_eq!((port.caps().via, prefix), ("udp", 0));
    let said = notices();
    assert!(said.len() == 1 && said[0].contains("not-there"), "{said:?}");
    drop(port);
    assert!(Via::Shm.open(&config(addr)).is_err(), "whoever insists is told");
    notices();

    // Others may write to it, as to a directory that another user has created.
    let squatted = base.join("bowline");
    std::fs::create_dir(&squatted).expect("the directory is ours");
    std::fs::set_permissions(&squatted, std::fs::Permissions::from_mode(0o777)).expect("ours");
    // SAFETY: as above.
    unsafe { std::env::set_var("XDG_RUNTIME_DIR", &base) };
    let port = open(addr).expect("it does without");
    let said = notices();
    assert!(said.len() == 1 && said[0].contains("not private"), "{said:?}");

    // The second port's error says why it cannot share the address.
    let second = open(addr).map(drop);
    assert!(matches!(second, Err(PortError::Registry(RegistryError::NotPrivate { .. }))));
    drop(port);

    std::fs::set_permissions(&squatted, std::fs::Permissions::from_mode(0o700)).expect("ours");
    let shared = [open(addr).expect("all is well"), open(addr).expect("and shared")];
    assert_ne!(shared[0].qpn_prefix(), shared[1].qpn_prefix());
    assert_eq!(notices(), Vec::<String>::new());
    drop(shared);
    let _ = std::fs::remove_dir_all(base);
}
