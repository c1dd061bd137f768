//! Makes the table of public verbs from the list of symbols.

use std::path::PathBuf;
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=symbols.txt");
    println!("cargo:rerun-if-changed=build.rs");
    let list = fs::read_to_string("symbols.txt").expect("the list of symbols is readable");
    let names: Vec<&str> = list
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let entries: String = names
        .iter()
        .map(|name| format!("    Verb(crate::verbs::{name} as *const ()),\n"))
        .collect();
    let table = format!("[Verb; {}] = [\n{entries}]", names.len());
    let code = format!(
        "/// Every public verb, in the order of `symbols.txt`: the versioned library calls through it.\n\
         #[unsafe(no_mangle)]\npub static bowline_verbs_table: {table};\n"
    );
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    fs::write(out.join("table.rs"), code).expect("the output directory is writable");
}
