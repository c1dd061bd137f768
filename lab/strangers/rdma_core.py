"""rdma-core's own tests, by way of pyverbs. Providers' tests are about their hardware and left out."""

import contextlib
import os
import re
import shutil
from pathlib import Path

from setup_strangers import Missing, last_line, run

#: Tests that say why they are skipped, and what that is about. Everything else is a shortfall of ours.
HARDWARE = re.compile("dri/render|Raw Packet|QP type 8|MSRP|flow|DCT|RAW|tag matching|Extended CQ is not|cuda|PHC"
                      "|CC_DMA|dmabuf", re.I)


#: Of 2 MiB each, enough for any of the tests.
HUGE_PAGES = 64


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
            errors = re.findall(r"(?m)^E: .*", text)
            why = errors[0] if errors else last_line(text)
            raise Missing(f"no source package of rdma-core: {why}; name a folder in RDMA_CORE_TESTS")
    found = sorted(fetched.glob("rdma-core-*/tests"))
    if not found:
        raise Missing("the source package has no tests")
    return found[0]


def without_netlink(env):
    """A folder with an `rdma` that knows of no device. The real one asks the kernel by netlink, and fails where that has
    no RDMA; newer suites ask it for a device's network interface before they look into sysfs."""
    folder = env.tmp / "bin"
    folder.mkdir()
    tool = folder / "rdma"
    tool.write_text("#!/bin/sh\necho '[]'\n")
    tool.chmod(0o755)
    return folder


@contextlib.contextmanager
def huge_pages():
    """Some tests register huge pages, which a host has none of until it is asked for them. That takes root."""
    path = Path("/proc/sys/vm/nr_hugepages")
    try:
        before = path.read_text()
        if int(before) < HUGE_PAGES:
            path.write_text(str(HUGE_PAGES))
    except OSError:
        before = None
    try:
        yield
    finally:
        if before is not None:
            path.write_text(before)


def suite(env):
    folder = tests_folder(env)
    variables = dict(PATH=f"{without_netlink(env)}:{os.environ['PATH']}")
    build = os.environ.get("RDMA_CORE_BUILD")
    if build:
        variables.update(PYTHONPATH=f"{build}/python", LD_LIBRARY_PATH=f"{build}/lib")
    elif not Path("/usr/lib/python3/dist-packages/pyverbs").exists():
        raise Missing("pyverbs is not installed (python3-pyverbs)")
    copy = env.tmp / "tests"
    shutil.copytree(folder, copy)
    for path in copy.glob("test_*.py"):
        if re.match(r"test_(mlx5|efa|cuda|hns|irdma)", path.name):
            path.unlink()
    with huge_pages():
        status, text = run(env.under_bowline(["/usr/bin/python3", "run_tests.py", "-v", "--dev", "bl0"]), 300, cwd=copy,
                           **variables)
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
