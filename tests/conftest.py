"""What all tests share: which stay on one worker; no property test fails because the machine is busy."""

import os
import signal
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

# A shell that starts tests in the background has them ignore SIGINT, and all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes is for the machine to say, and for what else runs on it.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # the order below stays, not the one by number of tests


class Groups(LoadScopeScheduling):
    """Which tests stay on one worker. xdist's own groups rest on a private attribute that pytest 9.2 dropped."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


BIG_IMAGES = ("images", "reproduce", "bench")
"""Tests that build and name images of the matrix, then two that look at the whole build cache: one after another.
(Seen with engine 20.10: while a big image was built, steps of test_bench that had just been built ran again.)"""
FROM_THE_CACHE = ("test_engine.py::test_a_build_with_mounts_and_its_second_run_from_the_cache",)
"""Tests that hold a build to what the cache kept of the one before. They stay with the big images, as above."""
NEWER_ENGINE = ("bake", "publish", "publish_platforms", "statements")
"""Tests of the engine of Debian trixie, which is made once for all of them."""
ON_TRIXIE = "test_engines.py::test_engine_tests_pass_on_the_engine_of[trixie]"
AT_ONCE = ("big images", "newer engine", "wheel_builder", "fleet_builds", "integration")
"""Groups, files of integration tests and the rest of these, in the order in which workers take them: the first of them
builds the parent."""
ONCE_THE_PARENT_IS_THERE = ("fleet", "faults", "nightly", "first_hour", "audit", "multigpu", "integration")
"""What waits for it comes last, the longest first: until then workers have all other tests to do."""


def group(nodeid: str) -> str:
    """What stays on one worker: the big images, the newer engine, the browser, else the file.

    The files of the shared engine make and remove things of their own.
    """
    file = nodeid.partition("::")[0]
    name = _integration(file)
    if name in BIG_IMAGES or nodeid.endswith(FROM_THE_CACHE):
        return "big images"
    if name in NEWER_ENGINE or ON_TRIXIE in nodeid:
        return "newer engine"
    return "browser" if file.startswith("tests/browser/") else file


def _integration(file: str) -> str:
    """`fleet` of tests/integration/test_fleet.py; empty for files elsewhere."""
    return file.removesuffix(".py").partition("tests/integration/test_")[2]


def _rank(nodeid: str, *, waits: bool) -> tuple[int, int, int]:
    """Place of its group, and within the big images that of its file. `waits`: for the parent."""
    named = group(nodeid)
    name = _integration(nodeid.partition("::")[0])
    order = ONCE_THE_PARENT_IS_THERE if waits and named != "big images" else AT_ONCE
    kinds = (named, name, "integration" if name else "")
    place = next((number for number, kind in enumerate(order) if kind in kinds), len(order))
    return order is not AT_ONCE, place, BIG_IMAGES.index(name) if name in BIG_IMAGES else len(BIG_IMAGES)


def pytest_xdist_auto_num_workers() -> int:
    """Three more than there are cores: whoever tests an engine waits for containers again and again."""
    return len(os.sched_getaffinity(0)) + 3


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In an order that leaves no worker waiting for an image, nor alone at the end."""
    waiting = {group(item.nodeid) for item in items if "built" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: _rank(item.nodeid, waits=group(item.nodeid) in waiting))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups:
    return Groups(config, log)
