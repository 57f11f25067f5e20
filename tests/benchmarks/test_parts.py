"""What the parts of the benchmark make of the project, and what they refuse."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import delivery, network, rebuild, results
from benchmarks.session import ProjectCopy, baseline_context, conventional_context
from images.errors import UserError
from images.locking import lock_file
from images.planning import plan as planning
from tests.support.sources import SOURCES


def subject() -> Any:
    return planning.select(["cu130-torch211"], SOURCES)[0].image


def test_the_conventional_side_has_our_versions_in_one_file() -> None:
    image = subject()
    locked = lock_file.read(image, results.RESOURCES / "locks")
    context = conventional_context(image, locked, "base:1", {"host/env": b""})
    lines = context["requirements.txt"].decode().splitlines()  # type: ignore[union-attr]
    assert f"torch=={locked.versions(image.layers)['torch']}" in lines and b"FROM base:1" in context["Dockerfile"]  # type: ignore[operator]
    devel = baseline_context({"Dockerfile": b"FROM x AS toolkit\n"}, image, locked, "base:1")
    names = [line.partition("==")[0] for line in devel["locks/cuda.txt"].decode().splitlines() if "==" in line]  # type: ignore[union-attr]
    assert "nvidia-cublas" in names and not [name for name in names if "cudnn" in name or name == "torch"]


def test_a_pin_moves_in_the_copy_alone_and_its_lock_is_present(tmp_path: Path) -> None:
    project = ProjectCopy(tmp_path, None, tmp_path / "out")  # type: ignore[arg-type]
    project.copy()
    image = subject()
    locked = lock_file.read(image, results.RESOURCES / "locks")
    moved = rebuild.other_versions(locked.versions(image.layers)[rebuild.MOVED])[0]
    project.change({"stacks": {str(image.name.torch): {moved.name: moved.version}}})
    changed = project.image(str(image.name))
    project.lock(changed, locked, {moved.name: moved})
    assert lock_file.read(changed, tmp_path / "locks").versions(changed.layers)[moved.name] == moved.version
    assert list(project.sources().matrix.layers) == list(SOURCES.matrix.layers)


@pytest.mark.parametrize(
    ("free", "told"), [(None, "is on another machine"), (39_000_000_000, "has 39 GB free .* need 40 GB")]
)
def test_an_engine_elsewhere_or_on_a_full_disk_is_refused_with_the_next_command(free: int | None, told: str) -> None:
    with pytest.raises(UserError, match=told) as refused:
        delivery.require_here(free)
    assert "`python -m benchmarks --only delivery`" in refused.value.problems[0].then
    delivery.require_here(40_000_000_000)


def test_a_pull_that_its_link_can_not_have_passed_is_no_measurement() -> None:
    delivery.require_slower_than("1 Gb/s", 125_000_000 + network.BURST, 1.0)
    delivery.require_slower_than(network.LOOPBACK, 10**12, 0.1)
    with pytest.raises(UserError, match=r"passed 133 MB in 0.8 s, which takes 0.9 s"):
        delivery.require_slower_than("1 Gb/s", 125_000_000 + network.BURST, 0.8)
