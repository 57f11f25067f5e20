"""Names on a real engine: only what was judged gets one, whatever other builds do meanwhile."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from images.building import naming
from images.context import base_images
from images.context.hosting import HostSettings
from images.engine import Engine
from images.errors import UserError
from images.planning import plan
from tests.support.sources import SOURCES

pytestmark = pytest.mark.engine
NAME = "truetag-test-named"


def image(engine: Engine, which: str, tag: str | None = None) -> str:
    return engine.build(
        {"Dockerfile": f"FROM scratch\nLABEL which={which}\n".encode()}, tag
    ).image_id


def test_the_image_that_was_judged_gets_the_name_and_no_other(engine: Engine) -> None:
    judged = image(engine, "judged", f"{NAME}-candidate")
    later = image(engine, "later", f"{NAME}-candidate")
    try:
        naming.give_name(engine, judged, NAME)
        assert engine.inspect(NAME).handle == judged
        assert engine.inspect(f"{NAME}-candidate").handle == later, (
            "another build's candidate is its own"
        )
        naming.give_name(engine, later, NAME)
        naming.give_name(engine, later, NAME)
        assert engine.inspect(NAME).handle == later
        assert engine.find(f"{NAME}-candidate") is None
    finally:
        for reference in (NAME, f"{NAME}-candidate", judged, later):
            engine.remove(reference, force=True)


def test_builds_at_once_get_their_base_one_after_the_other(engine: Engine) -> None:
    """Each would bootstrap it, and run dpkg, at the same time."""
    row = next(one.image.base for one in plan.plan(SOURCES) if one.image)
    inside: list[int] = []
    most: list[int] = []

    def say(text: str) -> None:
        if text.startswith("waits"):
            return
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.5)
        inside.pop()

    def get(_: int) -> None:
        with pytest.raises(UserError):
            base_images.acquire(
                engine,
                row,
                "localhost:9/no/such:1",
                root=SOURCES.workspace.root,
                host=HostSettings(),
                on_progress=say,
            )

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(get, range(3)))
    assert len(most) == 3 and max(most) == 1
