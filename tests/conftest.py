"""What all tests share: which stay on one worker; no property test fails because the machine is busy."""

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

# How long an example takes is for the machine to say, and for what else runs on it.
settings.register_profile(
    "busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy machine")


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # the order below stays, not the one by number of tests


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """What is collected stays: nobody looks for garbage in it."""
    gc.disable()
    with _one_before_all_others(session.config):
        found = yield
    gc.freeze()
    gc.enable()
    return found


@contextmanager
def _one_before_all_others(config: pytest.Config) -> Iterator[None]:
    """Of a run's workers one collects alone: it compiles all modules, which takes twice as long as the rest."""
    if not hasattr(config, "workerinput") or sys.dont_write_bytecode:
        yield
        return
    with (Path(config.getoption("basetemp")).parent / "collected").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        if known := file.read():
            fcntl.flock(file, fcntl.LOCK_UN)
        yield
        if not known:
            file.write("once")


BIG_IMAGES = ("images", "reproduce")
"""Tests that build and name images of the matrix, then one that looks at the whole build cache: one after another.
(Engine 20.10 ran steps again that had just been built, while a big image was built.)"""
FROM_THE_CACHE = ("test_engine.py::test_a_build_with_mounts_and_its_second_run_from_the_cache",)
"""Tests that hold a build to what the cache kept of the one before. They stay with the big images, as above."""
NEWER_ENGINE = ("bake", "publish", "publish_platforms", "statements")
"""Tests of the engine of Debian trixie, which is made once for all of them."""
OF_THE_PARENT = (
    *("nightly", "multigpu", "audit", "first_hour"),
    *("faults", "isolation", "examples", "on_image", "gpu_runner", "sbom"),
)
"""Files whose tests wait until the big images' first test has built the parent."""
ALONE = ("first_hour", "isolation", "examples")
"""Files whose tests share nothing else."""
LONGEST_FIRST = (
    *("big images", "newer engine", "wheel_builder", "fleet", "engines"),
    *(*OF_THE_PARENT, "integration"),
)
"""Groups, files of integration tests and the rest of these."""


def group(nodeid: str) -> str:
    """What stays on one worker: the big images, the newer engine, the faults of an image, else the file.

    The files of the shared engine make and remove things of their own.
    """
    file, _, test = nodeid.partition("::")
    name = _integration(file)
    if name in BIG_IMAGES or nodeid.endswith(FROM_THE_CACHE):
        return "big images"
    if name in NEWER_ENGINE:
        return "newer engine"
    if name in ALONE:
        return nodeid
    if name == "faults":
        return f"{file}::{test.partition(':')[0]}"
    return file


def _integration(nodeid: str) -> str:
    """`fleet` of tests/integration/test_fleet.py; empty for files elsewhere."""
    return nodeid.partition("::")[0].removesuffix(".py").partition("tests/integration/test_")[2]


def _place(nodeid: str) -> int:
    """Of a test, or a group, among LONGEST_FIRST; short ones come after them."""
    name = _integration(nodeid)
    kinds = (group(nodeid), nodeid, name, "integration" if name else "")
    return next(
        (place for place, kind in enumerate(LONGEST_FIRST) if kind in kinds), len(LONGEST_FIRST)
    )


def _is_long(nodeid: str) -> bool:
    return _place(nodeid) < len(LONGEST_FIRST)


class Groups(LoadScopeScheduling):
    """Which tests stay on one worker. xdist's own groups rest on a private attribute that pytest 9.2 dropped."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        """Give the first group that begins now: one of short tests where the parent is not there yet, or where long
        tests of this worker come before it: a worker is given more before it is done, and takes none of it back."""
        given = self.assigned_work.get(node, {}).values()
        busy = any(_is_long(test) for unit in given for test, done in unit.items() if not done)
        waits = () if self._parent_is_there() else OF_THE_PARENT

        def later(unit: str) -> int:
            return 1 if not _is_long(unit) else 2 if busy or _integration(unit) in waits else 0

        self.workqueue.move_to_end(min(self.workqueue, key=later), last=False)
        super()._assign_work_unit(node)

    def _parent_is_there(self) -> bool:
        """Whoever comes first builds it, where the big images are not among the tests of this run."""
        units = [
            given["big images"] for given in self.assigned_work.values() if "big images" in given
        ]
        return (
            any(any(unit.values()) for unit in units)
            or group((self.collection or [""])[0]) != "big images"
        )


def pytest_xdist_auto_num_workers() -> int:
    """Four more than there are cores: whoever tests an engine waits for containers, disks and networks."""
    return len(os.sched_getaffinity(0)) + 4


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, and of the big images the parent."""
    files = [f"tests/integration/test_{name}.py" for name in BIG_IMAGES]
    items.sort(
        key=lambda item: (_place(item.nodeid), [not item.nodeid.startswith(file) for file in files])
    )


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups:
    return Groups(config, log)
