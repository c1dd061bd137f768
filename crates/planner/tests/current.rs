//! Checks that the checked-in artefacts match these sources: the planner as WebAssembly, and the
//! book's page.
//!
//! Both are checked in because not everybody can build for WebAssembly. `crates/planner/wasm/build`
//! rebuilds them, and runs this test with `BOWLINE_WRITE` set to the date.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn date_to_write() -> Option<String> {
    std::env::var("BOWLINE_WRITE").ok()
}

/// The files of a directory and all below it.
fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            found.push(path);
        }
    }
}

/// The relevant part of a source file: no comments, no tests, no indentation.
fn code(text: &str) -> String {
    let text = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// A digest of all that the WebAssembly is built from.
fn digest() -> String {
    let mut hasher = blake3::Hasher::new();
    for part in ["plan", "chart", "link", "planner", "planner/wasm"] {
        let dir = root().join("crates").join(part).join("src");
        let mut found = Vec::new();
        files(&dir, &mut found);
        found.sort();
        // The page holds the WebAssembly, and not the other way round.
        for path in found.iter().filter(|path| !path.ends_with("planner/src/page.rs")) {
            let name = path.strip_prefix(&dir).unwrap().to_string_lossy();
            hasher.update(format!("{part} {name}\n").as_bytes());
            hasher.update(code(&fs::read_to_string(path).unwrap()).as_bytes());
        }
    }
    // The library functions that the digits depend on.
    let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let libm = lock.split("\n\n").find(|package| package.contains("name = \"libm\""));
    hasher.update(libm.unwrap().as_bytes());
    hasher.finalize().to_hex().to_string()
}

#[test]
fn the_webassembly_is_made_of_these_sources() {
    let path = root().join("crates/planner/page/planner.wasm.sources");
    if date_to_write().is_some() {
        fs::write(&path, digest() + "\n").unwrap();
    }
    let made_of = fs::read_to_string(path).unwrap();
    assert_eq!(
        made_of.trim(),
        digest(),
        "crates/planner/page/planner.wasm is stale: run crates/planner/wasm/build"
    );
}

#[test]
fn the_webassembly_names_no_directory_of_the_machine_that_built_it() {
    let wasm = fs::read(root().join("crates/planner/page/planner.wasm")).unwrap();
    for part in ["root/", "home/", "Users/", "work/", "/tmp/", ".cargo"] {
        let at = wasm.windows(part.len()).position(|bytes| bytes == part.as_bytes());
        let around = at.map(|at| String::from_utf8_lossy(&wasm[at..(at + 80).min(wasm.len())]));
        assert_eq!(around, None, "run crates/planner/wasm/build, which leaves {part} out");
    }
}

#[cfg(feature = "page")]
#[test]
fn the_books_page_is_this_one() {
    const COMMAND: &str = "bowline plan --page docs/explorer.html";
    let path = root().join("docs/explorer.html");
    if let Some(date) = date_to_write() {
        fs::write(&path, bowline_planner::page::html(COMMAND, &date, "")).unwrap();
    }
    let page = fs::read_to_string(path).unwrap();
    let (_, rest) = page.split_once("<meta name=\"date\" content=\"").unwrap();
    let date = rest.split('"').next().unwrap();
    assert!(
        page == bowline_planner::page::html(COMMAND, date, ""),
        "docs/explorer.html is stale: run crates/planner/wasm/build"
    );
}
