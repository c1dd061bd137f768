//! What `lab/docs/run` checks: columns of prose, links, and that every decision and page is listed.

use std::path::Path;
use std::process::Command;

/// Prints the problems of the documents, and counts them.
pub(in crate::tidy) fn check_documents(root: &Path) -> usize {
    let program = root.join("lab/docs/run");
    match Command::new(&program).current_dir(root).output() {
        Err(error) => {
            println!("lab/docs/run:1: documents: cannot start it: {error}");
            1
        }
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            // The last line counts.
            let problems: Vec<&str> = text.lines().filter(|line| line.contains(": ")).collect();
            problems.iter().for_each(|problem| println!("{problem}"));
            let failed = usize::from(!output.status.success() && problems.is_empty());
            if failed > 0 {
                println!("lab/docs/run:1: documents: {}", String::from_utf8_lossy(&output.stderr));
            }
            problems.len() + failed
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    /// A repository with the script and these documents.
    fn repository(name: &str, pages: &[(&str, &str)]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("bowline-tidy-{}-{name}", std::process::id()));
        let script = crate::root().join("lab/docs/run");
        for (page, _) in pages.iter().chain(&[("lab/docs/run", "")]) {
            fs::create_dir_all(root.join(page).parent().unwrap()).unwrap();
        }
        fs::copy(script, root.join("lab/docs/run")).unwrap();
        for (page, text) in pages {
            fs::write(root.join(page), text).unwrap();
        }
        let init = Command::new("git").args(["init", "-q"]).current_dir(&root).status();
        assert!(init.unwrap().success());
        root
    }

    #[test]
    fn prose_that_is_long_and_decisions_that_no_list_has_are_found() {
        let long = format!("# One\n\n{}\n", "word ".repeat(21));
        let good = [
            ("docs/SUMMARY.md", "[D](decisions/README.md)\n[One](decisions/0001-one.md)\n"),
            ("docs/decisions/README.md", "[0001](0001-one.md)\n"),
            ("docs/decisions/0001-one.md", "# One\n"),
        ];
        let root = repository("good", &good);
        assert_eq!(check_documents(&root), 0);
        fs::remove_dir_all(root).unwrap();

        let bad = [
            ("docs/SUMMARY.md", "[D](decisions/README.md)\n"),
            ("docs/decisions/README.md", "# Decisions\n"),
            ("docs/decisions/0001-one.md", long.as_str()),
        ];
        let root = repository("bad", &bad);
        // Too long, not in the book, not in the list of decisions.
        assert_eq!(check_documents(&root), 3);
        fs::remove_dir_all(root).unwrap();
        assert_eq!(check_documents(Path::new("/nowhere")), 1);
    }
}
