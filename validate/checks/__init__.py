"""One check, one file: `TIER/NAME.py` is the probe `TIER.NAME`, found by its name. Adding a check is adding a file.

A file has, in this order:

- a docstring: what fails for a user if this does not hold, and which claims say so;
- `SETTINGS`, where it runs in another way than usual (class Settings);
- `measure(claims)`, which runs in the container, yields `(subject, evidence)` and never judges;
- judges `(subject, expect, evidence) -> Finding`, pure: their docstrings say what is expected and what was measured.
  What raised (`error` of forked.attempt) fails by its own words, and reaches none (validate/judge.py, apply_judge);
- `CLAIMS`: `CHECK`, or `CHECK/SUBJECT` where subjects are judged differently -> judge.

Files that begin with an underscore are shared. Only the files that are asked for are imported. They import torch and
other packages of the image inside functions, so the host can import them, too.
"""

import functools
import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

from validate.claims import HOST_PROBE, ORIGIN_PROBE, Claim
from validate.judging import Finding, unproven

Judge = Callable[[str, Any, Any], Finding]
Judges = Mapping[str, Judge]

_FOLDER = Path(__file__).resolve().parent
_TIERS = ("static", "cpu", "gpu", "multigpu")
_KERNELS = "gpu._kernels"
SHARED_FILES: Mapping[str, str] = {
    HOST_PROBE: "static.host_image",
    ORIGIN_PROBE: "static.host_origin",
    "cpu.examples": "_examples",
    "gpu.examples": "_examples",
    "multigpu.examples": "_examples",
    "cpu.silent": "_silent",
    "gpu.silent": "_silent",
    "gpu.bitsandbytes": _KERNELS,
    "gpu.compile": _KERNELS,
    "gpu.flash_attn": _KERNELS,
    "gpu.flash_attn_4": _KERNELS,
    "gpu.fp8": _KERNELS,
    "gpu.liger": _KERNELS,
    "gpu.numerics": _KERNELS,
    "gpu.sdpa": _KERNELS,
    "gpu.sdpa_flash_attn_4": _KERNELS,
    "gpu.transformers_flash_attn_4": _KERNELS,
    "gpu.triton": _KERNELS,
    "gpu.xformers": _KERNELS,
}
"""The probes that have no file of their own name, and the file that measures and judges each."""


class RunAs(Enum):
    """The user as whom a validation run starts a probe."""

    IMAGE_USER = "image user"
    ROOT = "root"
    ARBITRARY_UID = "arbitrary-uid"
    """A user whom the image does not know (claims.ARBITRARY_UID)."""
    EACH_CLAIM = "each claim"
    """Each claim names its user, and a folder that is mounted there: it gets a container of its own."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a probe runs: `SETTINGS` of its check file. The defaults hold for a check without."""

    time_limit: float | None = None
    """In seconds. None: the limit of the probe's tier (validate/suite.py)."""
    starts_first: bool = False
    """It takes long, so it starts before others: no core waits for it at the end."""
    runs_alone: bool = False
    """It starts after all others have ended, because it measures times."""
    begins_with_torch: bool = False
    """It imports torch before any other package, so it can be a fork of a process that has imported torch."""
    reads_files_only: bool = False
    """It reads files and asks nothing of the image's Python: our own Python runs it, before anything of the image."""
    shared_reads: Sequence[Callable[[], object]] = ()
    """Of a check that reads files: cached functions that run once before the fork, for the forks of others, too."""
    run_as: RunAs = RunAs.IMAGE_USER


@functools.cache
def settings(probe: str) -> Settings:
    """Return how a probe runs; the defaults if its file cannot be imported, which the probe's own process reports."""
    if file_of(probe) is None:
        return Settings()
    try:
        check = module(probe)
    except Exception:
        return Settings()
    declared: Settings = getattr(check, "SETTINGS", Settings())
    return declared


def file_of(probe: str) -> str | None:
    """Return the check file of a probe, `TIER.NAME` below this package; None: the suite has no such probe."""
    if probe in SHARED_FILES:
        return SHARED_FILES[probe]
    if not re.fullmatch(r"[a-z]+\.[a-z][a-z0-9_]*", probe):
        return None
    return probe if (_FOLDER / f"{probe.replace('.', '/')}.py").is_file() else None


def module(probe: str) -> ModuleType:
    """Import the check file of a probe. Raises ModuleNotFoundError."""
    return importlib.import_module(f"{__name__}.{file_of(probe) or probe}")


def judge_of(claim: Claim) -> Judge | None:
    """Return the judge of a claim; None: its probe has no file, or the file does not judge this claim."""
    if file_of(claim.probe) is None:
        return None
    try:
        judges = module(claim.probe).CLAIMS
    except Exception as error:
        reason = f"the check file of {claim.probe} cannot be imported: {error!r}"
        return lambda _subject, _expect, _evidence: unproven(reason)
    return row(judges, claim)


def row(judges: Judges, claim: Claim) -> Judge | None:
    """Return the row of a claim: by id and subject, else by id alone."""
    return judges.get(claim.key, judges.get(claim.check))


def every() -> Iterator[tuple[str, ModuleType]]:
    """Yield every probe and its check file."""
    probes = []
    for tier in _TIERS:
        for path in sorted((_FOLDER / tier).glob("[a-z]*.py")):
            probes.append(f"{tier}.{path.stem}")

    for probe in [*probes, *SHARED_FILES]:
        if probe not in SHARED_FILES.values():
            yield probe, module(probe)
