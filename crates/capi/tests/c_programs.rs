//! C programs, compiled against what `crates/capi/install` installs and started as ranks.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit for the ranks of a program.
const PATIENCE: Duration = Duration::from_secs(90);

/// A directory of this test, removed at the end.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("bowline-capi-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).status();
    found.is_ok_and(|status| status.success())
}

/// The directory of the libraries that Cargo built.
fn libraries() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// Compiles a program against an installation in `dir`. If that is not possible, says why and
/// returns `None`.
fn compile(dir: &Dir, source: &str) -> Option<PathBuf> {
    if !has("cc") {
        println!("skipped: there is no C compiler (cc)");
        return None;
    }
    let prefix = dir.0.join("prefix");
    let install = Command::new(root().join("install"))
        .arg("--from")
        .arg(libraries())
        .arg(&prefix)
        .output()
        .unwrap();
    assert!(install.status.success(), "{}", String::from_utf8_lossy(&install.stderr));
    let flags = if has("pkg-config") {
        let asked = Command::new("pkg-config")
            .args(["--cflags", "--libs", "bowline"])
            .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"))
            .output()
            .unwrap();
        assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
        String::from_utf8(asked.stdout).unwrap()
    } else {
        println!("there is no pkg-config: its file is not tried");
        let prefix = prefix.display();
        format!("-I{prefix}/include -L{prefix}/lib -lbowline_c")
    };
    let program = dir.0.join("program");
    let cc = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-o"])
        .arg(&program)
        .arg(root().join(source))
        .args(flags.split_whitespace())
        .arg("-lm")
        .output()
        .unwrap();
    assert!(cc.status.success(), "{}", String::from_utf8_lossy(&cc.stderr));
    Some(program)
}

/// Runs a program once for each rank; all must succeed.
fn run(dir: &Dir, program: &Path, arguments: &[&str], ranks: u32) {
    let store = format!("file://{}", dir.0.join(format!("store{}", arguments.len())).display());
    let mut children: Vec<Child> = (0..ranks)
        .map(|rank| {
            Command::new(program)
                .args(arguments)
                .env("RANK", rank.to_string())
                .env("WORLD_SIZE", ranks.to_string())
                .env("BOWLINE_STORE", &store)
                .env("LD_LIBRARY_PATH", dir.0.join("prefix/lib"))
                .env_remove("MASTER_ADDR")
                .spawn()
                .unwrap()
        })
        .collect();
    let started = Instant::now();
    for (rank, child) in children.iter_mut().enumerate() {
        let status = loop {
            match child.try_wait().unwrap() {
                Some(status) => break status,
                None if started.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                None => {
                    let _ = child.kill();
                    panic!("rank {rank} is not over after {PATIENCE:?}");
                }
            }
        };
        assert!(status.success(), "rank {rank}: {status}");
    }
}

#[test]
fn the_example_runs() {
    let dir = Dir::new("example");
    if let Some(program) = compile(&dir, "examples/allreduce.c") {
        run(&dir, &program, &[], 2);
    }
}

#[test]
fn all_operations_and_errors() {
    let dir = Dir::new("all");
    if let Some(program) = compile(&dir, "tests/all_ops.c") {
        run(&dir, &program, &[], 3);
        run(&dir, &program, &["killed"], 3);
        let store = format!("file://{}", dir.0.join("store-xp").display());
        run(&dir, &program, &["xp", &store], 3);
    }
}

#[test]
fn sdr_call_by_call() {
    let dir = Dir::new("sdr");
    if let Some(program) = compile(&dir, "tests/sdr.c") {
        run(&dir, &program, &[], 1);
    }
}
