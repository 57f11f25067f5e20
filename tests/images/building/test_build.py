"""What a build decides by itself: which torch wheels are asked for, what is said when the system refuses."""

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from images.building import build, validating
from images.building.contexts import BuildOptions
from images.config.paths import CHECKOUT
from images.context import base_images
from images.context.hosting import HostSettings
from images.engine.failures import Cancelled
from images.engine.progress import Progress
from images.errors import UserError, problem_of
from images.locking import lock_file
from images.planning.image import Image, Pin
from tests.support.custom_bases import image, on
from tests.support.sources import SOURCES

LOCK = lock_file.read(image(), CHECKOUT.locks)


def options(folder: Path, **more: Any) -> BuildOptions:
    return BuildOptions(sources=SOURCES, host=HostSettings(), out=folder, cache=folder, **more)


def engine(*, containerd_images: bool = False) -> Any:
    facts = SimpleNamespace(architecture="amd64", containerd_images=containerd_images)
    return SimpleNamespace(facts=facts, hold_lock=lambda *_args: nullcontext())


class Enough(Exception):  # noqa: N818  # no error: the build need not go on
    """What was to be seen has been seen."""


def test_on_a_base_that_has_torch_wheels_are_asked_for_the_torch_of_the_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel that is compiled here is for one torch, whoever brings that."""
    asked: list[tuple[str, str]] = []

    def compiled(wanted: Image, pin: Pin) -> Path | None:
        torch = wanted.pin("torch")
        asked.append((pin.name, torch.version if torch else ""))
        raise Enough

    monkeypatch.setattr(base_images, "acquire", lambda *_args, **_more: on())
    monkeypatch.setattr(validating, "find_gpus", lambda *_args: ("no GPU", ()))
    with pytest.raises(Enough):
        build.build_image(engine(), image(), LOCK, options(tmp_path, compiled=compiled), Progress())
    assert asked == [("flash-attn", "2.7.1")]


def test_an_image_store_that_publish_refuses_is_told_before_the_hour_of_a_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def enough(*_args: object) -> None:
        raise Enough

    said: list[str] = []
    monkeypatch.setattr(Progress, "say", lambda _self, _job, text, style="dim": said.append(text))
    monkeypatch.setattr(validating, "find_gpus", enough)
    for containerd, told in ((True, 1), (False, 0)):
        said.clear()
        with pytest.raises(Enough):
            build.build_image(
                engine(containerd_images=containerd), image(), LOCK, options(tmp_path), Progress()
            )
        assert sum("publish and fleet refuse it" in text for text in said) == told


def test_what_the_system_refuses_names_the_place_and_the_cause() -> None:
    told = problem_of(PermissionError(13, "Permission denied", "/mnt/out"))
    assert (told.where, told.cause) == ("/mnt/out", "Permission denied")
    assert problem_of(OSError("broke off"), "cu126-torch27").where == "cu126-torch27"


@pytest.mark.parametrize(("jobs", "there"), [(4, [None, 1, None, 1]), (2, [None, 1, None, None])])
def test_a_disk_without_room_is_told_with_what_empties_the_engine(
    jobs: int, there: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for each image that is built cold, of as many as are built at once: here two."""
    monkeypatch.setattr(
        shutil, "disk_usage", {"/its/data": SimpleNamespace(free=21_900_000_000)}.__getitem__
    )
    names = dict.fromkeys([image().local_name], iter(there))
    full: Any = SimpleNamespace(
        find=lambda name: next(names[name]),
        facts=SimpleNamespace(local=True, data_root="/its/data"),
    )
    with pytest.raises(UserError) as told:
        build.build_all(full, [(image(), LOCK)] * 4, options(tmp_path), Progress(), jobs=jobs)
    (problem,) = told.value.problems
    assert (problem.where, problem.cause) == (
        "/its/data",
        "21.9 GB free, cold builds may need 22 GB",
    )
    assert "`docker builder prune`" in problem.then and "`nox -s engine -- wipe`" in problem.then


class Interrupted(ThreadPoolExecutor):
    """Ctrl-C comes when the thread has begun, and before `submit` has returned."""

    def submit(self, *args: Any, **more: Any) -> Future[Any]:
        super().submit(*args, **more)
        raise KeyboardInterrupt


def test_an_interrupt_while_builds_start_ends_one_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for the other process's whole build, seen beside two busy loops."""
    cancelled, ended = threading.Event(), threading.Event()

    @contextmanager
    def hold_lock(*_args: object) -> Iterator[None]:
        if cancelled.wait(20):
            ended.set()
            raise Cancelled
        yield

    monkeypatch.setattr(build, "ThreadPoolExecutor", Interrupted)
    facts = SimpleNamespace(local=False)
    waiting: Any = SimpleNamespace(
        hold_lock=hold_lock, cancel=cancelled.set, find=lambda _name: object(), facts=facts
    )
    with pytest.raises(KeyboardInterrupt):
        build.build_all(waiting, [(image(), LOCK)], options(tmp_path), Progress())
    assert ended.is_set()
