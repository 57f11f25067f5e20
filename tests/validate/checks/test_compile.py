"""The program that compiles a build step's Python files: all it is told, and no others."""

import concurrent.futures
import io
import os
import runpy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from tests.support.checkout import ROOT

PROGRAM = ROOT / "templates" / "scripts" / "compile.py"


def test_what_is_named_gets_bytecode_and_what_does_not_compile_goes_without(tmp_path: Path) -> None:
    named = [tmp_path / f"number{number}.py" for number in range(70)] + [
        tmp_path / "white space\n.py"
    ]
    for file in named:
        file.write_text("answer = 42\n")
    broken, left = tmp_path / "broken.py", tmp_path / "left.py"
    broken.write_text("print 'of another Python'\n")
    left.write_text("")
    told = b"".join(os.fsencode(file) + b"\0" for file in (*named, broken))
    for names in (b"", told):
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-B", PROGRAM], input=names, capture_output=True
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert all(Path(cache_from_source(str(file))).exists() for file in named)
    assert not any(Path(cache_from_source(str(file))).exists() for file in (broken, left))


def test_it_takes_as_many_processes_as_it_may_run_on_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a machine of 64 cores, a container may be lent three."""
    counts: list[int | None] = []

    class Pool(ThreadPoolExecutor):
        def __init__(self, max_workers: int | None = None) -> None:
            counts.append(max_workers)
            super().__init__(max_workers)

    monkeypatch.setattr(concurrent.futures, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 5})
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    runpy.run_path(str(PROGRAM), run_name="__main__")
    assert counts == [3]


def program(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


def step(root: Path, folders: dict[str, Path], installed: list[Path], find: str = "") -> int:
    """The status of install.sh where `root` is all that it is lent: an interpreter with these folders for packages, an
    installer that writes these files, and, if one is given, a `find` of its own.
    """
    stand_in = f"import sysconfig; sysconfig.get_path = { ({name: str(at) for name, at in folders.items()})!r}.get"
    in_its_place = f'[ "$1" != -c ] || exec {sys.executable} -c "{stand_in}\n$2"'
    program(root / "venv/bin/python", f'{in_its_place}\nexec {sys.executable} "$@"')
    writes = [f'mkdir -p "{file.parent}"; echo answer = 42 >"{file}"' for file in installed]
    program(root / "run/tools/bin/uv", "\n".join(writes))
    program(root / "run/host/env", "")
    (root / "run/scripts").mkdir()
    (root / "run/scripts/compile.py").symlink_to(PROGRAM)
    if find:
        program(root / "bin/find", find)
    script = (PROGRAM.parent / "install.sh").read_text().replace("/run/", f"{root}/run/")
    called = ["sh", "-c", script, "install.sh", root / "venv/bin/python", "kernel"]
    return subprocess.run(called, env={"PATH": f"{root}/bin:{os.environ['PATH']}"}).returncode


@pytest.mark.parametrize("platlib", ["lib", "lib 64", "nowhere"])
def test_what_a_step_installs_gets_bytecode_wherever_packages_are(
    tmp_path: Path, platlib: str
) -> None:
    old = tmp_path / "lib/old.py"
    old.parent.mkdir()
    old.write_text("")
    folders = {"purelib": tmp_path / "lib", "platlib": tmp_path / platlib}
    new = [
        tmp_path / "lib/new.py",
        tmp_path / ("lib" if platlib == "nowhere" else platlib) / "native/new.py",
    ]
    assert step(tmp_path, folders, new) == 0
    assert all(Path(cache_from_source(str(file))).exists() for file in new)
    assert not Path(cache_from_source(str(old))).exists()


def test_a_search_that_fails_fails_the_step(tmp_path: Path) -> None:
    """No pipe hides it: the layer would go without bytecode, and nobody would know."""
    (tmp_path / "lib").mkdir()
    folders = {"purelib": tmp_path / "lib", "platlib": tmp_path / "lib64"}
    find = f'[ $1 != {tmp_path}/lib ] || exit 3\nexec /usr/bin/find "$@"'
    assert step(tmp_path, folders, [tmp_path / "lib/new.py", tmp_path / "lib64/new.py"], find) != 0


@pytest.mark.parametrize("platlib", ["lib", "lib64"])
def test_a_folder_that_both_names_lead_to_is_searched_once(tmp_path: Path, platlib: str) -> None:
    """Bytecode holds its source's path, so one of two would win."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib64").symlink_to("lib")
    folders = {"purelib": tmp_path / "lib", "platlib": tmp_path / platlib}
    assert step(tmp_path, folders, [], find=f"echo $1 >>{tmp_path}/searches") == 0
    assert (tmp_path / "searches").read_text() == f"{tmp_path}/lib\n" * 2, (
        "before and after the installation"
    )


def test_an_interpreter_without_a_folder_of_packages_has_nothing_to_compile(tmp_path: Path) -> None:
    assert step(tmp_path, dict.fromkeys(["purelib", "platlib"], tmp_path / "lib"), []) == 0
