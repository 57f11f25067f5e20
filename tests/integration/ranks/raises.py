"""A probe for tests: one rank raises in the first subject; the second is measured all the same."""

from validate.probes.multigpu import _launch


def measure(claims):
    yield from _launch.measure(__name__, claims, limit=240)


def rank(bench, claim):
    if claim.subject.endswith("first") and bench.rank == 1:
        raise RuntimeError("no kernel image is available")
    return {"comparisons": {}, "facts": {}}
