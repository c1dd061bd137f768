//! The rules.

mod benches;
mod columns;
mod documents;
mod functions;
mod labs;
mod lints;
mod manifests;
mod modules;
mod notes;
mod paths;
mod safety;
mod words;

use super::Problem;
use super::tree::Tree;

pub(super) use documents::check_documents;

/// A rule: all its problems in a tree.
type Rule = fn(&Tree) -> Vec<Problem>;

/// Their names and what they check.
pub(super) const RULES: [(&str, Rule); 11] = [
    ("benches", benches::check),
    ("columns", columns::check),
    ("functions", functions::check),
    ("labs", labs::check),
    ("lints", lints::check),
    ("manifests", manifests::check),
    ("modules", modules::check),
    ("notes", notes::check),
    ("paths", paths::check),
    ("safety", safety::check),
    ("words", words::check),
];

/// Places of the problems that a rule has with samples.
#[cfg(test)]
fn places(rule: Rule, files: &[(&str, &str)]) -> Vec<(String, usize)> {
    rule(&Tree::of(files)).into_iter().map(|problem| (problem.path, problem.line)).collect()
}
