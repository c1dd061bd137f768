//! Finds the verbs library.

mod unpack;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Name of the preloaded library.
const PRELOAD: &str = "libbowline_verbs.so";
/// Name of the library for programs that keep the system's libibverbs.
const SHIFT: &str = "libbowline_shift.so";
/// Folder, next to the program, of the versioned `libibverbs.so.1` and `librdmacm.so.1`.
const VERSIONED_DIR: &str = "bowline-lib";

/// The library's two forms, as far as they were found.
pub(super) struct Library {
    preload: PathBuf,
    versioned_dir: Option<PathBuf>,
}

/// Finds the library where `BOWLINE_VERBS` says, next to this program, or inside it.
pub(super) fn find() -> Result<Library, String> {
    if let Some(path) = std::env::var_os("BOWLINE_VERBS") {
        let preload = PathBuf::from(path);
        if !preload.is_file() {
            return Err(format!("BOWLINE_VERBS is {}, which is not a file", preload.display()));
        }
        return Ok(Library { preload, versioned_dir: None });
    }
    let places = places()?;
    if let Some(library) = Library::among(&places) {
        return Ok(library);
    }
    match unpack::unpack()? {
        Some(dir) => Library::among(&[dir]).ok_or_else(|| format!("{PRELOAD} is gone again")),
        None => Err(missing(&places, PRELOAD, "BOWLINE_VERBS")),
    }
}

/// Finds the library between a program and the system's libibverbs, next to this program or where
/// `BOWLINE_SHIFT` says.
pub(super) fn find_shift() -> Result<Library, String> {
    let preload = match std::env::var_os("BOWLINE_SHIFT").map(PathBuf::from) {
        Some(preload) if !preload.is_file() => {
            return Err(format!("BOWLINE_SHIFT is {}, which is not a file", preload.display()));
        }
        Some(preload) => preload,
        None => {
            let places = places()?;
            let found = places.iter().map(|place| place.join(SHIFT)).find(|path| path.is_file());
            found.ok_or_else(|| missing(&places, SHIFT, "BOWLINE_SHIFT"))?
        }
    };
    Ok(Library { preload, versioned_dir: None })
}

/// Next to the program in a build tree, or in the lib folder of an installation.
fn places() -> Result<[PathBuf; 4], String> {
    let exe = std::env::current_exe()
        .map_err(|e| format!("cannot find the path of this program: {e}"))?;
    let dir = exe.parent().unwrap_or(Path::new("."));
    Ok([dir.to_owned(), dir.join("deps"), dir.join("../lib"), dir.join("../lib/bowline")])
}

fn missing(places: &[PathBuf], name: &str, variable: &str) -> String {
    format!(
        "{name} is not in {}: build it with `cargo build --release --workspace`, or name it in \
         {variable}",
        places[0].display()
    )
}

impl Library {
    /// The first preload library in these directories, and the first versioned ones.
    fn among(places: &[PathBuf]) -> Option<Library> {
        let preload = places.iter().map(|p| p.join(PRELOAD)).find(|p| p.is_file())?;
        let versioned_dirs = places.iter().map(|p| p.join(VERSIONED_DIR));
        let versioned_dir =
            versioned_dirs.into_iter().find(|p| p.join("libibverbs.so.1").is_file());
        Some(Library { preload, versioned_dir })
    }

    /// Makes a program load this library before the system's own.
    pub(super) fn preload_into(&self, command: &mut Command) {
        command.env("LD_PRELOAD", prepend(&self.preload, "LD_PRELOAD"));
        if let Some(dir) = &self.versioned_dir {
            // For programs that open the libraries by name (dlopen), which preloading does not
            // affect.
            command.env("LD_LIBRARY_PATH", prepend(dir, "LD_LIBRARY_PATH"));
            // For NCCL, which may be configured to load another file.
            command.env("NCCL_IBVERBS_LIB", dir.join("libibverbs.so.1"));
        }
    }
}

fn prepend(path: &Path, variable: &str) -> OsString {
    let mut value = path.as_os_str().to_owned();
    if let Some(old) = std::env::var_os(variable).filter(|old| !old.is_empty()) {
        value.push(":");
        value.push(old);
    }
    value
}
