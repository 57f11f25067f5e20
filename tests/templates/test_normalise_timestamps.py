"""Build steps give one time to all that they wrote; bytecode stays valid; nothing else is touched."""

import dataclasses
import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest
from uv import find_uv_bin

from images.context.templates import EPOCH
from tests.support import wheels
from tests.support.checkout import ROOT, script

normalise_timestamps = script(ROOT / "templates" / "scripts" / "normalise_timestamps.py")


def compiled(folder: Path, name: str = "module.py") -> tuple[Path, Path]:
    source = folder / name
    source.write_text("answer = 42\n")
    return source, Path(py_compile.compile(str(source), doraise=True))


def test_bytecode_is_still_taken_and_bears_no_time_of_its_own(tmp_path: Path) -> None:
    for name in ("module.py", "two.dots.py"):
        source, bytecode = compiled(tmp_path, name)
        normalise_timestamps.normalise([str(source), str(bytecode)], EPOCH)
        assert source.stat().st_mtime == bytecode.stat().st_mtime == EPOCH
        assert int.from_bytes(bytecode.read_bytes()[8:12], "little") == EPOCH
    done = subprocess.run(
        [sys.executable, "-v", "-c", "import module"], cwd=tmp_path, capture_output=True, text=True
    )
    assert "matches" in done.stderr and "wrote" not in done.stderr


def test_bytecode_of_another_source_is_not_made_to_look_right(tmp_path: Path) -> None:
    source, bytecode = compiled(tmp_path)
    os.utime(source, (EPOCH + 5, EPOCH + 5))
    before = bytecode.read_bytes()
    normalise_timestamps.normalise([str(bytecode)], EPOCH)
    assert bytecode.read_bytes() == before


def test_a_local_wheel_leaves_no_time_behind(tmp_path: Path) -> None:
    """uv writes down when the wheel was made, in a file that RECORD lists with its hash."""
    file, records = wheels.module(tmp_path, "kernel", "1.0"), []
    for target in (tmp_path / "first", tmp_path / "second"):
        command = [
            find_uv_bin(),
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--no-index",
            "--python",
            sys.executable,
        ]
        subprocess.run(
            [*command, "--target", target, "--cache-dir", tmp_path / "cache", file], check=True
        )
        paths = [str(path) for path in target.rglob("*")]
        assert any("uv_cache" in path for path in paths), (
            "uv writes it no more: nothing to take away"
        )
        left = normalise_timestamps.forget_times(paths)
        assert set(left) == {str(path) for path in target.rglob("*")}
        records.append((target / "kernel-1.0.dist-info" / "RECORD").read_bytes())
    assert b"uv_cache" not in records[0] and b"kernel.py," in records[0]
    assert records[0] == records[1]


def test_a_note_without_a_record_goes_all_the_same(tmp_path: Path) -> None:
    note = tmp_path / "kernel-1.0.dist-info" / "uv_cache.json"
    note.parent.mkdir()
    note.write_text("{}")
    assert normalise_timestamps.forget_times([str(note), str(tmp_path)]) == [str(tmp_path)]
    assert list(note.parent.iterdir()) == []


def test_checked_by_hash_and_damaged_bytecode_is_left_alone(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text("answer = 42\n")
    hashed = Path(
        py_compile.compile(
            str(source), invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH
        )
    )
    damaged = hashed.with_name("other.cpython-311.pyc")
    damaged.write_bytes(b"short")
    before = hashed.read_bytes()
    normalise_timestamps.normalise([str(hashed), str(damaged)], EPOCH)
    assert (hashed.read_bytes(), damaged.read_bytes()) == (before, b"short")


def test_links_bear_the_time_and_what_they_lead_to_does_not(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("")
    os.utime(target, (EPOCH + 9, EPOCH + 9))
    link = tmp_path / "link"
    link.symlink_to(target)
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "nowhere")
    normalise_timestamps.normalise([str(link), str(dangling)], EPOCH)
    assert link.lstat().st_mtime == dangling.lstat().st_mtime == EPOCH
    assert target.stat().st_mtime == EPOCH + 9


@dataclasses.dataclass(frozen=True)
class Step:
    """A build step in a folder that stands for the image's root."""

    root: Path
    before: Path

    def begin(self) -> None:
        script = ROOT / "templates" / "scripts" / "record_change_times.sh"
        subprocess.run(["sh", script, self.root, self.before], check=True)

    def written(self) -> set[str]:
        return set(normalise_timestamps.written(EPOCH, str(self.root), self.before))


@pytest.fixture
def step(tmp_path: Path) -> Step:
    (tmp_path / "root").mkdir()
    return Step(tmp_path / "root", tmp_path / "before")


def test_older_times_are_let_be(step: Step) -> None:
    step.begin()
    (step.root / "folder").mkdir()
    for name, modified in (
        ("new", EPOCH + 1),
        ("old", EPOCH - 1),
        ("at", EPOCH),
        ("folder/a\nb", EPOCH + 1),
    ):
        (step.root / name).write_text("")
        os.utime(step.root / name, (modified, modified))
    assert step.written() == {
        str(step.root / name) for name in ("", "new", "folder", "folder/a\nb")
    }


def test_what_an_earlier_step_wrote_just_before_is_let_be_and_what_this_one_changes_at_once_is_not(
    step: Step,
) -> None:
    """No time passes between the steps: a difference of clocks can't tell one from the other."""
    for turn in range(20):
        early, again, moved = (step.root / f"{name}{turn}" for name in ("early", "again", "moved"))
        for file in (early, again, moved):
            file.write_text("x")
        step.begin()
        again.write_text("y")
        moved.rename(step.root / f"renamed{turn}")
        assert step.written() == {str(step.root), str(again), str(step.root / f"renamed{turn}")}
    assert not list(step.root.glob(".*")), "the marker is gone"


def test_a_clock_that_is_set_back_or_forth_hides_nothing(step: Step) -> None:
    """Times of change can't be set from here, so what was noted is moved instead."""
    for away in (-3600, 3600):
        early, late = step.root / "early", step.root / "late"
        early.write_text("")
        late.write_text("")
        step.begin()
        noted = step.before.read_bytes().split(b"\0")
        at = next(index for index, line in enumerate(noted) if line.endswith(b"/late"))
        second, rest = noted[at].split(b".", 1)
        noted[at] = b"%d.%s" % (int(second) + away, rest)
        step.before.write_bytes(b"\0".join(noted))
        assert step.written() == {str(step.root), str(late)}


def test_a_step_that_did_not_begin_is_not_normalised(step: Step) -> None:
    with pytest.raises(FileNotFoundError):
        step.written()
