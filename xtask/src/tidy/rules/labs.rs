//! Every `lab/NAME/run` is mentioned in a document.

use super::{Problem, Tree};

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let is_lab = |path: &str| path.starts_with("lab/") && path.matches('/').count() == 2;
    let labs = tree.ending("/run").filter(|file| is_lab(&file.path));
    let unknown = labs.filter(|lab| !tree.ending(".md").any(|page| page.text.contains(&lab.path)));
    let what = "no document mentions it: say what it is for, e.g. in CONTRIBUTING.md";
    unknown.map(|lab| Problem::new(&lab.path, 1, what)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    #[test]
    fn a_lab_without_a_document_is_found() {
        let known = [("lab/a/run", ""), ("lab/b/run", ""), ("lab/b/c/run", ""), ("run", "")];
        let page = ("docs/x.md", "Use `lab/a/run`.");
        let found = places(check, &[&known[..], &[page]].concat());
        assert_eq!(found, [("lab/b/run".to_owned(), 1)]);
    }
}
