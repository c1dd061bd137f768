"""perftest on the preload library, under AddressSanitizer or valgrind."""

import os
import random
import re
import shutil
import subprocess
from pathlib import Path

from listening import wait_listening
from tools import TARGET, Skip

# RC and UC, one-sided and two-sided, sizes below and above an MTU.
CASES = [
    ["ib_write_bw", "-s", "5000", "-n", "300"],
    ["ib_send_lat", "-s", "100", "-n", "200"],
    ["ib_read_bw", "-s", "20000", "-n", "100"],
    ["ib_atomic_bw", "-n", "100"],
]
SECONDS = 120


def under_address_sanitizer(tools):
    tools.need_program("ib_write_bw", "perftest")
    # The program has no sanitizer runtime of its own, and the library's must be loaded before
    # anything else.
    runtime = runtime_library()
    env = {"RUSTFLAGS": "-Zsanitizer=address", "CARGO_TARGET_DIR": str(tools.target / "address")}
    command = ["cargo", "+nightly", "build", "--quiet", *tools.sanitized_std,
               "-p", "bowline-verbs"]
    status, output = tools.run(command, env)
    if status != 0:
        return False, last_error(output)
    library = tools.target / "address" / TARGET / "debug" / "libbowline_verbs.so"
    preload = {"LD_PRELOAD": f"{runtime} {library}",
               # perftest itself frees little of what it allocates.
               "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1:exitcode=99"}
    return all_cases(preload, [], r"ERROR: AddressSanitizer.*")


def under_memcheck(tools):
    tools.need_program("ib_write_bw", "perftest")
    tools.need_program("valgrind", "valgrind")
    status, output = tools.run(["cargo", "build", "--quiet", "-p", "bowline-verbs"])
    if status != 0:
        return False, last_error(output)
    library = tools.target.parent / "debug" / "libbowline_verbs.so"
    # perftest sends bytes that it has never written, so warnings about arguments of system calls
    # mean nothing.
    return all_cases({"LD_PRELOAD": str(library)}, ["valgrind", "--quiet"],
                     r"==\d+== (Invalid|Conditional|Use of|Jump to|Mismatched).*")


def runtime_library():
    """The sanitizer's shared runtime, which compilers for C bring along."""
    for compiler in ("clang", "gcc"):
        if not shutil.which(compiler):
            continue
        name = "libclang_rt.asan-x86_64.so" if compiler == "clang" else "libasan.so"
        done = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True,
                              check=False)
        path = Path(done.stdout.strip())
        if path.is_absolute() and path.exists():
            return path.resolve()
    raise Skip("no shared runtime of AddressSanitizer: install gcc or clang")


def all_cases(env, wrapper, bad):
    for case in CASES:
        ok, what = pair(case, env, wrapper, bad)
        if not ok:
            return False, f"{case[0]}: {what}"
    return True, f"{len(CASES)} programs"


def pair(case, env, wrapper, bad):
    """A server and a client on loopback."""
    port = str(random.randint(21000, 29000))
    full = dict(os.environ, BOWLINE_DEVICES="bl0=127.0.0.1,bl1=127.0.0.2", BOWLINE_LOG="warn", **env)
    pipes = dict(env=full, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    command = [*wrapper, *case, "-p", port, "-F"]
    server = subprocess.Popen([*command, "-d", "bl0"], **pipes)
    client = None
    try:
        wait_listening(int(port), server, SECONDS)
        client = subprocess.Popen([*command, "-d", "bl1", "127.0.0.1"], **pipes)
        outputs = [process.communicate(timeout=SECONDS)[0] for process in (client, server)]
    except subprocess.TimeoutExpired:
        return False, "not done in time"
    finally:
        for process in (server, client):
            if process and process.poll() is None:
                process.kill()
                process.wait()
    for process, output in zip((client, server), outputs):
        found = re.search(bad, output)
        if found or process.returncode != 0:
            lines = [line for line in output.splitlines() if line.strip()]
            return False, (found.group(0) if found else " ".join(lines[-2:]))[:150]
    return True, ""


def last_error(output):
    lines = [line for line in output.splitlines() if "error" in line]
    return (lines or ["the build failed"])[0][:150]
