"""users: caches and additions lie where this user may write, whatever is mounted on the image's cache folder.

The run starts one container a claim, as the user and with the mount that the claim names. A folder that the user may
not write to can't be helped from inside: there, what is measured is whether the image says what to do.
"""

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from validate.checks import RunAs, Settings
from validate.claims import Claim
from validate.environment import user_environment
from validate.judging import Finding, conclude, failed, passed, unproven

SETTINGS = Settings(run_as=RunAs.EACH_CLAIM)

_SECONDS = 300
_QUESTION = (
    "import importlib.util, sys; print(sys.prefix); print(importlib.util.find_spec('torch').origin)"
)


class HomeExpect(TypedDict):
    """Who runs with which mount (`volume`, `own` or `foreign`: images/validation/containers.py) on which folder.

    `caches`: variable -> the folder that it must name. `writable`: false: the user must be told what to do.
    """

    uid: int
    gid: int
    folder: str
    mount: str
    caches: Mapping[str, str]
    writable: bool


class Mounted(TypedDict):
    """Whether something lies on the folder, and whose it is."""

    mounted: bool
    owner: int
    mode: str


class Cache(TypedDict, total=False):
    """A cache folder: whether what is written there can be executed, or why nothing can be written."""

    path: str
    executable: bool
    error: str


class Additions(TypedDict, total=False):
    """The Python that pip installs for, whether its folder can be written, and the torch that it imports."""

    python: str
    code: int
    prefix: str
    torch: str
    writable: bool
    said: str
    error: str


class HomeEvidence(TypedDict):
    uid: int
    gid: int
    mounted: Mounted
    caches: Mapping[str, Cache]
    additions: Additions


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, HomeEvidence]]:
    """Yield the evidence of each claim."""
    environ = user_environment.recorded().environ
    for claim in claims:
        evidence: HomeEvidence = {
            "uid": os.getuid(),
            "gid": os.getgid(),
            "mounted": _mounted(claim.expect["folder"]),
            "caches": {name: _cache(environ.get(name, "")) for name in claim.expect["caches"]},
            "additions": _additions(environ),
        }
        yield claim.subject, evidence


def _mounted(folder: str) -> Mounted:
    """Return what lies on a folder."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    try:
        facts = Path(folder).stat()
    except OSError as error:
        return {"mounted": False, "owner": -1, "mode": error.strerror or str(error)}
    mounted = any(line.split()[4] == folder for line in lines)
    return {"mounted": mounted, "owner": facts.st_uid, "mode": f"{facts.st_mode & 0o7777:o}"}


def _cache(path: str) -> Cache:
    """Make a cache folder and write a file into it, as libraries do."""
    if not path:
        return {"path": "", "error": "not set"}
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path) as file:
            file.write(b"written")
    except OSError as error:
        return {"path": path, "error": f"{error.strerror}: {error.filename}"}
    return {"path": path, "executable": not os.statvfs(path).f_flag & os.ST_NOEXEC}


def _additions(environ: Mapping[str, str]) -> Additions:
    """Start the Python that pip installs for; it is made if there is none yet."""
    python = environ.get("PIP_PYTHON", "")
    try:
        done = subprocess.run(
            [python, "-c", _QUESTION],
            env=dict(environ),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            cwd="/",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"python": python, "error": str(error)}
    answers = done.stdout.splitlines()
    return {
        "python": python,
        "code": done.returncode,
        "prefix": answers[0] if answers else "",
        "torch": answers[1] if len(answers) > 1 else "",
        "writable": bool(answers) and os.access(answers[0], os.W_OK),
        "said": done.stderr[-2000:],
    }


_ADVICE = ("-v truetag-cache:", "--user $(id -u):$(id -g)", "install -d -m 1777", "--tmpfs")
"""What a user who may not write is told, each a way out."""


def judge(_subject: str, expect: HomeExpect, evidence: HomeEvidence) -> Finding:
    """Judge the run's own conditions first, then what the user can write, or is told."""
    mounted, uid, gid, folder = (
        evidence["mounted"],
        evidence["uid"],
        evidence["gid"],
        expect["folder"],
    )
    if (uid, gid) != (expect["uid"], expect["gid"]):
        return unproven(f"the probe ran as {uid}:{gid}, not {expect['uid']}:{expect['gid']}")
    if not mounted["mounted"]:
        return unproven(f"nothing is mounted on {folder} ({mounted['mode']})")
    if not expect["writable"]:
        return _judge_advice(folder, evidence)

    faults = [*_cache_faults(expect, evidence), *_addition_faults(folder, evidence["additions"])]
    return conclude(
        faults, f"uid {uid}:{gid} writes {len(expect['caches'])} caches and adds packages there"
    )


def _cache_faults(expect: HomeExpect, evidence: HomeEvidence) -> Iterator[str]:
    """Yield caches that the user can't use."""
    mounted = evidence["mounted"]
    whose = f"uid {mounted['owner']}'s, mode {mounted['mode']}"
    for name, path in expect["caches"].items():
        cache = evidence["caches"][name]
        if cache["path"] != path:
            yield f"{name} is {cache['path'] or 'not set'}, {path} is expected"
        elif "error" in cache:
            yield f"uid {evidence['uid']} can't write {name} ({cache['error']}; {expect['folder']} is {whose})"
        elif not cache["executable"]:
            yield f"{name}={cache['path']} is mounted noexec: what is compiled there can't be loaded"


def _addition_faults(folder: str, additions: Additions) -> Iterator[str]:
    """Yield why packages can't be added there."""
    start_error = _start_error(additions)
    if start_error:
        yield f"{additions['python'] or 'PIP_PYTHON'} does not run: {start_error}"
        return
    prefix, torch = additions["prefix"], additions["torch"]
    if not prefix.startswith(f"{folder}/") or not additions["writable"]:
        yield f"packages would be added to {prefix}, which is not the user's"
    elif not torch or torch.startswith(f"{prefix}/"):
        yield f"there, torch is {torch or 'not found'} and not the image's"


def _start_error(additions: Additions) -> str:
    """Return why the Python that pip installs for did not start; empty: it did."""
    if "error" in additions:
        return additions["error"]
    if additions["code"] != 0:
        return additions["said"][-300:] or f"status {additions['code']}"
    return ""


def _judge_advice(folder: str, evidence: HomeEvidence) -> Finding:
    """Judge a folder that can't be written: pip must still start, and whoever adds a package be told what to do."""
    if all("error" not in cache for cache in evidence["caches"].values()):
        return unproven(f"{folder} can be written to: this is not the case that was to be tried")

    additions = evidence["additions"]
    start_error = _start_error(additions)
    if start_error:
        return failed(f"python does not start: {start_error}")
    missing = [advice for advice in _ADVICE if advice not in additions["said"]]
    if missing:
        return failed(f"who may not write to {folder} is not told of {', '.join(missing)}")
    return passed(
        f"uid {evidence['uid']} may not write to {folder}, and is told of {len(_ADVICE)} ways out"
    )


CLAIMS = {"users": judge}
