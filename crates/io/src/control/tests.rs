use std::time::Duration;

use super::*;

const PATIENCE: Duration = Duration::from_secs(2);

fn find(device: &str) -> Option<Peer> {
    live().unwrap().into_iter().find(|p| p.device == device && p.pid == std::process::id())
}

#[test]
fn a_live_device_is_found_answers_and_is_gone_when_it_closes() {
    let device = "control-test-a";
    let server = ControlServer::start(device, |line| format!("you said {line}")).unwrap();
    let peer = find(device).expect("its name is in the kernel's table");
    assert_eq!(ask(&peer, "counters", PATIENCE).unwrap(), "you said counters");
    assert_eq!(ask(&peer, "again", PATIENCE).unwrap(), "you said again");
    drop(server);
    assert_eq!(find(device), None);
    assert!(ask(&peer, "hello?", PATIENCE).is_err());
}

#[test]
fn a_silent_or_endless_client_does_not_hold_the_server_up_for_long() {
    use std::io::Write;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixStream};
    let server = ControlServer::start("control-test-b", |_| "ok".into()).unwrap();
    let peer = find("control-test-b").unwrap();
    let uid = crate::sys::effective_uid();
    let name = format!("{}{}/", name_prefix(uid), peer.pid);
    let table = std::fs::read_to_string("/proc/net/unix").unwrap();
    let full = table
        .lines()
        .filter_map(|l| l.split_whitespace().nth(7))
        .find(|n| n.contains(&name) && n.ends_with("control-test-b"))
        .unwrap();
    let addr = SocketAddr::from_abstract_name(full.trim_start_matches('@')).unwrap();
    let _silent = UnixStream::connect_addr(&addr).unwrap();
    let mut endless = UnixStream::connect_addr(&addr).unwrap();
    endless.write_all(&[b'x'; 10_000]).unwrap();
    assert_eq!(ask(&peer, "hello", PATIENCE).unwrap(), "ok");
    drop(server);
}

#[test]
fn a_name_that_another_user_has_taken_is_not_believed() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};
    let me = crate::sys::effective_uid();
    let pid = std::process::id();
    let impostor = std::thread::spawn(move || {
        let name = format!("{}{pid}/0/control-test-c", name_prefix(me));
        let stranger = crate::sys::namespace::become_user(65_534);
        let addr = SocketAddr::from_abstract_name(name).unwrap();
        stranger.then(|| UnixListener::bind_addr(&addr).unwrap())
    });
    let Some(_listener) = impostor.join().unwrap() else { return };
    assert_eq!(find("control-test-c"), None);
    let name = format!("{}{pid}/0/control-test-c", name_prefix(me));
    let peer = Peer { pid, device: "control-test-c".into(), name };
    let refused = ask(&peer, "counters", PATIENCE).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    assert!(refused.to_string().contains("65534"), "{refused}");
}
