"""The benchmark on a real engine: what it builds leaves nothing."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import builder as builders
from benchmarks.builder import Builder, open_builder
from images.context.base_images import AcquiredBase
from images.context.hosting import HostSettings
from images.context.render import Context
from images.engine import Engine, ignore
from images.engine.buildkit import LogLine
from tests.support.small_base import small_base

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
    """A few programs of the base: less to build on."""
    with small_base(engine, base) as found:
        yield found


@pytest.fixture
def builder(engine: Engine) -> Iterator[Builder]:
    with open_builder(engine, HostSettings(), ignore) as found:
        yield found


def test_a_builder_leaves_neither_image_nor_build_cache(engine: Engine, base: AcquiredBase) -> None:
    with open_builder(engine, HostSettings(), ignore) as builder:
        builder.build(context(base, "echo kept >/run/uv/file; echo made >/made"), cold=True)
        assert engine.find(builder.run_id)
        made = builders.traces(builders.build_cache(engine), builder.run_id)
        assert {"cached mount" in record.made_by for record in made} == {True, False}
        assert len(made) >= 3  # the first step, the one above it, the cache of wheels
    assert engine.find(builder.run_id) is None
    assert builders.traces(builders.build_cache(engine), builder.run_id) == []


def test_a_cold_build_finds_an_empty_cache_of_wheels(builder: Builder, base: AcquiredBase) -> None:
    script = '[ -z "$(ls /run/uv)" ] && echo wheel >/run/uv/wheel'
    builder.build(context(base, script), cold=True)
    builder.clear()
    builder.build(context(base, script), cold=True)


def test_forgetting_steps_keeps_the_image(engine: Engine, builder: Builder, base: AcquiredBase) -> None:
    builder.build(context(base, "echo made >/made"))
    builder.forget_steps()
    assert builders.traces(builders.build_cache(engine), builder.run_id) == []
    assert engine.inspect(builder.run_id)


def test_what_is_built_unmarked_is_forgotten_too(engine: Engine, builder: Builder, base: AcquiredBase) -> None:
    before = {record.id for record in builders.build_cache(engine)}
    with builder.nothing_at_all_kept():
        builder.build(context(base, f"echo {builder.run_id} >/made"), marked=False)
        assert engine.find(builder.run_id)
    assert engine.find(builder.run_id) is None
    new = [record for record in builders.build_cache(engine) if record.id not in before]
    assert not [record for record in new if "step.sh" in record.made_by or "/more" in record.made_by]


def test_steps_on_what_is_kept_are_run_again_each_time(engine: Engine, builder: Builder, base: AcquiredBase) -> None:
    below = context(base, "echo made >/made")
    more = b"RUN --mount=type=bind,source=scripts,target=/run/scripts \\\n    sh /run/scripts/step.sh >/again\n"
    above = {**below, "Dockerfile": STEP.format(base=base.reference).encode() + more}
    builder.build(below)
    engine.untag(builder.run_id)
    for _ in range(2):
        with builder.nothing_new_kept():
            steps = builder.build(above).steps
        ran = {step.name: step.cached for step in steps if "] RUN" in step.name}
        assert [*ran.values()] == [True, True, True, False], ran
    assert engine.find(builder.run_id) is None


def test_what_is_built_uncached_takes_no_step_from_the_cache_and_leaves_it_as_it_was(
    builder: Builder, base: AcquiredBase
) -> None:
    def cached(no_cache: bool) -> set[bool]:
        with builder.nothing_new_kept():
            steps = builder.build(context(base, "echo made >/made"), cold=no_cache).steps
        return {step.cached for step in steps if "] RUN" in step.name}

    builder.build(context(base, "echo made >/made"))
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
        builder.build(reproducible(base, content), marked=False)
        engine.tag(builder.run_id, held)
        try:
            with builder.nothing_new_kept():
                builder.build(reproducible(base, content), cold=True)
                assert engine.inspect(builder.run_id).layers[-1] == engine.inspect(held).layers[-1]
            assert len(list(folder.glob(f"*/diff/opt/{content}"))) == 1, "the held image's"
        finally:
            engine.untag(held)
    assert not list(folder.glob(f"*/diff/opt/{content}"))


def test_an_interrupted_build_leaves_nothing(engine: Engine, base: AcquiredBase) -> None:
    words = []

    def interrupt(event: object) -> None:
        if isinstance(event, LogLine) and "started" in event.text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), open_builder(engine, HostSettings(), interrupt) as builder:
        words.append(builder.run_id)
        builder.build(context(base, "echo started; sleep 60"), cold=True)
    assert engine.find(words[0]) is None
    assert builders.traces(builders.build_cache(engine), words[0]) == []
