"""Build steps give one time to all that they wrote; bytecode stays valid, all else untouched."""

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


# --- bytecode -------------------------------------------------------------------------------------


def write_module(
    folder: Path,
    name: str = "module.py",
    mode: py_compile.PycInvalidationMode = py_compile.PycInvalidationMode.TIMESTAMP,
) -> tuple[Path, Path]:
    """Write a module and its bytecode, and return both files."""
    source = folder / name
    source.write_text("answer = 42\n")
    bytecode = py_compile.compile(str(source), doraise=True, invalidation_mode=mode)
    return source, Path(str(bytecode))


def source_time_in(bytecode: Path) -> int:
    """Return the time of the source that bytecode names in its header (PEP 552)."""
    return int.from_bytes(bytecode.read_bytes()[8:12], "little")


@pytest.mark.parametrize("name", ["module.py", "two.dots.py"])
def test_a_source_and_its_bytecode_get_the_same_time(tmp_path: Path, name: str) -> None:
    source, bytecode = write_module(tmp_path, name)

    normalise_timestamps.normalise([str(source), str(bytecode)], EPOCH)

    assert source.stat().st_mtime == EPOCH
    assert bytecode.stat().st_mtime == EPOCH
    assert source_time_in(bytecode) == EPOCH


def test_python_still_takes_the_bytecode(tmp_path: Path) -> None:
    source, bytecode = write_module(tmp_path)

    normalise_timestamps.normalise([str(source), str(bytecode)], EPOCH)

    command = [sys.executable, "-v", "-c", "import module"]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "matches" in finished.stderr
    assert "wrote" not in finished.stderr


def test_bytecode_of_another_source_is_not_made_to_look_valid(tmp_path: Path) -> None:
    source, bytecode = write_module(tmp_path)
    os.utime(source, (EPOCH + 5, EPOCH + 5))
    before = bytecode.read_bytes()

    normalise_timestamps.normalise([str(bytecode)], EPOCH)

    assert bytecode.read_bytes() == before


def test_bytecode_that_is_checked_by_hash_stays_as_it_is(tmp_path: Path) -> None:
    _, bytecode = write_module(tmp_path, mode=py_compile.PycInvalidationMode.CHECKED_HASH)
    before = bytecode.read_bytes()

    normalise_timestamps.normalise([str(bytecode)], EPOCH)

    assert bytecode.read_bytes() == before


def test_damaged_bytecode_stays_as_it_is(tmp_path: Path) -> None:
    damaged = tmp_path / "__pycache__" / "other.cpython-311.pyc"
    damaged.parent.mkdir()
    damaged.write_bytes(b"short")

    normalise_timestamps.normalise([str(damaged)], EPOCH)

    assert damaged.read_bytes() == b"short"


# --- links ----------------------------------------------------------------------------------------


def test_a_link_gets_the_time_and_its_target_does_not(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("")
    os.utime(target, (EPOCH + 9, EPOCH + 9))
    link = tmp_path / "link"
    link.symlink_to(target)

    normalise_timestamps.normalise([str(link)], EPOCH)

    assert link.lstat().st_mtime == EPOCH
    assert target.stat().st_mtime == EPOCH + 9


def test_a_link_that_leads_nowhere_gets_the_time(tmp_path: Path) -> None:
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "nowhere")

    normalise_timestamps.normalise([str(dangling)], EPOCH)

    assert dangling.lstat().st_mtime == EPOCH


# --- what uv notes about a local wheel ------------------------------------------------------------


def install_wheel(wheel: Path, target: Path, cache: Path) -> list[str]:
    """Install a wheel into a folder, and return the paths of all that is there."""
    options = ["-q", "--no-deps", "--no-index", "--python", sys.executable, "--cache-dir", cache]
    command = [find_uv_bin(), "pip", "install", *options, "--target", target, wheel]
    subprocess.run(command, check=True)
    return [str(path) for path in target.rglob("*")]


def test_the_time_of_a_local_wheel_is_forgotten(tmp_path: Path) -> None:
    """uv notes when the wheel was made, in a file that RECORD lists with its hash."""
    wheel = wheels.module(tmp_path, "kernel", "1.0")
    records = []
    for name in ("first", "second"):
        target = tmp_path / name
        paths = install_wheel(wheel, target, tmp_path / "cache")
        assert any("uv_cache" in path for path in paths), "else there is nothing to forget any more"

        remaining = normalise_timestamps.forget_times(paths)

        assert set(remaining) == {str(path) for path in target.rglob("*")}
        records.append((target / "kernel-1.0.dist-info" / "RECORD").read_bytes())

    assert b"uv_cache" not in records[0]
    assert b"kernel.py," in records[0]
    assert records[0] == records[1]


def test_a_note_without_a_record_is_removed_as_well(tmp_path: Path) -> None:
    note = tmp_path / "kernel-1.0.dist-info" / "uv_cache.json"
    note.parent.mkdir()
    note.write_text("{}")

    remaining = normalise_timestamps.forget_times([str(note), str(tmp_path)])

    assert remaining == [str(tmp_path)]
    assert list(note.parent.iterdir()) == []


# --- what a step has written ----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Step:
    """A build step in a folder that stands for the image's root."""

    root: Path
    before: Path
    """The file with the times of change that were noted when the step began."""

    def begin(self) -> None:
        record_change_times = ROOT / "templates" / "scripts" / "record_change_times.sh"
        subprocess.run(["sh", record_change_times, self.root, self.before], check=True)

    def written(self) -> set[str]:
        return set(normalise_timestamps.written(EPOCH, str(self.root), self.before))


@pytest.fixture
def step(tmp_path: Path) -> Step:
    (tmp_path / "root").mkdir()
    return Step(tmp_path / "root", tmp_path / "before")


def test_only_files_with_a_newer_time_are_written(step: Step) -> None:
    step.begin()
    (step.root / "folder").mkdir()
    for name, time in (
        ("newer", EPOCH + 1),
        ("older", EPOCH - 1),
        ("same", EPOCH),
        ("folder/a\nb", EPOCH + 1),
    ):
        (step.root / name).write_text("")
        os.utime(step.root / name, (time, time))

    paths = [step.root, step.root / "newer", step.root / "folder", step.root / "folder/a\nb"]
    assert step.written() == set(map(str, paths))


def test_files_of_an_earlier_step_are_told_from_those_of_this_one_without_a_pause(
    step: Step,
) -> None:
    """No time passes between the steps: a difference of clocks can't tell one from the other."""
    for turn in range(20):
        earlier = step.root / f"earlier{turn}"
        rewritten = step.root / f"rewritten{turn}"
        moved, moved_to = step.root / f"moved{turn}", step.root / f"moved_to{turn}"
        for file in (earlier, rewritten, moved):
            file.write_text("x")

        step.begin()
        rewritten.write_text("y")
        moved.rename(moved_to)

        assert step.written() == {str(step.root), str(rewritten), str(moved_to)}
    assert not list(step.root.glob(".*")), "the marker is gone"


@pytest.mark.parametrize("seconds", [-3600, 3600], ids=["set back", "set forth"])
def test_a_clock_that_is_set_hides_no_file(step: Step, seconds: int) -> None:
    """Times of change can't be set by a test, so the noted one is moved instead."""
    early, late = step.root / "early", step.root / "late"
    early.write_text("")
    late.write_text("")
    step.begin()
    lines = step.before.read_bytes().split(b"\0")
    (index,) = (number for number, line in enumerate(lines) if line.endswith(b"/late"))
    second, fraction_and_path = lines[index].split(b".", 1)
    lines[index] = b"%d.%s" % (int(second) + seconds, fraction_and_path)
    step.before.write_bytes(b"\0".join(lines))

    assert step.written() == {str(step.root), str(late)}


def test_a_step_that_did_not_begin_is_an_error(step: Step) -> None:
    with pytest.raises(FileNotFoundError):
        step.written()
