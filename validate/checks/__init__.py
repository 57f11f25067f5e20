"""Find the check of a probe: the probe `TIER.NAME` is the file `TIER/NAME.py` of this package.

Adding a check is adding a file. A file has, in this order:

- a docstring: what fails for a user if this does not hold, and which claims are about it;
- `SETTINGS`, if it does not run with the defaults (class Settings);
- `measure(claims)`, which runs in the container, yields `(subject, evidence)` and never judges;
- judges `(subject, expect, evidence) -> Finding`, pure functions. A measurement that raised (its
evidence is `error` of forked.attempt) fails without any judge (validate/judge.py, apply_judge);
- `CLAIMS`: `CHECK`, or `CHECK/SUBJECT` where subjects are judged differently -> judge;
- `NEXT_STEPS`: the same keys -> what a user does if such a claim does not hold: a sentence with the
package, file or command (validate/next_steps.py). Where causes need different steps, it is a dict
from words of a reason to its step, and the first whose words the reason has is taken; the last one
has no words (""), and serves for all other reasons. A finding may bring another step.

Files that begin with an underscore are shared. Files are imported only when they are needed. They
import torch and other packages of the image inside functions, so that the host can import them,
too.
"""

import functools
import importlib
import re
from collections.abc import Callable, Mapping, Sequence
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
_KERNELS = "gpu._kernels"
SHARED_FILES: Mapping[str, str] = {
    HOST_PROBE: "static.host_image",
    ORIGIN_PROBE: "static.host_origin",
    "cpu.examples": "_examples",
    "gpu.examples": "_examples",
    "multigpu.examples": "_examples",
    "cpu.silent": "_silent",
    "gpu.silent": "_silent",
    "cpu.command": "_command",
    "gpu.command": "_command",
    "gpu.bitsandbytes": _KERNELS,
    "gpu.compile": _KERNELS,
    "gpu.flash_attn": _KERNELS,
    # In evidence from before 2026-11-30, this probe has what the three below measure now.
    "gpu.flash_attn_4": _KERNELS,
    "gpu.flash_attn_4_dense": _KERNELS,
    "gpu.flash_attn_4_features": _KERNELS,
    "gpu.flash_attn_4_varlen": _KERNELS,
    "gpu.fp8": _KERNELS,
    "gpu.liger": _KERNELS,
    "gpu.numerics": _KERNELS,
    "gpu.sdpa": _KERNELS,
    "gpu.sdpa_flash_attn_4": _KERNELS,
    "gpu.transformers_flash_attn_4": _KERNELS,
    "gpu.triton": _KERNELS,
    "gpu.xformers": _KERNELS,
}
"""The probes that have no file of their own name -> the file that measures and judges them."""


class RunAs(Enum):
    """The user as whom a validation run starts a probe."""

    IMAGE_USER = "image user"
    ROOT = "root"
    ARBITRARY_UID = "arbitrary-uid"
    """A user whom the image does not know (claims.ARBITRARY_UID)."""
    EACH_CLAIM = "each claim"
    """Each claim names its user and a folder to mount, and gets a container of its own."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a probe runs: `SETTINGS` of its check file. A file without it has the defaults."""

    time_limit: float | None = None
    """In seconds. None: the limit of the probe's tier (validate/suite.py)."""
    starts_first: bool = False
    """It takes long, so it starts before others. Else one core would run it alone at the end."""
    runs_alone: bool = False
    """It measures times, so it starts after all others have ended."""
    begins_with_torch: bool = False
    """It imports torch before any other package, so it can run in a fork that already has torch."""
    reads_files_only: bool = False
    """It only reads files, so our own Python runs it, before any program of the image is started.
    """
    shared_reads: Sequence[Callable[[], object]] = ()
    """Cached functions that run once before the forks of all checks that read files."""
    run_as: RunAs = RunAs.IMAGE_USER


@functools.cache
def settings(probe: str) -> Settings:
    """Return how a probe runs, such as its time limit and its user: SETTINGS of its check file.

    `probe` is such as `gpu.speed`, whose check file is gpu/speed.py. A probe that has no file,
    whose file has no SETTINGS, or whose file can't be imported, has the defaults.
    """
    if file_of(probe) is None:
        return Settings()
    try:
        check = import_check(probe)
    except Exception:
        # The probe's own process meets the same error, and reports it.
        return Settings()
    declared: Settings = getattr(check, "SETTINGS", Settings())
    return declared


def file_of(probe: str) -> str | None:
    """Return the check file of a probe as `TIER.NAME`, or None if the suite has no such probe."""
    if probe in SHARED_FILES:
        return SHARED_FILES[probe]
    if not re.fullmatch(r"[a-z]+\.[a-z][a-z0-9_]*", probe):
        return None
    tier, _, name = probe.partition(".")
    return probe if (_FOLDER / tier / f"{name}.py").is_file() else None


def import_check(probe: str) -> ModuleType:
    """Import the check file of a probe. Raises ModuleNotFoundError if there is none."""
    return importlib.import_module(f"{__name__}.{file_of(probe) or probe}")


def judge_of(claim: Claim) -> Judge | None:
    """Return the function that judges a claim, from the check file of its probe.

    A claim is a statement about an image. Its probe, such as `gpu.speed` (the file gpu/speed.py),
    measures what shows whether it is true: the evidence. Returns None if the probe has no file, or
    the file has no judge for this claim. If the file can't be imported, a judge is returned that
    finds every evidence UNPROVEN for this reason.
    """
    if file_of(claim.probe) is None:
        return None
    try:
        judges = import_check(claim.probe).CLAIMS
    except Exception as error:
        reason = f"the check file of {claim.probe} cannot be imported: {error!r}"
        return lambda _subject, _expect, _evidence: unproven(reason)
    # A file may have one judge for a whole check, or one for each subject of it.
    return find_judge(judges, claim)


def find_judge(judges: Judges, claim: Claim) -> Judge | None:
    """Return the judge of the claim's `CHECK/SUBJECT`, else of its `CHECK`, else None."""
    return judges.get(claim.key, judges.get(claim.check))


NextStep = str | Mapping[str, str]
"""What a user does if a claim does not hold; or words of a reason -> what to do about it."""


def next_step_of(claim: Claim, reason: str) -> str:
    """Return what a user does if a claim fails for this reason, from the check file of its probe.

    Empty if the suite has no such probe, or its file can't be imported: then the claim has another
    fault, which its verdict reports.
    """
    try:
        steps: Mapping[str, NextStep] = import_check(claim.probe).NEXT_STEPS
    except Exception:
        return ""
    step = steps.get(claim.key, steps.get(claim.check, ""))
    if isinstance(step, str):
        return step
    # Take the first step whose words are in the reason. The last has no words (""), so it fits any.
    return next(text for words, text in step.items() if words in reason)
