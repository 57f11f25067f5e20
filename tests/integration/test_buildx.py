"""Debian's own buildx builds what `render` writes.

The engine is trixie's, which knows named contexts. And normalised timestamps, which give the same
layer on it as on this machine's.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from images.context import base_images
from images.context.hosting import host_settings
from images.context.labels import BaseContext
from images.engine import ContainerSpec, Engine, connect
from images.engine import layers as layers_of
from images.planning import plan
from tests.support import commands
from tests.support.debian_tools import BUILDX, unpacked
from tests.support.other_engine import Other
from tests.support.sources import SOURCES

pytestmark = pytest.mark.engine


@pytest.fixture(scope="session")
def buildx() -> str:
    """Return Debian's buildx."""
    return str(unpacked("docker-buildx") / BUILDX)


@pytest.fixture(scope="module")
def modern(trixie: Other) -> Iterator[Engine]:
    with connect(trixie.url) as modern_engine:
        yield modern_engine


@pytest.fixture(scope="module")
def base(engine: Engine, base: BaseContext, modern: Engine, trixie: Other) -> BaseContext:
    """Return the newer engine's base image.

    If the shared engine made one here, it is taken: to make it again would show nothing.
    """
    if base.origin == "bootstrapped":
        trixie.take(base.reference, engine)
    bases = [planned.image.base for planned in plan.plan(SOURCES) if planned.image]
    bookworm = next(row for row in bases if row.key == "bookworm")
    return base_images.acquire(
        modern, bookworm, root=SOURCES.workspace.root, host=host_settings(), on_progress=print
    )


def test_a_layer_counts_the_same_whichever_engine_wrote_it(
    engine: Engine, modern: Engine, base: BaseContext
) -> None:
    """The other engine (26.1) writes layers in the form by which both are compared.

    This machine's engine may write names and kinds of files in another form.
    """
    steps = (
        "mkdir -p /opt/a/b && echo x >/opt/a/f && ln -s f /opt/a/l && echo y >/opt/a/b/g"
        " && chmod 4755 /opt/a/f"
    )
    dates = (
        "chgrp 42 /opt/a/b/g && touch -h -d @0 /opt/a/l"
        " && touch -d @0 /opt/a/f /opt/a/b/g /opt/a/b /opt/a /opt"
    )
    dockerfile = {"Dockerfile": f"FROM {base.reference}\nRUN {steps} && {dates}\n".encode()}
    tag = "truetag-test-timestamps:1"
    try:
        for builder in (engine, modern):
            builder.build(dockerfile, tag, no_cache=True)

        layers = layers_of.find_layers(engine, engine.inspect(tag))
        if not layers:
            pytest.skip("the engine's files are not here to be read")
        canonical = tuple(layers_of.canonical_diff_id(layer) for layer in layers.values())

        assert canonical == modern.inspect(tag).layers
    finally:
        for builder in (engine, modern):
            builder.untag(tag)


def test_buildx_builds_our_context_up_to_the_toolkit(
    buildx: str, modern: Engine, base: BaseContext, tmp_path: Path
) -> None:
    """The context comes from our own command, and the assembler of the built image runs."""
    name = "cu126-torch27"
    metadata = tmp_path / "metadata.json"
    rendered = commands.run("render", name, "--base", base.reference, "--out", str(tmp_path))
    assert rendered.returncode == 0, rendered.stderr

    options = ("--provenance=false", "--target=toolkit", "--load")
    process = subprocess.run(
        [buildx, "build", *options, f"--metadata-file={metadata}", f"{name}/context"],
        cwd=tmp_path,
        env={**os.environ, "DOCKER_HOST": modern.facts.url, "BUILDX_CONFIG": str(tmp_path / "x")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert process.returncode == 0, process.stderr[-3000:]
    built = json.loads(metadata.read_text())["containerimage.config.digest"]
    assembler = ["/usr/local/cuda-12.6/bin/ptxas", "--version"]
    try:
        with modern.container(ContainerSpec(built, assembler)) as container:
            assert "release 12.6, V12.6.85" in container.run(300).stdout
    finally:
        modern.remove(built, force=True)
