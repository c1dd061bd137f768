//! Builds the second product: a `libibverbs.so.1` and a `librdmacm.so.1` with symbol versions.
//!
//! Every versioned symbol in them is a jump through the table that the first product exports, so
//! that there is one implementation however a program finds it. Building them takes only an
//! assembler and a linker, which cargo needs as well, and works with any of them: version scripts
//! passed to cargo's own linking step do not. They go to `bowline-lib` beside the preload library
//! and locate that relative to themselves.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

/// The generations of rdma-core: symbols private to its own libraries get a new version with each.
const GENERATIONS: [&str; 5] = ["34", "57", "59", "64", "65"];

/// A versioned library.
struct Product {
    /// Its name without `.so.1`.
    name: &'static str,
    /// The prefix of its versions.
    versions: &'static str,
    /// The table that it jumps through, and the list of its entries.
    table: &'static str,
    symbols: &'static str,
    /// A list of symbols that programs can bind to but that are not implemented.
    stubs: Option<&'static str>,
    /// The generations of rdma-core's private symbols that it has.
    generations: &'static [&'static str],
}

const PRODUCTS: [Product; 2] = [
    Product {
        name: "libibverbs",
        versions: "IBVERBS",
        table: "bowline_verbs_table",
        symbols: "symbols.txt",
        stubs: Some("stubs.txt"),
        generations: &GENERATIONS,
    },
    Product {
        name: "librdmacm",
        versions: "RDMACM",
        table: "bowline_rdmacm_table",
        symbols: "rdmacm-symbols.txt",
        stubs: None,
        generations: &[],
    },
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libbowline_verbs.so");
    // The tables must refer to this library, not to the jumps that come through it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    let lists = env::var_os("DEP_BOWLINE_VERBS_ABI_LISTS").expect("bowline-verbs-abi says it");
    let lists = PathBuf::from(lists);
    for product in &PRODUCTS {
        for list in [Some(product.symbols), product.stubs].into_iter().flatten() {
            println!("cargo:rerun-if-changed={}", lists.join(list).display());
        }
        if let Err(why) = make(product, &lists) {
            println!("cargo:warning=no versioned {}.so.1: {why}", product.name);
        }
    }
}

fn make(product: &Product, lists: &Path) -> Result<(), String> {
    if env::var("TARGET") != env::var("HOST") {
        return Err("it is not made when cross-compiling".into());
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    // target/PROFILE/build/PACKAGE/out
    let profile = out.ancestors().nth(3).ok_or("an output directory of another shape")?;
    let dir = profile.join("bowline-lib");
    let soname = format!("{}.so.1", product.name);
    let file = dir.join(&soname);
    println!("cargo:rerun-if-changed={}", file.display());

    let symbols = rows(&lists.join(product.symbols))?;
    let stubs = product.stubs.map_or(Ok(Vec::new()), |list| rows(&lists.join(list)))?;
    let machine = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let (jumps, map) =
        (out.join(format!("{}.S", product.name)), out.join(format!("{}.map", product.name)));
    write(&jumps, &assembly(product, &machine, &symbols, &stubs)?)?;
    write(&map, &versions(product, symbols.iter().chain(&stubs)))?;
    fs::create_dir_all(&dir).map_err(|e| e.to_string())?;
    link(product, &out, &[&jumps, &map], &file)?;
    date_back(&file, &lists.join(product.symbols)).map_err(|e| e.to_string())?;
    let link = dir.join(format!("{}.so", product.name));
    let _ = fs::remove_file(&link);
    std::os::unix::fs::symlink(soname, &link).map_err(|e| e.to_string())
}

/// Makes a file as old as another. Cargo reruns the script if a watched file is newer than the
/// script's start, as all its outputs are; but it must notice if one is missing.
fn date_back(file: &Path, like: &Path) -> io::Result<()> {
    let age = fs::metadata(like)?.modified()?;
    fs::File::options().append(true).open(file)?.set_modified(age)
}

/// Links the jumps against a stub that declares the symbols available at run time.
fn link(product: &Product, out: &Path, made: &[&Path; 2], to: &Path) -> Result<(), String> {
    let [jumps, map] = made;
    let stand_in = out.join("libbowline_verbs.so");
    let source = out.join("stand-in.c");
    write(&source, &format!("int {}[1];\n", product.table))?;
    cc(
        &["-shared", "-fPIC", "-nostdlib", "-Wl,-soname,libbowline_verbs.so"],
        &[&source],
        &stand_in,
    )?;
    cc(
        &[
            "-shared",
            "-nostdlib",
            &format!("-Wl,-soname,{}.so.1", product.name),
            "-Wl,-z,defs",
            "-Wl,-z,noexecstack",
            "-Wl,-rpath,$ORIGIN:$ORIGIN/..",
            "-Wl,--enable-new-dtags",
            "-Wl,--no-as-needed",
            &format!("-Wl,--version-script={}", map.display()),
        ],
        &[jumps, &stand_in],
        to,
    )
}

/// The rows of a list, split into words.
fn rows(path: &Path) -> Result<Vec<Vec<String>>, String> {
    let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    Ok(lines.map(|line| line.split_whitespace().map(str::to_owned).collect()).collect())
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

fn assembly(
    product: &Product,
    machine: &str,
    symbols: &[Vec<String>],
    stubs: &[Vec<String>],
) -> Result<String, String> {
    let (jump, number, null): (fn(&str, usize) -> String, _, _) = match machine {
        "x86_64" => (
            |table, at| format!("movq {table}@GOTPCREL(%rip), %r11\n    jmp *{at}(%r11)"),
            "movl $95, %eax\n    ret",
            "xorl %eax, %eax\n    ret",
        ),
        "aarch64" => (
            |table, at| {
                format!(
                    "adrp x16, :got:{table}\n    \
                     ldr x16, [x16, :got_lo12:{table}]\n    \
                     ldr x16, [x16, #{at}]\n    br x16"
                )
            },
            "mov w0, #95\n    ret",
            "mov x0, #0\n    ret",
        ),
        other => return Err(format!("no jumps are written for {other}")),
    };
    let mut out = String::from(".text\n");
    let mut function = |name: &str, body: &str| {
        let _ = write!(
            out,
            ".globl {name}\n.type {name}, %function\n.p2align 4\n{name}:\n    {body}\n\
             .size {name}, .-{name}\n"
        );
    };
    for (index, row) in symbols.iter().enumerate() {
        each_version(row, |name| function(name, &jump(product.table, index * 8)));
    }
    for row in stubs.iter().filter(|row| row[2] != "data") {
        each_version(row, |name| function(name, if row[2] == "pointer" { null } else { number }));
    }
    for row in stubs.iter().filter(|row| row[2] == "data") {
        each_version(row, |name| {
            let _ = write!(
                out,
                ".bss\n.globl {name}\n.type {name}, %object\n.size {name}, 8\n.p2align 3\n{name}:\n    \
                 .zero 8\n"
            );
        });
    }
    for row in symbols.iter().chain(stubs).filter(|row| row[1] == PRIVATE) {
        for generation in product.generations {
            let (name, inner) = (row[0].replace('@', generation), inner_name(&row[0], generation));
            let _ = writeln!(
                out,
                ".symver {inner}, {name}@{}_{PRIVATE}_{generation}",
                product.versions
            );
        }
    }
    out.push_str(".section .note.GNU-stack,\"\",%progbits\n");
    Ok(out)
}

/// The version of symbols that are not for programs.
const PRIVATE: &str = "PRIVATE";

/// The name of a generation's private symbol in the assembly.
fn inner_name(name: &str, generation: &str) -> String {
    format!("bowline_{generation}_{}", name.replace('@', generation))
}

/// Calls `add` with every name that the assembly has for a row.
fn each_version(row: &[String], mut add: impl FnMut(&str)) {
    if row[1] == PRIVATE {
        GENERATIONS.iter().for_each(|generation| add(&inner_name(&row[0], generation)));
    } else {
        add(&row[0]);
    }
}

/// A version script: every version a node, each depending on the one before.
fn versions<'a>(product: &Product, rows: impl Iterator<Item = &'a Vec<String>>) -> String {
    let mut nodes: BTreeMap<(u32, String), Vec<&str>> = BTreeMap::new();
    for row in rows.filter(|row| row[1] != PRIVATE) {
        let order = row[1].strip_prefix("1.").and_then(|n| n.parse().ok()).unwrap_or(u32::MAX);
        nodes.entry((order, row[1].clone())).or_default().push(&row[0]);
    }
    // The assembly says which symbols are theirs.
    for generation in product.generations {
        nodes.entry((u32::MAX, format!("{PRIVATE}_{generation}"))).or_default();
    }
    let mut out = String::new();
    let mut before: Option<String> = None;
    for ((_, version), names) in nodes {
        let local = if before.is_none() { " local: *;" } else { "" };
        let parent = before.map_or(String::new(), |b| format!(" {b}"));
        let globals: String = names.iter().map(|n| format!(" {n};")).collect();
        let global = if names.is_empty() { "" } else { " global:" };
        let name = format!("{}_{version}", product.versions);
        let _ = writeln!(out, "{name} {{{global}{globals}{local} }}{parent};");
        before = Some(name);
    }
    out
}

fn cc(flags: &[&str], inputs: &[&Path], output: &Path) -> Result<(), String> {
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".into());
    let done = Command::new(&compiler)
        .args(flags)
        .args(inputs)
        .arg("-o")
        .arg(output)
        .output()
        .map_err(|e| format!("{compiler}: {e}"))?;
    if done.status.success() {
        return Ok(());
    }
    Err(format!("{compiler}: {}", String::from_utf8_lossy(&done.stderr).replace('\n', " ")))
}
