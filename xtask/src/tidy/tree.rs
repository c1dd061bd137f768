//! The files that the rules look at.

use std::io;
use std::path::Path;
use std::process::Command;

use super::source::Source;

/// A text file of the repository.
pub(super) struct File {
    /// Relative to the root, with slashes.
    pub(super) path: String,
    pub(super) text: String,
    /// How the parts of a Rust file are told apart.
    rust: Option<Source>,
}

impl File {
    fn new(path: String, text: String) -> File {
        let rust = path.ends_with(".rs").then(|| Source::new(&text));
        File { path, text, rust }
    }

    /// Lines with their numbers, from 1.
    pub(super) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(at, line)| (at + 1, line))
    }
}

/// All text files: those of git, and new ones that it does not ignore.
pub(super) struct Tree {
    files: Vec<File>,
}

impl Tree {
    pub(super) fn read(root: &Path) -> io::Result<Tree> {
        let listed = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root)
            .output()?;
        if !listed.status.success() {
            return Err(io::Error::other(String::from_utf8_lossy(&listed.stderr).into_owned()));
        }
        let names = String::from_utf8_lossy(&listed.stdout).into_owned();
        let files = names.split('\0').filter(|name| !name.is_empty()).filter_map(|name| {
            let path = root.join(name);
            // Links lead to files that are listed themselves; what is no text has no style.
            let is_file = path.symlink_metadata().is_ok_and(|found| found.is_file());
            let text = is_file.then(|| std::fs::read_to_string(path).ok()).flatten()?;
            Some(File::new(name.to_owned(), text))
        });
        Ok(Tree { files: files.collect() })
    }

    /// A tree of samples.
    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Tree {
        let file = |(path, text): &(&str, &str)| File::new((*path).into(), (*text).into());
        Tree { files: files.iter().map(file).collect() }
    }

    pub(super) fn files(&self) -> &[File] {
        &self.files
    }

    pub(super) fn rust(&self) -> impl Iterator<Item = (&File, &Source)> {
        self.files.iter().filter_map(|file| file.rust.as_ref().map(|source| (file, source)))
    }

    /// Files whose name ends so.
    pub(super) fn ending(&self, end: &str) -> impl Iterator<Item = &File> {
        self.files.iter().filter(move |file| file.path.ends_with(end))
    }
}
