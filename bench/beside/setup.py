"""Builds Bowline and the driver, and installs the peers that are packages."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
BESIDE = str(TARGET / "release" / "beside")
BOWLINE = str(TARGET / "release" / "bowline")
# Package, and what shows that it is there already.
PACKAGES = {
    "ucx-utils": lambda: shutil.which("ucx_perftest"),
    "libfabric-bin": lambda: shutil.which("fi_pingpong"),
    "libsrt1.5-openssl": lambda: loads("libsrt-openssl.so.1.5") or loads("libsrt-gnutls.so.1.5"),
}


def loads(library):
    code = f"import ctypes; ctypes.CDLL({library!r})"
    return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def build():
    cargo = ["cargo", "build", "--release", "--quiet"]
    subprocess.run(cargo + ["-p", "bowline-cli"], cwd=ROOT, check=True)
    env = dict(os.environ, CARGO_TARGET_DIR=str(TARGET))
    manifest = str(ROOT / "bench" / "beside" / "Cargo.toml")
    subprocess.run(cargo + ["--manifest-path", manifest], cwd=ROOT, check=True, env=env)


def install():
    """What could not be installed shows when its rows are run, with the reason."""
    missing = [name for name, there in PACKAGES.items() if not there()]
    if not missing:
        return
    if not shutil.which("apt-get") or os.geteuid() != 0:
        print(f"peers: not installed, and no root with apt-get here: {', '.join(missing)}", file=sys.stderr)
        return
    env = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    subprocess.run(["apt-get", "update", "-qq"], env=env)
    for name in missing:
        subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", name], env=env)
