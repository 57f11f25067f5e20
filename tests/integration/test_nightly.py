"""A nightly run on a real engine tells a torchao for another torch from a harmless change."""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from images.building import validating
from images.comparison.differences import list_changes
from images.config.paths import CHECKOUT
from images.config.schema import Nightly
from images.context import labels
from images.context.hosting import host_settings
from images.engine import Engine, ImageInfo
from images.locking import lock_file
from images.nightly import results, sets
from images.nightly import run as nightly
from images.nightly.results import Outcome
from images.nightly.run import ImageResult
from images.nightly.sets import Locked, NightlyOptions, SetResult, ValidateSet
from images.planning import plan
from images.planning.image import Image
from images.validation.claims import image_claims
from images.validation.claims.context import ClaimContext
from tests.support.broken_images import NAME
from tests.support.sources import SOURCES
from validate.claims import Tier

MOVING = {"torchao": "==0.14.1", "liger-kernel": ">=0.6.4,<0.7"}
"""0.14.1 is built for torch 2.9; the image has 2.7."""
STEP = (
    "RUN --mount=type=bind,source=host,target=/run/host"
    " --mount=type=bind,source=locks,target=/run/locks"
    " unset PIP_CONSTRAINT && . /run/host/env"
    " && pip install -q --no-deps --require-hashes -r /run/locks/moved"
)


def laid_over(engine: Engine, control: Locked, base_image: ImageInfo) -> ValidateSet:
    """Return a function that validates a set: what moved, as one layer over the base image.

    That takes seconds, where a build of the whole set takes minutes.
    """

    def validate(locked: Locked, tiers: Sequence[Tier], label: str) -> SetResult:
        start = time.monotonic()
        tag = f"{NAME}-{label}"
        changes = list_changes(control.versions, locked.versions)
        moved = {change.name for change in changes}
        packages = [package for package in locked.lock.packages() if package.name in moved]
        dockerfile = f"FROM {NAME}\nUSER root\n{STEP if packages else ''}\nUSER {base_image.user}\n"
        files = {
            "Dockerfile": dockerfile.encode(),
            "locks/moved": lock_file.print_requirements(packages),
        }
        host = host_settings()
        built = engine.build(
            {**files, **host.files()}, tag, network=host.network(local=True)
        ).image_id
        missing = labels.declared_missing(locked.image, base_image.labels)
        context = ClaimContext.from_lock(
            locked.image, locked.lock, SOURCES.facts, missing=missing, custom_base=False
        )
        # Such packages break these claims. The others take minutes for each of four images.
        claims = image_claims(context).measured_by(("static.pins", "static.symbols"))
        evidence, verdict = validating.measure_and_judge(engine, built, claims, tiers)
        info = engine.inspect(built)
        # This is its last name, so the image goes, too.
        engine.untag(tag)
        return sets.set_result(info, evidence, verdict, start)

    return validate


def run_nightly(
    image: Image, validate: ValidateSet, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> ImageResult:
    """Run an image's night, in which only the packages of MOVING may move."""
    (planned,) = plan.select([NAME], SOURCES)
    # The rules know that this torchao breaks, and would refuse it.
    monkeypatch.setattr(sets, "find_refused_versions", lambda *_: {})
    ranges = {pin.name: MOVING.get(pin.name, f"=={pin.version}") for pin in image.pins}
    matrix = SOURCES.matrix.model_copy(update={"nightly": Nightly(ranges=ranges)})
    options = NightlyOptions(
        sources=replace(SOURCES, matrix=matrix),
        validate=validate,
        now=lambda: datetime.now(UTC),
        results=folder / "results",
        tiers=[Tier.STATIC],
        progress=say,
    )
    return nightly.run(planned, image, options)


def test_a_package_that_breaks_a_canary_is_named(
    engine: Engine,
    image: Image,
    base_image: ImageInfo,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    control = Locked(image=image, lock=lock_file.read(image, CHECKOUT.locks))
    result = run_nightly(image, laid_over(engine, control, base_image), tmp_path, monkeypatch)

    assert result.control.outcome is Outcome.PASS
    assert result.canary.outcome is Outcome.FAIL
    assert {change.name for change in result.canary.changes if change.pinned} == set(MOVING)
    (breakage,) = result.breakages
    assert [culprit.name for culprit in breakage.culprits] == ["torchao"]
    assert breakage.sentence.startswith("torchao 0.11.0 -> 0.14.1 breaks ")
    assert result.proposed is None
    assert results.read(tmp_path / "results") == (result.control, result.canary, breakage)


def say(name: str, text: str) -> None:
    logging.getLogger("truetag.tests").warning("%s %s", name, text)
