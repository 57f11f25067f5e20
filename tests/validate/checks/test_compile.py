"""Build steps compile the Python files that they install, and no others (templates/scripts)."""

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

SCRIPTS = ROOT / "templates" / "scripts"
COMPILE = SCRIPTS / "compile.py"
"""Reads names of Python files from standard input, each ended by a null byte, and compiles them."""
SOURCE = "answer = 42\n"
NO_PYTHON_3 = "print 'of another Python'\n"


def has_bytecode(file: Path) -> bool:
    return Path(cache_from_source(str(file))).exists()


# ---- compile.py


def compile_files(files: list[Path]) -> subprocess.CompletedProcess[bytes]:
    """Let compile.py compile these files."""
    names = b"".join(os.fsencode(file) + b"\0" for file in files)
    command = [sys.executable, "-I", "-S", "-B", COMPILE]
    return subprocess.run(command, input=names, capture_output=True)


def assert_ended_silently(done: subprocess.CompletedProcess[bytes]) -> None:
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_what_is_named_gets_bytecode_and_what_does_not_compile_goes_without(tmp_path: Path) -> None:
    named = [tmp_path / f"number{number}.py" for number in range(70)]
    named.append(tmp_path / "white space\n.py")
    for file in named:
        file.write_text(SOURCE)
    broken, not_named = tmp_path / "broken.py", tmp_path / "not_named.py"
    broken.write_text(NO_PYTHON_3)
    not_named.write_text("")

    done = compile_files([*named, broken])

    assert_ended_silently(done)
    assert all(has_bytecode(file) for file in named)
    assert not has_bytecode(broken)
    assert not has_bytecode(not_named)


def test_no_name_at_all_is_no_error() -> None:
    assert_ended_silently(compile_files([]))


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

    runpy.run_path(str(COMPILE), run_name="__main__")

    assert counts == [3]


# ---- install.sh, which runs an installer and then compile.py


def write_program(file: Path, script: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def run_install_script(
    root: Path, folders: dict[str, Path], installed: list[Path], find: str = ""
) -> int:
    """Run install.sh with `root` in place of the folders of a build, and return its exit status.

    folders: where the interpreter has packages, by the names of sysconfig (`purelib`, `platlib`).
    installed: the files that the installer writes.
    find: the script of a program `find` in place of the machine's; empty: the machine's.
    """
    # The interpreter answers as one with these folders would, where it is asked by `-c`.
    paths = {name: str(folder) for name, folder in folders.items()}
    with_folders = f"import sysconfig; sysconfig.get_path = {paths!r}.get"
    asked = f'[ "$1" != -c ] || exec {sys.executable} -c "{with_folders}\n$2"'
    write_program(root / "venv/bin/python", f'{asked}\nexec {sys.executable} "$@"')

    installations = []
    for file in installed:
        installations.append(f'mkdir -p "{file.parent}"; echo answer = 42 >"{file}"')
    write_program(root / "run/tools/bin/uv", "\n".join(installations))
    write_program(root / "run/host/env", "")
    (root / "run/scripts").mkdir()
    (root / "run/scripts/compile.py").symlink_to(COMPILE)
    if find:
        write_program(root / "bin/find", find)

    script = (SCRIPTS / "install.sh").read_text().replace("/run/", f"{root}/run/")
    command = ["sh", "-c", script, "install.sh", root / "venv/bin/python", "kernel"]
    return subprocess.run(command, env={"PATH": f"{root}/bin:{os.environ['PATH']}"}).returncode


@pytest.mark.parametrize(
    "platlib",
    [
        pytest.param("lib", id="the same folder"),
        pytest.param("lib 64", id="a folder with a space"),
        pytest.param("nowhere", id="no such folder"),
    ],
)
def test_what_a_step_installs_gets_bytecode_wherever_packages_are(
    tmp_path: Path, platlib: str
) -> None:
    old = tmp_path / "lib/old.py"
    old.parent.mkdir()
    old.write_text("")
    native_folder = "lib" if platlib == "nowhere" else platlib
    new = [tmp_path / "lib/new.py", tmp_path / native_folder / "native/new.py"]

    status = run_install_script(
        tmp_path, {"purelib": tmp_path / "lib", "platlib": tmp_path / platlib}, new
    )

    assert status == 0
    assert all(has_bytecode(file) for file in new)
    assert not has_bytecode(old)


def test_a_search_that_fails_fails_the_step(tmp_path: Path) -> None:
    """No pipe hides it: the layer would go without bytecode, and nobody would know."""
    (tmp_path / "lib").mkdir()
    folders = {"purelib": tmp_path / "lib", "platlib": tmp_path / "lib64"}
    new = [tmp_path / "lib/new.py", tmp_path / "lib64/new.py"]
    failing_find = f'[ $1 != {tmp_path}/lib ] || exit 3\nexec /usr/bin/find "$@"'

    assert run_install_script(tmp_path, folders, new, failing_find) != 0


@pytest.mark.parametrize("platlib", ["lib", "lib64"])
def test_a_folder_that_both_names_lead_to_is_searched_once(tmp_path: Path, platlib: str) -> None:
    """Bytecode holds its source's path, so one of two would win."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib64").symlink_to("lib")
    folders = {"purelib": tmp_path / "lib", "platlib": tmp_path / platlib}
    searches = tmp_path / "searches"

    status = run_install_script(tmp_path, folders, [], find=f"echo $1 >>{searches}")

    assert status == 0
    before_and_after_the_installation = f"{tmp_path}/lib\n" * 2
    assert searches.read_text() == before_and_after_the_installation


def test_an_interpreter_without_a_folder_of_packages_has_nothing_to_compile(tmp_path: Path) -> None:
    missing = tmp_path / "lib"

    assert run_install_script(tmp_path, {"purelib": missing, "platlib": missing}, []) == 0
