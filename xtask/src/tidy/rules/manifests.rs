//! A package that may be published says what it is.

use super::{Problem, Tree};

const FIELDS: [&str; 5] = ["description", "license", "readme", "rust-version", "version"];

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in tree.ending("Cargo.toml") {
        let Some((_, package)) = file.text.split_once("[package]\n") else { continue };
        let package = package.split("\n[").next().unwrap_or(package);
        let has = |field: &str| {
            let names = package.lines().filter_map(|line| line.split(['=', '.']).next());
            names.map(str::trim).any(|name| name == field)
        };
        let missing: Vec<&str> = FIELDS.into_iter().filter(|field| !has(field)).collect();
        if !package.contains("publish = false") && !missing.is_empty() {
            let what = format!("add {}, or `publish = false`", missing.join(", "));
            problems.push(Problem::new(&file.path, 1, what));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_without_a_description_is_found() {
        let fields =
            "license = \"MIT\"\nreadme.workspace = true\nrust-version = \"1\"\nversion = \"1\"\n";
        let poor = format!("[package]\n{fields}[dependencies]\ndescription = \"1\"\n");
        let rich = format!("[package]\ndescription = \"x\"\n{fields}");
        let private = "[package]\npublish = false\n";
        let files = [("a/Cargo.toml", &*poor), ("b/Cargo.toml", &rich), ("c/Cargo.toml", private)];
        let problems = check(&Tree::of(&files));
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].path, "a/Cargo.toml");
        assert!(problems[0].what.contains("add description,"), "{}", problems[0].what);
    }
}
