"""What a build decides by itself: what it asks for, what it warns of, and how it is interrupted."""

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from images.building import build
from images.building.contexts import BuildOptions
from images.config.paths import CHECKOUT
from images.context.hosting import HostSettings
from images.engine.failures import Cancelled
from images.engine.progress import Progress
from images.errors import UserError, failed, problem_of
from images.locking import lock_file
from tests.support.custom_bases import image
from tests.support.sources import SOURCES
from validate.judge import Verdict

LOCK = lock_file.read(image(), CHECKOUT.locks)
SECONDS = 20
"""How long a test waits for something that comes at once, before it fails."""


def options(folder: Path, **further: Any) -> BuildOptions:
    return BuildOptions(sources=SOURCES, host=HostSettings(), out=folder, cache=folder, **further)


def test_an_error_of_the_system_names_the_place_and_the_cause() -> None:
    problem = problem_of(PermissionError(13, "Permission denied", "/mnt/out"))

    assert problem.where == "/mnt/out"
    assert problem.cause == "Permission denied"


def test_an_error_of_the_system_without_a_place_names_the_image() -> None:
    assert problem_of(OSError("broke off"), "cu126-torch27").where == "cu126-torch27"


@pytest.mark.parametrize(
    ("jobs", "engine_has"),
    [
        pytest.param(4, [False, True, False, True], id="two of four images are cold"),
        pytest.param(2, [False, True, False, False], id="two of three at once"),
    ],
)
def test_a_disk_without_room_for_two_cold_builds_is_refused_with_what_makes_room(
    jobs: int, engine_has: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimpleNamespace(free=21_900_000_000)
    monkeypatch.setattr(shutil, "disk_usage", {"/its/data": disk}.__getitem__)
    images_found = [object() if has_image else None for has_image in engine_has]
    answers_by_name = {image().local_name: iter(images_found)}
    full_engine: Any = SimpleNamespace(
        find=lambda name: next(answers_by_name[name]),
        facts=SimpleNamespace(local=True, data_root="/its/data", containerd_images=False),
    )

    with pytest.raises(UserError) as raised:
        build.build_all(
            full_engine, [(image(), LOCK)] * 4, options(tmp_path), Progress(), jobs=jobs
        )

    (problem,) = raised.value.problems
    assert problem.where == "/its/data"
    assert problem.cause == (
        "the disk on which Docker stores images has 21.9 GB free, and this build may take 22 GB"
    )
    assert "`docker builder prune`" in problem.then
    assert "`nox -s engine -- wipe`" in problem.then


class InterruptedPool(ThreadPoolExecutor):
    """Ctrl-C comes when the thread has begun, and before `submit` has returned."""

    def submit(self, *arguments: Any, **options: Any) -> Future[Any]:
        super().submit(*arguments, **options)
        raise KeyboardInterrupt


def test_what_a_stopped_program_says_is_no_error_of_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C also ended mmdebstrap, whose message had 4,000 characters of dpkg's arguments."""

    def build_image(*_arguments: object) -> NoReturn:
        raise failed(
            "mmdebstrap bookworm", "failed: E: setup failed: dpkg --install " + "x " * 2000
        )

    finished: list[str] = []
    monkeypatch.setattr(build, "build_image", build_image)
    monkeypatch.setattr(Progress, "finish", lambda _self, name, *_, **__: finished.append(name))
    stopped_engine: Any = SimpleNamespace(
        is_cancelled=True,
        cancel=lambda: None,
        find=lambda _name: object(),
        facts=SimpleNamespace(local=False),
    )

    with pytest.raises(Cancelled):
        build.build_all(stopped_engine, [(image(), LOCK)], options(tmp_path), Progress())

    assert not finished


def test_the_time_of_a_build_and_of_its_validation_are_both_named() -> None:
    built: Any = SimpleNamespace(
        verdict=Verdict(image="cu126-torch27", digest="sha256:1", claims=()),
        info=SimpleNamespace(size=6_400_000_000),
        tag="cu126-torch27",
        withheld="",
        result=SimpleNamespace(seconds=214.6),
        measured="measured in 251 s",
    )

    assert "6.40 GB, built in 215 s, measured in 251 s, named" in build.sentence_about(built)


def test_an_interrupt_while_builds_are_started_ends_one_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for the whole build of the other process: seen beside two busy loops."""
    cancelled = threading.Event()
    has_ended = threading.Event()

    @contextmanager
    def hold_lock(*_arguments: object) -> Iterator[None]:
        if cancelled.wait(SECONDS):
            has_ended.set()
            raise Cancelled
        yield

    waiting_engine: Any = SimpleNamespace(
        hold_lock=hold_lock,
        cancel=cancelled.set,
        find=lambda _name: object(),
        facts=SimpleNamespace(local=False),
    )
    monkeypatch.setattr(build, "ThreadPoolExecutor", InterruptedPool)

    with pytest.raises(KeyboardInterrupt):
        build.build_all(waiting_engine, [(image(), LOCK)], options(tmp_path), Progress())

    assert has_ended.is_set()
