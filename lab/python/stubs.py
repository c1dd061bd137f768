#!/usr/bin/env python3
"""Makes a torch that was installed without its dependencies importable on a machine without a GPU.

    stubs.py SITE/torch/lib

torch's wheel of PyPI is linked against CUDA's libraries, whose wheels are 2.5 GB. Each library that is missing gets a
stub beside torch's own: it has the symbol versions and the functions that torch's libraries ask it for. Functions
that are called while torch is imported say that there is no GPU; all others abort.
"""

import collections
import pathlib
import re
import subprocess
import sys
import tempfile

# Called on import. CUDA's error 35 is "driver insufficient", which torch takes to mean that there
# is no GPU.
HARMLESS = {"cudaGetDeviceCount": 35, "cudaDriverGetVersion": 0, "cudaRuntimeGetVersion": 0, "cudaGetLastError": 0}
HARMLESS_PREFIX = "__cuda"
VENDOR_PREFIXES = ("cu", "nccl", "pnccl", "nv", "__cuda", "__nv")


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def system_libraries():
    """Names that the loader finds without our help."""
    return set(re.findall(r"^\s+(\S+) \(", output("/sbin/ldconfig", "-p"), re.M))


def demands(library):
    """The libraries that one needs, the versions that it wants of each, and its symbols."""
    headers = output("objdump", "-p", library)
    needed = set(re.findall(r"^\s+NEEDED\s+(\S+)", headers, re.M))
    versions = collections.defaultdict(set)
    provider = None
    for line in headers.split("Version References:")[-1].splitlines():
        if match := re.match(r"\s+required from (\S+):", line):
            provider = match[1]
        elif provider and (match := re.match(r"\s+0x\w+ 0x\w+ \d+ (\S+)", line)):
            versions[provider].add(match[1])
    undefined, defined = set(), set()
    for line in output("nm", "-D", library).splitlines():
        fields = line.split()
        name, _, version = fields[-1].partition("@")
        if len(fields) == 2 and fields[0] in "Uwv":
            undefined.add((name, version.lstrip("@")))
        else:
            defined.add(name)
    return needed, versions, undefined, defined


def plan(folder):
    """For each missing library: functions by version ("" for none)."""
    libraries = sorted(path for path in folder.iterdir() if ".so" in path.name)
    present = {path.name for path in libraries} | system_libraries()
    stubs, provider_of = {}, {}
    wanted, defined = set(), set()
    for library in libraries:
        needed, versions, undefined, own = demands(library)
        for name in needed - present:
            stubs.setdefault(name, collections.defaultdict(set))
        for name, names in versions.items():
            if name not in present:
                for version in names:
                    stubs.setdefault(name, collections.defaultdict(set))[version].update()
                    provider_of[version] = name
        wanted |= undefined
        defined |= own
    for name, version in sorted(wanted):
        if name in defined:
            continue
        if version in provider_of:
            stubs[provider_of[version]][version].add(name)
        elif not version and name.startswith(VENDOR_PREFIXES) and stubs:
            # Symbols without a version are found in any library.
            stubs[min(stubs)][""].add(name)
    return stubs


def function(name):
    if name in HARMLESS or name.startswith(HARMLESS_PREFIX):
        return f"long {name}(void) {{ return {HARMLESS.get(name, 0)}; }}\n"
    return f"void {name}(void) {{ abort(); }}\n"


def build(folder, name, versions):
    with tempfile.TemporaryDirectory() as scratch:
        source, script = pathlib.Path(scratch, "stub.c"), pathlib.Path(scratch, "versions")
        names = sorted(set().union(*versions.values()))
        source.write_text("#include <stdlib.h>\n" + "".join(map(function, names)))
        command = ["cc", "-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{name}", "-o", str(folder / name), str(source)]
        nodes = [f"{version} {{ global: {' '.join(f'{n};' for n in sorted(ns))} }};\n" for version, ns in versions.items() if version]
        if nodes:
            script.write_text("".join(nodes))
            command.append(f"-Wl,--version-script={script}")
        subprocess.run(command, check=True)
    return len(names)


def main():
    folder = pathlib.Path(sys.argv[1])
    stubs = plan(folder)
    count = sum(build(folder, name, versions) for name, versions in stubs.items())
    print(f"{len(stubs)} stub libraries, {count} functions")


if __name__ == "__main__":
    main()
