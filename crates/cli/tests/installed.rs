//! `bowline run` from a single binary, as `cargo install` installs it.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{BOWLINE, Scratch};

/// The program alone, away from its build tree, and a directory for its caches.
struct Installed {
    dir: PathBuf,
    scratch: Scratch,
}

impl Installed {
    fn new() -> Installed {
        let scratch = Scratch::new();
        let name = scratch.0.file_name().unwrap();
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&dir).unwrap();
        // Not a copy: a file that is open for writing cannot be executed, and a process that
        // another test starts may still hold it open.
        fs::hard_link(BOWLINE, dir.join("bowline")).unwrap();
        fs::create_dir(scratch.path("tmp")).unwrap();
        Installed { dir, scratch }
    }

    /// Runs a shell command under `bowline run`.
    fn run(&self, shell: &str) -> Output {
        let mut command = Command::new(self.dir.join("bowline"));
        command.args(["run", "--device", "bl0=127.0.0.1", "--", "sh", "-c", shell]);
        command.env_remove("BOWLINE_VERBS").env_remove("LD_PRELOAD").env_remove("LD_LIBRARY_PATH");
        command.env("XDG_CACHE_HOME", self.path("cache")).env("TMPDIR", self.path("tmp"));
        command.output().unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path(name)
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_program_alone_brings_its_library() {
    let bowline = Installed::new();
    let output = bowline.run("echo $LD_PRELOAD; cat /proc/self/maps");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    let library = PathBuf::from(said.lines().next().unwrap());
    assert!(library.starts_with(bowline.path("cache/bowline")), "{}", library.display());
    // The library is not only named, but loaded into what the shell started.
    assert!(said.lines().skip(1).any(|line| line.contains(library.to_str().unwrap())), "{said}");
    let versioned = library.parent().unwrap().join("bowline-lib/libibverbs.so.1");
    assert!(versioned.is_file(), "{}", versioned.display());

    // A truncated library is not loaded, but written again.
    let whole = fs::read(&library).unwrap();
    fs::write(&library, &whole[..whole.len() / 2]).unwrap();
    let output = bowline.run("true");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(fs::read(&library).unwrap() == whole, "the library was not repaired");
}

#[test]
fn a_verbs_program_finds_the_device() {
    let installed = Command::new("ibv_devices").output().is_ok();
    if !installed {
        eprintln!("skipped: ibv_devices is not installed (apt install ibverbs-utils)");
        return;
    }
    let output = Installed::new().run("ibv_devices");
    let said = text(&output.stdout);
    assert!(output.status.success() && said.contains("bl0"), "{said}{}", text(&output.stderr));
}

#[test]
fn directories_of_others_are_named_and_not_used() {
    let bowline = Installed::new();
    let cache = bowline.path("cache/bowline");
    fs::create_dir_all(&cache).unwrap();
    fs::set_permissions(&cache, fs::Permissions::from_mode(0o777)).unwrap();
    // The directory for temporary files is the second choice.
    let output = bowline.run("echo $LD_PRELOAD");
    let library = text(&output.stdout);
    assert!(Path::new(&library).starts_with(bowline.path("tmp")), "{library}");

    let temporary = fs::read_dir(bowline.path("tmp")).unwrap().next().unwrap().unwrap().path();
    fs::set_permissions(&temporary, fs::Permissions::from_mode(0o777)).unwrap();
    let output = bowline.run("true");
    assert_eq!(output.status.code(), Some(125));
    let error = text(&output.stderr);
    for expected in [cache.to_str().unwrap(), temporary.to_str().unwrap(), "XDG_CACHE_HOME"] {
        assert!(error.contains(expected), "{error}");
    }
}
