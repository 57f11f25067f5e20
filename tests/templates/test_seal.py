"""Sealing a build step: one time for what it wrote, bytecode that stays good, and nothing else touched."""

import importlib.util
import os
import py_compile
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from uv import find_uv_bin

from images.config.matrix import ROOT
from images.context.templates import EPOCH


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("seal", ROOT / "templates" / "scripts" / "seal.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


seal = _load()


def compiled(folder: Path, name: str = "module.py") -> tuple[Path, Path]:
    source = folder / name
    source.write_text("answer = 42\n")
    return source, Path(py_compile.compile(str(source), doraise=True))


def test_bytecode_is_still_taken_and_bears_no_time_of_its_own(tmp_path: Path) -> None:
    for name in ("module.py", "two.dots.py"):
        source, bytecode = compiled(tmp_path, name)
        seal.seal([str(source), str(bytecode)], EPOCH)
        assert source.stat().st_mtime == bytecode.stat().st_mtime == EPOCH
        assert int.from_bytes(bytecode.read_bytes()[8:12], "little") == EPOCH
    done = subprocess.run([sys.executable, "-v", "-c", "import module"], cwd=tmp_path, capture_output=True, text=True)
    assert "matches" in done.stderr and "wrote" not in done.stderr


def test_two_builds_minutes_apart_give_the_same_bytecode(tmp_path: Path) -> None:
    found = []
    for minutes, folder in enumerate((tmp_path / "a", tmp_path / "b")):
        folder.mkdir()
        source = folder / "module.py"
        source.write_text("answer = 42\n")
        os.utime(source, (time.time() + 60 * minutes,) * 2)
        bytecode = Path(py_compile.compile(str(source), dfile="module.py", doraise=True))
        seal.seal([str(source), str(bytecode)], EPOCH)
        found.append(bytecode.read_bytes())
    assert found[0] == found[1]


def test_bytecode_of_another_source_is_not_made_to_look_right(tmp_path: Path) -> None:
    source, bytecode = compiled(tmp_path)
    os.utime(source, (EPOCH + 5, EPOCH + 5))
    before = bytecode.read_bytes()
    seal.seal([str(bytecode)], EPOCH)
    assert bytecode.read_bytes() == before


def test_bytecode_for_an_earlier_steps_source_goes_by_the_time_that_keeps(tmp_path: Path) -> None:
    source, bytecode = compiled(tmp_path)
    before = bytecode.read_bytes()
    seal.seal([str(bytecode)], EPOCH)
    assert bytecode.read_bytes() == before and source.stat().st_mtime > EPOCH


def wheel(folder: Path) -> Path:
    file = folder / "kernel-1.0-py3-none-any.whl"
    about = "kernel-1.0.dist-info"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("kernel.py", "answer = 42\n")
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: kernel\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", f"kernel.py,,\n{about}/METADATA,,\n{about}/WHEEL,,\n{about}/RECORD,,\n")
    return file


def test_a_local_wheel_leaves_no_time_behind(tmp_path: Path) -> None:
    """uv writes down when the wheel was made, in a file that RECORD lists with its hash."""
    file, records = wheel(tmp_path), []
    for target in (tmp_path / "first", tmp_path / "second"):
        command = [find_uv_bin(), "pip", "install", "-q", "--no-deps", "--no-index", "--python", sys.executable]
        subprocess.run([*command, "--target", target, "--cache-dir", tmp_path / "cache", file], check=True)
        paths = [str(path) for path in target.rglob("*")]
        assert any("uv_cache" in path for path in paths), "uv writes it no more: nothing to take away"
        left = seal.forget_times(paths)
        assert set(left) == {str(path) for path in target.rglob("*")}
        records.append((target / "kernel-1.0.dist-info" / "RECORD").read_bytes())
    assert b"uv_cache" not in records[0] and b"kernel.py," in records[0]
    assert records[0] == records[1]


def test_a_note_without_a_record_goes_all_the_same(tmp_path: Path) -> None:
    note = tmp_path / "kernel-1.0.dist-info" / "uv_cache.json"
    note.parent.mkdir()
    note.write_text("{}")
    assert seal.forget_times([str(note), str(tmp_path)]) == [str(tmp_path)]
    assert list(note.parent.iterdir()) == []


def test_checked_by_hash_and_damaged_bytecode_is_left_alone(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text("answer = 42\n")
    hashed = Path(py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH))
    damaged = hashed.with_name("other.cpython-311.pyc")
    damaged.write_bytes(b"short")
    before = hashed.read_bytes()
    seal.seal([str(hashed), str(damaged)], EPOCH)
    assert (hashed.read_bytes(), damaged.read_bytes()) == (before, b"short")


def test_links_bear_the_time_and_what_they_lead_to_does_not(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("")
    os.utime(target, (EPOCH + 9, EPOCH + 9))
    link = tmp_path / "link"
    link.symlink_to(target)
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "nowhere")
    seal.seal([str(link), str(dangling)], EPOCH)
    assert link.lstat().st_mtime == dangling.lstat().st_mtime == EPOCH
    assert target.stat().st_mtime == EPOCH + 9


def test_older_times_and_earlier_steps_are_let_be(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name, modified in (("new", EPOCH + 1), ("old", EPOCH - 1), ("at", EPOCH), ("folder/a\nb", EPOCH + 1)):
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (modified, modified))
    found = {path.removeprefix(f"{tmp_path}/") for path in seal.written(time.time() - 60, EPOCH, str(tmp_path))}
    assert {"new", "folder", "folder/a\nb"} <= found and not {"old", "at"} & found
    assert seal.written(time.time() + 60, EPOCH, str(tmp_path)) == []


@pytest.mark.skipif(not Path("/proc/1/stat").is_file(), reason="needs Linux's /proc")
def test_a_steps_beginning_is_its_first_processs() -> None:
    shown = subprocess.run(["ps", "-o", "lstart=", "-p", "1"], capture_output=True, text=True, check=True)
    expected = time.mktime(time.strptime(shown.stdout.strip(), "%a %b %d %H:%M:%S %Y"))
    assert abs(seal.began() - expected) < 3
