"""What the rows share: the build, packages, and running a program within bounds."""

import os
import random
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from listening import listens

REPO = Path(__file__).resolve().parents[2]
PACKAGES = ["ibverbs-utils", "infiniband-diags", "ucx-utils", "openmpi-bin", "libopenmpi-dev", "python3-pyverbs", "gcc",
            "dpkg-dev"]
TOOLS = ["ibv_devinfo", "ibstat", "ucx_perftest", "mpirun", "mpicc", "gcc", "dpkg-source"]


class Missing(Exception):
    """Something that a row needs is not there."""


@dataclass
class Env:
    bowline: Path
    tmp: Path

    def under_bowline(self, command, address="127.0.0.1"):
        return [str(self.bowline), "run", "--device", f"bl0={address}", "--", *map(str, command)]

    def run(self, command, limit_s=60, address="127.0.0.1", **variables):
        """Runs a program under `bowline run`: its exit status, None if it did not end, and what it said."""
        return run(self.under_bowline(command, address), limit_s, **variables)


def run(command, limit_s, cwd=None, **variables):
    environment = dict(os.environ, **variables)
    process = subprocess.Popen(list(map(str, command)), env=environment, cwd=cwd, stdin=subprocess.DEVNULL, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        text, _ = process.communicate(timeout=limit_s)
        return process.returncode, text
    except subprocess.TimeoutExpired:
        # The program and what it has started.
        os.killpg(process.pid, 9)
        text, _ = process.communicate()
        return None, text


def need(program):
    if not shutil.which(program):
        raise Missing(f"{program} is not installed")


def free_port():
    while True:
        port = random.randint(21000, 29000)
        if not listens(port):
            return port


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:150] if lines else ""


def prepare(build, may_install):
    if may_install:
        install()
    target = Path(os.environ.get("CARGO_TARGET_DIR", REPO / "target")).resolve() / "release"
    if build:
        command = ["cargo", "build", "--release", "--quiet", "-p", "bowline-cli", "-p", "bowline-verbs"]
        if subprocess.run(command, cwd=REPO, check=False).returncode != 0:
            sys.exit("building Bowline failed")
    if not (target / "libbowline_verbs.so").exists():
        sys.exit(f"there is no libbowline_verbs.so in {target}: leave --no-build out")
    tmp = tempfile.TemporaryDirectory(prefix="bowline-strangers-")
    env = Env(target / "bowline", Path(tmp.name))
    env.keep = tmp  # removed with it
    return env


def install():
    """Installs what is missing, where we may."""
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    pyverbs = Path("/usr/lib/python3/dist-packages/pyverbs").exists()
    if (not missing and pyverbs) or os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    print("installing", " ".join(PACKAGES), flush=True)
    quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", *PACKAGES]):
        subprocess.run(command, env=environment, **quiet)
