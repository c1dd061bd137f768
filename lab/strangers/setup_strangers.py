"""What the rows share: the build, packages, and running a program within bounds."""

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from listening import listens

REPO = Path(__file__).resolve().parents[2]
PACKAGES = ["ibverbs-utils", "infiniband-diags", "ucx-utils", "openmpi-bin", "libopenmpi-dev", "python3-pyverbs", "gcc",
            "dpkg-dev", "rdmacm-utils", "perftest", "fio"]
TOOLS = ["ibv_devinfo", "ibstat", "ucx_perftest", "mpirun", "mpicc", "gcc", "dpkg-source", "rping", "ib_write_bw", "fio"]
# For what a quick run leaves out. Open MPI's `mpicc` remains the default, because MPICH's has a
# lower priority.
MORE_PACKAGES = ["libfabric-bin", "python3-mpi4py", "tshark", "mpich", "libmpich-dev"]
MORE_TOOLS = ["fi_pingpong", "tshark", "mpicc.mpich"]


class Missing(Exception):
    """Something that a row needs is not there."""


@dataclass
class Env:
    bowline: Path
    tmp: Path
    may_install: bool = False

    @staticmethod
    def variables(**more):
        """The environment of a program that is started by hand."""
        return dict(os.environ, **more)

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
        kill_family(process.pid)
        text, _ = process.communicate()
        return None, text


def kill_family(pid):
    """Kills a program and what it has started, in sessions of their own or not (fio's jobs): their pipes end, too."""
    for child in Path(f"/proc/{pid}/task").glob("*/children"):
        for descendant in child.read_text().split():
            kill_family(int(descendant))
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        pass


def start(command, **variables):
    """A process in a session of its own, whose output nobody reads."""
    return subprocess.Popen(list(map(str, command)), env=dict(os.environ, **variables), stdin=subprocess.DEVNULL,
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def pair(env, server, client, limit_s, here="127.0.0.1", there="127.0.0.2", tries=10):
    """A server and its client, each on an address: the client's status and output, and the server's output.

    Nobody can see from outside whether a program of librdmacm listens. The client knocks until somebody is there; a
    server ends with its first client, so that a second try finds none unless the first came too early."""
    deadline = time.monotonic() + limit_s
    with open(env.tmp / "server.log", "w+") as log:
        process = subprocess.Popen(env.under_bowline(server, here), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                   start_new_session=True)
        try:
            status, text = None, ""
            for _ in range(tries):
                time.sleep(0.7)
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                status, text = run(env.under_bowline(client, there), left)
                if status in (0, None) or process.poll() is not None:
                    break
            log.seek(0)
            return status, text, log.read()
        finally:
            if process.poll() is None:
                kill_family(process.pid)
            process.wait()


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


def target_folder():
    return Path(os.environ.get("CARGO_TARGET_DIR", REPO / "target")).resolve()


def prepare(build, may_install, quick):
    if may_install:
        install(PACKAGES if quick else PACKAGES + MORE_PACKAGES, TOOLS if quick else TOOLS + MORE_TOOLS)
    target = target_folder() / "release"
    if build:
        command = ["cargo", "build", "--release", "--quiet", "-p", "bowline-cli", "-p", "bowline-verbs"]
        if subprocess.run(command, cwd=REPO, check=False).returncode != 0:
            sys.exit("building Bowline failed")
    if not (target / "libbowline_verbs.so").exists():
        sys.exit(f"there is no libbowline_verbs.so in {target}: leave --no-build out")
    tmp = tempfile.TemporaryDirectory(prefix="bowline-strangers-")
    env = Env(target / "bowline", Path(tmp.name), may_install)
    env.keep = tmp  # removed with it
    return env


def install(packages, tools):
    """Installs what is missing, where we may."""
    missing = [tool for tool in tools if not shutil.which(tool)]
    pyverbs = Path("/usr/lib/python3/dist-packages/pyverbs").exists()
    if (not missing and pyverbs) or os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    print("installing", " ".join(packages), flush=True)
    quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", *packages]):
        subprocess.run(command, env=environment, **quiet)
