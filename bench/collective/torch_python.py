"""A Python with torch, and with Bowline's package where that is wanted."""

import subprocess
import sys

from bench import REPO, TARGET

PYTHON = TARGET / "python" / "venv" / "bin" / "python"


def missing(options, modules, as_it_is=True):
    """Why there is none, if there is none. One that is there is taken as it is, if that will do."""
    imports = f"import {', '.join(modules)}"
    if as_it_is and PYTHON.exists() and not subprocess.run([PYTHON, "-c", imports], capture_output=True).returncode:
        return None
    if "--no-install" in options:
        return f"no Python with {' and '.join(modules)}: run `lab/python/run --release --collect-only` first"
    done = subprocess.run([REPO / "lab/python/run", "--release", "--collect-only"], stdout=sys.stderr)
    return None if done.returncode == 0 else "lab/python/run could not install torch with Bowline (see above)"
