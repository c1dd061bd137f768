"""A compiler with the standard library of aarch64."""

import lzma
import os
import platform
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path

TARGET = "aarch64-unknown-linux-gnu"
MIRROR = "http://deb.debian.org/debian"
SUITE = "sid"


def environment(target_dir):
    """Variables for cargo, and what they lead to; or None, and why there is no such compiler."""
    env = dict(os.environ)
    # Separate from the host's target directory: another compiler would rebuild everything there.
    env["CARGO_TARGET_DIR"] = str(target_dir / "aarch64")
    if has_target() or rustup_adds():
        return env, version("rustc")
    wrapper = target_dir / "aarch64-toolchain" / "rustc"
    if not wrapper.exists():
        try:
            unpack(wrapper)
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            return None, f"no standard library for {TARGET}: rustup has none, nor has Debian: {error}"
    env["RUSTC"] = str(wrapper)
    return env, f"{version(wrapper)}, Debian {SUITE}"


def version(rustc):
    return subprocess.run([rustc, "--version"], capture_output=True, text=True, check=True).stdout.strip()


def has_target():
    command = ["rustc", "--print", "target-libdir", "--target", TARGET]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode == 0 and any(Path(done.stdout.strip()).glob("libstd-*.rlib"))


def rustup_adds():
    if shutil.which("rustup") is None:
        return False
    try:
        subprocess.run(["rustup", "target", "add", TARGET], capture_output=True, check=False, timeout=60)
    except subprocess.TimeoutExpired:
        return False
    return has_target()


def unpack(wrapper):
    """Puts Debian's compiler, with what it needs, into a directory of its own."""
    if platform.machine() != "x86_64" or shutil.which("dpkg-deb") is None:
        raise ValueError("that takes an x86-64 host with dpkg-deb")
    folder = wrapper.parent
    root = folder / "root"
    root.mkdir(parents=True, exist_ok=True)
    host, foreign = packages("amd64"), packages("arm64")
    files = [host[name]["Filename"] for name in sorted(closure(host, ["rustc", "libstd-rust-dev"]))]
    files.append(foreign["libstd-rust-dev"]["Filename"])
    for file in files:
        package = folder / "package.deb"
        with urllib.request.urlopen(f"{MIRROR}/{file}", timeout=300) as answer:
            package.write_bytes(answer.read())
        subprocess.run(["dpkg-deb", "-x", package, root], check=True)
        package.unlink()
    libraries = root / "usr/lib/x86_64-linux-gnu"
    # Bring its own C library, so that the host's need not be as new.
    wrapper.write_text(f'#!/bin/sh\nexec "{libraries}/ld-linux-x86-64.so.2" --library-path "{libraries}:{root}/usr/lib" '
                       f'--argv0 rustc "{root}/usr/bin/rustc" --sysroot "{root}/usr" "$@"\n')
    wrapper.chmod(0o755)
    try:
        version(wrapper)
    except subprocess.CalledProcessError as error:
        wrapper.unlink()
        raise ValueError(f"its compiler does not run: {error.stderr.strip()[-200:]}") from None


def packages(architecture):
    """The index of an architecture: fields by package."""
    url = f"{MIRROR}/dists/{SUITE}/main/binary-{architecture}/Packages.xz"
    with urllib.request.urlopen(url, timeout=120) as answer:
        text = lzma.decompress(answer.read()).decode()
    index = {}
    for paragraph in text.split("\n\n"):
        lines = (line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " ")
        fields = dict(lines)
        if "Package" in fields:
            index.setdefault(fields["Package"], fields)
    return index


def closure(index, wanted):
    """These packages, and the libraries that they need."""
    found, to_do = set(), list(wanted)
    while to_do:
        name = to_do.pop()
        if name in found or name not in index:
            continue
        found.add(name)
        for dependency in index[name].get("Depends", "").split(","):
            needed = re.split(r"[ (|:]", dependency.strip())[0]
            if needed.startswith("lib") and (not needed.endswith("-dev") or needed.startswith("libstd-rust")):
                to_do.append(needed)
    return found
