"""A nightly run on a real engine tells a torchao for another torch from a harmless change.

On the engine of Debian sid, with each store and rootless, it does so with images of no more than a
Python and two packages.
"""

import logging
import time
from collections.abc import Iterator, Sequence
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
from images.context.labels import BaseContext
from images.engine import Engine, ImageInfo, connect
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
from tests.support.other_engine import Kind, other_engine
from tests.support.small_base import python_base
from tests.support.sources import SOURCES
from tests.support.thin import EINOPS, EINOPS_CLAIM
from validate.claims import ClaimSet, Tier

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


# --- each kind of engine --------------------------------------------------------------------------


@pytest.fixture(params=list(Kind))
def other(
    request: pytest.FixtureRequest, engine: Engine, base: BaseContext
) -> Iterator[tuple[Engine, str]]:
    """Yield an engine of another kind, and the name of an image with a Python that it has."""
    with other_engine("sid", request.param) as running, python_base(engine, base) as python:
        running.take(python, engine)
        with connect(running.url) as connected:
            yield connected, python


def with_packages(engine: Engine, python: str, control: Locked) -> ValidateSet:
    """Return a function that validates a set: what may move, as packages of one empty module.

    torchao is claimed to have the control's version, so that a canary with another one is broken.
    """

    def validate(locked: Locked, tiers: Sequence[Tier], label: str) -> SetResult:
        start = time.monotonic()
        files: dict[str, bytes | Path] = {}
        claims = []
        for name in MOVING:
            module = name.replace("-", "_")
            version = locked.versions[name]
            for path, content in EINOPS.items():
                own = content.replace(b"0.8.2", version.encode())
                own = own.replace(b"Name: einops", f"Name: {name}".encode())
                own_path = path.replace("0.8.2", version).replace("einops", module)
                files[f"site/{own_path}"] = own.replace(b"einops", module.encode())
            expected = control.versions[name] if name == "torchao" else version
            expect = {**EINOPS_CLAIM.expect, "version": expected, "modules": [module]}
            claims.append(replace(EINOPS_CLAIM, subject=name, expect=expect))

        site = "/usr/local/lib/python3.11/dist-packages"
        files["Dockerfile"] = f"FROM {python}\nCOPY site {site}\nUSER 1001\n".encode()
        tag = f"truetag-test-nightly:{label}"
        built = engine.build(files, tag, network="none").image_id
        claim_set = ClaimSet(image=NAME, claims=tuple(claims))
        evidence, verdict = validating.measure_and_judge(engine, built, claim_set, tiers)
        info = engine.inspect(built)
        engine.untag(tag)
        return sets.set_result(info, evidence, verdict, start)

    return validate


def test_a_package_that_breaks_a_canary_is_named_on_each_kind_of_engine(
    other: tuple[Engine, str], image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, python = other
    control = Locked(image=image, lock=lock_file.read(image, CHECKOUT.locks))

    result = run_nightly(image, with_packages(engine, python, control), tmp_path, monkeypatch)

    assert result.control.outcome is Outcome.PASS
    assert result.canary.outcome is Outcome.FAIL
    (breakage,) = result.breakages
    assert [culprit.name for culprit in breakage.culprits] == ["torchao"]
    # Neither a set of the search nor its name is left.
    assert engine.find("truetag-test-nightly:bisect") is None


def say(name: str, text: str) -> None:
    logging.getLogger("truetag.tests").warning("%s %s", name, text)
