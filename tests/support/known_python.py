"""Give uv a Python whose facts it gets at once.

uv starts a Python to ask what it is, with `--refresh` each time. That takes longer than to resolve
tiny wheels. The answer decides nothing in these tests: they tell uv Python's version and platform.
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
    """Return a program that repeats to uv what this Python answered the first time."""
    folder = tmp_path_factory.mktemp("known")
    program = folder / "python"
    program.write_text(_STAND_IN.format(python=sys.executable, answer=folder / "answer.json"))
    program.chmod(0o755)
    return str(program)


@pytest.fixture
def uv_asks_once(known_python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let uv ask the stand-in when a lock is made."""
    monkeypatch.setattr(sys, "executable", known_python)
