//! Lines of Rust have at most 100 columns.
//!
//! rustfmt holds code to that, except inside of macros, and no comments. A line with a part of a
//! string may be longer, as breaking it could change the string. Prose has the same limit: see
//! `documents`.

use super::{Problem, Tree};

const COLUMNS: usize = 100;

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (file, source) in tree.rust() {
        for (number, line) in file.lines() {
            let columns = line.chars().count();
            if columns > COLUMNS && !source.has_string(number) {
                let what = format!("{columns} columns, at most {COLUMNS}");
                problems.push(Problem::new(&file.path, number, what));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    #[test]
    fn a_long_comment_is_found_and_a_long_string_is_not() {
        let long = "x".repeat(90);
        let text =
            format!("// ok\n    // {long} {long}\nlet a = \"{long}{long}\";\nlet b_{long};\n");
        assert_eq!(places(check, &[("a.rs", &text)]), [("a.rs".to_owned(), 2)]);
        let exact = format!("// {}µ\n", "x".repeat(96));
        assert!(places(check, &[("a.rs", &exact), ("a.md", &text)]).is_empty());
    }
}
