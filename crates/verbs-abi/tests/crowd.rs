//! 32 processes on one address, with 64 queue pairs each, some of which are killed.

#![allow(clippy::undocumented_unsafe_blocks, reason = "see support")]

mod support;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::*;

const PROCESSES: usize = 32;
const QPS: usize = 64;
const MESSAGES: u32 = 24;
const BYTES: u32 = 4096;
const WINDOW: u32 = 8;
const LIMIT: Duration = Duration::from_secs(240);
/// Process numbers; each has the next even or odd one for a partner.
const VICTIMS: [usize; 3] = [4, 13, 30];

fn partner(of: usize) -> usize {
    of ^ 1
}

/// Writes a file that others see whole or not at all.
fn publish(path: &Path, text: &str) {
    let hidden = path.with_extension("part");
    std::fs::write(&hidden, text).unwrap();
    std::fs::rename(&hidden, path).unwrap();
}

fn await_file(path: &Path) -> String {
    let start = Instant::now();
    loop {
        match std::fs::read_to_string(path) {
            Ok(text) => return text,
            Err(_) => assert!(start.elapsed() < LIMIT, "{} did not come", path.display()),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// One of the processes. A victim goes on until it is killed; its partner until it gives up.
#[test]
fn one_of_many() {
    let Ok(number) = std::env::var("BOWLINE_CROWD_NUMBER") else { return };
    let number: usize = number.parse().unwrap();
    let dir = PathBuf::from(std::env::var("BOWLINE_CROWD_DIR").unwrap());
    let doomed = VICTIMS.contains(&number) || VICTIMS.contains(&partner(number));
    let end = End::with_depth(0, (QPS as i32) * 2 * WINDOW as i32 + 64);
    let qps: Vec<_> = (0..QPS).map(|_| end.qp(IBV_QPT_RC)).collect();
    let numbers: Vec<String> = qps.iter().map(|qp| unsafe { (**qp).qp_num }.to_string()).collect();
    publish(&dir.join(format!("{number}.qps")), &numbers.join(" "));
    let theirs = await_file(&dir.join(format!("{}.qps", partner(number))));
    for (qp, dest) in qps.iter().zip(theirs.split(' ')) {
        to_init(*qp);
        to_rts(*qp, dest.parse().unwrap(), end.gid(), Terms::default());
        for _ in 0..WINDOW {
            assert_eq!(post_recv(*qp, 1, Some(end.sge(0, BYTES))), 0);
        }
    }
    publish(&dir.join(format!("{number}.ready")), "");
    await_file(&dir.join(format!("{}.ready", partner(number))));

    let rounds = if doomed { u32::MAX } else { MESSAGES };
    let failures = exchange(&end, &qps, rounds);
    assert_eq!(failures > 0, doomed, "a partner of the dead notices, others do not");
    publish(&dir.join(format!("{number}.done")), &failures.to_string());
    // The partner may still need an acknowledgement.
    if !doomed {
        await_file(&dir.join(format!("{}.done", partner(number))));
    }
    end.close(&qps);
}

/// Sends and receives on all queue pairs, as `ib_send_bw -b` does; how many requests failed.
fn exchange(end: &End, qps: &[*mut ibv_qp], messages: u32) -> u64 {
    let slot = |qpn: u32| qps.iter().position(|qp| unsafe { (**qp).qp_num } == qpn).unwrap();
    let mut sge = end.sge(1 << 19, BYTES);
    let mut send = |qp: *mut ibv_qp| {
        let mut wr = send_wr(2, IBV_WR_SEND);
        (wr.sg_list, wr.num_sge) = (&mut sge, 1);
        post_send(qp, &mut wr)
    };
    let mut posted = vec![0_u32; qps.len()];
    let mut left = u64::from(messages) * 2 * qps.len() as u64;
    for (qp, posted) in qps.iter().zip(&mut posted) {
        for _ in 0..WINDOW.min(messages) {
            assert_eq!(send(*qp), 0);
            *posted += 1;
        }
    }
    let start = Instant::now();
    let mut failures = 0;
    while left > 0 {
        assert!(start.elapsed() < LIMIT, "{left} completions did not come");
        let Some(wc) = poll(end.cq) else {
            std::thread::yield_now();
            continue;
        };
        left -= 1;
        if wc.status != SUCCESS {
            failures += 1;
            // The first that failed says why; a partner that dies takes all of them along.
            if failures >= qps.len() as u64 {
                return failures;
            }
            continue;
        }
        let i = slot(wc.qp_num);
        if wc.opcode == IBV_WC_RECV {
            // Fails if the QP has failed meanwhile: its completions say so.
            let _ = post_recv(qps[i], 1, Some(end.sge(0, BYTES)));
        } else if posted[i] < messages {
            posted[i] += 1;
            let _ = send(qps[i]);
        }
    }
    failures
}

#[test]
fn thirty_two_processes_share_an_address_and_some_are_killed() {
    if std::env::var_os("BOWLINE_CROWD_NUMBER").is_some() {
        return;
    }
    let pid = std::process::id();
    let dir = std::env::temp_dir().join(format!("bowline-crowd-{pid}"));
    let runtime = dir.join("runtime");
    std::fs::create_dir_all(&runtime).unwrap();
    let device = format!("bl0=127.73.{}.{}", pid / 250 % 250, pid % 250 + 1);
    let mut children: Vec<Child> = (0..PROCESSES)
        .map(|number| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "one_of_many", "--test-threads=1"])
                .env("BOWLINE_CROWD_NUMBER", number.to_string())
                .env("BOWLINE_CROWD_DIR", &dir)
                .env("BOWLINE_DEVICES", &device)
                .env("XDG_RUNTIME_DIR", &runtime)
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    for victim in VICTIMS {
        await_file(&dir.join(format!("{victim}.ready")));
        std::thread::sleep(Duration::from_millis(200));
        children[victim].kill().unwrap();
    }
    for (number, child) in children.iter_mut().enumerate() {
        let start = Instant::now();
        let status = loop {
            match child.try_wait().unwrap() {
                Some(status) => break status,
                None if start.elapsed() > LIMIT => {
                    child.kill().unwrap();
                    panic!("process {number} did not end");
                }
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        assert_eq!(status.success(), !VICTIMS.contains(&number), "process {number}: {status}");
    }
    // The survivors have cleaned up after the dead, and the last one has removed everything.
    let left: Vec<_> = std::fs::read_dir(runtime.join("bowline"))
        .map(|entries| entries.map(|e| e.unwrap().file_name()).collect())
        .unwrap_or_default();
    assert!(left.is_empty(), "left behind: {left:?}");
    std::fs::remove_dir_all(&dir).unwrap();
}
