//! rsync's most used options and ours, in the order of the table in `docs/send.md`.

mod common;

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use common::{MIB, Recv, Scratch, bowline, ended, failed, left_out, noise, random, report};
use rustix::process::{Pid, Signal, kill_process};

fn names(list: &serde_json::Value) -> Vec<String> {
    list.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

#[test]
fn modes_and_times_go_along_also_of_directories() {
    let scratch = Scratch::new();
    let file = scratch.write("t/d/file", b"x");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    fs::set_permissions(scratch.path("t/d"), fs::Permissions::from_mode(0o750)).unwrap();
    let then = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    let set = |path: &Path| fs::File::open(path).unwrap().set_modified(then).unwrap();
    set(&file);
    set(&scratch.path("t/d"));
    let recv = Recv::start(&scratch.path("out"), &["--once"]);
    recv.send_ok(&[&scratch.path("t")], &[]);
    recv.report();
    for (name, mode) in [("t/d/file", 0o640), ("t/d", 0o750)] {
        let metadata = fs::metadata(scratch.path("out").join(name)).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, mode, "{name}");
        assert_eq!(metadata.modified().unwrap(), then, "{name}");
    }
}

#[test]
fn links_arrive_as_links() {
    let scratch = Scratch::new();
    let file = scratch.write("t/file", &noise(3 * MIB, 1));
    fs::create_dir(scratch.path("t/sub")).unwrap();
    fs::hard_link(&file, scratch.path("t/sub/second")).unwrap();
    symlink("../file", scratch.path("t/sub/relative")).unwrap();
    symlink("/nonexistent/there", scratch.path("t/dangling")).unwrap();
    let out = scratch.path("out");
    let recv = Recv::start(&out, &["--overwrite"]);
    let sent = recv.send_ok(&[&scratch.path("t")], &[]);
    assert_eq!(sent["moved_bytes"], 3 * MIB as u64, "a file with two names is moved once");
    assert_eq!(fs::read_link(out.join("t/sub/relative")).unwrap(), Path::new("../file"));
    assert_eq!(fs::read_link(out.join("t/dangling")).unwrap(), Path::new("/nonexistent/there"));
    let inode = |name: &str| fs::metadata(out.join(name)).unwrap().ino();
    assert_eq!(inode("t/file"), inode("t/sub/second"));
    // Send again, with a link that has another target now.
    fs::remove_file(scratch.path("t/dangling")).unwrap();
    symlink("file", scratch.path("t/dangling")).unwrap();
    assert_eq!(recv.send_ok(&[&scratch.path("t")], &[])["moved_bytes"], 0);
    assert_eq!(fs::read_link(out.join("t/dangling")).unwrap(), Path::new("file"));
    assert_eq!(inode("t/file"), inode("t/sub/second"));
    assert_eq!(fs::read_dir(out.join("t")).unwrap().count(), 3, "nothing partial is left");
}

#[test]
fn a_link_that_was_sent_leads_the_next_sender_nowhere() {
    let scratch = Scratch::new();
    let elsewhere = scratch.path("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::create_dir(scratch.path("t")).unwrap();
    symlink(&elsewhere, scratch.path("t/way")).unwrap();
    let recv = Recv::start(&scratch.path("out"), &["--overwrite", "--delete"]);
    recv.send_ok(&[&scratch.path("t")], &[]);
    assert!(scratch.path("out/t/way").is_symlink());
    fs::write(elsewhere.join("precious"), b"x").unwrap();
    // A second sender has a directory in its place.
    fs::remove_file(scratch.path("t/way")).unwrap();
    scratch.write("t/way/file", b"x");
    left_out(&recv.send(&[&scratch.path("t")], &["--delete"]), "out/t/way");
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 1, "nothing went or came there");
}

#[test]
fn holes_stay_holes() {
    let scratch = Scratch::new();
    let path = scratch.path("sparse");
    let file = fs::File::create(&path).unwrap();
    file.set_len(40 * MIB as u64 + 17).unwrap();
    let data = noise(10_000, 7);
    std::os::unix::fs::FileExt::write_all_at(&file, &data, 20 * MIB as u64 + 5).unwrap();
    if fs::metadata(&path).unwrap().blocks() * 512 > 20 * MIB as u64 {
        eprintln!("SKIPPED: this file system has no holes");
        return;
    }
    let recv = Recv::start(&scratch.path("out"), &["--once"]);
    recv.send_ok(&[&path], &[]);
    recv.report();
    let there = scratch.path("out/sparse");
    assert!(fs::read(&there).unwrap() == fs::read(&path).unwrap());
    let bytes = fs::metadata(&there).unwrap().blocks() * 512;
    assert!(bytes < MIB as u64, "{bytes} bytes on the disk");
}

#[test]
fn extended_attributes_go_along_if_both_ends_want_it() {
    let scratch = Scratch::new();
    let file = scratch.write("t/file", b"x");
    let set = rustix::fs::setxattr(&file, "user.colour", b"blue", rustix::fs::XattrFlags::empty());
    if let Err(e) = set {
        eprintln!("SKIPPED: no extended attributes here: {e}");
        return;
    }
    let mut value = [0; 16];
    for (flags, expected) in [(&["--xattrs"][..], Some(4)), (&[][..], None)] {
        let out = scratch.path(if flags.is_empty() { "without" } else { "with" });
        fs::create_dir(&out).unwrap();
        let recv = Recv::start(&out, flags);
        recv.send_ok(&[&scratch.path("t")], &["--xattrs"]);
        let found = rustix::fs::getxattr(out.join("t/file"), "user.colour", &mut value[..]).ok();
        assert_eq!(found, expected);
    }
}

#[test]
fn owners_go_along_if_both_ends_want_it() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root gives files away");
        return;
    }
    let scratch = Scratch::new();
    let file = scratch.write("t/file", b"x");
    std::os::unix::fs::chown(&file, Some(12_345), Some(23_456)).unwrap();
    let recv = Recv::start(&scratch.path("out"), &["--owner", "--once"]);
    recv.send_ok(&[&scratch.path("t")], &["--owner"]);
    recv.report();
    let metadata = fs::metadata(scratch.path("out/t/file")).unwrap();
    assert_eq!((metadata.uid(), metadata.gid()), (12_345, 23_456));
}

#[test]
fn patterns_leave_out_and_delete_spares_what_they_do() {
    let scratch = Scratch::new();
    for name in ["a.o", "a.c", "keep.o", "target/x", "sub/target/y", "sub/b.o", "sub/b.c"] {
        scratch.write(&format!("t/{name}"), name.as_bytes());
    }
    let out = scratch.path("out");
    for name in ["t/old.c", "t/spared.o", "t/gone/deep/file"] {
        scratch.write(&format!("out/{name}"), b"old");
    }
    let patterns = ["--exclude", "*.o", "--include", "keep.o", "--exclude", "target/"];
    let dir = scratch.path("t");
    let forbidding = Recv::start(&out, &[]);
    failed(&forbidding.send(&[&dir], &["--delete"]), "start `bowline recv` there with --delete");
    drop(forbidding);

    let recv = Recv::start(&out, &["--delete"]);
    let dry: Vec<&str> = patterns.into_iter().chain(["--delete", "--dry-run"]).collect();
    let would = recv.send_ok(&[&dir], &dry);
    assert_eq!(would["dry_run"], true);
    assert_eq!(names(&would["removed"]), ["t/gone", "t/old.c"]);
    let all = would["contents"].as_array().unwrap();
    assert!(all.iter().all(|file| file["was_there"] == false) && all.len() == 3, "{all:?}");
    assert!(out.join("t/gone").exists() && !out.join("t/a.c").exists(), "nothing was changed");

    let real: Vec<&str> = patterns.into_iter().chain(["--delete"]).collect();
    let done = recv.send_ok(&[&dir], &real);
    assert_eq!(names(&done["removed"]), ["t/gone", "t/old.c"]);
    let list = |dir: &str| {
        let entries = fs::read_dir(out.join(dir)).unwrap();
        let mut names: Vec<_> =
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(list("t"), ["a.c", "keep.o", "spared.o", "sub"]);
    assert_eq!(list("t/sub"), ["b.c"]);
}

#[test]
fn what_cannot_be_read_or_written_is_left_out_and_the_rest_arrives() {
    let scratch = Scratch::new();
    scratch.write("t/good", b"good");
    scratch.write("t/there", b"new");
    scratch.write("t/blocked", b"x");
    scratch.write("out/t/there", b"another");
    fs::create_dir_all(scratch.path("out/t/blocked")).unwrap();
    let recv = Recv::start(&scratch.path("out"), &[]);
    let output = recv.send(&[&scratch.path("t")], &[]);
    left_out(&output, "t/there exists there and differs");
    let sent = report(&output);
    let left: Vec<_> = sent["left_out"].as_array().unwrap().iter().map(|l| &l["path"]).collect();
    assert_eq!(left, ["t/blocked", "t/there"]);
    assert_eq!(fs::read(scratch.path("out/t/good")).unwrap(), b"good");
    assert_eq!(fs::read(scratch.path("out/t/there")).unwrap(), b"another");
    if rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: root may read everything");
        return;
    }
    fs::set_permissions(scratch.path("t/good"), fs::Permissions::from_mode(0o000)).unwrap();
    left_out(&recv.send(&[&scratch.path("t")], &[]), "t/good: cannot read it");
}

#[test]
fn a_file_that_changes_while_it_is_sent_is_left_out() {
    let scratch = Scratch::new();
    // More than both ends hold at a time, so the last block is read late.
    let big = scratch.write("t/big", &noise(224 * MIB, 3));
    scratch.write("t/small", b"x");
    let recv = Recv::start(&scratch.path("out"), &[]);
    let sender = recv.send_command(&[&scratch.path("t")], &["--rate", "1Gbps"]).spawn().unwrap();
    let part = scratch.path("out/t/big.bowline-part");
    let start = Instant::now();
    while !part.exists() {
        assert!(start.elapsed() < Duration::from_secs(20), "nothing arrives");
        std::thread::sleep(Duration::from_millis(5));
    }
    fs::OpenOptions::new().append(true).open(&big).unwrap().write_all(b"more").unwrap();
    let output = sender.wait_with_output().unwrap();
    left_out(&output, "t/big: it changed while it was being sent");
    assert!(scratch.path("out/t/small").exists());
    assert!(!scratch.path("out/t/big").exists(), "what changed has no name there");
    // Running the same command again resumes the transfer.
    assert!(recv.send(&[&scratch.path("t")], &[]).status.success());
    assert_eq!(fs::read(&big).unwrap(), fs::read(scratch.path("out/t/big")).unwrap());
}

#[test]
fn what_grew_or_shrank_is_moved_in_part() {
    let scratch = Scratch::new();
    let mut bytes = noise(50 * MIB, 4);
    let file = scratch.write("log", &bytes);
    let recv = Recv::start(&scratch.path("out"), &["--overwrite"]);
    recv.send_ok(&[&file], &[]);
    bytes.extend(noise(MIB, 5));
    fs::write(&file, &bytes).unwrap();
    let grown = recv.send_ok(&[&file], &[])["moved_bytes"].as_u64().unwrap();
    assert_eq!(grown, 3 * MIB as u64, "blocks of 16 MiB that are the same stay");
    assert!(fs::read(scratch.path("out/log")).unwrap() == bytes);
    bytes.truncate(32 * MIB);
    fs::write(&file, &bytes).unwrap();
    assert_eq!(recv.send_ok(&[&file], &[])["moved_bytes"], 0);
    assert!(fs::read(scratch.path("out/log")).unwrap() == bytes);
}

#[test]
fn a_pipe_goes_in_and_comes_out() {
    let scratch = Scratch::new();
    let bytes = noise(3 * MIB + 11, 6);
    let config = scratch.path("config");
    let recv = Recv::with_config(Path::new("-"), &config, &config, &[]);
    let mut sender = recv
        .send_command(&[Path::new("-")], &["--name", "src.tar"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    sender.stdin.take().unwrap().write_all(&bytes).unwrap();
    let sent = sender.wait_with_output().unwrap();
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    assert_eq!(report(&sent)["contents"][0]["path"], "src.tar");
    let mut received = Vec::new();
    let mut recv = recv;
    std::io::Read::read_to_end(recv.child.stdout.as_mut().unwrap(), &mut received).unwrap();
    assert!(received == bytes, "{} bytes came out", received.len());
    assert!(recv.child.wait().unwrap().success());
}

#[test]
fn a_limit_on_the_rate_is_kept_and_progress_is_told() {
    let scratch = Scratch::new();
    let file = scratch.write("file", &noise(20 * MIB, 8));
    let recv = Recv::start(&scratch.path("out"), &["--once"]);
    let start = Instant::now();
    let output = recv.send(&[&file], &["--bwlimit", "60Mbps"]);
    assert!(output.status.success());
    let seconds = start.elapsed().as_secs_f64();
    let least = 20.0 * MIB as f64 * 8.0 / 60e6;
    assert!(seconds > 0.8 * least, "{seconds} s for what takes {least} s at the limit");
    let text = String::from_utf8(output.stdout).unwrap();
    let events: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let progress = events.iter().find(|event| event["event"] == "progress");
    let progress = progress.unwrap_or_else(|| panic!("{text}"));
    assert_eq!(progress["total_bytes"], 20 * MIB as u64);
    assert!(progress["rate_bps"].as_f64().unwrap() < 200e6 && progress["left_s"].is_number());
    assert_eq!(events.last().unwrap()["event"], "done");
}

#[test]
fn several_senders_and_receivers_at_once() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("two")).unwrap();
    let receivers = [
        (Recv::start(&scratch.path("out"), &[]), scratch.path("out")),
        (Recv::start(&scratch.path("two"), &[]), scratch.path("two")),
    ];
    let files: Vec<_> =
        (0..6).map(|n| scratch.write(&format!("in/{n}"), &noise(2 * MIB, n))).collect();
    let senders: Vec<_> = files
        .iter()
        .zip(receivers.iter().cycle())
        .map(|(file, (recv, _))| recv.send_command(&[file], &[]).spawn().unwrap())
        .collect();
    for sender in senders {
        let output = sender.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    for (file, (_, out)) in files.iter().zip(receivers.iter().cycle()) {
        let name = file.file_name().unwrap();
        assert_eq!(fs::read(file).unwrap(), fs::read(out.join(name)).unwrap());
    }
}

#[test]
fn twenty_random_deaths_lose_nothing() {
    let scratch = Scratch::new();
    let bytes = noise(64 * MIB, 9);
    let file = scratch.write("t/big", &bytes);
    for n in 0..200 {
        scratch.write(&format!("t/small/{n}"), &noise(n * 10, n as u64));
    }
    let (out, dir) = (scratch.path("out"), scratch.path("t"));
    for death in 0..20 {
        let mut recv = Recv::start(&out, &[]);
        let mut sender = recv.send_command(&[&dir], &["--rate", "2Gbps"]).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(random() % 400));
        let victim = if death % 2 == 0 { &mut sender } else { &mut recv.child };
        victim.kill().unwrap();
        let _ = sender.wait();
        // A file that has its final name is complete.
        if out.join("t/big").exists() {
            assert!(fs::read(out.join("t/big")).unwrap() == bytes, "death {death}");
            fs::remove_file(out.join("t/big")).unwrap();
        }
    }
    let recv = Recv::start(&out, &["--once"]);
    recv.send_ok(&[&dir], &[]);
    recv.report();
    assert!(fs::read(out.join("t/big")).unwrap() == fs::read(&file).unwrap());
    let left = fs::read_dir(out.join("t")).unwrap().count();
    assert_eq!(left, 2, "nothing partial is left");
    assert_eq!(fs::read_dir(out.join("t/small")).unwrap().count(), 200);
}

#[test]
fn a_full_disk_is_said_before_anything_is_sent() {
    let scratch = Scratch::new();
    let path = scratch.path("huge");
    let file = fs::File::create(&path).unwrap();
    if file.set_len(1 << 43).is_err() {
        eprintln!("SKIPPED: no file of 8 TiB here");
        return;
    }
    let recv = Recv::start(&scratch.path("out"), &[]);
    failed(&recv.send(&[&path], &[]), "not enough space");
    // The receiver also accepts the next transfer.
    recv.send_ok(&[&scratch.write("small", b"x")], &[]);
}

fn interrupt(child: &std::process::Child) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
}

#[test]
fn ctrl_c_at_either_end_says_what_happened_and_how_to_go_on() {
    let scratch = Scratch::new();
    let file = scratch.write("file", &noise(60 * MIB, 10));
    let out = scratch.path("out");
    for at_sender in [true, false] {
        let mut recv = Recv::start(&out, &[]);
        let sender = recv.send_command(&[&file], &["--rate", "200Mbps"]).spawn().unwrap();
        let part = out.join("file.bowline-part");
        let start = Instant::now();
        while !part.exists() {
            assert!(start.elapsed() < Duration::from_secs(20), "nothing arrives");
            std::thread::sleep(Duration::from_millis(5));
        }
        let go_on = "the same `bowline send` again to resume";
        if at_sender {
            interrupt(&sender);
            let output = sender.wait_with_output().unwrap();
            ended(&output, 130, go_on);
            let told = recv.line_with("interrupted by the sender's user");
            assert!(told.contains("the sender gave up"), "{told}");
        } else {
            interrupt(&recv.child);
            ended(&sender.wait_with_output().unwrap(), 1, go_on);
            assert_eq!(recv.child.wait().unwrap().code(), Some(130));
        }
    }
    let mut idle = Recv::start(&out, &[]);
    interrupt(&idle.child);
    assert_eq!(idle.child.wait().unwrap().code(), Some(130));
    idle.line_with("no transfer was running");
}

#[test]
fn hosts_and_ports_are_taken_as_people_write_them() {
    let scratch = Scratch::new();
    let file = scratch.write("file", b"x");
    let recv = Recv::start(&scratch.path("out"), &[]);
    let host = format!("{}:{}", recv.addr, recv.port);
    let config = scratch.path("config");
    let sent = bowline(&config).arg("send").arg(&file).arg(&host).output().unwrap();
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    let wrong = bowline(&config).arg("send").arg(&file).arg("nas:70000").output().unwrap();
    failed(&wrong, "e.g. nas:18517");
    let nowhere = bowline(&config).arg("send").arg(&file).output().unwrap();
    failed(&nowhere, "no receiver");
    let v6 = Command::new("true").status().is_ok() && Path::new("/proc/net/if_inet6").exists();
    if !v6 || std::net::TcpListener::bind("[::1]:0").is_err() {
        eprintln!("SKIPPED: no IPv6 here");
        return;
    }
    let out = scratch.path("v6");
    fs::create_dir(&out).unwrap();
    let port = std::net::TcpListener::bind("[::1]:0").unwrap().local_addr().unwrap().port();
    let mut child = bowline(&config)
        .arg("recv")
        .arg(&out)
        .args(["-d", "::1", "-p", &port.to_string(), "--once"])
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let sent =
        bowline(&config).arg("send").arg(&file).arg(format!("[::1]:{port}")).output().unwrap();
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    assert!(child.wait().unwrap().success());
    assert!(out.join("file").exists());
}
