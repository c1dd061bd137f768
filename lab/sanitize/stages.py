"""The stages: what is run under which checker, and how its verdict is read."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import programs

HERE = Path(__file__).resolve().parent
# Miri is a thousand times slower than a processor, so run few cases of each property.
MIRI = {"MIRIFLAGS": "-Zmiri-disable-isolation", "PROPTEST_CASES": "2",
        "PROPTEST_MAX_SHRINK_ITERS": "0"}
# What a sanitizer or an interpreter prints when it has found something.
FOUND = re.compile(r"WARNING: ThreadSanitizer.*|ERROR: AddressSanitizer.*|error: Undefined Behavior.*|"
                   r"ERROR SUMMARY: [1-9].*|panicked at.*|unsupported operation.*")


@dataclass
class Stage:
    name: str
    run: Callable
    # Short enough for CI.
    quick: bool = False


def verdict(status, output):
    """Whether all is well, and what to say of it."""
    found = FOUND.search(output)
    results = re.findall(r"test result: \w+\. (\d+) passed; (\d+) failed", output)
    passed = sum(int(p) for p, _ in results)
    if status == 124:
        return False, f"not done in time after {passed} tests"
    if found:
        return False, found.group(0)[:150]
    if status != 0:
        lines = [line for line in output.splitlines() if line.startswith("error")]
        return False, (lines or [f"status {status}"])[0][:150]
    return passed > 0, f"{passed} tests"


def miri(crate, *tests, flags=""):
    def run(tools):
        tools.need("miri")
        tools.need("rust-src")
        command = ["cargo", "+nightly", "miri", "test", "--quiet", "-p", crate, "--lib", "--", *tests]
        env = dict(MIRI, CARGO_TARGET_DIR=str(tools.target / "miri"))
        env["MIRIFLAGS"] += flags
        return verdict(*tools.run(command, env))
    return run


def thread_sanitizer(crate, *args):
    def run(tools):
        command = ["cargo", "+nightly", "test", "--quiet", *tools.sanitized_std, "-p", crate, *args]
        env = {"RUSTFLAGS": "-Zsanitizer=thread", "CARGO_TARGET_DIR": str(tools.target / "thread"),
               "TSAN_OPTIONS": f"halt_on_error=1 suppressions={HERE / 'tsan.supp'}"}
        return verdict(*tools.run(command, env))
    return run


def loom(tools):
    """The models are ordinary tests: every order in which threads can meet."""
    command = ["cargo", "test", "--quiet", "-p", "bowline-io", "--lib", "--", "attendance", "models"]
    return verdict(*tools.run(command))


def address_sanitizer(tools):
    return programs.under_address_sanitizer(tools)


def memcheck(tools):
    return programs.under_memcheck(tools)


ALL = [
    Stage("loom: attendance and rooms", loom, quick=True),
    Stage("Miri: live memory", miri("bowline-nic", "memory::tests::an_owner"), quick=True),
    Stage("Miri: memory", miri("bowline-nic", "memory::tests")),
    # The other modules of these crates have no `unsafe`, and tests of statistics and of whole
    # fields take hours here. Under Miri, copies of live memory are atomic loads. Stacked borrows
    # forbid them on a shared slice, although nothing is written; tree borrows do not.
    Stage("Miri: ICRC", miri("bowline-wire", "icrc", flags=" -Zmiri-tree-borrows")),
    Stage("Miri: codes", miri("bowline-codes", "kernel", "chunk_set")),
    Stage("ThreadSanitizer: lanes", thread_sanitizer("bowline-io", "--lib", "--", "lane", "registry",
                                                    "--skip", "faults", "--test-threads=2")),
    Stage("ThreadSanitizer: verbs", thread_sanitizer("bowline-verbs-abi", "--tests", "--",
                                                    "--test-threads=1")),
    Stage("AddressSanitizer: perftest", address_sanitizer),
    Stage("memcheck: perftest", memcheck),
]
