"""What has to be there before anything runs: programs, libraries, an environment."""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
PACKAGES = ["ibverbs-utils", "perftest", "libibverbs-dev", "librdmacm1", "rdmacm-utils", "qperf", "ucx-utils",
            "libfabric-bin", "gcc"]


@dataclass
class Env:
    target: Path  # target/release
    tmp: Path

    @property
    def preload(self):
        return self.target / "libbowline_verbs.so"

    @property
    def versioned(self):
        return self.target / "bowline-lib"

    @property
    def bowline(self):
        return self.target / "bowline"

    def variables(self, how="preload", **more):
        """The environment of a program that runs on Bowline."""
        env = dict(os.environ, BOWLINE_DEVICES="bl0=127.0.0.1,bl1=127.0.0.2", BOWLINE_LOG="warn")
        if how == "preload":
            env["LD_PRELOAD"] = str(self.preload)
        else:
            env["LD_LIBRARY_PATH"] = str(self.versioned)
        env.update(more)
        return env


def prepare(build):
    install()
    target = Path(os.environ.get("CARGO_TARGET_DIR", REPO / "target")).resolve()
    if build:
        command = ["cargo", "build", "--release", "--quiet"]
        if subprocess.run(command, cwd=REPO, check=False).returncode != 0:
            sys.exit("building Bowline failed")
    env = Env(target / "release", Path(tempfile.mkdtemp(prefix="bowline-programs-")))
    atexit.register(shutil.rmtree, env.tmp, ignore_errors=True)
    if not env.preload.exists():
        sys.exit(f"{env.preload} is not there: run `cargo build --release` first")
    return env


def install():
    """Installs what is missing, where we may."""
    tools = ["ibv_devices", "ib_write_bw", "rping", "qperf", "ucx_info", "fi_pingpong", "gcc"]
    missing = [t for t in tools if not shutil.which(t)]
    header = Path("/usr/include/infiniband/verbs.h").exists()
    if (not missing and header) or os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    print("installing", " ".join(PACKAGES), flush=True)
    quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    noninteractive = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    for command in (["apt-get", "update"],
                    ["apt-get", "install", "-y", "--no-install-recommends", *PACKAGES]):
        subprocess.run(command, env=noninteractive, **quiet)
