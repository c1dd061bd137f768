"""Toolchains and programs: what there is, and what can be installed."""

import os
import shutil
import subprocess
from functools import cached_property
from pathlib import Path

TARGET = "x86_64-unknown-linux-gnu"
# A limit, so that a test that never ends is reported by name.
STAGE_SECONDS = 1800


class Skip(Exception):
    """Why a stage cannot be run here."""


class Tools:
    def __init__(self, repo):
        self.repo = Path(repo)
        base = Path(os.environ.get("CARGO_TARGET_DIR", self.repo / "target")).resolve()
        self.target = base / "sanitize"

    def components(self):
        """Components of the nightly toolchain; none without one."""
        if not shutil.which("rustup"):
            return set()
        command = ["rustup", "component", "list", "--toolchain", "nightly", "--installed"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return {line.removesuffix(f"-{TARGET}") for line in done.stdout.split()}

    def need(self, component):
        """Sees that nightly has a component, by installing it if need be."""
        there = self.components()
        if not there:
            raise Skip("no nightly toolchain: `rustup toolchain install nightly`")
        if component in there:
            return
        command = ["rustup", "component", "add", component, "--toolchain", "nightly"]
        try:
            subprocess.run(command, capture_output=True, timeout=300, check=False)
        except subprocess.TimeoutExpired:
            pass
        if component not in self.components():
            raise Skip(f"nightly has no {component}, and rustup cannot add it here")

    def need_program(self, program, package):
        """Sees that a program is there, by its Debian package if need be."""
        if shutil.which(program):
            return
        if shutil.which("apt-get") and os.geteuid() == 0:
            quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
            env = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
            subprocess.run(["apt-get", "update", "-qq"], **quiet)
            subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", package],
                           env=env, **quiet)
        if not shutil.which(program):
            raise Skip(f"no {program}: install the package {package}")

    def run(self, command, env=None, seconds=STAGE_SECONDS):
        """Runs a command in the repository; gives its status and output."""
        full = dict(os.environ, **(env or {}))
        try:
            done = subprocess.run(command, cwd=self.repo, env=full, capture_output=True, text=True,
                                  timeout=seconds, check=False)
        except subprocess.TimeoutExpired as over:
            out = over.stdout or b""
            return 124, out.decode(errors="replace") if isinstance(out, bytes) else out
        return done.returncode, done.stdout + done.stderr

    @cached_property
    def sanitized_std(self):
        """What builds the standard library with the sanitizer as well."""
        self.need("rust-src")
        return ["-Zbuild-std", "--target", TARGET]
