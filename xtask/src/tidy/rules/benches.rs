//! Every bench is a directory with a `run` and a README.md that tells the options all of them have.

use std::collections::BTreeSet;

use super::{Problem, Tree};

/// What every bench knows, beside `--help`.
const OPTIONS: [&str; 2] = ["--json", "--check"];

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let inside = tree.files().iter().filter_map(|file| file.path.strip_prefix("bench/"));
    let mut problems = Vec::new();
    let mut names = BTreeSet::new();
    for path in inside {
        match path.split_once('/') {
            Some(("common", _)) => {}
            Some((name, _)) => drop(names.insert(name)),
            None if path == "README.md" => {}
            None => {
                let what = "a bench is a directory: bench/NAME/run";
                problems.push(Problem::new(&format!("bench/{path}"), 1, what));
            }
        }
    }
    for name in names {
        problems.extend(missing(tree, name));
    }
    problems
}

/// What a bench lacks.
fn missing(tree: &Tree, name: &str) -> Option<Problem> {
    let of = |file: &str| tree.files().iter().find(|f| f.path == format!("bench/{name}/{file}"));
    let path = format!("bench/{name}/README.md");
    if of("run").is_none() {
        return Some(Problem::new(&path, 1, format!("there is no bench/{name}/run")));
    }
    let Some(readme) = of("README.md") else {
        return Some(Problem::new(&path, 1, "missing: say what the bench measures"));
    };
    // `--help` prints what stands before the first part.
    let help = readme.text.split("\n## ").next().unwrap_or_default();
    let option = OPTIONS.into_iter().find(|option| !help.contains(option))?;
    Some(Problem::new(&path, 1, format!("does not tell {option} before its first part")))
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    const HELP: &str = "bench/a/run [--json] [--check]\n";

    #[test]
    fn a_bench_with_all_its_parts_is_none() {
        let files = [
            ("bench/a/run", ""),
            ("bench/a/README.md", HELP),
            ("bench/a/src/main.rs", ""),
            ("bench/README.md", ""),
            ("bench/common/run.sh", ""),
        ];
        assert!(places(check, &files).is_empty());
    }

    #[test]
    fn what_a_bench_lacks_is_found() {
        let late = "bench/c/run [--json]\n\n## More\n\n--check";
        let files = [
            ("bench/a/src/main.rs", ""),
            ("bench/b/run", ""),
            ("bench/c/run", ""),
            ("bench/c/README.md", late),
            ("bench/d", ""),
        ];
        let mut found: Vec<String> =
            places(check, &files).into_iter().map(|(path, _)| path).collect();
        found.sort();
        let readme = |name| format!("bench/{name}/README.md");
        assert_eq!(found, [readme("a"), readme("b"), readme("c"), "bench/d".to_owned()]);
    }
}
