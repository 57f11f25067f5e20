"""The benchmark on a real engine: what it builds leaves nothing."""

from collections.abc import Iterator

import pytest

from benchmarks import builder as builders
from benchmarks.builder import Builder, open_builder
from images.context.hosting import HostSettings
from images.context.labels import BaseContext
from images.context.render import Context
from images.engine import Engine, ignore
from tests.support.small_base import small_base

STEP = """\
FROM {base}
RUN --mount=type=cache,id=truetag-uv,target=/run/uv \\
    --mount=type=bind,source=scripts,target=/run/scripts \\
    sh /run/scripts/step.sh
RUN echo more >/more
RUN true
"""


def context(base: BaseContext, script: str) -> Context:
    return {"Dockerfile": STEP.format(base=base.reference).encode(), "scripts/step.sh": script.encode()}


@pytest.fixture(scope="module")
def base(engine: Engine, base: BaseContext) -> Iterator[BaseContext]:
    """A few programs of the base: less to build on."""
    with small_base(engine, base) as found:
        yield found


@pytest.fixture
def builder(engine: Engine) -> Iterator[Builder]:
    with open_builder(engine, HostSettings(), ignore) as found:
        yield found


def test_a_builder_leaves_neither_image_nor_build_cache(engine: Engine, base: BaseContext) -> None:
    with open_builder(engine, HostSettings(), ignore) as builder:
        builder.build(context(base, "echo kept >/run/uv/file; echo made >/made"), cold=True)
        assert engine.find(builder.run_id)
        made = builders.traces(builders.build_cache(engine), builder.run_id)
        assert {"cached mount" in record.made_by for record in made} == {True, False}
        assert len(made) >= 3  # the first step, the one above it, the cache of wheels
    assert engine.find(builder.run_id) is None
    assert builders.traces(builders.build_cache(engine), builder.run_id) == []


def test_a_cold_build_finds_an_empty_cache_of_wheels(builder: Builder, base: BaseContext) -> None:
    script = '[ -z "$(ls /run/uv)" ] && echo wheel >/run/uv/wheel'
    builder.build(context(base, script), cold=True)
    builder.clear()
    builder.build(context(base, script), cold=True)


def test_steps_on_what_is_kept_are_run_again_each_time(engine: Engine, builder: Builder, base: BaseContext) -> None:
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
    builder: Builder, base: BaseContext
) -> None:
    def cached(no_cache: bool) -> set[bool]:
        with builder.nothing_new_kept():
            steps = builder.build(context(base, "echo made >/made"), cold=no_cache).steps
        return {step.cached for step in steps if "] RUN" in step.name}

    builder.build(context(base, "echo made >/made"))
    builder.engine.untag(builder.run_id)
    assert cached(no_cache=True) == {False}
    assert cached(no_cache=False) == {True}
