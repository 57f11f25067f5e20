"""Unpacked images go with their process; those of a killed one at the next sweep, and no other."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from images.apptainer import runtime
from tests.support.checkout import ROOT

KILLED = """
import os
from images.apptainer import runtime
with runtime.scratch_folder():
    os.kill(os.getpid(), 9)
"""


def test_a_sweep_takes_what_a_killed_process_left_and_nothing_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APPTAINER_TMPDIR", str(tmp_path))
    subprocess.run([sys.executable, "-c", KILLED], cwd=ROOT, check=False)
    (left,) = tmp_path.iterdir()
    (left / "root").mkdir()
    (left / "root" / "closed").mkdir(mode=0o500)
    with runtime.scratch_folder() as used:
        assert runtime.sweep() == (left.name,)
        assert list(tmp_path.iterdir()) == [used]
    (tmp_path / "truetag-apptainer-a" / "root").mkdir(parents=True)
    assert runtime.sweep() == ("truetag-apptainer-a",), "its lock was among what it had removed"
    assert list(tmp_path.iterdir()) == []


@contextmanager
def user_without_rights() -> Iterator[Path]:
    """Makes this process one that file modes hold for. Yields an empty folder of its own."""
    before = os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        if before == 0:
            os.chown(name, 65534, 65534)
            os.seteuid(65534)
        try:
            yield Path(name)
        finally:
            os.seteuid(before)


def test_an_image_of_closed_folders_and_links_goes_and_nothing_outside_is_touched() -> None:
    with user_without_rights() as place:
        own = place / "own"
        own.write_text("a file of the user's")
        own.chmod(0o640)
        root = place / "sandbox" / "root"
        for name in ("read-only", "unreadable"):
            (root / name / "inner").mkdir(parents=True)
            (root / name / "file").touch()
            for link, target in {"own": own, "dangling": place / "no", "passwd": "/etc/passwd", "up": place}.items():
                (root / name / link).symlink_to(target)
        (root / "read-only").chmod(0o555)
        (root / "unreadable").chmod(0)
        runtime.remove(root.parent)
        assert [path.name for path in place.iterdir()] == ["own"]
        assert own.stat().st_mode & 0o777 == 0o640


def test_what_can_not_be_removed_ends_neither_a_sweep_nor_a_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APPTAINER_TMPDIR", str(tmp_path))
    for name in ("a", "b", "c"):
        (tmp_path / f"truetag-apptainer-{name}").mkdir()
        (tmp_path / f"truetag-apptainer-{name}" / "lock").touch()
    (tmp_path / "truetag-apptainer-0").symlink_to(tmp_path / "gone")
    remove = runtime.remove

    def busy(path: Path) -> None:
        if path.name.endswith(("-b", "c")):
            raise OSError(16, "Device or resource busy")
        remove(path)

    monkeypatch.setattr(runtime, "remove", busy)
    assert runtime.sweep() == ("truetag-apptainer-a",)
    monkeypatch.setattr(runtime, "remove", lambda _path: busy(Path("c")))
    with runtime.scratch_folder() as used:
        (used / "verdict").touch()
    assert used.exists(), "for the next sweep"
