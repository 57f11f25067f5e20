"""One set of versions of a nightly run: built, validated, and remembered for `--resume`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from images.building import validating
from images.building.build import build_all
from images.building.contexts import BuildOptions
from images.config.matrix import Sources
from images.engine import Engine, ImageInfo
from images.engine.failures import BuildFailed
from images.engine.progress import Progress
from images.errors import UserError
from images.host.hashing import sha256
from images.locking import debian, lock_file, measure_contents, uv
from images.nightly.canary import Locked
from images.nightly.results import Job
from images.validation import schemas
from images.validation.containers import suite_files
from images.validation.rows import ClaimRow, StepRow, claim_rows, steps_of
from validate.claims import ClaimSet, Tier
from validate.evidence import Evidence
from validate.judge import Verdict
from validate.judging import Status

_OF_VERSIONS = ("hash", "compile", "resolve", "dockerfile", "other")
"""Causes of a failed build that other versions may not have."""


class SetResult(BaseModel):
    """One set of versions, built and validated."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    claims: tuple[ClaimRow, ...]
    """Every claim that was judged, the good ones too."""
    digest: str = ""
    bytes: Annotated[int, Field(ge=0)] = 0
    seconds: Annotated[float, Field(ge=0)] = 0.0
    gpus: tuple[str, ...] = ()
    debian: dict[str, str] = {}
    """Debian package -> version, of the control."""
    steps: dict[str, StepRow] = {}
    """Subject of G14 -> the training step."""
    cause: str = ""
    """Why there is no verdict; empty where there is one."""

    def verdict(self, key: str) -> Status | None:
        """The verdict of a claim (`S4 symbols`); None: it was not judged."""
        return next((claim.verdict for claim in self.claims if claim.key == key), None)


ValidateSet = Callable[[Locked, Sequence[Tier], str], SetResult]
"""Builds these versions and validates these tiers (none: all that the machine can), under a name with this suffix.

Raises UserError for a failure that the versions did not cause: a network, a disk, an engine.
"""


class State:
    """Answers by key, in memory and in a file that only grows; without `resume` it starts empty."""

    def __init__(self, file: Path, *, resume: bool) -> None:
        self._file = file
        self._known: dict[str, Any] = {}
        if not resume:
            file.unlink(missing_ok=True)
        for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
            try:
                row = json.loads(line)
                self._known[row["key"]] = row["answer"]
            except (ValueError, KeyError, TypeError):
                continue  # an interruption cut it off: it is validated again

    def find(self, key: str) -> Any | None:
        return self._known.get(key)

    def keep(self, key: str, answer: Any) -> None:
        self._known[key] = answer
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8") as file:
            file.write("\n" + json.dumps({"key": key, "answer": answer}))


@dataclass(frozen=True, kw_only=True)
class NightlyOptions:
    """What a nightly run works with. What validates, the resolver and the clock are injected."""

    sources: Sources
    validate: ValidateSet
    state: State
    now: Callable[[], datetime]
    results: Path
    debian_before: Callable[[str], Mapping[str, str]] = lambda _image: {}
    """Debian package -> version of the image that people have, by its name; empty: there is none to compare with."""
    tiers: Sequence[Tier] = ()
    run: uv.Runner = uv.run
    progress: Callable[[str, str], None] = lambda _image, _text: None


def validated(locked: Locked, tiers: Sequence[Tier], label: str, options: NightlyOptions) -> SetResult:
    """A set of versions, validated once: what this run or the one it resumes has validated is taken from the state."""
    names = ",".join(tiers) or "all"
    base = options.sources.workspace.locks / debian.place(locked.image.base)
    packages = sha256(base.read_bytes())[:12] if base.is_file() else "unlocked"
    files = sorted(suite_files(ClaimSet(image="", claims=())).items())
    suite = sha256(b"\0".join(name.encode() + text for name, text in files))[:12]  # another one validates again
    key = f"versions {locked.image.name} {locked.hash} {packages} {options.sources.revision} {suite} {names}"
    if (known := options.state.find(key)) is not None:
        return SetResult.model_validate(known)
    made = options.validate(locked, tiers, label)
    options.state.keep(key, made.model_dump(mode="json"))
    return made


def built(engine: Engine, options: BuildOptions, progress: Progress) -> ValidateSet:
    """Builds with the engine, validates, and leaves no image behind.

    The control is built without a cache: on a base without locked packages it takes Debian's newest. They are read.
    """

    def validate(locked: Locked, tiers: Sequence[Tier], label: str) -> SetResult:
        start, name, installed = time.monotonic(), f"{locked.image.name}-{label}", dict[str, str]()
        # The lock with what its files bring, which S10 asks: written into a folder of locks, beside what is known.
        folder, known = options.out / "locks" / label, options.sources.workspace.locks
        own = {f"{locked.image.lock_name}/{path}": text for path, text in lock_file.written(locked.lock).items()}
        lock_file.write(own, folder)
        lock = lock_file.read(locked.image, folder, known)
        lock_file.put(measure_contents.update({str(locked.image.name): lock}, folder), folder)
        lock = lock_file.read(locked.image, folder, known)
        is_control = label == Job.CONTROL
        how = replace(options, suffix=f"-{label}", tiers=tiers or options.tiers, no_cache=is_control)
        try:
            (result,) = build_all(engine, [(locked.image, lock)], how, progress)
            if isinstance(result, UserError):
                if not isinstance(result, BuildFailed) or result.failure.kind not in _OF_VERSIONS:
                    raise result
                cause = f"{result.problems[0].where}: {result.problems[0].cause}"
                return SetResult(claims=(), cause=cause, seconds=round(time.monotonic() - start, 1))
            if is_control:
                installed = validating.debian_packages(engine, result.info)
        finally:
            engine.untag(f"{locked.image.prefix}{name}")
            engine.untag(f"{locked.image.prefix}{name}-candidate")
        evidence = schemas.read_evidence(options.out / name / "evidence.json")
        return set_result(result.info, evidence, result.verdict, start, installed)

    return validate


def set_result(
    info: ImageInfo, evidence: Evidence, verdict: Verdict, start: float, installed: Mapping[str, str] | None = None
) -> SetResult:
    """A verdict as the state of a nightly run has it. `start`: when the work began, by the monotonic clock."""
    return SetResult(
        claims=claim_rows(verdict.recorded),
        digest=info.id,
        bytes=info.size,
        seconds=round(time.monotonic() - start, 1),
        gpus=tuple(str(gpu["name"]) for gpu in evidence.host.get("gpus", ())),
        debian=dict(installed or {}),
        steps=steps_of(verdict.claims),
    )
