"""A probe for tests: both ranks do the first subject, then one is killed."""

import os
import signal

from validate.probes.multigpu import _launch


def measure(claims):
    yield from _launch.measure(__name__, claims, limit=240)


def rank(bench, claim):
    if claim.subject.endswith("second") and bench.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"comparisons": {}, "facts": {}}
