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
    return str(unpacked("docker-buildx") / BUILDX)


@pytest.fixture(scope="module")
def modern(trixie: Other) -> Iterator[Engine]:
    with connect(trixie.url) as found:
        yield found


@pytest.fixture(scope="module")
def base(engine: Engine, base: BaseContext, modern: Engine, trixie: Other) -> BaseContext:
    """The shared engine's, where it was made here: making it again would show nothing."""
    if base.origin == "bootstrapped":
        trixie.take(base.reference, engine)
    bases = (one.image.base for one in plan.plan(SOURCES) if one.image)
    wanted = next(row for row in bases if row.key == "bookworm")
    return base_images.acquire(
        modern, wanted, root=SOURCES.workspace.root, host=host_settings(), on_progress=print
    )


def buildx_bake(
    buildx: str, folder: Path, *arguments: str, url: str = ""
) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "BUILDX_CONFIG": str(folder / ".buildx"),
        **({"DOCKER_HOST": url} if url else {}),
    }
    command = [buildx, "bake", "--progress=plain", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def our_bake(folder: Path, *arguments: str) -> Any:
    """What the command writes."""
    done = commands.run("render", "--bake", *arguments, "--out", str(folder))
    assert done.returncode == 0, done.stderr
    return json.loads((folder / run_files.BAKE).read_text())


def test_buildx_reads_it_as_it_is_meant(buildx: str, tmp_path: Path) -> None:
    place = "registry.test/images"
    cache = f"type=registry,ref={place}/cache:x,mode=max"
    our_bake(tmp_path, *NAMES, "--to", place)
    read = json.loads(
        buildx_bake(buildx, tmp_path, "--print", "--set", f"{NAMES[0]}.cache-to={cache}").stdout
    )
    assert read["group"] == {"default": {"targets": list(NAMES)}} and set(read["target"]) == set(
        NAMES
    )
    for name in NAMES:
        found = read["target"][name]
        assert found["tags"] == [f"{place}:{name}-candidate"] and found["output"] == [
            "type=registry"
        ]
        assert found["attest"] == ["type=provenance,disabled=true"] and found["platforms"] == [
            str(ImageName.parse(name).platform)
        ]
        assert found.get("cache-to") == ([cache] if name == NAMES[0] else None)
        assert (tmp_path / found["context"] / found["dockerfile"]).is_file()
    only = json.loads(buildx_bake(buildx, tmp_path, "--print", NAMES[1]).stdout)
    assert set(only["target"]) == {NAMES[1]}


def thin(base: BaseContext, name: str, word: bytes = b"shared\n") -> dict[str, bytes]:
    """A context in the form of ours, without a network."""
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
    images = [one.image for one in plan.select(list(contexts), SOURCES) if one.image]
    for name, files in contexts.items():
        run_files.write_context(dict(files), tmp_path / name / "context")
    (tmp_path / run_files.BAKE).write_text(json.dumps(run_files.bake(images)))
    buildx_bake(buildx, tmp_path, url=modern.facts.url)
    try:
        for name, files in contexts.items():
            baked = modern.inspect(f"{name}-candidate")
            plain = modern.inspect(modern.build(files, f"{name}-plain", network="none").image_id)
            assert (len(baked.layers), baked.labels, baked.env) == (
                len(plain.layers),
                plain.labels,
                plain.env,
            )
            assert (
                _holds(modern, baked.handle) == _holds(modern, plain.handle) == f"shared\n{name}\n"
            )
    finally:
        for name in contexts:
            modern.remove(f"{name}-candidate", force=True)
            modern.remove(f"{name}-plain", force=True)


def _holds(engine: Engine, image: str) -> str:
    with engine.container(ContainerSpec(image, ["cat", "/torch", "/own"])) as box:
        return box.run(300).stdout


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
        for one in (engine, modern):
            one.build(dockerfile, tag, no_cache=True)
        info = engine.inspect(tag)
        found = layers_of.find_layers(engine, info)
        if not found:
            pytest.skip("the engine's files are not here to be read")
        assert tuple(map(layers_of.canonical_diff_id, found.values())) == modern.inspect(tag).layers
    finally:
        for one in (engine, modern):
            one.untag(tag)


def test_our_contexts_bake_up_to_the_toolkit(
    buildx: str, modern: Engine, base: BaseContext, tmp_path: Path
) -> None:
    """Baked from the product's own command, and its assembler runs."""
    name = "cu126-torch27"
    our_bake(tmp_path, name, "--base", base.reference)
    told = tmp_path / "metadata.json"
    kept = (
        "--metadata-file",
        str(told),
        "--set",
        f"{name}.output=type=docker",
        "--set",
        f"{name}.target=toolkit",
    )
    buildx_bake(buildx, tmp_path, *kept, name, url=modern.facts.url)
    baked = json.loads(told.read_text())[name]["containerimage.config.digest"]
    try:
        with modern.container(
            ContainerSpec(baked, ["/usr/local/cuda-12.6/bin/ptxas", "--version"])
        ) as box:
            assert "release 12.6, V12.6.85" in box.run(300).stdout
    finally:
        modern.remove(baked, force=True)
