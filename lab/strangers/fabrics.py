"""What stands on verbs or librdmacm: libfabric, fio, MPICH and mpi4py."""

import os

from setup_strangers import Missing, free_port, last_line, need, pair, run


def own_address():
    """An address of this host that is not loopback's: libfabric wants no connections over that."""
    text = run(["hostname", "-I"], 10)[1]
    addresses = [word for word in text.split() if word.count(".") == 3]
    if not addresses:
        raise Missing("this host has loopback addresses only")
    return addresses[0]


def pingpong(provider, endpoint):
    """libfabric's pingpong, which checks what it gets."""
    def check(env):
        need("fi_pingpong")
        port = str(free_port())
        own = own_address()
        options = ["fi_pingpong", "-p", provider, "-e", endpoint, "-c", "-I", "20"]
        status, text, said = pair(env, [*options, "-B", port], [*options, "-P", port, own], 60, own, own)
        return ("PASS" if status == 0 else "FAIL"), f"exit {status}: {last_line(text) or last_line(said)}"
    return check


def fio(verb, server_depth=4, client_depth=4):
    """fio's rdma engine: a server that is written to or read from, or that a client sends to.

    A message is acknowledged when it is in the server's memory, and its receive is posted again when the server's thread
    has looked. So one message under way is no bound on how far the client is ahead. fio asks for no retries when no receive
    is posted (status 13), and waits for ever once a request has failed, on any NIC: a server has to have as many receives
    as there are messages, 128 of 64 KiB here, unless it always has a core to itself."""
    def check(env):
        need("fio")
        engines = run(["fio", "--enghelp"], 10)[1]
        if "rdma" not in engines:
            raise Missing("this fio has no rdma engine")
        port = str(free_port())
        common = ["fio", "--name=x", "--ioengine=rdma", f"--port={port}", "--bs=64k", "--size=8m"]
        server = [*common, "--rw=read", f"--iodepth={server_depth}"]
        client = [*common, f"--iodepth={client_depth}", f"--verb={verb}", "--rw=write", "--hostname=127.0.0.1"]
        status, text, said = pair(env, server, client, 60)
        good = status == 0 and "err= 0" in text
        return ("PASS" if good else "FAIL"), f"exit {status}: {last_line(text) or last_line(said)}"
    return check


def mpich(env):
    """MPICH over libfabric's reliable endpoints on verbs."""
    need("mpiexec.mpich")
    need("mpicc.mpich")
    program = env.tmp / "allreduce-mpich"
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "allreduce.c")
    status, text = run(["mpicc.mpich", "-O2", "-o", program, source], 60)
    if status != 0:
        raise Missing(f"MPICH's headers are not installed (libmpich-dev): {last_line(text)}")
    launched = env.under_bowline([program, "check"])
    status, text = run(["mpiexec.mpich", "-n", "2", *launched], 90, UCX_TLS="rc_verbs,ud_verbs,self", UCX_LOG_LEVEL="error",
                       FI_PROVIDER="verbs;ofi_rxm", MPIR_CVAR_NOLOCAL="1")
    return ("PASS" if status == 0 and "right" in text else "FAIL"), f"exit {status}: {last_line(text)}"


def mpi4py(env):
    """Python's MPI on Open MPI over UCX."""
    need("mpirun")
    script = ("from mpi4py import MPI; c = MPI.COMM_WORLD; s = c.allreduce(c.rank + 1); "
              "print('sum', s) if c.rank == 0 else None")
    if run(["/usr/bin/python3", "-c", "import mpi4py"], 20)[0] != 0:
        raise Missing("mpi4py is not installed (python3-mpi4py)")
    launched = env.under_bowline(["/usr/bin/python3", "-c", script])
    status, text = run(["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", "--mca", "pml", "ucx", "--mca", "btl", "^openib",
                        "--mca", "opal_common_ucx_tls", "any", "--mca", "opal_common_ucx_devices", "any", *launched], 90,
                       UCX_TLS="rc_verbs,ud_verbs,self", UCX_LOG_LEVEL="error")
    return ("PASS" if status == 0 and "sum 3" in text else "FAIL"), f"exit {status}: {last_line(text)}"


def dissected(env):
    """tshark reads a capture of connections and of data, and finds nothing malformed."""
    need("tshark")
    need("rping")
    capture = env.tmp / "strangers.pcap"
    port = str(free_port())
    options = ["-a", "127.0.0.1", "-p", port, "-C", "5", "-S", "2000"]
    client = ["env", f"BOWLINE_PCAP={capture}", "rping", "-c", *options]
    status, text, said = pair(env, ["rping", "-s", *options], client, 40)
    if status != 0:
        return "FAIL", last_line(text) or last_line(said)
    status, text = run(["tshark", "-r", capture, "-T", "fields", "-e", "frame.protocols", "-e", "_ws.malformed"], 60)
    packets = [line for line in text.splitlines() if "infiniband" in line]
    bad = [line for line in packets if "alformed" in line]
    if status != 0 or not packets or bad:
        return "FAIL", f"{len(packets)} packets, {len(bad)} malformed: {last_line(text)}"
    return "PASS", f"{len(packets)} packets"


def checks(quick):
    yield "fio's rdma engine, write", fio("write")
    if quick:
        return
    yield "fio's rdma engine, read", fio("read")
    yield "fio's rdma engine, send", fio("send", 128, 1)
    yield "libfabric verbs, msg endpoints", pingpong("verbs", "msg")
    yield "libfabric verbs;ofi_rxm, rdm endpoints", pingpong("verbs;ofi_rxm", "rdm")
    yield "libfabric verbs;ofi_rxd, rdm endpoints", pingpong("verbs;ofi_rxd", "rdm")
    yield "MPICH, 2 ranks", mpich
    yield "mpi4py, 2 ranks", mpi4py
    yield "tshark reads a capture", dissected
