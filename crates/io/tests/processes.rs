//! Several real processes on one address: each gets its own frames, and the rest recover when some
//! are killed.
//!
//! The processes are this test binary again, told by an environment variable to be a member. A
//! member prints its prefix, then answers every line on its standard input with what it has
//! received.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bowline_io::{Port, Sharing, UdpConfig, UdpPort};
use bowline_nic::{FrameMeta, Time};

const UDP_PORT: u16 = 14_792;
const MEMBER_ADDR: &str = "BOWLINE_TEST_MEMBER_ADDR";
/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(5);
const MEMBER_DIR: &str = "BOWLINE_TEST_MEMBER_DIR";

/// Not a test: the body of a member, run by [`Member::start`].
#[test]
fn member() {
    let (Ok(addr), Ok(dir)) = (std::env::var(MEMBER_ADDR), std::env::var(MEMBER_DIR)) else {
        return;
    };
    let mut config = UdpConfig::new(addr.parse().expect("an address"));
    config.udp_port = UDP_PORT;
    config.sharing = Sharing::SameUser { registry_dir: Some(dir.into()) };
    config.recv_slots = 2;
    let mut port = UdpPort::open(&config).expect("the address can be shared");
    let prefix = port.qpn_prefix();
    println!("\nMEMBER {prefix}");

    let (lines, asked) = mpsc::channel();
    std::thread::spawn(move || {
        std::io::stdin().lines().map_while(Result::ok).try_for_each(|line| lines.send(line))
    });
    let clock = Instant::now();
    let (mut own, mut foreign) = (0, 0);
    loop {
        let now = Time::from_nanos(clock.elapsed().as_nanos() as u64);
        let got = port
            .recv(now, &mut |_: &FrameMeta, frame: &[u8]| {
                if frame[5] == prefix { own += 1 } else { foreign += 1 }
            })
            .expect("the port works");
        match asked.try_recv() {
            Ok(_) => println!("\nMEMBER {own} {foreign} {}", port.counters().misrouted),
            Err(mpsc::TryRecvError::Disconnected) => return,
            Err(mpsc::TryRecvError::Empty) => {}
        }
        if got == 0 {
            std::thread::sleep(Duration::from_micros(500));
        }
    }
}

/// A running member.
struct Member {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    prefix: u8,
}

impl Member {
    fn start(addr: IpAddr, dir: &Path) -> Member {
        let mut child = Command::new(std::env::current_exe().expect("the test has a path"))
            .args(["--exact", "member", "--nocapture"])
            .env(MEMBER_ADDR, addr.to_string())
            .env(MEMBER_DIR, dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test can start itself");
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut member = Member { child, stdin, stdout, prefix: 0 };
        member.prefix = member.numbers()[0] as u8;
        member
    }

    /// The numbers on the member's next line; skips lines of the test harness.
    fn numbers(&mut self) -> Vec<u64> {
        loop {
            let mut line = String::new();
            let len = self.stdout.read_line(&mut line).expect("a pipe can be read");
            assert!(len > 0, "the member has ended");
            if let Some(rest) = line.strip_prefix("MEMBER ") {
                return rest.split_whitespace().map(|n| n.parse().expect("a number")).collect();
            }
        }
    }

    /// Frames received so far: its own, others', and misrouted ones that it handed on or dropped.
    fn received(&mut self) -> (u64, u64, u64) {
        let stdin = self.stdin.as_mut().expect("it is not ending");
        writeln!(stdin).expect("the member lives");
        let numbers = self.numbers();
        (numbers[0], numbers[1], numbers[2])
    }

    /// Waits until it has received `own` frames of its own, and returns its counts.
    fn received_all(&mut self, own: u64) -> (u64, u64, u64) {
        let start = Instant::now();
        loop {
            let received = self.received();
            if received.0 >= own || start.elapsed() > PATIENCE {
                return received;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn kill(mut self) {
        self.child.kill().expect("our own child");
        self.child.wait().expect("our own child");
    }

    fn end(mut self) {
        drop(self.stdin.take());
        assert!(self.child.wait().expect("our own child").success());
    }
}

fn send(peer: &UdpSocket, to: IpAddr, prefix: u8, count: usize) {
    let mut frame = [0; 16];
    frame[5] = prefix;
    for _ in 0..count {
        peer.send_to(&frame, (to, UDP_PORT)).expect("loopback takes datagrams");
    }
}

fn files(dir: &Path) -> usize {
    std::fs::read_dir(dir.join("bowline")).map_or(0, Iterator::count)
}

struct TempDir(PathBuf);

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn processes_share_an_address_and_survive_each_other() {
    let pid = std::process::id();
    let host = (pid.wrapping_mul(61) & 0x001f_ffff) << 1 | 1;
    let addr = IpAddr::V4(Ipv4Addr::from(0x7f80_0000 | host));
    let dir = TempDir(std::env::temp_dir().join(format!("bowline-processes-{pid}")));
    std::fs::create_dir_all(&dir.0).expect("the temporary directory is writable");
    let peer = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback can be bound");

    let mut members: Vec<Member> = (0..8).map(|_| Member::start(addr, &dir.0)).collect();
    members.iter().for_each(|m| send(&peer, addr, m.prefix, 50));
    for member in &mut members {
        assert_eq!(member.received_all(50), (50, 0, 0), "prefix {}", member.prefix);
    }

    // One in the middle and the first: two moves, in an unobservable order.
    members.remove(4).kill();
    members.remove(0).kill();
    // Frames now meet wrong steering: they are forwarded, and the steering is repaired.
    let killed = Instant::now();
    let mut misrouted = 0;
    loop {
        members.iter().for_each(|m| send(&peer, addr, m.prefix, 1));
        std::thread::sleep(Duration::from_millis(10));
        let now: u64 = members.iter_mut().map(|m| m.received().2).sum();
        if now == misrouted && now > 0 {
            break;
        }
        misrouted = now;
        assert!(killed.elapsed() < PATIENCE, "{misrouted} frames went astray");
    }
    println!("steering was right again {} ms after the kill", killed.elapsed().as_millis());
    let before: Vec<_> = members.iter_mut().map(Member::received).collect();
    members.iter().for_each(|m| send(&peer, addr, m.prefix, 50));
    for (member, before) in members.iter_mut().zip(before) {
        let after = member.received_all(before.0 + 50);
        assert_eq!(after, (before.0 + 50, 0, before.2), "prefix {}", member.prefix);
    }
    assert_eq!(files(&dir.0), 8, "a table, the counts of room, and a socket each of six processes");

    // A new member works with the survivors.
    members.push(Member::start(addr, &dir.0));
    send(&peer, addr, members[6].prefix, 50);
    assert_eq!(members[6].received_all(50), (50, 0, 0));

    // Half of them leave in an orderly way, the others do not.
    for (i, member) in members.into_iter().enumerate() {
        if i % 2 == 0 { member.end() } else { member.kill() }
    }
    let last = Member::start(addr, &dir.0);
    assert_eq!(files(&dir.0), 3, "what the dead left is gone");
    last.end();
    assert_eq!(files(&dir.0), 0, "the last one takes the table away");
}
