"""The judge of a nightly run: builds a set of versions with the engine, validates the image, and removes it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from images.building.build import build_all
from images.building.options import BuildOptions
from images.engine import Engine
from images.engine.failures import BuildFailed, FailureKind
from images.engine.progress import Progress
from images.errors import UserError
from images.locking import lock_file, measure_contents
from images.nightly.canary import Locked
from images.nightly.options import Judge
from images.nightly.state import Trial
from images.validation import schemas
from images.validation.rows import ClaimRow
from validate.claims import Tier
from validate.evidence import Evidence
from validate.judge import ClaimVerdict, Verdict

_ELSEWHERE = frozenset(
    {
        FailureKind.NETWORK,
        FailureKind.TLS,
        FailureKind.ACCESS,
        FailureKind.DISK,
        FailureKind.MEMORY,
        FailureKind.APT,
        FailureKind.BASE,
    }
)
"""Causes of a failed build that no version changes."""
_REASON = 600
"""Characters of a reason that a line keeps."""


def on_engine(engine: Engine, options: BuildOptions, progress: Progress) -> Judge:
    """The judge of a nightly run: builds with the engine, validates, and leaves no image behind."""

    def judge(locked: Locked, tiers: Sequence[Tier], label: str) -> Trial:
        start = time.monotonic()
        name = f"{locked.image.name}-{label}"
        folder = options.out / "locks" / label
        files = lock_file.written(locked.lock)
        lock_file.write({f"{locked.image.lock_name}/{path}": content for path, content in files.items()}, folder)
        # S10 asks what these versions bring. Raises UserError: an index that does not answer.
        known = options.sources.workspace.locks
        lock_file.put(measure_contents.update({name: locked.lock}, folder, known=known), folder)
        own = replace(options, suffix=f"-{label}", tiers=tiers or options.tiers)
        try:
            lock = lock_file.read(locked.image, folder, known)
            (result,) = build_all(engine, [(locked.image, lock)], own, progress)
        finally:
            for tag in (name, f"{name}-candidate"):
                engine.untag(tag)
        if isinstance(result, UserError):
            return Trial(claims=(), cause=cause_of(result), seconds=round(time.monotonic() - start, 1))
        evidence = schemas.read_evidence(options.out / name / "evidence.json")
        found = trial_of(result.info.id, result.info.size, evidence, result.verdict)
        return found.model_copy(update={"seconds": round(time.monotonic() - start, 1)})

    return judge


def cause_of(error: UserError) -> str:
    """Why these versions can't be built. Raises the error again where the versions did not cause it."""
    if not isinstance(error, BuildFailed) or error.failure.kind in _ELSEWHERE:
        raise error
    return f"{error.problems[0].where}: {error.problems[0].cause}"


def trial_of(digest: str, size: int, evidence: Evidence, verdict: Verdict) -> Trial:
    """A verdict as the state of a nightly run has it."""
    return Trial(
        claims=tuple(map(_row, verdict.recorded.claims)),
        overall={tier: _tier(verdict.recorded, tier).overall for tier in Tier if _tier(verdict, tier).claims},
        digest=digest,
        bytes=size,
        gpus=tuple(str(gpu["name"]) for gpu in evidence.host.get("gpus", ())),
    )


def _tier(verdict: Verdict, tier: Tier) -> Verdict:
    return replace(verdict, claims=tuple(one for one in verdict.claims if one.claim.tier is tier))


def _row(one: ClaimVerdict) -> ClaimRow:
    return ClaimRow(
        id=one.claim.id,
        subject=one.claim.subject,
        tier=one.claim.tier,
        verdict=one.status,
        required=one.claim.required,
        reason=one.reason[:_REASON],
    )
