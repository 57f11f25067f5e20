"""native/cudnn: check that torch runs with the locked cuDNN. Each version has its own faults."""

import importlib
from functools import partial
from typing import TypedDict

from validate.checks import Settings
from validate.harness.forked import measure_claimed_subjects
from validate.judging import Finding, failed, passed
from validate.next_steps import BUILD_ANEW

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
    if not running:
        return failed(
            f"torch loads no cuDNN, and the lock has cuDNN {expect['version']}",
            "if a step of your Dockerfile removes or replaces the package nvidia-cudnn-cu12 or "
            "nvidia-cudnn-cu13 (`docker run --rm IMAGE python -m pip list` shows its version), "
            f"take that step out and build the image again; if none does, {BUILD_ANEW}",
        )
    if running != locked:
        return failed(
            f"torch runs with cuDNN {describe_version(running)}; the lock has {expect['version']}. "
            "Another copy was installed over the locked one, or the loader finds another one first"
        )
    return passed(f"torch runs with cuDNN {expect['version']}")


def describe_version(number: int) -> str:
    """Return a version that cuDNN reports as a number: `9.15.1` for 91501, `8.9.2` for 8902."""
    # Since version 9, the major version counts ten thousands. Before, it counted thousands.
    unit = 10_000 if number >= 90_000 else 1_000
    major, minor_and_patch = divmod(number, unit)
    minor, patch = divmod(minor_and_patch, 100)
    return f"{major}.{minor}.{patch}"


measure = partial(measure_claimed_subjects, measures={"cudnn": read_version})
CLAIMS = {"native/cudnn": judge}
NEXT_STEPS = {
    "native/cudnn": "find all copies by `docker run --rm IMAGE find / -name 'libcudnn.so*'`; if "
    "there is one outside of the folder nvidia/cudnn of site-packages, remove that copy, the "
    "package that brings it or the LD_LIBRARY_PATH line that leads to it, and build the image "
    "again; if there is none, a step of your Dockerfile or base image installed the other copy "
    "over the locked one (`pip install` of nvidia-cudnn, or of a package that requires it), so "
    f"take that step out; if there is no such step, {BUILD_ANEW}"
}
