"""A Python that uv need not start to know it: that takes longer than resolving tiny wheels, and `--refresh` asks anew.

What it is decides nothing there: Python's version and the platform are told to uv.
"""

import sys

import pytest

_STAND_IN = """\
#!/bin/sh
case "$*" in *get_interpreter_info*) ;; *) exec {python} "$@" ;; esac
test -s {answer} || {{ {python} "$@" > {answer}.$$ && mv {answer}.$$ {answer}; }}
exec cat {answer}
"""


@pytest.fixture(scope="session")
def known_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Says of this Python what it said itself when uv asked first."""
    folder = tmp_path_factory.mktemp("known")
    program = folder / "python"
    program.write_text(_STAND_IN.format(python=sys.executable, answer=folder / "answer.json"))
    program.chmod(0o755)
    return str(program)


@pytest.fixture
def uv_asks_once(known_python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """uv is given the stand-in where a lock is made."""
    monkeypatch.setattr(sys, "executable", known_python)
