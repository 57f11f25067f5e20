"""A nightly run on the real engine: a torchao that was built for another torch is told from a harmless change."""

import logging
from datetime import UTC, datetime
from pathlib import Path

from images.building.contexts import BuildOptions
from images.config.paths import CHECKOUT
from images.context.hosting import host_settings
from images.engine import Engine, ImageInfo
from images.engine.progress import Progress
from images.locking import lock_file
from images.nightly import results, sets
from images.nightly import run as nightly
from images.nightly.canary import Locked
from images.nightly.results import Outcome
from images.nightly.sets import NightlyOptions, State
from images.planning import plan
from images.planning.image import Image
from tests.support.broken_images import NAME
from tests.support.sources import SOURCES
from validate.claims import Tier

MOVING = {"torchao": "==0.14.1", "liger-kernel": ">=0.6.4,<0.7"}
"""0.14.1 is built for torch 2.9; the image has 2.7."""
LABELLED = tuple(f"{NAME}-{label}-" for label in ("control", "canary", "bisect"))


def test_the_package_that_breaks_a_canary_is_named(
    engine: Engine, image: Image, parent: ImageInfo, tmp_path: Path
) -> None:
    (planned,) = plan.select([NAME], SOURCES)
    build = BuildOptions(sources=SOURCES, host=host_settings(), out=tmp_path, cache=tmp_path)
    controls = {NAME: Locked(image=image, lock=lock_file.read(image, CHECKOUT.locks))}
    with Progress(plain=True) as progress:
        options = NightlyOptions(
            sources=SOURCES,
            validate=sets.laid_over(engine, controls, build, progress),
            state=State(tmp_path / "state.jsonl", resume=False),
            now=lambda: datetime.now(UTC),
            results=tmp_path / "results",
            ranges={pin.name: MOVING.get(pin.name, f"=={pin.version}") for pin in image.pins},
            tiers=[Tier.STATIC],
            progress=say,
        )
        found = nightly.run(planned, image, options)
    assert found.control.outcome is Outcome.PASS
    assert found.canary.outcome is Outcome.FAIL
    assert {one.name for one in found.canary.changes if one.pinned} == set(MOVING)
    assert [[one.name for one in line.culprits] for line in found.breakages] == [["torchao"]]
    assert found.breakages[0].sentence.startswith("torchao 0.11.0 -> 0.14.1 breaks S")
    assert found.proposed is None
    assert results.read(tmp_path / "results") == (found.control, found.canary, *found.breakages)
    found = engine.sdk.images(filters={"label": "dev.truetag.image"})
    left = [tag for one in found for tag in one["RepoTags"] or () if tag.startswith(LABELLED)]
    assert not left, "what was laid over it loses its name"


def say(name: str, text: str) -> None:
    logging.getLogger("truetag.tests").warning("%s %s", name, text)
