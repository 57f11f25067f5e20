"""The measurement of cold builds works, and leaves nothing in the engine."""

import re

import pytest

from images.context.labels import BaseContext
from images.engine import Engine, connect
from images.reproduction.cold_builds import build_cache
from tests.support import commands
from tests.support.broken_images import NAME
from tests.support.other_engine import Other

pytestmark = pytest.mark.engine


def test_a_short_cold_build_is_measured_on_all_sides_and_leaves_nothing(
    engine: Engine, base: BaseContext, trixie: Other
) -> None:
    """It runs on an engine of its own, as it removes what others add to the build cache."""
    if base.origin == "bootstrapped":
        trixie.take(base.reference, engine)  # making it again would show nothing
    with connect(trixie.url) as other:
        before = {record.id for record in build_cache(other)}
        arguments = (NAME, "--short", "--engine", trixie.url)

        finished = commands.tool("cold_build", *arguments)

        assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr[-3000:]
        assert {record.id for record in build_cache(other)} == before
        assert not other.sdk.images("truetag-cold-build")
    sides = re.findall(r"^\| (.+?) \| [0-9.]+ s \|", finished.stdout, re.MULTILINE)
    assert sides == ["ours", "conventional", "lower bound"]
