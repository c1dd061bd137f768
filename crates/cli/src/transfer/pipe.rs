//! Treats standard input and output as one file.
//!
//! A transfer needs files with a known length that can be read again. Therefore input from a pipe
//! is stored in a temporary file first, and output to a pipe is checked as a whole before it is
//! written.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::Failure;

/// Whether the user means stdin or stdout.
pub(super) fn is_stdio(paths: &[PathBuf]) -> bool {
    matches!(paths, [only] if only == Path::new("-"))
}

/// A directory that is removed on drop.
pub(super) struct Spool {
    dir: PathBuf,
    file: Option<PathBuf>,
}

impl Spool {
    pub(super) fn directory() -> Result<Spool, Failure> {
        use std::os::unix::fs::DirBuilderExt;
        let mut random = [0; 8];
        getrandom::fill(&mut random)
            .map_err(|e| format!("cannot get random numbers from the system: {e}"))?;
        let name = format!("bowline-{:016x}", u64::from_le_bytes(random));
        let dir = std::env::temp_dir().join(name);
        let made = fs::DirBuilder::new().mode(0o700).create(&dir);
        made.map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
        Ok(Spool { dir, file: None })
    }

    /// Reads stdin to its end.
    pub(super) fn from_stdin(name: &str) -> Result<Spool, Failure> {
        if name.is_empty() || name.contains(['/', '\0']) || name == "." || name == ".." {
            return Err(format!("invalid name `{name}`: write a file's name, e.g. src.tar").into());
        }
        let mut spool = Spool::directory()?;
        let path = spool.dir.join("stdin");
        let copied = File::create(&path).and_then(|mut file| io::copy(&mut io::stdin(), &mut file));
        copied.map_err(|e| format!("cannot store stdin in {}: {e}", spool.dir.display()))?;
        spool.file = Some(path);
        Ok(spool)
    }

    /// The file with the data from stdin, or the directory.
    pub(super) fn path(&self) -> PathBuf {
        self.file.clone().unwrap_or_else(|| self.dir.clone())
    }

    /// Writes the received files to stdout, in the order of their names.
    pub(super) fn copy_to_stdout(&self) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        let entries = fs::read_dir(&self.dir)?.collect::<io::Result<Vec<_>>>()?;
        let mut paths: Vec<PathBuf> = entries.iter().map(fs::DirEntry::path).collect();
        paths.sort();
        for path in paths {
            if fs::symlink_metadata(&path)?.is_file() {
                io::copy(&mut File::open(path)?, &mut stdout)?;
            } else {
                let path = path.display();
                eprintln!("bowline: {path} is not a file, so it is not written to stdout");
            }
        }
        Ok(())
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}
