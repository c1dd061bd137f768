//! Shared memory between real processes, one of which is killed at any instruction.
//!
//! The other process is this test binary again, told by an environment variable to be a writer. It
//! prints its address, learns its reader's from a line on its standard input, and sends as fast as
//! it can.

use std::cell::Cell;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bowline_io::{Port, Sharing, ShmPort, UdpConfig, UdpPort};
use bowline_nic::{Flow, FrameMeta, HeaderBuf, IpId, Time, TxBatch};
use bowline_wire::{Bth, FlowKey, Opcode, Psn, Qpn};

const UDP_PORT: u16 = 14_794;
const WRITER_ADDR: &str = "BOWLINE_TEST_WRITER_ADDR";
const WRITER_DIR: &str = "BOWLINE_TEST_WRITER_DIR";
const PATIENCE: Duration = Duration::from_secs(10);
const PAYLOAD: usize = 1024;

fn open(addr: IpAddr, dir: &Path) -> ShmPort {
    let mut config = UdpConfig::new(addr);
    config.udp_port = UDP_PORT;
    config.recv_slots = 2;
    config.sharing = Sharing::SameUser { registry_dir: Some(dir.into()) };
    let port = UdpPort::open(&config).expect("the address can be shared");
    ShmPort::new(port, |_| {}).expect("there is shared memory")
}

/// Not a test: the body of a writer. Every packet's payload is the low byte of its PSN.
#[test]
fn writer() {
    let (Ok(addr), Ok(dir)) = (std::env::var(WRITER_ADDR), std::env::var(WRITER_DIR)) else {
        return;
    };
    let addr: IpAddr = addr.parse().expect("an address");
    let mut port = open(addr, Path::new(&dir));
    let mut line = String::new();
    println!("\nWRITER");
    std::io::stdin().read_line(&mut line).expect("the reader says where it is");
    let (dst, prefix) = line.trim().split_once(' ').expect("an address and a prefix");
    let prefix: u32 = prefix.parse().expect("a prefix");
    let dst: IpAddr = dst.parse().expect("an address");
    let mut flow = Flow::new(FlowKey { src: addr, dst, src_port: UDP_PORT, dst_port: UDP_PORT }, 0);
    let mut batch = TxBatch::new(port.caps().tx, 64);
    let clock = Instant::now();
    let mut psn = 0_u32;
    loop {
        let now = Time::from_nanos(clock.elapsed().as_nanos() as u64);
        port.recv(now, &mut |_: &FrameMeta, _: &[u8]| {}).expect("the port works");
        batch.set_clean_paths(port.clean_paths());
        while !batch.is_full() {
            let bth = Bth::new(Opcode::RC_WRITE_MIDDLE, Qpn::new(prefix << 16 | 5), Psn::new(psn));
            let payload = [psn as u8; PAYLOAD];
            batch.push_copy(&mut flow, 0, &HeaderBuf::new(&bth), &payload);
            psn = psn.wrapping_add(1) & 0xff_ffff;
        }
        let taken = port.send(now, &batch, 0).expect("the port works");
        batch.forget(taken);
        if batch.is_empty() {
            batch.clear();
        }
    }
}

struct TempDir(PathBuf);

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn start_writer(addr: IpAddr, dir: &Path, reader: (IpAddr, u8)) -> Child {
    let mut child = Command::new(std::env::current_exe().expect("the test has a path"))
        .args(["--exact", "writer", "--nocapture"])
        .env(WRITER_ADDR, addr.to_string())
        .env(WRITER_DIR, dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the test can start itself");
    let mut out = BufReader::new(child.stdout.take().expect("it is piped"));
    let mut line = String::new();
    while line != "WRITER\n" {
        line.clear();
        assert!(out.read_line(&mut line).expect("a pipe can be read") > 0, "the writer has ended");
    }
    let stdin = child.stdin.as_mut().expect("it is piped");
    writeln!(stdin, "{} {}", reader.0, reader.1).expect("the writer lives");
    child
}

/// Names that processes listen under for rings.
fn traces(addr: IpAddr) -> usize {
    let names = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    names
        .lines()
        .filter(|line| line.contains("bowline-shm/") && line.contains(&addr.to_string()))
        .count()
}

#[test]
fn a_writer_that_is_killed_leaves_whole_packets_and_nothing_else() {
    let pid = std::process::id();
    let host = (pid.wrapping_mul(61) & 0x000f_ffff) << 2 | 1;
    let [here, there] =
        [0, 2].map(|i| IpAddr::V4(Ipv4Addr::from(0x7fc0_0000 | (host + i) & 0x3f_ffff)));
    let dir = TempDir(std::env::temp_dir().join(format!("bowline-shm-{pid}")));
    std::fs::create_dir_all(&dir.0).expect("the temporary directory is writable");
    let mut port = open(here, &dir.0);
    let prefix = port.qpn_prefix();
    let clock = Instant::now();
    let now = || Time::from_nanos(clock.elapsed().as_nanos() as u64);
    for round in 0..5_u64 {
        let mut child = start_writer(there, &dir.0, (here, prefix));
        let (in_memory, mut wrong, mut next) = (Cell::new(0_u64), 0_u64, None);
        let mut take = |meta: &FrameMeta, frame: &[u8]| {
            let bth = Bth::parse(frame.first_chunk().expect("a frame has a BTH"));
            let psn = bth.psn.get();
            let whole = frame.len() == Bth::LEN + PAYLOAD + 4
                && frame[Bth::LEN..][..PAYLOAD].iter().all(|byte| *byte == psn as u8);
            wrong += u64::from(!whole);
            if meta.ip_id == IpId::Unsummed {
                in_memory.set(in_memory.get() + 1);
                // Rings lose nothing and keep the order.
                wrong += u64::from(next.is_some_and(|next| next != psn));
                next = Some(psn.wrapping_add(1) & 0xff_ffff);
            }
        };
        let start = Instant::now();
        let enough = 2000 + round * 777;
        while in_memory.get() < enough {
            assert!(start.elapsed() < PATIENCE, "{} frames came", in_memory.get());
            port.recv(now(), &mut take).expect("the port works");
        }
        child.kill().expect("our own child");
        child.wait().expect("our own child");
        // What it had published still arrives, and then nothing more.
        let mut idle = Instant::now();
        while idle.elapsed() < Duration::from_millis(20) {
            if port.recv(now(), &mut take).expect("the port works") > 0 {
                idle = Instant::now();
            }
        }
        assert_eq!(wrong, 0, "round {round}");
        assert!(port.before_sleep(), "nothing is left of the writer");
        assert_eq!(traces(there), 0, "round {round}");
    }
    assert_eq!(port.counters().shm_refused, 0);
    drop(port);
    assert_eq!(traces(here), 0);
    // Only the registry's own files of the killed writers' address remain; the next user of the
    // address removes them.
    let left = std::fs::read_dir(dir.0.join("bowline")).expect("it was used");
    assert!(
        left.flatten()
            .all(|file| file.file_name().to_string_lossy().starts_with(&there.to_string()))
    );
}
