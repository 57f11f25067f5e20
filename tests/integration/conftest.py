"""One engine for all engine tests, reached as the product reaches it.

Tests fail without one; they are not skipped.
"""

import json
import logging
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from images.config.paths import CHECKOUT
from images.context import base_images
from images.context import labels as image_labels
from images.context.hosting import host_settings
from images.context.labels import BaseContext
from images.engine import Engine, ImageInfo, private_engine
from images.host import cache as host_cache
from images.locking import lock_file
from images.planning import plan
from images.planning.image import Image
from images.validation.claims import image_claims
from images.validation.claims.context import ClaimContext
from tests.support import commands, debian_tools, sources
from tests.support.broken_images import NAME
from tests.support.engine_contents import containers
from tests.support.other_engine import Kind, Other, other_engine
from tests.support.ray_cluster import ray_cluster
from tests.support.slurm_cluster import Slurm, slurm_cluster
from tests.support.sources import SOURCES
from validate.claims import ClaimSet

say = logging.getLogger("truetag.tests").warning


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    with private_engine.open_engine(None, on_progress=say) as found:
        yield found
        left = [container.id for container in containers(found, f"dev.truetag.run={found.run_id}")]
        assert not left, f"containers left behind: {left}"


@pytest.fixture(scope="session")
def trixie() -> Iterator[Other]:
    """A second engine, empty and newer (26.1), in a root and a network of its own."""
    with other_engine("trixie") as found:
        yield found


@pytest.fixture(scope="session", params=list(Kind))
def sid(request: pytest.FixtureRequest) -> Iterator[Other]:
    """An engine of Debian sid (28.5), empty at first, of each kind.

    All tests of a kind run on one worker, which starts it once (tests/conftest.py).
    """
    with other_engine("sid", request.param) as running:
        yield running


@pytest.fixture(scope="session")
def base(engine: Engine) -> BaseContext:
    """Debian bookworm, pulled or bootstrapped, kept by the engine from run to run."""
    bases = (one.image.base for one in plan.plan(SOURCES) if one.image)
    wanted = next(row for row in bases if row.key == "bookworm")
    return base_images.acquire(
        engine, wanted, root=CHECKOUT.root, host=host_settings(), on_progress=say
    )


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Debian's docker-registry on loopback, without a login: `HOST:PORT`."""
    with debian_tools.registry(tmp_path_factory.mktemp("registry") / "here") as host:
        yield host


@pytest.fixture(scope="session")
def staging(registry: str) -> str:
    return f"{registry}/fleet"


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    nodes = {"n1": "", "n2": "", "n3": "h100:2", "n4": "a100:1"}
    with slurm_cluster(tmp_path_factory.mktemp("slurm"), nodes) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def ray() -> Iterator[Mapping[str, str]]:
    """Yield the variables by which a command talks to a cluster with two engines."""
    with ray_cluster() as address:
        yield {"RAY_ADDRESS": address}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of layers that were compressed, for all tests that don't ask for what happens without it."""
    return tmp_path_factory.mktemp("layers")


@pytest.fixture
def place(request: pytest.FixtureRequest) -> str:
    """A name for a repository that no other test of the file uses."""
    return re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[:80].strip("-")


@pytest.fixture(scope="session")
def image() -> Image:
    return sources.image(NAME)


@pytest.fixture(scope="session")
def out(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """One folder for all workers of a run."""
    ours = tmp_path_factory.getbasetemp()
    folder = (ours if worker_id == "master" else ours.parent) / "out"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def built(engine: Engine, out: Path) -> Mapping[str, Any]:
    """Return build.json of the base image, which is built as a person does it.

    The worker that comes first builds it for all. The engine keeps the big layers from run to run.
    """
    kept = out / "base_image.json"
    with host_cache.hold_lock(out / "base_image.lock"):
        if not kept.is_file():
            finished = commands.run("build", NAME, "--out", str(out), DOCKER_HOST=engine.facts.url)
            assert finished.returncode == 0, finished.stdout[-6000:] + finished.stderr[-2000:]
            shutil.copy(out / NAME / "build.json", kept)
    found: dict[str, Any] = json.loads(kept.read_text())
    return found


@pytest.fixture(scope="session")
def base_image(engine: Engine, built: Mapping[str, Any]) -> ImageInfo:
    return engine.inspect(built["digest"])


@pytest.fixture(scope="session")
def claims(image: Image, base_image: ImageInfo) -> ClaimSet:
    missing = image_labels.declared_missing(image, base_image.labels)
    lock = lock_file.read(image, CHECKOUT.locks)
    return image_claims(
        ClaimContext.from_lock(image, lock, SOURCES.facts, missing=missing, custom_base=False)
    )
