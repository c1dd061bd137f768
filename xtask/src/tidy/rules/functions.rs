//! Functions have at most 70 lines, and files at most 700.

use super::{Problem, Tree};

const FUNCTION_LINES: usize = 70;
const FILE_LINES: usize = 700;

/// Longer functions, each with its reason. One that has become short is taken off the list.
const EXCEPTIONS: [Exception; 5] = [
    Exception {
        path: "crates/nic/src/transport/rc/requester.rs",
        function: "send_some",
        reason: "the hot loop: its parts share a dozen locals, which arguments would spill",
    },
    Exception {
        path: "crates/failover/src/tests/scripts.rs",
        function: "play",
        reason: "one arm for each step of a script",
    },
    Exception {
        path: "crates/codes/src/kernel/x86.rs",
        function: "columns_gfni",
        reason: "one loop over registers, unrolled by hand",
    },
    Exception {
        path: "crates/verbs-abi/src/qp.rs",
        function: "create_in",
        reason: "one structure of the ABI, filled in field by field",
    },
    Exception {
        path: "crates/ibverbs/src/post.rs",
        function: "send_request",
        reason: "one structure of the ABI, filled in field by field",
    },
];

struct Exception {
    path: &'static str,
    function: &'static str,
    reason: &'static str,
}

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    check_with(tree, &EXCEPTIONS)
}

fn check_with(tree: &Tree, exceptions: &[Exception]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut used = vec![false; exceptions.len()];
    for (file, source) in tree.rust() {
        let lines = file.text.lines().count();
        if lines > FILE_LINES {
            let what = format!("the file has {lines} lines, at most {FILE_LINES}: split it");
            problems.push(Problem::new(&file.path, 1, what));
        }
        for function in source.functions().filter(|function| function.lines > FUNCTION_LINES) {
            let excepted = |e: &Exception| e.path == file.path && e.function == function.name;
            if let Some(at) = exceptions.iter().position(excepted) {
                used[at] = true;
                continue;
            }
            let (name, lines) = (function.name, function.lines);
            let what = format!("`{name}` has {lines} lines, at most {FUNCTION_LINES}: split it");
            problems.push(Problem::new(&file.path, function.line, what));
        }
    }
    for exception in exceptions.iter().zip(used).filter(|(_, used)| !used).map(|(e, _)| e) {
        let Exception { path, function, reason } = exception;
        let what = format!("`{function}` is short or gone: no exception needed ({reason})");
        problems.push(Problem::new(path, 1, what));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str, lines: usize) -> String {
        format!("fn {name}() {{\n{}}}\n", "    work();\n".repeat(lines - 2))
    }

    fn whats(text: &str, exceptions: &[Exception]) -> Vec<String> {
        let problems = check_with(&Tree::of(&[("a.rs", text)]), exceptions);
        problems.into_iter().map(|problem| problem.what).collect()
    }

    #[test]
    fn a_long_function_is_found() {
        assert_eq!(whats(&function("f", 70), &[]), Vec::<String>::new());
        assert!(whats(&function("f", 71), &[])[0].contains("`f` has 71 lines"));
    }

    #[test]
    fn a_long_file_is_found() {
        let text = "const A: u8 = 1;\n".repeat(700);
        assert!(whats(&text, &[]).is_empty());
        assert!(whats(&format!("{text}\n"), &[])[0].contains("701 lines"));
    }

    #[test]
    fn an_exception_counts_for_one_function_and_must_be_needed() {
        let exception = || Exception { path: "a.rs", function: "f", reason: "because" };
        assert!(whats(&function("f", 80), &[exception()]).is_empty());
        assert_eq!(whats(&function("g", 80), &[exception()]).len(), 2);
        assert!(whats(&function("f", 9), &[exception()])[0].contains("no exception needed"));
    }
}
