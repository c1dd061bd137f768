//! Dead code is removed. Where a lint for it is switched off, a reason says why.

use super::{Problem, Tree};

const LINTS: [&str; 5] =
    ["dead_code", "unused", "unused_imports", "unused_variables", "unused_mut"];

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (file, source) in tree.rust() {
        for at in source.words("allow").chain(source.words("expect")) {
            let Some(arguments) = source.code[at..].split_once('(').map(|(_, rest)| rest) else {
                continue;
            };
            let arguments = &arguments[..arguments.find(')').unwrap_or(arguments.len())];
            let is_attribute = source.code[..at].trim_end().ends_with(['[', ',']);
            let mut words = arguments.split(|c: char| !(c.is_alphanumeric() || c == '_'));
            let switched_off = words.any(|word| LINTS.contains(&word));
            if is_attribute && switched_off && !arguments.contains("reason") {
                let what = "dead code: remove it, or add `reason = \"…\"`";
                problems.push(Problem::new(&file.path, source.line_of(at), what));
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
    fn a_lint_that_is_off_without_a_reason_is_found() {
        let text = "#![allow(dead_code)]\n#[expect(unused, reason = \"x\")]\n#[allow(clippy::all)]\n\
                    #[cfg_attr(test, allow(unused_mut))]\nfn f() { x.expect(dead_code) }\n";
        let found = places(check, &[("a.rs", text)]);
        assert_eq!(found, [("a.rs".to_owned(), 1), ("a.rs".to_owned(), 4)]);
    }
}
