"""A probe for tests: no rank comes back."""

import time

from validate.probes.multigpu import _launch


def measure(claims):
    yield from _launch.measure(__name__, claims, limit=12)


def rank(bench, claim):
    time.sleep(1000)
