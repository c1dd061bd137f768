//! Puts the verbs libraries into the `bowline` program: [`verbs_libraries!`].
//!
//! `bowline` depends on `bowline-verbs`, a `cdylib`, so cargo has built it when it compiles the
//! program. A build script cannot read it: build scripts run before the dependencies of their
//! package are compiled. A macro runs while the program itself is compiled, and rustc's own
//! arguments say where cargo puts what it builds.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use proc_macro::TokenStream;

/// The file that `bowline run` preloads.
const PRELOAD: &str = "libbowline_verbs";
/// What the build script of `bowline-verbs` leaves beside the directory of dependencies.
const VERSIONED: [&str; 2] = ["bowline-lib/libibverbs.so.1", "bowline-lib/librdmacm.so.1"];

/// The libraries as `&[(&str, &[u8])]`: the path below their directory, and the contents.
///
/// The list is empty where there is nothing to embed: `cargo check` builds no libraries, and some
/// targets have none.
#[proc_macro]
pub fn verbs_libraries(_: TokenStream) -> TokenStream {
    let arguments: Vec<String> = std::env::args().collect();
    let files = match out_dir(&arguments) {
        Some(dir) if links(&arguments) => libraries(&dir),
        _ => Vec::new(),
    };
    expression(&files).parse().expect("the expression is valid Rust")
}

/// The value of an argument: `--name value` or `--name=value`.
fn value<'a>(arguments: &'a [String], name: &str) -> Option<&'a str> {
    arguments.iter().enumerate().find_map(|(at, argument)| match argument.strip_prefix(name)? {
        "" => arguments.get(at + 1).map(String::as_str),
        rest => rest.strip_prefix('='),
    })
}

fn out_dir(arguments: &[String]) -> Option<PathBuf> {
    value(arguments, "--out-dir").and_then(|dir| std::path::absolute(dir).ok())
}

/// Whether rustc makes a program, and does not only check it.
fn links(arguments: &[String]) -> bool {
    value(arguments, "--emit").is_some_and(|kinds| kinds.split(',').any(|kind| kind == "link"))
}

/// Names and paths of what is there; nothing without the preload library.
fn libraries(deps: &Path) -> Vec<(String, PathBuf)> {
    let Some(preload) = preload(deps) else { return Vec::new() };
    let profile = deps.parent().unwrap_or(deps);
    let versioned = VERSIONED.map(|name| (name.to_owned(), profile.join(name)));
    let mut found = vec![(format!("{PRELOAD}.so"), preload)];
    found.extend(versioned.into_iter().filter(|(_, path)| path.is_file()));
    found
}

/// Cargo gives the libraries of registry packages a hash in their name. Of several the newest is
/// this build's.
fn preload(deps: &Path) -> Option<PathBuf> {
    let plain = deps.join(format!("{PRELOAD}.so"));
    if plain.is_file() {
        return Some(plain);
    }
    let hashed = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with(&format!("{PRELOAD}-")) && name.ends_with(".so")
    };
    let age = |path: &PathBuf| path.metadata().and_then(|m| m.modified());
    let files = deps.read_dir().ok()?.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    files.filter(hashed).max_by_key(|path| age(path).unwrap_or(SystemTime::UNIX_EPOCH))
}

fn expression(files: &[(String, PathBuf)]) -> String {
    // `include_bytes` also tells cargo to compile again when a file changes.
    let entries = files.iter().map(|(name, path)| {
        format!("({name:?}, ::core::include_bytes!({:?}) as &[u8]),", path.display().to_string())
    });
    format!("{{ const FILES: &[(&str, &[u8])] = &[{}]; FILES }}", entries.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn arguments_are_read_in_both_forms() {
        let build = arguments("rustc --crate-name x --emit=dep-info,link --out-dir /t/deps a.rs");
        assert_eq!(out_dir(&build), Some(PathBuf::from("/t/deps")));
        assert!(links(&build));
        let check = arguments("rustc --emit dep-info,metadata --out-dir=/t/deps");
        assert_eq!(out_dir(&check), Some(PathBuf::from("/t/deps")));
        assert!(!links(&check));
        assert_eq!(out_dir(&arguments("rustc --out-dir")), None);
    }

    #[test]
    fn libraries_are_found_with_and_without_a_hash() {
        let root = std::env::temp_dir().join(format!("bowline-embed-{}", std::process::id()));
        let deps = root.join("deps");
        std::fs::create_dir_all(root.join("bowline-lib")).unwrap();
        std::fs::create_dir_all(&deps).unwrap();
        assert_eq!(libraries(&deps), []);
        std::fs::write(deps.join("libbowline_verbs_abi-1.so"), "").unwrap();
        std::fs::write(deps.join("libbowline_verbs-1f.so"), "").unwrap();
        std::fs::write(root.join(VERSIONED[0]), "").unwrap();
        let names = |found: Vec<(String, PathBuf)>| found.into_iter().map(|(name, _)| name);
        assert!(names(libraries(&deps)).eq(["libbowline_verbs.so", VERSIONED[0]]));
        assert_eq!(libraries(&deps)[0].1, deps.join("libbowline_verbs-1f.so"));
        std::fs::write(deps.join("libbowline_verbs.so"), "").unwrap();
        assert_eq!(libraries(&deps)[0].1, deps.join("libbowline_verbs.so"));
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn paths_are_quoted() {
        let text = expression(&[("a.so".into(), PathBuf::from("/a \"b\"/c.so"))]);
        assert!(text.contains(r#"("a.so", ::core::include_bytes!("/a \"b\"/c.so") as &[u8]),"#));
    }
}
