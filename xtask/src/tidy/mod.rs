//! `cargo xtask tidy`: the style that the documents promise, as checks on the files.
//!
//! A rule is a function from the tree to its problems. Each has a test that shows it a sample that
//! breaks it, and one that does not.

mod rules;
mod source;
mod tree;

use std::path::Path;
use std::process::ExitCode;

use tree::Tree;

/// What is wrong, and where.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Problem {
    path: String,
    /// From 1.
    line: usize,
    what: String,
}

impl Problem {
    fn new(path: &str, line: usize, what: impl Into<String>) -> Problem {
        Problem { path: path.to_owned(), line, what: what.into() }
    }
}

/// Checks all rules on the repository.
pub(crate) fn run(root: &Path) -> ExitCode {
    let tree = match Tree::read(root) {
        Ok(tree) => tree,
        Err(error) => {
            eprintln!("cannot list the files of {}: {error}", root.display());
            return ExitCode::FAILURE;
        }
    };
    let mut count = 0;
    for (name, rule) in rules::RULES {
        let mut problems = rule(&tree);
        problems.sort();
        count += problems.len();
        for Problem { path, line, what } in problems {
            println!("{path}:{line}: {name}: {what}");
        }
    }
    count += rules::check_documents(root);
    println!("{} files, {count} problems", tree.files().len());
    if count == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
