"""One check, one file: `TIER/NAME.py` is the probe `TIER.NAME`, found by its name. Adding a check is adding a file.

A file has, in this order:

- a docstring: what fails for a user if this does not hold, and which claims say so;
- `measure(claims)`, which runs in the container, yields `(subject, evidence)` and never judges;
- judges `(subject, expect, evidence) -> Finding`, pure: their docstrings say what is expected and what was measured.
  What raised (`error` of forked.attempt) fails by its own words, and reaches none (validate/judge.py, by_judge);
- `CLAIMS`: `ID`, or `ID SUBJECT` where subjects are judged differently -> judge.

How it runs may stand at its top, each as a plain constant (class Settings): `SECONDS = 2400`, `RUN_AS = "root"`. Of one
that reads files, `COMMON`: functions that keep what they read, called before the fork, for the forks of others, too.

Files that begin with an underscore are shared. Only the files that are asked for are imported.
"""

import ast
import functools
import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from validate.claims import HOST_PROBE, Claim
from validate.judging import Finding

Judge = Callable[[str, Any, Any], Finding]
Judges = Mapping[str, Judge]

_FOLDER = Path(__file__).resolve().parent
_TIERS = ("static", "cpu", "gpu", "multigpu")
_ELSEWHERE = {
    HOST_PROBE: "static.host_image",
    **dict.fromkeys(("cpu.examples", "gpu.examples", "multigpu.examples"), "_examples"),
    **dict.fromkeys(("cpu.silent", "gpu.silent"), "_silent"),
}
"""Probes whose file has another name than they."""
_SETTING = re.compile(
    r"^(SECONDS|STARTS_FIRST|ALONE|TORCH_FIRST|RUN_AS|FILES_ONLY|FROM_SOURCE|STARTS_PROGRAMS|WARNS)(?:: \w+)? = (.+)$",
    re.MULTILINE,
)
_KERNELS = "gpu._kernels"
"""The file of all probes of the table of kernels (validate/kernels/) that have none of their own."""


@dataclass(frozen=True)
class Settings:
    """How a probe runs: constants at the top of its file, in capitals."""

    seconds: float | None = None
    """Its time limit; None: that of its tier (validate/suite.py)."""
    starts_first: bool = False
    """It takes long: no core shall wait for it at the end."""
    alone: bool = False
    """Nothing else may run beside it: it starts last."""
    torch_first: bool = False
    """It imports torch before anything else: where that is emulated, it is a fork of a process that has."""
    files_only: bool = False
    """It reads files and asks nothing of the image's Python: ours runs it first, where it can be taken in."""
    from_source: bool = False
    """The image's Python runs it in a container of its own, and reads no bytecode of the image."""
    starts_programs: bool = False
    """It starts programs of the image, which run emulated on another processor whoever starts them."""
    warns: bool = False
    """What it raises is a warning, too: UNPROVEN, and no failure."""
    run_as: str = ""
    """Whom a validation run lets it run as: `root`, `arbitrary UID`; `claim`: as each of its claims says, with what is
    mounted there, in a container of its own. Empty: the image's user."""


@functools.cache
def settings(probe: str) -> Settings:
    """Read from its file as text: what does not run at all is for its own process to say."""
    name = file_of(probe)
    text = (_FOLDER / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8") if name else ""
    found = {key.lower(): ast.literal_eval(value) for key, value in _SETTING.findall(text)}
    return Settings(**found)


def file_of(probe: str) -> str | None:
    """The check file of a probe, `TIER.NAME` below this package; None: the suite has no such probe."""
    if probe in _ELSEWHERE:
        return _ELSEWHERE[probe]
    if re.fullmatch(r"[a-z]+\.[a-z][a-z0-9_]*", probe) and (_FOLDER / f"{probe.replace('.', '/')}.py").is_file():
        return probe
    return _KERNELS if probe.startswith("gpu.") and probe in _kernel_probes() else None


def module(probe: str) -> ModuleType:
    """The check file of a probe. Raises ModuleNotFoundError."""
    return importlib.import_module(f"{__name__}.{file_of(probe) or probe}")


def judge_of(claim: Claim) -> Judge | None:
    """The judge of a claim, from the file of its probe; None: there is no such file, or it does not have the claim."""
    return row(module(claim.probe).CLAIMS, claim) if file_of(claim.probe) else None


def row(judges: Judges, claim: Claim) -> Judge | None:
    """The row of a claim: by id and subject, else by id alone."""
    return judges.get(claim.key, judges.get(claim.id))


def every() -> Iterator[tuple[str, ModuleType]]:
    """Every probe and its check file."""
    files = (path for tier in _TIERS for path in sorted((_FOLDER / tier).glob("[a-z]*.py")))
    own = [f"{path.parent.name}.{path.stem}" for path in files]
    for probe in dict.fromkeys([*own, *_ELSEWHERE, *sorted(_kernel_probes())]):
        if probe not in _ELSEWHERE.values():
            yield probe, module(probe)


def _kernel_probes() -> set[str]:
    return {row.probe for row in importlib.import_module("validate.kernels").table().values()}
