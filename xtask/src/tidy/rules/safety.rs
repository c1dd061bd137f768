//! Every `unsafe` block and `unsafe impl` has a `SAFETY:` comment.
//!
//! Clippy checks blocks, where it is run and outside of macros; this checks all files. A file that
//! switches Clippy's lint off, with a reason, is left out.

use super::{Problem, Tree};
use crate::tidy::source::Source;
use crate::tidy::tree::File;

const LINT: &str = "clippy::undocumented_unsafe_blocks";

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (file, source) in tree.rust() {
        if source.code.contains(LINT) {
            continue;
        }
        for at in source.words("unsafe") {
            let rest = source.code[at + "unsafe".len()..].trim_start();
            let number = source.line_of(at);
            let counts = rest.starts_with('{') || rest.starts_with("impl");
            if counts && !is_explained(file, source, number) {
                let what = "say why it is sound, in a `// SAFETY:` comment above";
                problems.push(Problem::new(&file.path, number, what));
            }
        }
    }
    problems
}

/// Whether the comment is on the line itself, or above the statement that it is in.
fn is_explained(file: &File, source: &Source, number: usize) -> bool {
    let lines: Vec<(&str, &str)> = file.text.lines().zip(source.code.lines()).collect();
    let explains = |text: &str| text.contains("SAFETY:");
    if explains(lines[number - 1].0) {
        return true;
    }
    for (text, code) in lines[..number - 1].iter().rev() {
        if explains(text) {
            return true;
        }
        let (text, code) = (text.trim(), code.trim());
        let goes_on = text.starts_with("//") || text.starts_with("#[");
        // The statement before, or nothing.
        if !goes_on && (code.is_empty() || code.ends_with([';', '}'])) {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    #[test]
    fn unsafe_without_a_reason_is_found() {
        let bad = "// SAFETY: of another.\nlet a = unsafe { f() };\nlet b = unsafe { g() };\n\
                   unsafe impl Send for X {}\n// unsafe { in a comment }\n";
        let found = places(check, &[("a.rs", bad)]);
        assert_eq!(found, [("a.rs".to_owned(), 3), ("a.rs".to_owned(), 4)]);
    }

    #[test]
    fn unsafe_with_a_reason_is_not() {
        let good = "// SAFETY: it is\n// long.\n#[inline]\nunsafe impl Send for X {}\n\
                    // SAFETY: checked.\nlet a = call(\n    1,\n    unsafe { f() },\n);\n\
                    let b = unsafe { g() }; // SAFETY: so.\nunsafe fn h() {}\n";
        assert!(places(check, &[("a.rs", good)]).is_empty());
        let off = format!("#![allow({LINT}, reason = \"x\")]\nlet a = unsafe {{ f() }};\n");
        assert!(places(check, &[("a.rs", &off)]).is_empty());
    }
}
