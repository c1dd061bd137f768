"""rdma-core's own tests, by way of pyverbs. Providers' tests are about their hardware and left out."""

import os
import re
import shutil
from pathlib import Path

from setup_strangers import Missing, last_line, run

#: Tests that say why they are skipped, and what that is about. Everything else is a shortfall of ours.
HARDWARE = re.compile("huge pages|dri/render|Raw Packet|QP type 8|MSRP|flow|DCT|RAW|tag matching|Extended CQ is not|cuda", re.I)


def tests_folder(env):
    given = os.environ.get("RDMA_CORE_TESTS")
    if given:
        return Path(given)
    fetched = env.tmp / "rdma-core"
    fetched.mkdir()
    parts = fetched / "parts"
    parts.mkdir()
    sources = Path("/etc/apt/sources.list.d/debian.sources")
    if not sources.exists() or not shutil.which("apt-get"):
        raise Missing("no source package here; name a folder with rdma-core's tests in RDMA_CORE_TESTS")
    text = re.sub(r"(?m)^Types: .*", "Types: deb-src", sources.read_text())
    (parts / "src.sources").write_text(text)
    (fetched / "lists" / "partial").mkdir(parents=True)
    options = ["-o", "Dir::Etc::SourceList=/dev/null", "-o", f"Dir::Etc::SourceParts={parts}",
               "-o", f"Dir::State::Lists={fetched / 'lists'}"]
    for command in (["update"], ["source", "rdma-core"]):
        status, text = run(["apt-get", *options, *command], 120, cwd=fetched)
        if status != 0:
            raise Missing(f"no source package of rdma-core: {last_line(text)}; name a folder in RDMA_CORE_TESTS")
    found = sorted(fetched.glob("rdma-core-*/tests"))
    if not found:
        raise Missing("the source package has no tests")
    return found[0]


def suite(env):
    folder = tests_folder(env)
    if not Path("/usr/lib/python3/dist-packages/pyverbs").exists():
        raise Missing("pyverbs is not installed (python3-pyverbs)")
    copy = env.tmp / "tests"
    shutil.copytree(folder, copy)
    for path in copy.glob("test_*.py"):
        if re.match(r"test_(mlx5|efa|cuda|hns)", path.name):
            path.unlink()
    status, text = run(env.under_bowline(["/usr/bin/python3", "run_tests.py", "-v", "--dev", "bl0"]), 300, cwd=copy)
    (env.tmp / "rdma-core.log").write_text(text)
    ran = re.search(r"Ran (\d+) tests", text)
    if not ran:
        return "FAIL", f"exit {status}: {last_line(text)}"
    failed = re.findall(r"(?m)^(?:ERROR|FAIL): (\w+)", text)
    skipped = re.findall(r"skipped ['\"](.*)['\"]", text)
    ours = sorted({why for why in skipped if not HARDWARE.search(why)})
    verdict = f"{ran[1]} ran, {len(failed)} failed, {len(skipped)} skipped"
    details = "; ".join([*sorted(set(failed)), *ours])
    return ("FAIL" if failed else "PASS"), f"{verdict}: {details}"


def checks(quick):
    yield "rdma-core's tests", suite
