"""The sessions. Each sets up its own environment; one for a verb calls `python -m images VERB`.

`pip install .` gives the same verbs as `truetag VERB`, without a session.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import nox

sys.path.insert(0, str(Path(__file__).parent))
from images.commands import VERBS  # it imports nothing

nox.needs_version = ">=2025.2.9"
nox.options.reuse_venv = "yes"
nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["plan"]

UNIT = ("tests/images", "tests/validate", "tests/templates", "tests/repository")
"""Folders of tests that need no Docker Engine."""
PURE = (
    "config",
    "context",
    "fleet",
    "locking",
    "nightly",
    "planning",
    "publish",
    "site",
    "validation",
)
COVERING = (*(f"tests/images/{name}" for name in PURE), "tests/validate")
"""Folders whose tests cover the pure packages (pyproject.toml). Tracing doubles their time."""
TESTING: Mapping[str, str] = {"PIP_FIND_LINKS": "", "PYTHONDONTWRITEBYTECODE": ""}
"""Environment of tests: hundreds of processes read the same modules, which one of them compiles."""


def _install(session: nox.Session, lock: str = "run") -> None:
    """Install requirements/LOCK.txt, which `python -m tools.relock` makes from pyproject.toml."""
    # A find-links folder of this machine may hold a CPU torch, or anything else that is not on the
    # index.
    session.env["PIP_FIND_LINKS"] = ""
    # Python compiles what is imported; pip would compile everything, in half of its time.
    session.install("-q", "--no-compile", "--require-hashes", "-r", f"requirements/{lock}.txt")


def _verb(session: nox.Session, verb: str) -> None:
    """Call the product and end with its own exit status (nox would turn every failure into 1)."""
    # Only `fleet` needs submitit and Ray.
    _install(session, "fleet" if verb == "fleet" else "run")
    session.log(f"python -m images {' '.join([verb, *session.posargs])}")
    code = _call([str(Path(session.bin) / "python"), "-m", "images", verb, *session.posargs])
    if code:
        sys.exit(code)


def _call(command: list[str]) -> int:
    """Run a command to its end, and return its exit status.

    Signals are handed on, and then waited for: an interrupted build tidies up before it ends. The
    command has a session of its own, not just a process group, because apt-get would be stopped in
    the background of a terminal.
    """
    child = subprocess.Popen(
        command, env={**os.environ, "PIP_FIND_LINKS": ""}, start_new_session=True
    )
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {
        number: signal.signal(number, lambda got, _frame: child.send_signal(got))
        for number in signals
    }
    try:
        return child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _add(verb: str, purpose: str) -> None:
    def run(session: nox.Session) -> None:
        _verb(session, verb)

    run.__doc__ = purpose
    nox.session(name=verb)(run)


for _name, _purpose in VERBS.items():
    _add(_name, _purpose)


@nox.session
def lint(session: nox.Session) -> None:
    """ruff and mypy --strict."""
    _install(session, "dev")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")


@nox.session
def tests(session: nox.Session) -> None:
    """All tests, those on a real Docker Engine included. [PYTEST ARGUMENT...]"""
    _install(session, "dev")
    # Which tests stay together on one worker, and how many workers there are: tests/conftest.py.
    session.run("pytest", "-n", "auto", "--durations=40", *session.posargs, env=TESTING)


@nox.session
def unit(session: nox.Session) -> None:
    """The tests that need no Docker Engine, on all cores. [PYTEST ARGUMENT...]"""
    _install(session, "dev")
    session.run("pytest", "-n", str(os.cpu_count()), *(session.posargs or UNIT), env=TESTING)


@nox.session
def coverage(session: nox.Session) -> None:
    """The coverage of the pure packages by their own tests; less than 95 % is an error."""
    _install(session, "dev")
    session.run("pytest", "-q", "-n", str(os.cpu_count()), "--cov", "--", *COVERING, env=TESTING)


@nox.session
def generate(session: nox.Session) -> None:
    """Renew generated files: schemas, tables in the docs, golden Dockerfiles. [--check]"""
    _install(session)
    session.run("python", "-m", "tools.generate", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation as pages; a broken link is an error. [MKDOCS ARGUMENT...]"""
    _install(session, "docs")
    session.run(
        "mkdocs",
        "build",
        "--strict",
        "--site-dir",
        "out/docs",
        *session.posargs,
        env={"PYTHONPATH": "."},
    )
