"""The buttons. Each session sets up its own environment and calls `python -m images VERB`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.reuse_venv = "yes"
nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["plan"]

PYPROJECT = nox.project.load_toml("pyproject.toml")


def _install(session: nox.Session, group: str) -> None:
    # A find-links folder of this machine may hold a CPU torch, or anything else that the index would not give.
    session.env["PIP_FIND_LINKS"] = ""
    session.install("-q", *nox.project.dependency_groups(PYPROJECT, group))


def _images(session: nox.Session, *arguments: str, group: str = "run") -> None:
    """Call the product and end with its own exit status (nox would turn every failure into 1)."""
    _install(session, group)
    session.log(f"python -m images {' '.join(arguments)}")
    code = _call([str(Path(session.bin) / "python"), "-m", "images", *arguments])
    if code:
        sys.exit(code)


def _call(command: list[str]) -> int:
    """Run to the end. Signals are handed on, and waited for: an interrupted build tidies up before it ends.

    It has a session of its own, not just a process group: in the background of a terminal, apt-get would be stopped.
    """
    child = subprocess.Popen(command, env={**os.environ, "PIP_FIND_LINKS": ""}, start_new_session=True)
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda got, _frame: child.send_signal(got)) for number in signals}
    try:
        return child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@nox.session
def plan(session: nox.Session) -> None:
    """Every image, accepted or refused, and why. [SELECTOR...] [--tracked] [--json | --names]"""
    _images(session, "plan", *session.posargs)


@nox.session
def lock(session: nox.Session) -> None:
    """Resolve images into hash-pinned locks. [SELECTOR...] [--check] [--upgrade]"""
    _images(session, "lock", *session.posargs)


@nox.session
def render(session: nox.Session) -> None:
    """Write an image's build context; plain `docker build` accepts it. SELECTOR..."""
    _images(session, "render", *session.posargs)


@nox.session
def bake(session: nox.Session) -> None:
    """Write contexts and a docker-bake.json for buildx. [SELECTOR...] [--to REPOSITORY] [--cache-to SPEC] ..."""
    _images(session, "bake", *session.posargs)


@nox.session
def adopt(session: nox.Session) -> None:
    """Prove a baked image, record it like a build, and name it. NAME [--image REF] [--out FOLDER]"""
    _images(session, "adopt", *session.posargs)


@nox.session
def build(session: nox.Session) -> None:
    """Build images and prove them. SELECTOR... [--jobs N] [--base REF] [--strict] ..."""
    _images(session, "build", *session.posargs)


@nox.session
def wheels(session: nox.Session) -> None:
    """Compile packages that exist as source only, once. NAME [PACKAGE...] [--jobs N] [--again]"""
    _images(session, "wheels", *session.posargs)


@nox.session
def reproduce(session: nox.Session) -> None:
    """Build an image twice, again without any cache, and compare layer by layer. NAME [--base REF]"""
    _images(session, "reproduce", *session.posargs)


@nox.session
def validate(session: nox.Session) -> None:
    """Judge an image against a name's claims. NAME [--image REF] [--tier static] [--json FILE]"""
    _images(session, "validate", *session.posargs)


@nox.session
def judge(session: nox.Session) -> None:
    """Judge a recorded run again, from its evidence alone. FILE [--tier static] [--json FILE]"""
    _images(session, "judge", *session.posargs)


@nox.session
def publish(session: nox.Session) -> None:
    """Push a proven image with proof, SBOM and provenance, then move its tags. NAME --to REPOSITORY [--gate TIERS]"""
    _images(session, "publish", *session.posargs)


@nox.session
def promote(session: nox.Session) -> None:
    """Take a published image over into another repository, by digest. REF --to REPOSITORY [--key cosign.pub]"""
    _images(session, "promote", *session.posargs)


@nox.session
def verify(session: nox.Session) -> None:
    """Check a published image: signature, attachments, labels. REF --key cosign.pub | --unsigned"""
    _images(session, "verify", *session.posargs)


@nox.session
def choose(session: nox.Session) -> None:
    """Which image to pull for a machine, and why. [--gpu NAME] [--driver X.Y] [--torch RANGE] [--profile NAME]"""
    _images(session, "choose", *session.posargs)


@nox.session
def site(session: nox.Session) -> None:
    """Static pages of what was proven of each image, and when. [--out FOLDER] [--from REPOSITORY] [--date DAY]"""
    _images(session, "site", *session.posargs)


@nox.session
def nightly(session: nox.Session) -> None:
    """Tracked images as locked and at the newest versions; what broke, bisected. [SELECTOR...] [--resume] [--json]"""
    _images(session, "nightly", *session.posargs)


@nox.session
def pin(session: nox.Session) -> None:
    """Record the digests of the base images. Needs a registry."""
    _images(session, "pin", *session.posargs)


@nox.session
def engine(session: nox.Session) -> None:
    """The private Docker Engine; wipe also frees its disk. status|start|stop|wipe"""
    _images(session, "engine", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure builds, bytes and times beside the usual way. [--only PART...] [--out FILE] [--repeat N]"""
    _images(session, "bench", *session.posargs, group="bench")


@nox.session
def releases(session: nox.Session) -> None:
    """Newer releases of packages that facts.yaml has rows of. [--write]"""
    _images(session, "releases", *session.posargs)


@nox.session
def guard(session: nox.Session) -> None:
    """Refuse renewed files that lost rows: facts, locks, bases, nightly results. [--before REVISION]"""
    _images(session, "guard", *session.posargs)


@nox.session
def issues(session: nox.Session) -> None:
    """An issue on GitHub for each breakage that a night reported. FOLDER [--dry-run]"""
    _images(session, "issues", *session.posargs)


@nox.session
def generate(session: nox.Session) -> None:
    """Renew the files made from others (schemas, tables in docs). [--check]"""
    _images(session, "generate", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """ruff, mypy --strict, hadolint on every rendered Dockerfile."""
    _install(session, "test")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run("pytest", "-q", "tests/repository")


@nox.session
def tests(session: nox.Session) -> None:
    """All tests, those on a real Docker Engine included. [PYTEST ARGUMENT...]"""
    _install(session, "test")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run("pytest", *session.posargs, env={"PIP_FIND_LINKS": ""})


@nox.session
def unit(session: nox.Session) -> None:
    """The tests that need no Docker Engine. [PYTEST ARGUMENT...]"""
    _install(session, "test")
    folders = ("tests/images", "tests/validate", "tests/templates", "tests/repository")
    session.run("pytest", *(session.posargs or folders), env={"PIP_FIND_LINKS": ""})
