//! A module with children is `name/mod.rs`, not `name.rs` beside `name/`.

use super::{Problem, Tree};

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (file, _) in tree.rust() {
        let folder = format!("{}/", file.path.trim_end_matches(".rs"));
        if tree.ending(".rs").any(|other| other.path.starts_with(&folder)) {
            let what = format!("move it to {folder}mod.rs (main.rs for a test program)");
            problems.push(Problem::new(&file.path, 1, what));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    #[test]
    fn a_module_beside_its_folder_is_found() {
        let good =
            [("src/a/mod.rs", ""), ("src/a/b.rs", ""), ("src/c.rs", ""), ("src/cd/mod.rs", "")];
        assert!(places(check, &good).is_empty());
        let bad = [("src/a.rs", ""), ("src/a/b.rs", "")];
        assert_eq!(places(check, &bad), [("src/a.rs".to_owned(), 1)]);
    }
}
