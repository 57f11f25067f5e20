"""Settings of all tests: which of them share a worker, and in what order they run.

Property tests have no time limit, so that none fails because the machine is busy.
"""

import fcntl
import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

# A shell that starts tests in the background has them ignore SIGINT, and all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# xdist sets COLUMNS in its workers, for pytest's own lines. With it, messages that go into a pipe
# would be wrapped.
os.environ.pop("COLUMNS", None)

# How long an example takes is for the machine to say, and for what else runs on it.
settings.register_profile(
    "busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy machine")


def pytest_configure(config: pytest.Config) -> None:
    # The order below counts, not xdist's own, by the number of tests.
    config.option.loadscopereorder = False


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect the tests without garbage collection: what is collected stays until the end."""
    gc.disable()
    with _one_before_all_others(session.config):
        result = yield
    gc.freeze()
    gc.enable()
    return result


@contextmanager
def _one_before_all_others(config: pytest.Config) -> Iterator[None]:
    """Let one of a run's workers collect before all others.

    It compiles all modules, which takes twice as long as the rest. The others then use its
    bytecode.
    """
    if not hasattr(config, "workerinput") or sys.dont_write_bytecode:
        yield
        return
    with (Path(config.getoption("basetemp")).parent / "collected").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        is_first = not file.read()
        if not is_first:
            fcntl.flock(file, fcntl.LOCK_UN)
        yield
        if is_first:
            file.write("once")


BIG_IMAGES = ("images", "reproduce")
"""Files whose tests build and name images of the matrix, then one that looks at the whole build
cache. They run one after another: while a big image was built, engine 20.10 ran steps of other
builds again that had just been built."""
FROM_THE_CACHE = ("test_engine.py::test_a_build_with_mounts_and_its_second_run_from_the_cache",)
"""Tests that expect a build to find the one before it in the cache. They stay with the big images
for the same reason."""
NEWER_ENGINE = ("buildx", "cold_build", "publish", "publish_platforms", "statements")
"""Tests of the engine of Debian trixie, which is made once for all of them."""
SID_ENGINE = ("engines", "stores")
"""Tests of the engine of Debian sid in several kinds, each of which is made once for all of them.
"""
OF_THE_BASE_IMAGE = (
    *("multigpu", "faults", "derived", "nightly", "examples", "first_hour"),
    *("audit", "isolation", "on_image", "gpu_runner", "sbom"),
)
"""Files whose tests wait until the big images' first test has built the base image."""
ALONE = ("derived", "first_hour", "isolation", "examples")
"""Files whose tests share nothing else."""
LONGEST_FIRST = (
    *("big images", "newer engine", "wheel_builder", "fleet", "engines"),
    *(*OF_THE_BASE_IMAGE, "integration"),
)
"""Groups, files of integration tests and the rest of these."""


def group(nodeid: str) -> str:
    """Return the group of a test. Tests of one group run on one worker.

    Groups are the big images, the tests of the newer engine, those of each kind of the newest one,
    the faults of one broken image, ranks in one container or in two, and else the tests of a file.
    """
    file, _, test = nodeid.partition("::")
    name = _integration(file)
    if name in BIG_IMAGES or nodeid.endswith(FROM_THE_CACHE):
        return "big images"
    if name in NEWER_ENGINE:
        return "newer engine"
    if name in SID_ENGINE:
        return f"tests/integration/test_engines.py::{test.partition('[')[2]}"
    if name in ALONE:
        return nodeid
    if name == "multigpu":
        return f"{file}::{'nodes' if 'node' in test else 'ranks'}"
    if name == "faults":
        return f"{file}::{test.partition(':')[0]}"
    return file


def _integration(nodeid: str) -> str:
    """Return `fleet` for tests/integration/test_fleet.py; empty for files elsewhere."""
    return nodeid.partition("::")[0].removesuffix(".py").partition("tests/integration/test_")[2]


def _place(nodeid: str) -> int:
    """Return the place of a test or a group in LONGEST_FIRST; short ones come after all of it."""
    name = _integration(nodeid)
    kinds = (group(nodeid), nodeid, name, "integration" if name else "")
    for place, kind in enumerate(LONGEST_FIRST):
        if kind in kinds:
            return place
    return len(LONGEST_FIRST)


def _is_long(nodeid: str) -> bool:
    """Return whether a test or a group is one of those that take long."""
    return _place(nodeid) < len(LONGEST_FIRST)


class Groups(LoadScopeScheduling):
    """Give groups of tests to workers.

    xdist's own groups rest on a private attribute that pytest 9.2 dropped.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        """Give a worker the first group that can begin now.

        A long group can't if it needs the base image and that is not built yet. Nor can it if
        this worker still has long tests: a worker gets more before it is done, and what it got is
        never given to another one. Groups of short tests come first then.
        """
        is_busy = False
        for unit in self.assigned_work.get(node, {}).values():
            if any(_is_long(test) for test, is_done in unit.items() if not is_done):
                is_busy = True
        waiting = () if self._base_image_is_there() else OF_THE_BASE_IMAGE

        def order(unit: str) -> int:
            if not _is_long(unit):
                return 1
            return 2 if is_busy or _integration(unit) in waiting else 0

        self.workqueue.move_to_end(min(self.workqueue, key=order), last=False)
        super()._assign_work_unit(node)

    def _base_image_is_there(self) -> bool:
        """Return whether no test has to wait for the base image.

        The first test of the big images builds it. Without these among the tests of this run, the
        first test that needs it does.
        """
        for units in self.assigned_work.values():
            if any(units.get("big images", {}).values()):
                return True
        first_test = (self.collection or [""])[0]
        return group(first_test) != "big images"


@pytest.fixture(autouse=True)
def _restore_signal_handlers() -> Iterator[None]:
    """Give the signals back the handlers that they had before the test.

    A process in which SIGTERM is ignored can't end the workers of multiprocessing.Pool: a later
    test waited for ever.
    """
    numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
    handlers = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in handlers.items():
        if handler is not None:
            signal.signal(number, handler)


def pytest_xdist_auto_num_workers() -> int:
    """Return four more than there are cores, as tests of an engine mostly wait for it."""
    return len(os.sched_getaffinity(0)) + 4


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest tests first, and of the big images the one that builds the base image."""
    files = [f"tests/integration/test_{name}.py" for name in BIG_IMAGES]

    def order(item: pytest.Item) -> tuple[int, list[bool]]:
        return _place(item.nodeid), [not item.nodeid.startswith(file) for file in files]

    items.sort(key=order)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups:
    return Groups(config, log)
