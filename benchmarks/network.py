"""A network of this thread's own: empty but for its loopback, which can be made as slow as a link between machines.

Whoever is started from the thread inside is in it too: a registry, an engine, the threads of a push. Sockets of files,
the Docker Engine's, reach across. Python has no `setns` before 3.12, so libc is asked.
"""

from __future__ import annotations

import ctypes
import math
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from images.errors import Problem, UserError

_CLONE_NEWNET = 0x40000000
"""sched.h"""
LOOPBACK = "loopback"
LINKS: Mapping[str, str] = {LOOPBACK: "", "10 Gb/s": "10gbit", "1 Gb/s": "1gbit"}
"""Link -> its rate as tc names it; empty: as fast as the machine."""
BURST = 8 << 20
"""What may pass at once (tc-tbf(8)): at 10 Gb/s less of it than 5 MB makes the link slower than its name."""
_RETRY = "`python -m benchmarks --only delivery`"


@contextmanager
def own_network() -> Iterator[None]:
    """Inside, this thread and what it starts are in an empty network. Raises UserError where that is not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open() as before:
        if libc.unshare(_CLONE_NEWNET):
            cause = f"can't be made: {os.strerror(ctypes.get_errno())}"
            raise UserError(Problem(where="a network namespace", cause=cause, then=f"as root: {_RETRY}"), code=1)
        try:
            _run("ip", "link", "set", "lo", "up")
            yield
        finally:
            if libc.setns(before.fileno(), _CLONE_NEWNET):
                os.abort()  # all that follows would be done in the wrong network


def bits_per_second(link: str) -> float:
    """What passes at most; infinite for the loopback as it is."""
    rate = LINKS[link]
    return float(rate.removesuffix("gbit")) * 1e9 if rate else math.inf


def shape(link: str) -> None:
    """Give the loopback of the network that this thread is in the speed of a link. Raises UserError."""
    _run("tc", "qdisc", "replace", "dev", "lo", "root", "noqueue")
    if rate := LINKS[link]:
        _run("tc", "qdisc", "replace", "dev", "lo", "root", "tbf", "rate", rate, "burst", str(BURST), "latency", "50ms")


def _run(*command: str) -> None:
    if not shutil.which(command[0]):
        then = f"`apt-get install iproute2`, then {_RETRY}"
        raise UserError(Problem(where=command[0], cause="is not installed", then=then), code=1)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        cause = done.stderr.strip() or f"ended with {done.returncode}"
        then = f"measure on a machine whose kernel can (modules sch_tbf, veth), as root: {_RETRY}"
        raise UserError(Problem(where=" ".join(command), cause=cause, then=then), code=1)
