"""A probe for tests: one rank ends with status 0 before it is done."""

import os

from validate.probes.multigpu import _launch


def measure(claims):
    yield from _launch.measure(__name__, claims, limit=240, patience=8)


def rank(bench, claim):
    if bench.rank == 0:
        os._exit(0)
    return {"comparisons": {}, "facts": {}}
