"""Which file systems remember what was deleted, and that a measurement waits for them."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from images.bench import disk


def system(folder: Path, kind: str, journal: str = "", *, device: str = "dm-0") -> tuple[Path, Path]:
    """/proc and /sys/dev/block of a machine whose file system of this folder is such."""
    number = folder.stat().st_dev
    told = f"{os.major(number)}:{os.minor(number)}"
    proc, devices, block = folder / "proc", folder / "devices", folder / "block" / device
    (proc / "self").mkdir(parents=True)
    rows = [
        "21 1 0:19 / /proc rw - proc proc rw",
        f"29 1 {told} / /data rw,relatime shared:1 - {kind} /dev/mapper/vg-a rw",
    ]
    (proc / "self" / "mountinfo").write_text("\n".join(rows) + "\n")
    if journal:
        (proc / "fs" / "jbd2" / journal).mkdir(parents=True)
    devices.mkdir()
    block.mkdir(parents=True)
    (devices / told).symlink_to(block)
    return proc, devices


@pytest.mark.parametrize(
    ("kind", "journal", "told"),
    [
        ("ext4", "", True),
        ("ext4", "dm-0-8", False),
        ("ext4", "dm-00-8", True),
        ("xfs", "", False),
    ],
)
def test_ext4_without_a_journal_remembers(tmp_path: Path, kind: str, journal: str, told: bool) -> None:
    assert disk.remembers(tmp_path, *system(tmp_path, kind, journal)) is told


def test_what_is_on_no_device_remembers_nothing(tmp_path: Path) -> None:
    proc, devices = system(tmp_path, "ext4")
    next(devices.iterdir()).unlink()
    assert not disk.remembers(tmp_path, proc, devices)


@pytest.mark.parametrize(
    ("local", "remembers", "waited"), [(True, True, [361.0]), (True, False, []), (False, True, [])]
)
def test_it_waits_where_deleted_files_count(
    monkeypatch: pytest.MonkeyPatch, local: bool, remembers: bool, waited: list[float]
) -> None:
    done: list[object] = []
    monkeypatch.setattr(disk, "remembers", lambda _folder: remembers)
    monkeypatch.setattr(disk.os, "sync", lambda: done.append("synced"))
    monkeypatch.setattr(disk.time, "sleep", done.append)
    engine: Any = SimpleNamespace(facts=SimpleNamespace(local=local, data_root="/engine"))
    disk.rest(engine, lambda _text: None)
    assert done == (["synced", *waited] if waited else [])
