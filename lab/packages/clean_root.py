"""A clean Debian root, and commands inside of it."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

# What the tests need besides the package. Its own dependencies are part of every Debian.
INCLUDED = ("perftest", "python3-venv")
BOOTSTRAP_SECONDS = 900
# Sets up the inside of a root and enters it. Its mounts and its network are gone when it ends.
ENTER = """
set -e
ip link set lo up
mount --rbind /dev "$0/dev"
mount -t tmpfs -o mode=1777 tmpfs "$0/dev/shm"
mount -t proc proc "$0/proc"
mount -t tmpfs -o mode=755 tmpfs "$0/run"
exec chroot "$0" "$@"
"""


def release():
    """This system's release, for programs built here to find the C library that they know."""
    fields = {}
    try:
        for line in Path("/etc/os-release").read_text().splitlines():
            name, _, value = line.partition("=")
            fields[name] = value.strip('"')
    except OSError:
        pass
    return fields.get("VERSION_CODENAME") if fields.get("ID") == "debian" else None


def archive(out):
    """Where the archive of this root stays: one for each set of packages."""
    return out / f"root-{release()}-{'-'.join(INCLUDED)}.tar"


def install(tool, package=None):
    """Installs a tool where it is missing and we may; says whether it is there."""
    if shutil.which(tool) is None and shutil.which("apt-get") and os.geteuid() == 0:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "check": False}
        env = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
        subprocess.run(["apt-get", "update", "-qq"], env=env, **quiet)
        command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package or tool]
        subprocess.run(command, env=env, **quiet)
    return shutil.which(tool) is not None


def make_tar(tar):
    """Bootstraps a root into a tar archive; why that did not work, or None."""
    if os.geteuid() != 0:
        return "making a root needs root"
    suite = release()
    if suite is None:
        return "this system is not Debian: programs built here may not run in a Debian root"
    if not install("mmdebstrap"):
        return "mmdebstrap cannot be had"
    partial = tar.with_suffix(".partial.tar")
    command = ["mmdebstrap", "--variant=apt", "--mode=root", f"--include={','.join(INCLUDED)}",
               "--aptopt=APT::Install-Recommends \"false\"", suite, partial]
    mirror = os.environ.get("BOWLINE_DEBIAN_MIRROR")
    try:
        done = subprocess.run(command + ([mirror] if mirror else []), check=False, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=BOOTSTRAP_SECONDS)
    except subprocess.TimeoutExpired:
        return f"mmdebstrap took more than {BOOTSTRAP_SECONDS} s"
    if done.returncode != 0:
        return f"mmdebstrap failed: {' / '.join(done.stdout.strip().splitlines()[-3:])}"
    partial.rename(tar)
    return None


class CleanRoot:
    """A root unpacked for one run."""

    def __init__(self, tar):
        self.dir = Path(tempfile.mkdtemp(prefix="bowline-root-"))
        self.dir.chmod(0o755)
        # Device files come from the host: its /dev is bound into the root.
        command = ["tar", "--extract", "--numeric-owner", "--exclude=./dev/*", "-C", self.dir, "-f", tar]
        subprocess.run(command, check=True)

    def remove(self):
        shutil.rmtree(self.dir)

    def put(self, source, place):
        target = self.dir / place.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)

    def exists(self, place):
        return os.path.lexists(self.dir / place.lstrip("/"))

    def run(self, *command, timeout=120):
        """Runs a command in the root, with a network of its own; status and output."""
        env = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root",
               "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
        enter = ["unshare", "--mount", "--propagation", "private", "--net", "--pid", "--fork",
                 "--kill-child", "sh", "-c", ENTER, self.dir, *command]
        try:
            done = subprocess.run(enter, env=env, check=False, text=True, errors="replace", timeout=timeout,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT)
        except subprocess.TimeoutExpired as late:
            said = late.stdout or ""
            said = said.decode(errors="replace") if isinstance(said, bytes) else said
            return 124, f"{said}\nno end after {timeout} s"
        return done.returncode, done.stdout
