"""The program that compiles a build step's Python files: all it is told, and no others."""

import os
import subprocess
import sys
from importlib.util import cache_from_source
from pathlib import Path

from images.matrix import ROOT

PROGRAM = ROOT / "templates" / "scripts" / "compile.py"


def test_what_is_named_gets_bytecode_and_what_does_not_compile_goes_without(tmp_path: Path) -> None:
    named = [tmp_path / f"number{number}.py" for number in range(70)] + [tmp_path / "white space\n.py"]
    for file in named:
        file.write_text("answer = 42\n")
    broken, left = tmp_path / "broken.py", tmp_path / "left.py"
    broken.write_text("print 'of another Python'\n")
    left.write_text("")
    told = b"".join(os.fsencode(file) + b"\0" for file in (*named, broken))
    done = subprocess.run([sys.executable, "-I", "-S", "-B", PROGRAM], input=told, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert all(Path(cache_from_source(str(file))).exists() for file in named)
    assert not any(Path(cache_from_source(str(file))).exists() for file in (broken, left))


def test_nothing_named_is_nothing_done() -> None:
    done = subprocess.run([sys.executable, "-I", "-S", "-B", PROGRAM], input=b"", capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
