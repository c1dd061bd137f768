//! No path of somebody's machine.

use super::{Problem, Tree};

/// Where people keep their files. Written in parts, or this file would break its own rule.
const PRIVATE: [&str; 4] =
    [concat!("/ho", "me/"), concat!("/Us", "ers/"), concat!("/ro", "ot/"), concat!("/wo", "rk/")];

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in tree.files() {
        for (number, line) in file.lines() {
            if let Some(path) = PRIVATE.into_iter().find(|path| starts_a_path(line, path)) {
                let what =
                    format!("`{path}…` is a path of one machine: write a relative one, or ~");
                problems.push(Problem::new(&file.path, number, what));
            }
        }
    }
    problems
}

/// Whether it is there, and not in the middle of another path.
fn starts_a_path(line: &str, path: &str) -> bool {
    let inside = |c: char| c.is_alphanumeric() || "_-.~}$)".contains(c);
    line.match_indices(path).any(|(at, _)| !line[..at].ends_with(inside))
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    #[test]
    fn a_private_path_is_found() {
        let path = PRIVATE[0];
        let text = format!("a{path}b\n\"{path}ann/x\"\n$TOP{path}b\n{path}y\n");
        let found = places(check, &[("x.toml", &text)]);
        assert_eq!(found, [("x.toml".to_owned(), 2), ("x.toml".to_owned(), 4)]);
    }
}
