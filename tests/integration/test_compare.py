"""`compare` reads two images of a real engine: their packages, layers and sizes."""

import json
from collections.abc import Iterator

import pytest

from images.context.labels import BaseContext
from images.engine import Engine
from tests.support.commands import call
from tests.support.small_base import python_base
from tests.support.thin import EINOPS

pytestmark = pytest.mark.engine

SITE = "/usr/local/lib/python3.11/dist-packages"


@pytest.fixture
def images(engine: Engine, base: BaseContext) -> Iterator[list[str]]:
    """Two images with einops, the second with another build of the same version."""
    tags = []
    with python_base(engine, base) as python:
        for tag, version in (("plain", "0.8.2"), ("local", "0.8.2+cpu")):
            files = {}
            for path, content in EINOPS.items():
                own_path = path.replace("0.8.2", version)
                files[f"site/{own_path}"] = content.replace(b"0.8.2", version.encode())
            dockerfile = f"FROM {python}\nCOPY site {SITE}\nUSER 1001\n"
            files["Dockerfile"] = dockerfile.encode()
            reference = f"truetag-test-compare:{tag}"
            engine.build({**files}, reference, network="none")
            tags.append(reference)
        yield tags
        for tag in tags:
            engine.untag(tag)


def test_two_images_of_an_engine_side_by_side(engine: Engine, images: list[str]) -> None:
    finished = call("compare", *images, "--engine", engine.facts.url, "--json")

    assert finished.returncode == 0, finished.stderr
    comparison = json.loads(finished.stdout)
    # All packages are read, so one that both have at one version is no change.
    assert comparison["packages"] == [
        {"name": "einops", "before": "0.8.2", "after": "0.8.2+cpu", "pinned": False}
    ]
    assert comparison["system_packages"] == []
    states = {layer["layer"]: layer["state"] for layer in comparison["layers"]}
    assert states == {"base": "same", "base-2": "changed", "settings": "same"}
    sizes = {layer["layer"]: layer["before"] for layer in comparison["layers"]}
    assert sizes["base"] > sizes["base-2"] > 0
    assert comparison["claims"] == []
    assert "`nox -s validate -- NAME --image truetag-test-compare:plain`" in " ".join(
        finished.stderr.split()
    )


def test_an_image_that_the_engine_lacks_is_named(engine: Engine) -> None:
    finished = call(
        "compare", "truetag-test-compare:nosuch", "cu126-torch25", "--engine", engine.facts.url
    )

    assert finished.returncode == 2
    assert "the engine has no such image" in " ".join(finished.stderr.split())
