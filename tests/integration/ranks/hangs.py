"""A probe for tests: one rank never comes back."""

import time

from validate.probes.multigpu import _launch


def measure(claims):
    yield from _launch.measure(__name__, claims, limit=240, patience=8)


def rank(bench, claim):
    if bench.rank == 1:
        time.sleep(1000)
    return {"comparisons": {}, "facts": {}}
