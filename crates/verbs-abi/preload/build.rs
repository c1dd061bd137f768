//! Makes the second product: a `libibverbs.so.1` with symbol versions.
//!
//! Every versioned symbol in it is a jump through the table that the first product exports, so that
//! there is one implementation however a program finds it. It needs an assembler and a linker only,
//! which cargo needs as well, and works with any of them: version scripts given to cargo's own
//! linking step do not. It goes to `bowline-lib` beside the preload library and finds that by its
//! own place.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The generations of rdma-core: symbols that its own libraries share get a new version with each.
const GENERATIONS: [&str; 5] = ["34", "57", "59", "64", "65"];

fn main() {
    for file in ["../symbols.txt", "../stubs.txt", "build.rs"] {
        println!("cargo:rerun-if-changed={file}");
    }
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libbowline_verbs.so");
    // The table must lead to this library, not to the jumps that come through it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    if let Err(why) = make() {
        println!("cargo:warning=no versioned libibverbs.so.1: {why}");
    }
}

fn make() -> Result<(), String> {
    if env::var("TARGET") != env::var("HOST") {
        return Err("it is not made when cross-compiling".into());
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    // target/PROFILE/build/PACKAGE/out
    let profile = out.ancestors().nth(3).ok_or("an output directory of another shape")?;
    let dir = profile.join("bowline-lib");
    let product = dir.join("libibverbs.so.1");
    println!("cargo:rerun-if-changed={}", product.display());

    let symbols = rows(Path::new("../symbols.txt"))?;
    let stubs = rows(Path::new("../stubs.txt"))?;
    let machine = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    write(&out.join("jumps.S"), &assembly(&machine, &symbols, &stubs)?)?;
    write(&out.join("versions.map"), &versions(symbols.iter().chain(&stubs)))?;
    fs::create_dir_all(&dir).map_err(|e| e.to_string())?;

    // Something to link against that says who will be there.
    let stand_in = out.join("libbowline_verbs.so");
    write(&out.join("stand-in.c"), "int bowline_verbs_table[1];\n")?;
    cc(
        &["-shared", "-fPIC", "-nostdlib", "-Wl,-soname,libbowline_verbs.so"],
        &[&out.join("stand-in.c")],
        &stand_in,
    )?;
    let script = format!("-Wl,--version-script={}", out.join("versions.map").display());
    cc(
        &[
            "-shared",
            "-nostdlib",
            "-Wl,-soname,libibverbs.so.1",
            "-Wl,-z,defs",
            "-Wl,-z,noexecstack",
            "-Wl,-rpath,$ORIGIN:$ORIGIN/..",
            "-Wl,--enable-new-dtags",
            "-Wl,--no-as-needed",
            &script,
        ],
        &[&out.join("jumps.S"), &stand_in],
        &product,
    )?;
    let link = dir.join("libibverbs.so");
    let _ = fs::remove_file(&link);
    std::os::unix::fs::symlink("libibverbs.so.1", &link).map_err(|e| e.to_string())
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
    machine: &str,
    symbols: &[Vec<String>],
    stubs: &[Vec<String>],
) -> Result<String, String> {
    let (jump, number, null): (fn(usize) -> String, _, _) = match machine {
        "x86_64" => (
            |at| format!("movq bowline_verbs_table@GOTPCREL(%rip), %r11\n    jmp *{at}(%r11)"),
            "movl $95, %eax\n    ret",
            "xorl %eax, %eax\n    ret",
        ),
        "aarch64" => (
            |at| {
                format!(
                    "adrp x16, :got:bowline_verbs_table\n    \
                     ldr x16, [x16, :got_lo12:bowline_verbs_table]\n    \
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
        each_version(row, |name| function(name, &jump(index * 8)));
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
        for generation in GENERATIONS {
            let (name, inner) = (row[0].replace('@', generation), inner_name(&row[0], generation));
            let _ = writeln!(out, ".symver {inner}, {name}@IBVERBS_{PRIVATE}_{generation}");
        }
    }
    out.push_str(".section .note.GNU-stack,\"\",%progbits\n");
    Ok(out)
}

/// The version of symbols that are not for programs.
const PRIVATE: &str = "PRIVATE";

/// What a private symbol of a generation is called in the assembly.
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
fn versions<'a>(rows: impl Iterator<Item = &'a Vec<String>>) -> String {
    let mut nodes: BTreeMap<(u32, String), Vec<&str>> = BTreeMap::new();
    for row in rows.filter(|row| row[1] != PRIVATE) {
        let order = row[1].strip_prefix("1.").and_then(|n| n.parse().ok()).unwrap_or(u32::MAX);
        nodes.entry((order, row[1].clone())).or_default().push(&row[0]);
    }
    // The assembly says which symbols are theirs.
    for generation in GENERATIONS {
        nodes.entry((u32::MAX, format!("{PRIVATE}_{generation}"))).or_default();
    }
    let mut out = String::new();
    let mut before: Option<String> = None;
    for ((_, version), names) in nodes {
        let local = if before.is_none() { " local: *;" } else { "" };
        let parent = before.map_or(String::new(), |b| format!(" {b}"));
        let globals: String = names.iter().map(|n| format!(" {n};")).collect();
        let global = if names.is_empty() { "" } else { " global:" };
        let _ = writeln!(out, "IBVERBS_{version} {{{global}{globals}{local} }}{parent};");
        before = Some(format!("IBVERBS_{version}"));
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
