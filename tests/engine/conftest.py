"""One engine for all engine tests, reached as the product reaches it: none to be had is a failure, not a skip."""

import logging
from collections.abc import Iterator

import pytest

from images import bases, matrix, plan, private_engine
from images.bases import AcquiredBase
from images.engine import Engine
from images.hosting import host_settings

say = logging.getLogger("truetag.tests").warning


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    with private_engine.open_engine(None, say=say) as found:
        yield found
        left = [container.id for container in found.containers(f"dev.truetag.run={found.run}")]
        assert not left, f"containers left behind: {left}"


@pytest.fixture(scope="session")
def base(engine: Engine) -> AcquiredBase:
    """Debian bookworm, pulled or bootstrapped, kept by the engine from run to run."""
    wanted = next(row for row in plan.bases(matrix.load()) if row.key == "bookworm")
    return bases.acquire(engine, wanted, pinned={}, host=host_settings(), say=say)
