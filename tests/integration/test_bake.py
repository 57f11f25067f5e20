"""docker-bake.json, read and built by Debian's own buildx, on an engine that knows named contexts (trixie's)."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from images.building import bake, records
from images.building.bake import BakeOptions, Rendered
from images.context import base_images
from images.context.base_context import Origin
from images.context.base_images import AcquiredBase
from images.context.hosting import host_settings
from images.engine import ContainerSpec, Engine, connect
from images.planning import plan
from tests.support.checkout import ROOT
from tests.support.debian_tools import BUILDX, unpacked
from tests.support.other_engine import Other
from tests.support.sources import SOURCES

pytestmark = pytest.mark.engine
NAMES = ("cu128-torch28", "cu128-torch28-axolotl", "cu126-torch27", "cu126-torch25")


@pytest.fixture(scope="session")
def buildx() -> str:
    return str(unpacked("docker-buildx") / BUILDX)


@pytest.fixture(scope="module")
def modern(trixie: Other) -> Iterator[Engine]:
    with connect(trixie.url) as found:
        yield found


@pytest.fixture(scope="module")
def base(engine: Engine, base: AcquiredBase, modern: Engine, trixie: Other) -> AcquiredBase:
    """The shared engine's, where it was made here: making it again would show nothing."""
    if base.origin is Origin.BOOTSTRAPPED:
        trixie.take(base.reference, engine)
    wanted = next(row for row in plan.bases(SOURCES) if row.key == "bookworm")
    return base_images.acquire(modern, wanted, pinned={}, host=host_settings(), say=print)


def buildx_bake(buildx: str, folder: Path, *arguments: str, url: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "BUILDX_CONFIG": str(folder / ".buildx"), **({"DOCKER_HOST": url} if url else {})}
    command = [buildx, "bake", "--progress=plain", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def our_bake(folder: Path, *arguments: str) -> Any:
    """What the command writes."""
    command = [sys.executable, "-m", "images", "bake", *arguments, "--out", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / bake.FILE).read_text())


def test_buildx_reads_it_as_it_is_meant(buildx: str, tmp_path: Path) -> None:
    place = "registry.test/images"
    cache = f"type=registry,ref={place}/cache:{{target}},mode=max"
    written = our_bake(
        tmp_path, *NAMES, "--to", place, "--cache-from", cache, "--cache-to", cache, "--provenance", "max"
    )
    read = json.loads(buildx_bake(buildx, tmp_path, "--print").stdout)
    assert read["group"] == {"default": {"targets": list(NAMES)}}
    assert set(read["target"]) == set(written["target"]), "every shared target is reached from an image"
    for name in NAMES:
        found = read["target"][name]
        assert found["tags"] == [f"{place}:{name}-candidate"] and found["output"] == ["type=registry"]
        assert found["attest"] == ["type=provenance,mode=max"] and found["platforms"] == ["linux/amd64"]
        assert found["cache-to"] == [f"type=registry,ref={place}/cache:{name},mode=max"] == found["cache-from"]
        assert found["contexts"] == written["target"][name]["contexts"]
        assert (tmp_path / found["context"] / found["dockerfile"]).is_file()
    shared = {name: one for name, one in read["target"].items() if name not in NAMES}
    assert {one["target"] for one in shared.values()} >= {"system", "tools", "toolkit", "libraries"}
    assert all(one.get("tags") is None for one in shared.values())
    only = json.loads(buildx_bake(buildx, tmp_path, "--print", "profile-axolotl").stdout)
    assert set(only["target"]) & set(NAMES) == {"cu128-torch28-axolotl"}


def thin(base: AcquiredBase, name: str, word: bytes = b"shared\n") -> dict[str, bytes]:
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


def test_a_shared_stage_is_built_once_and_the_image_is_that_of_its_own_context(
    buildx: str, modern: Engine, base: AcquiredBase, tmp_path: Path
) -> None:
    contexts = {name: thin(base, name) for name in ("one", "two")}
    content = _written(contexts, tmp_path)
    (shared,) = set(content["target"]) - set(contexts)
    assert content["target"]["two"]["contexts"] == {"torch": f"target:{shared}"}
    log = buildx_bake(buildx, tmp_path, url=modern.facts.url).stderr
    assert len({line.split()[0] for line in log.splitlines() if "RUN cat /below" in line}) == 1, log
    try:
        for name, files in contexts.items():
            baked = modern.inspect(f"{name}-candidate")
            plain = modern.inspect(modern.build(files, f"{name}-plain", network="none").image_id)
            assert (len(baked.layers), baked.labels, baked.env) == (len(plain.layers), plain.labels, plain.env)
            assert _holds(modern, baked.id) == _holds(modern, plain.id) == f"shared\n{name}\n"
    finally:
        for name in contexts:
            modern.remove(f"{name}-candidate", force=True)
            modern.remove(f"{name}-plain", force=True)


def test_a_target_stands_where_its_stage_stood(buildx: str, modern: Engine, base: AcquiredBase, tmp_path: Path) -> None:
    """The links do something: one that is led elsewhere is followed."""
    content = _written({name: thin(base, name) for name in ("one", "two")}, tmp_path)
    (shared,) = set(content["target"]) - {"one", "two"}
    records.write_context(dict(thin(base, "three", b"led elsewhere\n")), tmp_path / "three" / "context")
    content["target"][shared]["context"] = "three/context"
    (tmp_path / bake.FILE).write_text(json.dumps(content))
    buildx_bake(buildx, tmp_path, "two", url=modern.facts.url)
    try:
        assert _holds(modern, "two-candidate") == "led elsewhere\ntwo\n"
    finally:
        modern.remove("two-candidate", force=True)


def _holds(engine: Engine, image: str) -> str:
    with engine.container(ContainerSpec(image, ["cat", "/torch", "/own"])) as box:
        return box.run(300).stdout


def _written(contexts: Mapping[str, Mapping[str, bytes]], folder: Path) -> Any:
    rendered = []
    for name, files in contexts.items():
        records.write_context(dict(files), folder / name / "context")
        digests = {path: hashlib.sha256(data).hexdigest() for path, data in files.items()}
        rendered.append(Rendered(name=name, profile=None, dockerfile=files["Dockerfile"].decode(), digests=digests))
    content = bake.bake(rendered, BakeOptions())
    (folder / bake.FILE).write_text(json.dumps(content))
    return content


def test_our_own_contexts_bake_up_to_the_toolkit(
    buildx: str, modern: Engine, base: AcquiredBase, tmp_path: Path
) -> None:
    """Two images of one toolkit: what they share is baked from the product's own command, and its assembler runs."""
    content = our_bake(tmp_path, "cu126-torch27", "cu126-torch25", "--base", base.reference)
    (shared,) = (name for name, one in content["target"].items() if one.get("target") == "toolkit")
    told = tmp_path / "metadata.json"
    kept = ("--metadata-file", str(told), "--set", f"{shared}.output=type=docker")
    buildx_bake(buildx, tmp_path, *kept, shared, url=modern.facts.url)
    found = {name: one.get("containerimage.config.digest") for name, one in json.loads(told.read_text()).items()}
    baked = found[shared]
    try:
        with modern.container(ContainerSpec(baked, ["/usr/local/cuda-12.6/bin/ptxas", "--version"])) as box:
            assert "release 12.6, V12.6.85" in box.run(300).stdout
    finally:
        for digest in filter(None, found.values()):
            modern.remove(digest, force=True)
