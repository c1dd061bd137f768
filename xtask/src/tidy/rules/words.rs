//! Phrases that readers stumbled over, and what to write instead.

use super::{Problem, Tree};

/// In documents and in Rust, help texts and comments included. Written in parts, or this file would
/// break its own rule.
const PHRASES: [(&str, &str); 6] = [
    (concat!("is no ", "duration"), "invalid duration `25`: add a unit, e.g. 25ms"),
    (concat!("in 99 ", "of 100"), "p99"),
    (concat!("programs that ", "do not know"), "transparently to applications"),
    (concat!("took a ", "poll of"), "treated polls over … as …"),
    (concat!("lugg", "age"), "state, metadata"),
    (concat!("as every RNIC ", "does"), "as most RNICs do"),
];

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in tree.files().iter().filter(|f| f.path.ends_with(".md") || f.path.ends_with(".rs")) {
        for (number, line) in file.lines() {
            if let Some((phrase, instead)) = PHRASES.iter().find(|(p, _)| line.contains(p)) {
                let what = format!("`{phrase}`: write plain English, e.g. `{instead}`");
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
    fn a_phrase_is_found_in_documents_and_code() {
        let text = format!("fine\nit {} so\n", PHRASES[0].0);
        let found = places(check, &[("a.md", &text), ("a.rs", &text), ("a.py", &text)]);
        assert_eq!(found, [("a.md".to_owned(), 2), ("a.rs".to_owned(), 2)]);
    }
}
