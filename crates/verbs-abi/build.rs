//! Generates the tables of public functions from the lists of symbols.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// A list of symbols, and the name of its table.
const TABLES: [(&str, &str); 2] =
    [("symbols.txt", "bowline_verbs_table"), ("rdmacm-symbols.txt", "bowline_rdmacm_table")];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let code: String = TABLES.iter().map(|(list, name)| table(list, name)).collect();
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    // The preload library's build script reads the lists, too, wherever this package is.
    println!("cargo:lists={}", env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    fs::write(out.join("table.rs"), code).expect("the output directory is writable");
}

fn table(list: &str, name: &str) -> String {
    println!("cargo:rerun-if-changed={list}");
    let text = fs::read_to_string(Path::new(list)).expect("the list of symbols is readable");
    let names: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let entries: String = names
        .iter()
        .map(|function| format!("    Verb(crate::verbs::{function} as *const ()),\n"))
        .collect();
    format!(
        "/// Every public function, in the order of `{list}`: the versioned library calls through it.\n\
         #[unsafe(no_mangle)]\npub static {name}: [Verb; {}] = [\n{entries}];\n",
        names.len()
    )
}
