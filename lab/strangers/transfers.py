"""Transfer engines by their Python packages: two processes, of which one writes the other's memory and reads it back.

The packages come with their own libraries, UCX among them, and go into a virtual environment under the target
folder. Their dependencies on torch and on a GPU are left out: neither is needed for memory of the host."""

import subprocess
import sys
from pathlib import Path

from setup_strangers import Missing, last_line, run, target_folder

HERE = Path(__file__).resolve().parent
PACKAGES = {
    "nixl": ["nixl", "nixl-cu12", "numpy", "nvidia-cuda-runtime-cu12"],
    "mooncake": ["mooncake-transfer-engine-non-cuda", "numpy"],
}
MODULES = {"nixl": "nixl._api", "mooncake": "mooncake.engine"}
# No fallback transports: a run without verbs must fail.
SETTINGS = {"nixl": dict(UCX_TLS="rc_verbs,ud_verbs,self", UCX_LOG_LEVEL="fatal"), "mooncake": {}}


def interpreter(env, name):
    """A Python that has the package."""
    imports = ["-c", f"import {MODULES[name]}"]
    if run([sys.executable, *imports], 60)[0] == 0:
        return Path(sys.executable)
    home = target_folder() / "strangers-venv"
    python = home / "bin" / "python"
    if python.exists() and run([python, *imports], 60)[0] == 0:
        return python
    if not env.may_install:
        raise Missing(f"the Python package {PACKAGES[name][0]} is not installed")
    for command in ([sys.executable, "-m", "venv", home],
                    [python, "-m", "pip", "install", "-q", "--no-deps", *PACKAGES[name]]):
        status, text = run(command, 300)
        if status != 0:
            raise Missing(f"{PACKAGES[name][0]} cannot be installed: {last_line(text)}")
    status, text = run([python, *imports], 60)
    if status != 0:
        raise Missing(f"{PACKAGES[name][0]} does not load: {last_line(text)}")
    return python


def pair_of(name):
    def check(env):
        python = interpreter(env, name)
        meeting = env.tmp / f"{name}-meeting"
        script = [python, HERE / f"{name}_pair.py"]
        with open(env.tmp / f"{name}-target.log", "w+") as log:
            target = subprocess.Popen(env.under_bowline([*script, "target", meeting]), stdin=subprocess.DEVNULL,
                                      stdout=log, stderr=log, env=env.variables(**SETTINGS[name]))
            try:
                status, text = env.run([*script, "initiator", meeting], 60, "127.0.0.2", **SETTINGS[name])
                ended = target.wait(timeout=20) if status == 0 else None
            except subprocess.TimeoutExpired:
                ended = None
            finally:
                target.kill()
                target.wait()
            log.seek(0)
            said = log.read()
        good = status == 0 and ended == 0 and "written and read back" in text
        return ("PASS", "1 MiB written and read back") if good else (
            "FAIL", f"exit {status} and {ended}: {last_line(text) if status else last_line(said)}")
    return check


def checks(quick):
    if not quick:
        yield "NIXL over UCX, write and read", pair_of("nixl")
        yield "Mooncake, write and read", pair_of("mooncake")
