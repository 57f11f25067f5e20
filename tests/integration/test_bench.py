"""The benchmark on a real engine: what it builds leaves nothing, and layers weigh what their bytes weigh.

One part of it is measured by a worker of a real Ray cluster, too.
"""

import gzip
import io
import tarfile
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from images.bench import builder as builders
from images.bench import layer_sizes, loopback
from images.bench.accounting import Layer
from images.bench.builder import COLD, UNCACHED, UNMARKED, Builder, How, open_builder
from images.bench.layer_sizes import LayerSizes
from images.bench.parts import BenchmarkRun, base_pull
from images.bench.parts.sizes import Sizes
from images.context.base_images import AcquiredBase
from images.context.hosting import HostSettings
from images.context.render import Context
from images.engine import Engine, ignore, layers
from images.engine.buildkit import LogLine
from images.engine.progress import Progress
from images.errors import UserError
from tests.support.small_base import small_base
from tests.support.sources import SOURCES

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


@pytest.fixture(scope="module")
def base(engine: Engine, base: AcquiredBase) -> Iterator[AcquiredBase]:
    """A few programs of the base: whatever measures an image compresses all of its layers."""
    with small_base(engine, base) as found:
        yield found


@pytest.fixture
def builder(engine: Engine) -> Iterator[Builder]:
    with open_builder(engine, HostSettings(), ignore) as found:
        yield found


def test_a_builder_leaves_neither_image_nor_build_cache(engine: Engine, base: AcquiredBase) -> None:
    with open_builder(engine, HostSettings(), ignore) as builder:
        builder.build(context(base, "echo kept >/run/uv/file; echo made >/made"), builder.run_id, COLD)
        assert engine.find(builder.run_id)
        made = builders.traces(engine.build_cache(), builder.run_id)
        assert {"cached mount" in record.made_by for record in made} == {True, False}
        assert len(made) >= 3  # the first step, the one above it, the cache of wheels
    assert engine.find(builder.run_id) is None
    assert builders.traces(engine.build_cache(), builder.run_id) == []


def test_a_cold_build_finds_an_empty_cache_of_wheels(builder: Builder, base: AcquiredBase) -> None:
    script = '[ -z "$(ls /run/uv)" ] && echo wheel >/run/uv/wheel'
    builder.build(context(base, script), builder.run_id, COLD)
    builder.clear()
    builder.build(context(base, script), builder.run_id, COLD)


def test_forgetting_steps_keeps_the_image(engine: Engine, builder: Builder, base: AcquiredBase) -> None:
    builder.build(context(base, "echo made >/made"), builder.run_id)
    builder.forget_steps()
    assert builders.traces(engine.build_cache(), builder.run_id) == []
    assert engine.inspect(builder.run_id)


def test_what_is_built_unmarked_is_forgotten_too(engine: Engine, builder: Builder, base: AcquiredBase) -> None:
    before = {record.id for record in engine.build_cache()}
    with builder.nothing_at_all_kept():
        builder.build(context(base, f"echo {builder.run_id} >/made"), builder.run_id, UNMARKED)
        assert engine.find(builder.run_id)
    assert engine.find(builder.run_id) is None
    new = [record for record in engine.build_cache() if record.id not in before]
    assert not [record for record in new if "step.sh" in record.made_by or "/more" in record.made_by]


def test_steps_on_what_is_kept_are_run_again_each_time(engine: Engine, builder: Builder, base: AcquiredBase) -> None:
    below = context(base, "echo made >/made")
    more = b"RUN --mount=type=bind,source=scripts,target=/run/scripts \\\n    sh /run/scripts/step.sh >/again\n"
    above = {**below, "Dockerfile": STEP.format(base=base.reference).encode() + more}
    builder.build(below, builder.run_id)
    engine.untag(builder.run_id)
    for _ in range(2):
        with builder.nothing_new_kept():
            steps = builder.build(above, builder.run_id).steps
        ran = {step.name: step.cached for step in steps if "] RUN" in step.name}
        assert [*ran.values()] == [True, True, True, False], ran
    assert engine.find(builder.run_id) is None


def test_what_is_built_uncached_takes_no_step_from_the_cache_and_leaves_it_as_it_was(
    builder: Builder, base: AcquiredBase
) -> None:
    def cached(no_cache: bool) -> set[bool]:
        with builder.nothing_new_kept():
            steps = builder.build(
                context(base, "echo made >/made"), builder.run_id, UNCACHED if no_cache else How()
            ).steps
        return {step.cached for step in steps if "] RUN" in step.name}

    builder.build(context(base, "echo made >/made"), builder.run_id)
    builder.engine.untag(builder.run_id)
    assert cached(no_cache=True) == {False}
    assert cached(no_cache=False) == {True}


def reproducible(base: AcquiredBase, content: str) -> Context:
    """A step that makes the same layer each time."""
    step = f"echo {content} >/opt/{content} && touch -d @0 /opt/{content} /opt"
    return {"Dockerfile": f"FROM {base.reference}\nRUN {step}\n".encode()}


def test_what_is_built_uncached_leaves_no_files_that_the_engine_forgot(
    engine: Engine, builder: Builder, base: AcquiredBase
) -> None:
    folder = Path(engine.facts.data_root, "overlay2")
    if not engine.facts.local or not folder.is_dir():
        pytest.skip("the engine's files are not here to be looked at")
    content, held = uuid.uuid4().hex, f"{builder.run_id}-held"
    with builder.nothing_at_all_kept():
        builder.build(reproducible(base, content), held, UNMARKED)
        try:
            with builder.nothing_new_kept():
                builder.build(reproducible(base, content), builder.run_id, UNCACHED)
                assert engine.inspect(builder.run_id).layers[-1] == engine.inspect(held).layers[-1]
            assert len(list(folder.glob(f"*/diff/opt/{content}"))) == 1, "the held image's"
        finally:
            engine.untag(held)
    assert not list(folder.glob(f"*/diff/opt/{content}"))


def test_an_image_weighs_the_same_built_uncached_and_as_builds_make_it(
    engine: Engine, builder: Builder, base: AcquiredBase
) -> None:
    bench = BenchmarkRun(engine=engine, host=HostSettings(), sources=SOURCES, progress=Progress(), repeat=1)
    files = reproducible(base, uuid.uuid4().hex)
    as_built, uncached = Sizes.open(bench), Sizes.open(bench)
    as_built.as_built(builder, "one", files, base.reference)
    uncached.uncached(builder, "one", files, base.reference)
    assert as_built.data == uncached.data and len(uncached.data["images"]["one"]["layers"]) == 2


def test_an_image_is_pulled_with_all_its_layers_from_a_registry_here(
    engine: Engine, builder: Builder, base: AcquiredBase, tmp_path: Path
) -> None:
    builder.build(context(base, "head -c 3000000 /dev/urandom >/made"), builder.run_id)
    builder.forget_steps()
    with open_builder(engine, HostSettings(), ignore) as above:
        above.build({**context(base, "true"), "Dockerfile": STEP.format(base=builder.run_id).encode()}, above.run_id)
    kept = engine.inspect(base.reference).layers
    bench = BenchmarkRun(engine=engine, host=HostSettings(), sources=SOURCES, progress=Progress(), repeat=2)
    with loopback.registry(tmp_path / "registry") as host:
        reference = f"{host}/image:1"
        pulls = base_pull.uncached_pulls(bench, builder, reference, kept)
    assert [pull["layers"] for pull in pulls] == [3, 3]
    assert all(pull["bytes"] > 3_000_000 and pull["seconds"] > 0 for pull in pulls)
    assert engine.find(reference) is None and engine.find(builder.run_id) is None
    assert not (tmp_path / "registry").exists()


def test_a_pull_that_found_layers_here_is_no_measurement(
    engine: Engine, builder: Builder, base: AcquiredBase, tmp_path: Path
) -> None:
    builder.build(context(base, "head -c 3000000 /dev/urandom >/made"), builder.run_id)
    other = f"{builder.run_id}-held"
    engine.tag(builder.run_id, other)
    bench = BenchmarkRun(engine=engine, host=HostSettings(), sources=SOURCES, progress=Progress(), repeat=1)
    refused = pytest.raises(UserError, match="3 of 3 layers did not come from the registry")
    try:
        with loopback.registry(tmp_path / "registry") as host, refused:
            base_pull.uncached_pulls(bench, builder, f"{host}/image:1", engine.inspect(base.reference).layers)
    finally:
        engine.untag(other)


def test_layers_weigh_what_their_tars_weigh(engine: Engine, builder: Builder, base: AcquiredBase) -> None:
    builder.build(context(base, "head -c 3000000 /dev/zero >/made"), builder.run_id)
    layers = LayerSizes().of(engine, builder.run_id)
    assert tuple(layer.digest for layer in layers) == engine.inspect(builder.run_id).layers
    made = layers[-3]
    assert layers[-1].tar < 20_000, "an empty layer is a layer"
    assert 3_000_000 < made.tar < 3_100_000
    assert made.gzip < 20_000 and made.zstd < 20_000
    by_hand = [data.read() for _, data in engine.exported(builder.run_id)]
    (tar,) = [blob for blob in by_hand if blob[257:262] == b"ustar" and "made" in _names(blob)]
    assert made.gzip == pytest.approx(len(gzip.compress(tar, 6)), rel=0.02)


def test_layers_weigh_the_same_where_they_lie_and_exported(
    engine: Engine, builder: Builder, base: AcquiredBase
) -> None:
    script = (
        "mkdir /many; for n in $(seq 300); do echo $n >/many/$n; done; ln /many/1 /one; ln -s /many /link; rm /bin/ls"
    )
    builder.build(context(base, script), builder.run_id)
    assert layers.folders(engine, builder.run_id), "this engine keeps its layers elsewhere: only the export is tested"
    here = LayerSizes().of(engine, builder.run_id)
    with ThreadPoolExecutor(3) as pool:
        exported = {layer.digest: layer for layer in layer_sizes._exported(engine, builder.run_id, pool)}
    for layer in here:
        other = exported[layer.digest]
        assert layer.tar == pytest.approx(other.tar, rel=0.005, abs=20_000)
        assert layer.gzip == pytest.approx(other.gzip, rel=0.005, abs=3_000)
        assert layer.zstd == pytest.approx(other.zstd, rel=0.005, abs=3_000)


def test_what_was_measured_is_not_exported_again(engine: Engine, builder: Builder, base: AcquiredBase) -> None:
    builder.build(context(base, "echo made >/made"), builder.run_id)
    told: list[Layer] = []
    sizes = LayerSizes(tell=told.append)
    first = sizes.of(engine, builder.run_id)
    count = len(told)
    assert count == len(first)
    assert sizes.of(engine, builder.run_id) == first
    assert len(told) == count


def _names(blob: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(blob)) as tar:
        return tar.getnames()


def test_an_interrupted_build_leaves_nothing(engine: Engine, base: AcquiredBase) -> None:
    words = []

    def interrupt(event: object) -> None:
        if isinstance(event, LogLine) and "started" in event.text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), open_builder(engine, HostSettings(), interrupt) as builder:
        words.append(builder.run_id)
        builder.build(context(base, "echo started; sleep 60"), builder.run_id, COLD)
    assert engine.find(words[0]) is None
    assert builders.traces(engine.build_cache(), words[0]) == []


SMALL = """\
FROM {{ base.reference }}
RUN echo measured >/measured && touch -d @0 /measured
"""
