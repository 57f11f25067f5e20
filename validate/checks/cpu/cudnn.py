"""native/cudnn: torch with another cuDNN than the locked one has that one's faults, also where the matrix took a
newer."""

import importlib
from functools import partial
from typing import TypedDict

from validate.checks import Settings
from validate.harness.forked import measure_claimed_subjects
from validate.judging import Finding, failed, passed

SETTINGS = Settings(begins_with_torch=True)


class CudnnExpect(TypedDict):
    """The version that is locked: 9.15.1.9."""

    version: str


class CudnnEvidence(TypedDict):
    """The version that runs, as cuDNN counts: 91501."""

    version: int


def _measure() -> CudnnEvidence:
    """Ask torch which cuDNN it has loaded."""
    return {"version": importlib.import_module("torch").backends.cudnn.version()}


def judge(_subject: str, expect: CudnnExpect, evidence: CudnnEvidence) -> Finding:
    """Judge that torch runs with the locked cuDNN."""
    major, minor, patch = map(int, expect["version"].split(".")[:3])
    locked, running = major * 10000 + minor * 100 + patch, evidence["version"]
    if running != locked:
        return failed(
            f"torch runs with cuDNN {running}, the lock has {expect['version']} ({locked})"
        )
    return passed(f"torch runs with cuDNN {expect['version']}")


measure = partial(measure_claimed_subjects, measures={"cudnn": _measure})
CLAIMS = {"native/cudnn": judge}
