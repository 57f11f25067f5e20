"""native/cudnn: check that torch runs with the locked cuDNN. Each version has its own faults."""

import importlib
from functools import partial
from typing import TypedDict

from validate.checks import Settings
from validate.harness.forked import measure_claimed_subjects
from validate.judging import Finding, failed, passed

SETTINGS = Settings(begins_with_torch=True)


class CudnnExpect(TypedDict):
    """The locked cuDNN."""

    version: str  # of its wheel: `9.15.1.9`


class CudnnEvidence(TypedDict):
    """The cuDNN that torch has loaded."""

    version: int  # as cuDNN reports it: 91501 for 9.15.1


def read_version() -> CudnnEvidence:
    """Return the version of the cuDNN that torch has loaded."""
    return {"version": importlib.import_module("torch").backends.cudnn.version()}


def judge(_subject: str, expect: CudnnExpect, evidence: CudnnEvidence) -> Finding:
    """Pass if the cuDNN that torch has loaded is the one of the lock (`9.15.1.9`).

    cuDNN reports its version as a number, 91501 for 9.15.1, and nothing of a fourth part.
    """
    major, minor, patch = map(int, expect["version"].split(".")[:3])
    locked = major * 10000 + minor * 100 + patch
    running = evidence["version"]
    if running != locked:
        return failed(
            f"torch runs with cuDNN {running}, the lock has {expect['version']} ({locked})"
        )
    return passed(f"torch runs with cuDNN {expect['version']}")


measure = partial(measure_claimed_subjects, measures={"cudnn": read_version})
CLAIMS = {"native/cudnn": judge}
