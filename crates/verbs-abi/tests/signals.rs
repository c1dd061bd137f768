//! Programs with their own signal handling: Bowline's threads receive no signals, and a handler may
//! end the program whatever it has interrupted.

#![allow(clippy::undocumented_unsafe_blocks, reason = "see support")]

mod support;

use std::ffi::c_int;
use std::mem::zeroed;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use support::*;

/// Which part of this file a child process plays.
const PART: &str = "BOWLINE_TEST_PART";

/// Runs one of the programs below in a process of its own; how it ended, or nothing if it did not.
fn run(program: &str) -> Option<ExitStatus> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", program, "--nocapture", "--test-threads=1"])
        .env(PART, program)
        .env("BOWLINE_LOG", "error")
        .stdout(Stdio::null());
    // No thread of the test's own frame takes SIGTERM.
    unsafe {
        command.pre_exec(|| {
            mask(libc::SIG_BLOCK);
            Ok(())
        });
    }
    let mut child = command.spawn().unwrap();
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}

/// Changes whether the calling thread takes SIGTERM; the set that has only that.
fn mask(how: c_int) -> libc::sigset_t {
    unsafe {
        let mut set: libc::sigset_t = zeroed();
        libc::sigaddset(&mut set, libc::SIGTERM);
        assert_eq!(libc::pthread_sigmask(how, &set, std::ptr::null_mut()), 0);
        set
    }
}

fn plays(program: &str) -> bool {
    std::env::var(PART).is_ok_and(|part| part == program)
}

extern "C" fn leave(_: c_int) {
    unsafe { libc::exit(42) };
}

/// In a moment this thread exits in a signal handler.
fn exit_in_a_moment() {
    unsafe { libc::signal(libc::SIGUSR1, leave as *const () as libc::sighandler_t) };
    let thread = unsafe { libc::gettid() };
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGUSR1) }
    });
}

/// Polls for ever; a signal ends it wherever that finds it.
#[test]
fn program_that_exits_in_a_handler() {
    if !plays("program_that_exits_in_a_handler") {
        return;
    }
    let (a, qa, b, _) = pair(IBV_QPT_RC, Terms::default());
    exit_in_a_moment();
    let mut sge = a.sge(0, 1 << 16);
    loop {
        post_send(qa, &mut write_wr(1, &mut sge, (b.addr(0), b.rkey())));
        a.completion();
    }
}

/// Allocates for ever, with the allocator's lock most of the time; a signal ends it there.
#[test]
fn program_that_exits_inside_of_malloc() {
    if !plays("program_that_exits_inside_of_malloc") {
        return;
    }
    let (_a, _qa, _b, _) = pair(IBV_QPT_RC, Terms::default());
    exit_in_a_moment();
    let mut kept = [std::ptr::null_mut(); 64];
    for turn in 0.. {
        let place = &mut kept[turn % 64];
        // Larger than per-thread caches, smaller than the mmap threshold, in shuffled sizes.
        unsafe {
            libc::free(*place);
            *place = libc::malloc(2_000 + turn * 7_919 % 100_000);
        }
    }
}

#[test]
fn exit_in_a_signal_handler_ends_the_program() {
    for program in ["program_that_exits_in_a_handler", "program_that_exits_inside_of_malloc"] {
        for turn in 0..6 {
            let start = Instant::now();
            let status = run(program);
            let code = status.and_then(|s| s.code());
            assert_eq!(code, Some(42), "{program}, turn {turn}: {status:?}");
            assert!(start.elapsed() < PATIENCE / 2, "{program} took {:?}", start.elapsed());
        }
    }
}

/// The names of Bowline's threads in this process, and whether they block a signal.
fn bowline_threads(signal: c_int) -> Vec<(String, bool)> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let statuses =
        tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).ok());
    let field = |status: &str, name: &str| {
        let line = status.lines().find(|line| line.starts_with(name))?;
        Some(line[name.len()..].trim().to_owned())
    };
    statuses
        .filter_map(|status| {
            let name = field(&status, "Name:").filter(|name| name.starts_with("bowline-"))?;
            let blocked = u64::from_str_radix(&field(&status, "SigBlk:")?, 16).unwrap();
            Some((name, blocked & (1 << (signal - 1)) != 0))
        })
        .collect()
}

/// Reads SIGTERM from a descriptor, with every kind of thread that Bowline starts around it.
#[test]
fn program_with_a_signalfd() {
    if !plays("program_with_a_signalfd") {
        return;
    }
    let pid = std::process::id();
    let addr = |i: u32| format!("127.74.{}.{}", pid / 60 % 250, pid % 60 * 4 + 1 + i);
    let store = std::env::temp_dir().join(format!("bowline-signals-{pid}"));
    let variables = [
        ("BOWLINE_DEVICES", format!("bl0={}", addr(0))),
        ("BOWLINE_BACKUP", format!("bl0={}", addr(1))),
        ("BOWLINE_FAILOVER", "exact".to_owned()),
        ("BOWLINE_STORE", format!("file://{}", store.display())),
    ];
    for (name, value) in variables {
        unsafe { std::env::set_var(name, value) };
    }
    mask(libc::SIG_UNBLOCK);
    let end = End::open(0);
    let set = mask(libc::SIG_BLOCK);
    // Two lanes, two that answer questions, failover and its store; each names itself when it
    // starts.
    let threads = until("six threads", || {
        Some(bowline_threads(libc::SIGTERM)).filter(|threads| threads.len() >= 6)
    });
    assert!(threads.iter().all(|(_, blocks)| *blocks), "{threads:?}");
    unsafe {
        let fd = libc::signalfd(-1, &set, 0);
        assert_eq!(libc::kill(libc::getpid(), libc::SIGTERM), 0);
        let mut info: libc::signalfd_siginfo = zeroed();
        let size = size_of::<libc::signalfd_siginfo>();
        assert_eq!(libc::read(fd, (&raw mut info).cast(), size), size as isize);
        assert_eq!(info.ssi_signo, libc::SIGTERM as u32);
    }
    end.close(&[]);
    let _ = std::fs::remove_dir_all(store);
}

#[test]
fn a_program_with_a_signalfd_is_not_killed_by_its_signal() {
    let status = run("program_with_a_signalfd").expect("it ends");
    assert!(status.success(), "{status:?}, signal {:?}", status.signal());
}
