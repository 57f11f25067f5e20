"""docker-bake.json is read and built by Debian's own buildx.

The engine is trixie's, which knows named contexts.

And normalised timestamps, which give the same layer on it as on this machine's.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from images.building import run_files
from images.config.names import ImageName
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
NAMES = ("cu128-torch28", "cu128-torch28-axolotl", "cu130-torch211", "cu130-torch211-arm64")


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


def buildx_bake(
    buildx: str, folder: Path, *arguments: str, url: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run `buildx bake` in a folder. `url`: the engine; empty: it asks none."""
    environment = {**os.environ, "BUILDX_CONFIG": str(folder / ".buildx")}
    if url:
        environment["DOCKER_HOST"] = url
    command = [buildx, "bake", "--progress=plain", *arguments]
    process = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return process


def our_bake(folder: Path, *arguments: str) -> Any:
    """Run `render --bake`, and return the docker-bake.json that it writes."""
    process = commands.run("render", "--bake", *arguments, "--out", str(folder))
    assert process.returncode == 0, process.stderr
    return json.loads((folder / run_files.BAKE).read_text())


def test_buildx_reads_it_as_it_is_meant(buildx: str, tmp_path: Path) -> None:
    place = "registry.test/images"
    cache = f"type=registry,ref={place}/cache:x,mode=max"
    our_bake(tmp_path, *NAMES, "--to", place)

    set_cache = ("--set", f"{NAMES[0]}.cache-to={cache}")
    all_images = json.loads(buildx_bake(buildx, tmp_path, "--print", *set_cache).stdout)
    one_image = json.loads(buildx_bake(buildx, tmp_path, "--print", NAMES[1]).stdout)

    assert all_images["group"] == {"default": {"targets": list(NAMES)}}
    assert set(all_images["target"]) == set(NAMES)
    for name in NAMES:
        target = all_images["target"][name]
        assert target["tags"] == [f"{place}:{name}-candidate"]
        assert target["output"] == ["type=registry"]
        assert target["attest"] == ["type=provenance,disabled=true"]
        assert target["platforms"] == [str(ImageName.parse(name).platform)]
        assert target.get("cache-to") == ([cache] if name == NAMES[0] else None)
        assert (tmp_path / target["context"] / target["dockerfile"]).is_file()
    assert set(one_image["target"]) == {NAMES[1]}


def thin(base: BaseContext, name: str, word: bytes = b"shared\n") -> dict[str, bytes]:
    """Return a context in the form of ours, whose steps need no network."""
    dockerfile = f"""\
FROM {base.reference} AS system
RUN --mount=type=bind,source=data,target=/data cat /data/word > /below
FROM system AS torch
RUN cat /below > /torch
FROM torch
LABEL name={name}
RUN echo {name} > /own
"""
    return {"Dockerfile": dockerfile.encode(), "data/word": word}


def test_a_baked_image_is_that_of_its_context(
    buildx: str, modern: Engine, base: BaseContext, tmp_path: Path
) -> None:
    contexts = {name: thin(base, name) for name in NAMES[:2]}
    images = [planned.image for planned in plan.select(list(contexts), SOURCES) if planned.image]
    for name, files in contexts.items():
        run_files.write_context(dict(files), tmp_path / name / "context")
    (tmp_path / run_files.BAKE).write_text(json.dumps(run_files.bake(images)))
    buildx_bake(buildx, tmp_path, url=modern.facts.url)
    try:
        for name, files in contexts.items():
            baked = modern.inspect(f"{name}-candidate")
            plain = modern.inspect(modern.build(files, f"{name}-plain", network="none").image_id)
            assert len(baked.layers) == len(plain.layers)
            assert (baked.labels, baked.env) == (plain.labels, plain.env)
            assert content_of(modern, baked.handle) == f"shared\n{name}\n"
            assert content_of(modern, plain.handle) == f"shared\n{name}\n"
    finally:
        for name in contexts:
            modern.remove(f"{name}-candidate", force=True)
            modern.remove(f"{name}-plain", force=True)


def content_of(engine: Engine, image: str) -> str:
    """Return what the steps of a thin image have written."""
    with engine.container(ContainerSpec(image, ["cat", "/torch", "/own"])) as container:
        return container.run(300).stdout


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


def test_our_contexts_bake_up_to_the_toolkit(
    buildx: str, modern: Engine, base: BaseContext, tmp_path: Path
) -> None:
    """The file comes from our own command, and the assembler of the baked image runs."""
    name = "cu126-torch27"
    metadata = tmp_path / "metadata.json"
    up_to_toolkit = ("--set", f"{name}.output=type=docker", "--set", f"{name}.target=toolkit")
    our_bake(tmp_path, name, "--base", base.reference)

    options = ("--metadata-file", str(metadata), *up_to_toolkit)
    buildx_bake(buildx, tmp_path, *options, name, url=modern.facts.url)

    baked = json.loads(metadata.read_text())[name]["containerimage.config.digest"]
    assembler = ["/usr/local/cuda-12.6/bin/ptxas", "--version"]
    try:
        with modern.container(ContainerSpec(baked, assembler)) as container:
            assert "release 12.6, V12.6.85" in container.run(300).stdout
    finally:
        modern.remove(baked, force=True)
