"""The sessions. Each sets up its own environment; one for a verb calls `python -m images VERB`.

`pip install .` gives the same verbs as `truetag VERB`, without a session.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.reuse_venv = "yes"
nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["plan"]

PROJECT = nox.project.load_toml("pyproject.toml")["project"]
VERBS: Mapping[str, str] = {
    "plan": "Every image, accepted or refused, and why. [SELECTOR...] [--tracked] [--json | --names]",
    "lock": "Resolve images into hash-pinned locks. [SELECTOR...] [--check] [--upgrade]",
    "contents": "Read from the index what files of locks bring (claim S10). [SELECTOR...] [--evidence FILE] [--check]",
    "render": "Write an image's build context for `docker build` (before Docker 23: DOCKER_BUILDKIT=1). SELECTOR...",
    "bake": "Write contexts and a docker-bake.json for buildx. [SELECTOR...] [--to REPOSITORY] [--cache-to SPEC] ...",
    "adopt": "Validate a baked image, record it like a build, and tag it. NAME [--image REF] [--out FOLDER]",
    "build": "Build images and validate them. SELECTOR... [--jobs N] [--base REF] [--strict] ...",
    "wheels": "Compile packages that exist as source only, once. NAME [PACKAGE...] [--jobs N] [--recompile]",
    "reproduce": "Build an image twice, the second time uncached, and compare layer by layer. NAME [--base REF]",
    "validate": "Judge an image against a name's claims. NAME [--image REF] [--tier static] [--json FILE]",
    "judge": "Judge a recorded run again, from its evidence alone. FILE [--tier static] [--json FILE]",
    "audit": "Look for faults in any image; no validation. REF [--no-run] [--out FOLDER] [--fail-on error] ...",
    "publish": "Push validated images with attestations, then move tags. NAME... --to REPOSITORY [--on slurm|ray] ...",
    "promote": "Take a published image over into another repository, by digest. REF --to REPOSITORY [--key cosign.pub]",
    "verify": "Check a published image: signature, attachments, labels. REF --key cosign.pub | --unsigned",
    "attest": "Sign what is attached to an image as statements that others read. REF --key cosign.key | --out FOLDER",
    "admission": "A Kubernetes policy: only images whose tiers passed lately. kyverno --key cosign.pub --images REPO",
    "scan": "Known vulnerabilities of an image, since when, against the limits. NAME --findings FILE [--debian] ...",
    "vex": "Say of a vulnerability that it does not affect us, and why. ID --package PURL --state STATE --because TEXT",
    "updates": "Debian's security updates for an image; rebuilt, validated and proposed. NAME [--rebuild] ...",
    "choose": "Which image to pull for a machine, and why. [--gpu NAME] [--driver X.Y] [--torch RANGE] ...",
    "record": "Append a validation run to results/runs.jsonl. FOLDER --as WHERE [--keep-evidence]",
    "site": "Static pages: what was validated of each image, and when. [--out FOLDER] [--from REPOSITORY] [--date DAY]",
    "nightly": "Tracked images as locked and at the newest versions; breakages bisected. [SELECTOR...] [--resume] ...",
    "fleet": "Judge images on many machines. plan|run|status [SELECTOR...] [--on slurm|ray] [--through REPOSITORY] ...",
    "pin": "Record the digests of the base images. Needs a registry.",
    "engine": "The private Docker Engine; wipe also frees its disk. status|start|stop|wipe",
    "bench": "Measure builds, sizes and times beside the usual way. [--only PART...] [--on slurm|ray] [--out FILE] ...",
    "additions": "Install what people add in containers of a built image: does torch stay? NAME [--only PACKAGE...]",
    "releases": "Newer releases of packages that facts.yaml has rows of. [--write]",
    "guard": "Refuse refreshed files that lost rows: facts, locks, bases, nightly results. [--before REVISION]",
    "issues": "An issue on GitHub for each breakage that a nightly run reported. FOLDER [--dry-run]",
    "generate": "Renew the files made from others (schemas, tables in docs). [--check]",
}
"""Session -> its line in `nox -l`. Each is a verb of the command line, and passes its arguments on."""
UNIT = ("tests/images", "tests/validate", "tests/templates", "tests/repository")
"""Folders of tests that need no Docker Engine."""
TESTING: Mapping[str, str] = {"PIP_FIND_LINKS": "", "PYTHONDONTWRITEBYTECODE": ""}
"""Environment of tests: hundreds of processes read the same modules, which one of them compiles."""


def _install(session: nox.Session, *extras: str) -> None:
    # A find-links folder of this machine may hold a CPU torch, or anything else that the index would not give.
    session.env["PIP_FIND_LINKS"] = ""
    optional = [line for extra in extras for line in PROJECT["optional-dependencies"][extra]]
    session.install("-q", *PROJECT["dependencies"], *optional)


def _verb(session: nox.Session, verb: str) -> None:
    """Call the product and end with its own exit status (nox would turn every failure into 1)."""
    _install(session, *_executors(session.posargs))
    session.log(f"python -m images {' '.join([verb, *session.posargs])}")
    code = _call([str(Path(session.bin) / "python"), "-m", "images", verb, *session.posargs])
    if code:
        sys.exit(code)


def _executors(arguments: Sequence[str]) -> list[str]:
    """The extra that brings what `--on` names."""
    after = [value for flag, value in pairwise(arguments) if flag == "--on"]
    joined = [one.removeprefix("--on=") for one in arguments if one.startswith("--on=")]
    return [extra for extra in ("ray", "slurm") if any(one.partition(":")[0] == extra for one in (*after, *joined))]


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


def _add(verb: str, purpose: str) -> None:
    def run(session: nox.Session) -> None:
        _verb(session, verb)

    run.__doc__ = purpose
    nox.session(name=verb)(run)


for _name, _purpose in VERBS.items():
    _add(_name, _purpose)


def _lint(session: nox.Session) -> None:
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")


@nox.session
def lint(session: nox.Session) -> None:
    """ruff, mypy --strict, hadolint on every rendered Dockerfile."""
    _install(session, "lint", "test")
    _lint(session)
    session.run("pytest", "-q", "-n", "auto", "tests/repository", env=TESTING)


@nox.session
def tests(session: nox.Session) -> None:
    """All tests, those on a real Docker Engine included, and the coverage of the pure packages. [PYTEST ARGUMENT...]

    With --pretend-memory BYTES and --pretend-cores N the engine reports another machine size (tests/pretend).
    """
    _install(session, "lint", "test")
    _lint(session)
    # Which tests stay together on one worker, and how many workers there are: tests/conftest.py.
    session.run("pytest", "-n", "auto", "--durations=40", *(session.posargs or ("--cov",)), env=TESTING)


@nox.session
def unit(session: nox.Session) -> None:
    """The tests that need no Docker Engine, on all cores. [PYTEST ARGUMENT...]"""
    _install(session, "lint", "test")
    session.run("pytest", "-n", str(os.cpu_count()), *(session.posargs or UNIT), env=TESTING)


@nox.session
def overhead(session: nox.Session) -> None:
    """Measure what Slurm and Ray, started here, cost beside one machine. [--over NAME] [--out FILE] [--repeat N]"""
    _install(session, "test")
    session.run("python", "-m", "tests.support.fleet_overhead", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation as pages; a broken link is an error. [MKDOCS ARGUMENT...]"""
    _install(session, "docs")
    session.run("mkdocs", "build", "--strict", "--site-dir", "out/docs", *session.posargs, env={"PYTHONPATH": "."})
