//! Programs under callgrind.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Instructions by function, without those of callees.
#[derive(Debug, Default, PartialEq)]
pub struct Profile {
    by_name: BTreeMap<String, f64>,
}

impl Profile {
    /// All instructions.
    pub fn total(&self) -> f64 {
        self.by_name.values().sum()
    }

    /// Those in functions whose names contain `part`.
    pub fn within(&self, part: &str) -> f64 {
        self.by_name.iter().filter(|(name, _)| name.contains(part)).map(|(_, cost)| cost).sum()
    }

    /// Reads callgrind's format. Costs stand by function; a line that follows a call has the
    /// callee's, which is counted where it happens.
    fn parse(text: &str) -> Profile {
        let mut names = BTreeMap::new();
        let mut function = "";
        let mut of_callee = false;
        let mut profile = Profile::default();
        for line in text.lines() {
            if let Some((kind, value)) = line.split_once('=') {
                if matches!(kind, "fn" | "cfn") {
                    // A name is spelt out where it first comes, and is a number from then on.
                    let (id, name) = value.split_once(' ').unwrap_or((value, ""));
                    let known = names.entry(id).or_insert(name);
                    if kind == "fn" {
                        function = *known;
                    }
                }
                of_callee = kind == "calls";
            } else if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) {
                let cost = line.split(' ').nth(1).and_then(|cost| cost.parse().ok()).unwrap_or(0.0);
                if !std::mem::replace(&mut of_callee, false) {
                    *profile.by_name.entry(function.to_owned()).or_default() += cost;
                }
            }
        }
        profile
    }
}

/// Instructions inside of `functions`, which are parts of names, of one more of what a program does
/// `length` times: `program CASE length` is run for two lengths, and the difference of both
/// profiles is divided by that of the lengths. What happens once, in allocators above all, cancels
/// out.
///
/// # Errors
/// If there is no valgrind, the program fails, or none of the functions was called.
pub fn count_each(
    program: &Path,
    case: &str,
    functions: &[&str],
    lengths: [u32; 2],
) -> io::Result<Profile> {
    let [short, long] = lengths;
    let less = run(program, case, functions, short)?;
    let mut each = run(program, case, functions, long)?;
    for (name, cost) in less.by_name {
        *each.by_name.entry(name).or_default() -= cost;
    }
    each.by_name.values_mut().for_each(|cost| *cost /= f64::from(long - short));
    Ok(each)
}

/// What the program sees is the same everywhere: callgrind passes itself off as one and the same
/// processor with AVX2 wherever there is one, the environment is empty, since its size moves the
/// stack, and what the C library would derive from the sizes of caches is given.
fn run(program: &Path, case: &str, functions: &[&str], length: u32) -> io::Result<Profile> {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let number = RUNS.fetch_add(1, Ordering::Relaxed);
    let file = format!("bowline-{}-{number}.callgrind", std::process::id());
    let file = std::env::temp_dir().join(file);
    let output = Command::new("valgrind")
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}", file.display()))
        .args(functions.iter().map(|function| format!("--toggle-collect=*{function}*")))
        .arg(program)
        .args(case.split(' '))
        .arg(length.to_string())
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("GLIBC_TUNABLES", TUNABLES)
        .output()
        .map_err(|error| io::Error::new(error.kind(), format!("valgrind: {error}")))?;
    let profile = std::fs::read_to_string(&file).map(|text| Profile::parse(&text));
    // It is not there if valgrind failed early; it is not needed any more in any case.
    let _ = std::fs::remove_file(&file);
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("valgrind failed ({}):\n{text}", output.status)));
    }
    let profile = profile?;
    if profile.total() == 0.0 {
        let program = program.display();
        return Err(io::Error::other(format!(
            "{program} {case}: no function named {functions:?} was called"
        )));
    }
    Ok(profile)
}

/// From where on `memcpy` uses string instructions and stores past the caches: what glibc takes
/// with AVX2.
const TUNABLES: &str = "glibc.cpu.x86_rep_movsb_threshold=4096:\
                        glibc.cpu.x86_non_temporal_threshold=3145728";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_of_callees_are_counted_once() {
        let text = "version: 1\nfn=(1) send_side\n10 8192\ncfn=(2) a::xor_all_into_avx2\n\
                    calls=1 20\n+2 16384\n* 8192\n\nfn=(2)\n20 16384\n";
        let profile = Profile::parse(text);
        assert_eq!((profile.total(), profile.within("xor_all_into_")), (32768.0, 16384.0));
    }
}
