"""Builds Bowline and the driver of bench/peers, and installs the peers that are packages."""

import os
import shutil
import subprocess
import sys

from bench import REPO, TARGET

DRIVER = str(TARGET / "release" / "peers")
# Package, and the check that it is already installed.
PACKAGES = {
    "ucx-utils": lambda: shutil.which("ucx_perftest"),
    "libfabric-bin": lambda: shutil.which("fi_pingpong"),
    "libsrt1.5-openssl": lambda: loads("libsrt-openssl.so.1.5") or loads("libsrt-gnutls.so.1.5"),
}


def loads(library):
    code = f"import ctypes; ctypes.CDLL({library!r})"
    return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def build(options):
    """`bowline` and the driver, unless they are to be taken as they are."""
    options.build()
    if "--no-build" not in options:
        manifest = str(REPO / "bench" / "peers" / "Cargo.toml")
        subprocess.run(["cargo", "build", "--release", "--quiet", "--manifest-path", manifest], cwd=REPO, check=True,
                       env=dict(os.environ, CARGO_TARGET_DIR=str(TARGET)))


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
