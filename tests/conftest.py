"""What all tests share: options of the whole suite, and no property test that fails because the machine is busy."""

import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

sys.path.insert(0, str(Path(__file__).parent / "pretend"))
import pretended

# A shell that starts tests in the background has them ignore SIGINT, and all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes is for the machine to say, and for what else runs on it.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("another machine", "run as if the engine's machine were of another size")
    group.addoption("--pretend-memory", type=int, metavar="BYTES", help="the memory that the engine says it has")
    group.addoption("--pretend-cores", type=int, metavar="N", help="the cores that the engine says it has")


def pytest_configure(config: pytest.Config) -> None:
    pretended.start(config.getoption("--pretend-memory"), config.getoption("--pretend-cores"))
    config.option.loadscopereorder = False  # the order below stays, not the one by number of tests


class Groups(LoadScopeScheduling):
    """Which tests stay on one worker. xdist's own groups rest on a private attribute that pytest 9.2 dropped."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


BIG_IMAGES = (
    "audit",
    "bench",
    "examples",
    "faults",
    "first_hour",
    "gpu_runner",
    "images",
    "multigpu",
    "nightly",
    "on_image",
    "reproduce",
    "sbom",
)
"""Tests that build, name and untag images of the matrix, and two that look at the whole build cache: one after another.
(Seen with engine 20.10: while a big image was built, steps of test_bench that had just been built ran again.)"""
FROM_THE_CACHE = ("test_engine.py::test_a_build_with_mounts_and_its_second_run_from_the_cache",)
"""Tests that hold a build to what the cache kept of the one before. They stay with the big images, as above."""
ALONE = ("test_engines.py::test_engine_tests_pass_on_the_engine_of[sid]",)
"""Tests of an engine that no other test uses: the first free worker takes them."""
LONGEST_FIRST = ("big images", "engine", "browser")


def group(nodeid: str) -> str:
    """One of LONGEST_FIRST, or the file. The other tests of the shared engine make and remove things of their own."""
    file = nodeid.partition("::")[0]
    if nodeid.endswith(FROM_THE_CACHE):
        return "big images"
    if file.startswith("tests/integration/") and not nodeid.endswith(ALONE):
        return "big images" if file.removesuffix(".py").partition("/test_")[2] in BIG_IMAGES else "engine"
    return "browser" if file.startswith("tests/browser/") else file


def _rank(nodeid: str) -> int:
    name = group(nodeid)
    return LONGEST_FIRST.index(name) if name in LONGEST_FIRST else len(LONGEST_FIRST)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first, so that no worker is left alone with it at the end."""
    items.sort(key=lambda item: _rank(item.nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups:
    return Groups(config, log)
