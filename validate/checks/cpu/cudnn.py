"""native/cudnn: torch with another cuDNN than the locked one has that one's faults, also where the matrix took a
newer."""

import importlib
from collections.abc import Mapping
from functools import partial
from typing import Any

from validate.checks import Settings
from validate.harness.forked import asked
from validate.judging import Finding, failed, passed

SETTINGS = Settings(begins_with_torch=True)


def judge(_subject: str, expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """native/cudnn. expect: {version: that is locked, 9.15.1.9}; evidence: {version: as cuDNN counts, 91501}."""
    major, minor, patch = map(int, expect["version"].split(".")[:3])
    wanted, found = major * 10000 + minor * 100 + patch, evidence["version"]
    if found != wanted:
        return failed(f"torch runs with cuDNN {found}, the lock has {expect['version']} ({wanted})")
    return passed(f"torch runs with cuDNN {expect['version']}")


_SUBJECTS = {"cudnn": lambda: {"version": importlib.import_module("torch").backends.cudnn.version()}}
measure = partial(asked, measures=_SUBJECTS)
CLAIMS = {"native/cudnn": judge}
