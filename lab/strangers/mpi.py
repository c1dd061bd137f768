"""Open MPI over UCX, told to use verbs and nothing else: whatever it falls back to fails."""

from pathlib import Path

from setup_strangers import last_line, need, run

SOURCE = Path(__file__).with_name("allreduce.c")


def mpirun(env, ranks, transports, on_bowline, arguments, via=""):
    program = env.tmp / "allreduce"
    if not program.exists():
        need("mpicc")
        status, text = run(["mpicc", "-O2", "-o", program, SOURCE], 60)
        if status != 0:
            return None, f"mpicc: {last_line(text)}"
    launched = [str(program), *map(str, arguments)]
    if on_bowline:
        launched = env.under_bowline(launched)
    path = dict(BOWLINE_VIA=via) if via else {}
    return run(["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(ranks), "--mca", "pml", "ucx", "--mca", "osc", "ucx",
                "--mca", "btl", "^openib", "--mca", "opal_common_ucx_tls", "any", "--mca", "opal_common_ucx_devices", "any", *launched], 90,
               UCX_TLS=transports, UCX_LOG_LEVEL="error", **path)


def correct(ranks, transports):
    def check(env):
        need("mpirun")
        status, text = mpirun(env, ranks, transports, True, ["check"])
        return ("PASS" if status == 0 and "right" in text else "FAIL"), f"exit {status}: {last_line(text)}"
    return check


def beside_tcp(env):
    """Allreduce of 1 MiB by two ranks, over verbs on Bowline and over UCX's TCP, by turns.

    The ranks are processes of one host, which share memory with plain `bowline run`. Over UDP both ends sum every byte,
    which TCP on loopback does not; that time is shown."""
    need("mpirun")
    verbs = "rc_verbs,ud_verbs,self"
    ways = (("plain", verbs, ""), ("UDP", verbs, "udp"), ("TCP", "tcp,self", ""))
    found = {name: [] for name, _, _ in ways}
    for _ in range(5):
        for name, transports, via in ways:
            status, text = mpirun(env, 2, transports, transports == verbs, ["time", 1 << 20, 200], via)
            if status != 0:
                return "FAIL", f"{name}: exit {status}: {last_line(text)}"
            found[name].append(float(last_line(text).split()[0]))
    plain, udp, tcp = (sorted(values)[2] for values in found.values())
    return ("PASS" if plain <= tcp else "FAIL"), (f"{plain:.0f} us to TCP's {tcp:.0f} (bar: no slower); "
                                                  f"{udp:.0f} with --via udp")


def checks(quick):
    yield "Open MPI, 2 ranks over rc_verbs", correct(2, "rc_verbs,ud_verbs,self")
    if not quick:
        yield "Open MPI, 4 ranks over rc_verbs", correct(4, "rc_verbs,ud_verbs,self")
        yield "Open MPI, 2 ranks over ud_verbs", correct(2, "ud_verbs,self")
        yield "Open MPI, allreduce of 1 MiB beside UCX's TCP", beside_tcp
