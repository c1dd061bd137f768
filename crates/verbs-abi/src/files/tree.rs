//! The files themselves: an in-memory directory of this process, created on first use and removed
//! when the process ends.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Once, OnceLock};

use super::sysfs::{self, CLASS, VERBS_CLASS};
use crate::device::{self, Device};
use crate::{env, log};

/// Prefix of a tree's name; the process ID follows.
const PREFIX: &str = "files-";

/// This process's tree. `None` if programs are to see none, or if it cannot be created.
///
/// A child that was forked uses its parent's.
pub(super) fn root() -> Option<&'static Path> {
    static ROOT: OnceLock<Option<PathBuf>> = OnceLock::new();
    ROOT.get_or_init(|| {
        if !env::device_files() {
            return None;
        }
        make().inspect_err(|why| log::warn(&format!("no device files: {why}"))).ok()
    })
    .as_deref()
}

fn make() -> io::Result<PathBuf> {
    let home = bowline_io::runtime_dir().map_err(io::Error::other)?;
    sweep(&home);
    let root = home.join(format!("{PREFIX}{}", std::process::id()));
    // Left behind by an earlier process with the same ID.
    remove(&root);
    DirBuilder::new().mode(0o700).create(&root)?;
    remove_at_exit(&root);
    for device in device::all() {
        add(&root, device)?;
    }
    let verbs = below(&root, VERBS_CLASS);
    fs::create_dir_all(&verbs)?;
    write(&verbs.join("abi_version"), "6")?;
    fs::create_dir_all(below(&root, "/dev/infiniband"))?;
    fs::create_dir_all(below(&root, CLASS))?;
    Ok(root)
}

/// A path of the tree.
pub(super) fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// Writes a file as in sysfs: one line, replaced atomically.
pub(super) fn write(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, format!("{text}\n"))?;
    fs::rename(&new, path)
}

/// Adds the files of a device.
fn add(root: &Path, device: &Device) -> io::Result<()> {
    let home = below(root, &format!("{CLASS}/{}", device.name));
    for (file, text) in sysfs::files(device) {
        let path = home.join(file);
        fs::create_dir_all(path.parent().unwrap_or(root))?;
        write(&path, &text)?;
    }
    let uverbs = format!("uverbs{}", device.index);
    add_parent(&home, device, &uverbs)?;

    let verbs = below(root, &format!("{VERBS_CLASS}/{uverbs}"));
    fs::create_dir_all(&verbs)?;
    write(&verbs.join("ibdev"), &device.name)?;
    write(&verbs.join("abi_version"), "1")?;
    // The kernel's device numbers for such nodes.
    write(&verbs.join("dev"), &format!("231:{}", 192 + device.index))?;
    symlink(home.join("device"), verbs.join("device"))?;

    let nodes = below(root, "/dev/infiniband");
    fs::create_dir_all(&nodes)?;
    symlink("/dev/null", nodes.join(uverbs))
}

/// The hardware that a device belongs to: that of its interface, or, where there is none, as for
/// loopback, a directory with only what is known.
fn add_parent(home: &Path, device: &Device, uverbs: &str) -> io::Result<()> {
    let parent = home.join("device");
    let interface = device.interface().map(|(name, _)| name);
    let net = |name: &str| Path::new("/sys/class/net").join(name);
    if let Some(hardware) = interface.as_deref().map(|name| net(name).join("device"))
        && hardware.exists()
    {
        return symlink(hardware, parent);
    }
    fs::create_dir_all(parent.join("net"))?;
    fs::create_dir_all(parent.join("infiniband"))?;
    fs::create_dir_all(parent.join("infiniband_verbs").join(uverbs))?;
    symlink(home, parent.join("infiniband").join(&device.name))?;
    write(&parent.join("numa_node"), "-1")?;
    match interface {
        Some(name) => symlink(net(&name), parent.join("net").join(name)),
        None => Ok(()),
    }
}

/// Removes a tree. What cannot be removed is left to the next process.
fn remove(root: &Path) {
    let _ = fs::remove_dir_all(root);
}

/// Removes the trees of processes that were killed.
fn sweep(home: &Path) {
    for entry in fs::read_dir(home).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse::<i32>().ok());
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            remove(&entry.path());
        }
    }
}

/// The process that created the tree removes it, not a child.
fn remove_at_exit(root: &Path) {
    static TREE: OnceLock<(u32, PathBuf)> = OnceLock::new();
    extern "C" fn at_exit() {
        // A lock that is never released may be the allocator's: then the next process sweeps.
        if let Some((_, root)) = TREE.get().filter(|(pid, _)| *pid == std::process::id())
            && !crate::report::is_stuck()
        {
            remove(root);
        }
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let _ = TREE.set((std::process::id(), root.to_owned()));
        // SAFETY: `at_exit` may run whenever the process ends. Without room for it the next process
        // sweeps.
        let _ = unsafe { libc::atexit(at_exit) };
    });
}
