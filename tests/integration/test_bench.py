"""The benchmark on a real engine: what it builds leaves nothing, and layers weigh what their bytes weigh."""

import gzip
import io
import tarfile
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from images.bench import loopback, parts, sides, squeeze
from images.bench.accounting import Layer
from images.bench.sides import Kitchen
from images.config import matrix
from images.context.base_images import AcquiredBase
from images.context.hosting import HostSettings
from images.context.render import Context
from images.engine import Engine, ignore
from images.engine.buildkit import LogLine
from images.engine.progress import Progress
from images.errors import UserError

STEP = """\
FROM {base}
RUN --mount=type=cache,id=truetag-uv,target=/run/uv \\
    --mount=type=bind,source=scripts,target=/run/scripts \\
    sh /run/scripts/step.sh
RUN echo more >/more
RUN true
"""


def context(base: AcquiredBase, script: str) -> Context:
    return {"Dockerfile": STEP.format(base=base.reference).encode(), "scripts/step.sh": script.encode()}


@pytest.fixture
def kitchen(engine: Engine) -> Iterator[Kitchen]:
    with sides.kitchen(engine, HostSettings(), ignore) as it:
        yield it


def test_a_kitchen_leaves_neither_image_nor_build_cache(engine: Engine, base: AcquiredBase) -> None:
    with sides.kitchen(engine, HostSettings(), ignore) as it:
        it.build(context(base, "echo kept >/run/uv/file; echo made >/made"), it.word, cold=True)
        assert engine.find(it.word)
        made = sides.traces(engine.build_cache(), it.word)
        assert {"cached mount" in record.made_by for record in made} == {True, False}
        assert len(made) >= 3  # the first step, the one above it, the cache of wheels
    assert engine.find(it.word) is None
    assert sides.traces(engine.build_cache(), it.word) == []


def test_a_cold_build_finds_an_empty_cache_of_wheels(kitchen: Kitchen, base: AcquiredBase) -> None:
    script = '[ -z "$(ls /run/uv)" ] && echo wheel >/run/uv/wheel'
    kitchen.build(context(base, script), kitchen.word, cold=True)
    sides.clear(kitchen)
    kitchen.build(context(base, script), kitchen.word, cold=True)


def test_forgetting_steps_keeps_the_image(engine: Engine, kitchen: Kitchen, base: AcquiredBase) -> None:
    kitchen.build(context(base, "echo made >/made"), kitchen.word)
    sides.forget_steps(kitchen)
    assert sides.traces(engine.build_cache(), kitchen.word) == []
    assert engine.inspect(kitchen.word)


def test_what_is_built_unmarked_is_forgotten_too(engine: Engine, kitchen: Kitchen, base: AcquiredBase) -> None:
    before = {record.id for record in engine.build_cache()}
    with kitchen.nothing_at_all_kept():
        kitchen.build(context(base, f"echo {kitchen.word} >/made"), kitchen.word, marked=False)
        assert engine.find(kitchen.word)
    assert engine.find(kitchen.word) is None
    new = [record for record in engine.build_cache() if record.id not in before]
    assert not [record for record in new if "step.sh" in record.made_by or "/more" in record.made_by]


def test_steps_on_what_is_kept_are_run_again_each_time(engine: Engine, kitchen: Kitchen, base: AcquiredBase) -> None:
    below = context(base, "echo made >/made")
    more = b"RUN --mount=type=bind,source=scripts,target=/run/scripts \\\n    sh /run/scripts/step.sh >/again\n"
    above = {**below, "Dockerfile": STEP.format(base=base.reference).encode() + more}
    kitchen.build(below, kitchen.word)
    engine.untag(kitchen.word)
    for _ in range(2):
        with kitchen.nothing_new_kept():
            steps = kitchen.build(above, kitchen.word).steps
        ran = {step.name: step.cached for step in steps if "] RUN" in step.name}
        assert [*ran.values()] == [True, True, True, False], ran
    assert engine.find(kitchen.word) is None


def test_what_is_built_anew_takes_no_step_from_the_cache_and_leaves_it_as_it_was(
    kitchen: Kitchen, base: AcquiredBase
) -> None:
    def cached(anew: bool) -> set[bool]:
        with kitchen.nothing_new_kept():
            steps = kitchen.build(context(base, "echo made >/made"), kitchen.word, anew=anew).steps
        return {step.cached for step in steps if "] RUN" in step.name}

    kitchen.build(context(base, "echo made >/made"), kitchen.word)
    kitchen.engine.untag(kitchen.word)
    assert cached(anew=True) == {False}
    assert cached(anew=False) == {True}


def sealed(base: AcquiredBase, content: str) -> Context:
    """A step that makes the same layer each time."""
    step = f"echo {content} >/opt/{content} && touch -d @0 /opt/{content} /opt"
    return {"Dockerfile": f"FROM {base.reference}\nRUN {step}\n".encode()}


def test_what_is_built_anew_leaves_no_files_that_the_engine_forgot(
    engine: Engine, kitchen: Kitchen, base: AcquiredBase
) -> None:
    folder = Path(engine.facts.data_root, "overlay2")
    if not engine.facts.local or not folder.is_dir():
        pytest.skip("the engine's files are not here to be looked at")
    content, held = uuid.uuid4().hex, f"{kitchen.word}-held"
    with kitchen.nothing_at_all_kept():
        kitchen.build(sealed(base, content), held, marked=False)
        try:
            with kitchen.nothing_new_kept():
                kitchen.build(sealed(base, content), kitchen.word, anew=True)
                assert engine.inspect(kitchen.word).layers[-1] == engine.inspect(held).layers[-1]
            assert len(list(folder.glob(f"*/diff/opt/{content}"))) == 1, "the held image's"
        finally:
            engine.untag(held)
    assert not list(folder.glob(f"*/diff/opt/{content}"))


def test_an_image_weighs_the_same_built_anew_and_as_builds_make_it(
    engine: Engine, kitchen: Kitchen, base: AcquiredBase
) -> None:
    bench = parts.Bench(engine=engine, host=HostSettings(), sources=matrix.load(), progress=Progress(), repeat=1)
    files = sealed(base, uuid.uuid4().hex)
    as_built: dict[str, Any] = {}
    anew: dict[str, Any] = {}
    parts._weigh_as_built(bench, kitchen, "one", files, base.reference, as_built)
    parts._weigh_anew(bench, kitchen, "one", files, base.reference, anew)
    assert as_built == anew and len(anew["images"]["one"]["layers"]) == 2


def test_an_image_is_pulled_with_all_its_layers_from_a_registry_here(
    engine: Engine, kitchen: Kitchen, base: AcquiredBase, tmp_path: Path
) -> None:
    kitchen.build(context(base, "head -c 3000000 /dev/urandom >/made"), kitchen.word)
    sides.forget_steps(kitchen)
    with sides.kitchen(engine, HostSettings(), ignore) as above:
        above.build({**context(base, "true"), "Dockerfile": STEP.format(base=kitchen.word).encode()}, above.word)
    kept = engine.inspect(base.reference).layers
    bench = parts.Bench(engine=engine, host=HostSettings(), sources=matrix.load(), progress=Progress(), repeat=2)
    with loopback.registry(tmp_path / "registry") as host:
        reference = f"{host}/image:1"
        pulls = parts.pulled_anew(bench, kitchen, reference, kept)
    assert [pull["layers"] for pull in pulls] == [3, 3]
    assert all(pull["bytes"] > 3_000_000 and pull["seconds"] > 0 for pull in pulls)
    assert engine.find(reference) is None and engine.find(kitchen.word) is None
    assert not (tmp_path / "registry").exists()


def test_a_pull_that_found_layers_here_is_no_measurement(
    engine: Engine, kitchen: Kitchen, base: AcquiredBase, tmp_path: Path
) -> None:
    kitchen.build(context(base, "head -c 3000000 /dev/urandom >/made"), kitchen.word)
    other = f"{kitchen.word}-held"
    engine.tag(kitchen.word, other)
    bench = parts.Bench(engine=engine, host=HostSettings(), sources=matrix.load(), progress=Progress(), repeat=1)
    refused = pytest.raises(UserError, match="3 of 3 layers did not come from the registry")
    try:
        with loopback.registry(tmp_path / "registry") as host, refused:
            parts.pulled_anew(bench, kitchen, f"{host}/image:1", engine.inspect(base.reference).layers)
    finally:
        engine.untag(other)


def test_layers_weigh_what_their_tars_weigh(engine: Engine, kitchen: Kitchen, base: AcquiredBase) -> None:
    kitchen.build(context(base, "head -c 3000000 /dev/zero >/made"), kitchen.word)
    layers = squeeze.Scale().layers(engine, kitchen.word)
    assert tuple(layer.digest for layer in layers) == engine.inspect(kitchen.word).layers
    made = layers[-3]
    assert layers[-1].tar < 20_000, "an empty layer is a layer"
    assert 3_000_000 < made.tar < 3_100_000
    assert made.gzip < 20_000 and made.zstd < 20_000
    by_hand = [data.read() for _, data in engine.exported(kitchen.word)]
    (tar,) = [blob for blob in by_hand if blob[257:262] == b"ustar" and "made" in _names(blob)]
    assert made.gzip == pytest.approx(len(gzip.compress(tar, 6)), rel=0.02)


def test_layers_weigh_the_same_where_they_lie_and_exported(
    engine: Engine, kitchen: Kitchen, base: AcquiredBase
) -> None:
    script = (
        "mkdir /many; for n in $(seq 300); do echo $n >/many/$n; done; ln /many/1 /one; ln -s /many /link; rm /bin/ls"
    )
    kitchen.build(context(base, script), kitchen.word)
    assert engine.layer_folders(kitchen.word), "this engine keeps its layers elsewhere: only the export is tested"
    here = squeeze.Scale().layers(engine, kitchen.word)
    with ThreadPoolExecutor(3) as pool:
        exported = {layer.digest: layer for layer in squeeze._exported(engine, kitchen.word, pool)}
    for layer in here:
        other = exported[layer.digest]
        assert layer.tar == pytest.approx(other.tar, rel=0.005, abs=20_000)
        assert layer.gzip == pytest.approx(other.gzip, rel=0.005, abs=3_000)
        assert layer.zstd == pytest.approx(other.zstd, rel=0.005, abs=3_000)


def test_what_was_weighed_is_not_exported_again(engine: Engine, kitchen: Kitchen, base: AcquiredBase) -> None:
    kitchen.build(context(base, "echo made >/made"), kitchen.word)
    told: list[Layer] = []
    scale = squeeze.Scale(tell=told.append)
    first = scale.layers(engine, kitchen.word)
    count = len(told)
    assert count == len(first)
    assert scale.layers(engine, kitchen.word) == first
    assert len(told) == count


def _names(blob: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(blob)) as tar:
        return tar.getnames()


def test_an_interrupted_build_leaves_nothing(engine: Engine, base: AcquiredBase) -> None:
    words = []

    def interrupt(event: object) -> None:
        if isinstance(event, LogLine) and "started" in event.text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), sides.kitchen(engine, HostSettings(), interrupt) as it:
        words.append(it.word)
        it.build(context(base, "echo started; sleep 60"), it.word, cold=True)
    assert engine.find(words[0]) is None
    assert sides.traces(engine.build_cache(), words[0]) == []
