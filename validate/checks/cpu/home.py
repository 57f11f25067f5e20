"""users: check that the user can write the caches and add packages, with any mount and user ID.

The validation run starts one container for each claim, as the user and with the mount that the
claim names. Nothing in the image can open a folder that the user may not write to: for such a
folder, the check is whether the image tells the user what to do.
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
from validate.next_steps import BUILD_ANEW, RUN_AS_ASKED

SETTINGS = Settings(run_as=RunAs.EACH_CLAIM)

_SECONDS = 300
"""How long the Python that pip installs for may take to start."""
_PROGRAM = (
    "import importlib.util, sys; print(sys.prefix); print(importlib.util.find_spec('torch').origin)"
)
"""Prints where packages are added, and then the file of the torch that would be imported."""
_ADVICE = ("-v truetag-cache:", "--user $(id -u):$(id -g)", "install -d -m 1777", "--tmpfs")
"""What a user who may not write is told: parts of the message, one for each way out."""


class HomeExpect(TypedDict):
    """How a claim's container is started, and what its user must be able to write."""

    uid: int
    gid: int
    folder: str  # the image's cache folder
    mount: str  # what lies on it: `volume`, `own` or `foreign` (images/validation/containers.py)
    caches: Mapping[str, str]  # environment variable -> the folder that it must name
    writable: bool  # false: the user can't write there, and must be told what to do


class Mounted(TypedDict):
    """The state of the cache folder."""

    mounted: bool  # something is mounted on it
    owner: int  # user ID; -1: the folder can't be looked at
    mode: str  # octal, such as `1777`; or why the folder can't be looked at


class Cache(TypedDict, total=False):
    """Whether one cache folder can be used."""

    path: str
    executable: bool  # libraries that lie there can be loaded: it is not mounted noexec
    error: str  # why nothing can be written there; then `executable` is absent


class Additions(TypedDict, total=False):
    """How the Python that pip installs for started. If it did not run: `python` and `error`."""

    python: str
    code: int  # its exit status
    prefix: str  # its sys.prefix, where packages are added
    torch: str  # the file of the torch that it would import
    writable: bool  # the user may write to `prefix`
    said: str  # the end of its stderr
    error: str


class HomeEvidence(TypedDict):
    """What `measure` yields for a claim."""

    uid: int
    gid: int
    mounted: Mounted
    caches: Mapping[str, Cache]  # by environment variable
    additions: Additions


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, HomeEvidence]]:
    """Try what the user of this container can write: the caches, and Python's packages.

    Yields the subject of each claim, and what was found. A claim names the folder that is mounted,
    and the variables that name caches.
    """
    environ = user_environment.recorded().environ
    for claim in claims:
        caches = {}
        for name in claim.expect["caches"]:
            caches[name] = write_to_cache(environ.get(name, ""))
        evidence: HomeEvidence = {
            "uid": os.getuid(),
            "gid": os.getgid(),
            "mounted": describe_mount(claim.expect["folder"]),
            "caches": caches,
            "additions": start_python_of_pip(environ),
        }
        yield claim.subject, evidence


def describe_mount(folder: str) -> Mounted:
    """Return whether something is mounted on a folder, and its owner and mode.

    If the folder can't be looked at, `mode` is the reason, and the owner is -1.
    """
    try:
        status = Path(folder).stat()
    except OSError as error:
        reason = error.strerror or str(error)
        return {"mounted": False, "owner": -1, "mode": reason}

    text = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    # The fifth field of a line is the mount point: proc(5).
    mount_points = [line.split()[4] for line in text.splitlines()]
    return {
        "mounted": folder in mount_points,
        "owner": status.st_uid,
        # The lowest twelve bits are the mode. Others say what kind of file it is.
        "mode": f"{status.st_mode & 0o7777:o}",
    }


def write_to_cache(path: str) -> Cache:
    """Make a cache folder and write a file into it, as libraries do; return whether that worked.

    `path` is the value of the variable that names the folder; empty: the variable is not set.
    """
    if not path:
        return {"path": "", "error": "not set"}
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path) as file:
            file.write(b"written")
    except OSError as error:
        return {"path": path, "error": f"{error.strerror}: {error.filename}"}
    return {"path": path, "executable": not os.statvfs(path).f_flag & os.ST_NOEXEC}


def start_python_of_pip(environ: Mapping[str, str]) -> Additions:
    """Start $PIP_PYTHON, the Python that pip installs for, and return where packages are added.

    The image makes this Python at its first start, in the user's cache folder. If it can't be
    started, only `python` and `error` are returned; if it fails, its exit status and stderr say so.
    """
    # If the variable is not set, an error is returned below: an empty name can't be started.
    python = environ.get("PIP_PYTHON", "")
    try:
        completed = subprocess.run(
            [python, "-c", _PROGRAM],
            env=dict(environ),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            cwd="/",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"python": python, "error": str(error)}

    # _PROGRAM prints two lines: sys.prefix, and the file of torch. They may be missing if it fails.
    lines = completed.stdout.splitlines()
    prefix = lines[0] if lines else ""
    torch_file = lines[1] if len(lines) > 1 else ""
    return {
        "python": python,
        "code": completed.returncode,
        "prefix": prefix,
        "torch": torch_file,
        "writable": bool(lines) and os.access(prefix, os.W_OK),
        "said": completed.stderr[-2000:],
    }


def judge(_subject: str, expect: HomeExpect, evidence: HomeEvidence) -> Finding:
    """Pass if a user can write to the caches in a mounted folder, and add Python packages there.

    With `expect["writable"]` false, the folder belongs to another user. Then pass if the image's
    start-up message advises this user what to do. UNPROVEN if the container ran as another user
    than claimed, or without the mount.
    """
    uid, gid, folder = evidence["uid"], evidence["gid"], expect["folder"]
    if (uid, gid) != (expect["uid"], expect["gid"]):
        claimed = f"{expect['uid']}:{expect['gid']}"
        return unproven(
            f"truetag asked Docker to run the container as user {claimed}, and it ran as "
            f"{uid}:{gid}",
            RUN_AS_ASKED,
        )
    mount = evidence["mounted"]
    # `mode` is that of the folder, or the reason why it can't be looked at.
    if not mount["mounted"]:
        return unproven(
            f"truetag asked Docker to mount a volume on {folder}, and in the container none is "
            f"mounted there (`stat` of this folder says {mount['mode']})",
            RUN_AS_ASKED,
        )
    if not expect["writable"]:
        return judge_advice(folder, evidence)

    faults = [*cache_faults(expect, evidence), *addition_faults(folder, evidence["additions"])]
    return conclude(
        faults, f"uid {uid}:{gid} writes {len(expect['caches'])} caches and adds packages there"
    )


def cache_faults(expect: HomeExpect, evidence: HomeEvidence) -> Iterator[str]:
    """Yield a fault for each cache folder that the user can't use.

    Its variable must name the expected folder, a file can be written there, and a library that was
    compiled there can be loaded.
    """
    uid, folder, mount = evidence["uid"], expect["folder"], evidence["mounted"]
    # Owner and mode of the folder above all caches say why one of them can't be written to.
    owner = f"uid {mount['owner']}'s, mode {mount['mode']}"
    for name, path in expect["caches"].items():
        cache = evidence["caches"][name]
        if cache["path"] != path:
            yield f"the variable {name} is {cache['path'] or 'not set'}, and {path} is expected"
        elif "error" in cache:
            yield f"user {uid} can't write to {name} ({cache['error']}; {folder} is {owner})"
        elif not cache["executable"]:
            yield f"{name}={path} is mounted noexec, so what is compiled there can't be loaded"


def addition_faults(folder: str, additions: Additions) -> Iterator[str]:
    """Yield why the user can't add packages, or why programs would then lose the image's torch.

    The Python that pip installs for must lie in `folder`, the user's cache folder, and import torch
    from the image. `additions` says how that Python started, where packages are added (`prefix`),
    and which file its torch is.
    """
    start_error = describe_start_error(additions)
    if start_error:
        python = additions["python"] or "the Python of PIP_PYTHON"
        yield f"{python}, for which pip adds packages, does not run: {start_error}"
        return

    prefix, torch = additions["prefix"], additions["torch"]
    if not prefix.startswith(f"{folder}/") or not additions["writable"]:
        yield f"pip would add packages to {prefix}, where the user may not write"
    elif not torch or torch.startswith(f"{prefix}/"):
        place = torch or "no place"
        yield f"with added packages, programs take torch from {place}, not the image's"


def describe_start_error(additions: Additions) -> str:
    """Return why the Python that pip installs for did not start, or an empty string if it did."""
    if "error" in additions:
        return additions["error"]
    if additions["code"] != 0:
        return additions["said"][-300:] or f"status {additions['code']}"
    return ""


def judge_advice(folder: str, evidence: HomeEvidence) -> Finding:
    """Pass if a user who may not write to the cache folder is told what to do about it.

    Python must start all the same, and what the image prints then must name every way out in
    _ADVICE. UNPROVEN if the folder can be written to.
    """
    if all("error" not in cache for cache in evidence["caches"].values()):
        return unproven(
            f"this check needs a user who can't write to {folder}, but the container's can",
            RUN_AS_ASKED,
        )

    # Packages can't be added here. But the image prints its advice (`said`) when a Python starts.
    additions = evidence["additions"]
    start_error = describe_start_error(additions)
    if start_error:
        return failed(
            f"Python does not start for a user who may not write to {folder}: {start_error}",
            _RESTORE_START,
        )
    missing = [advice for advice in _ADVICE if advice not in additions["said"]]
    if missing:
        return failed(
            f"the image does not tell a user who may not write to {folder} about these ways out: "
            f"{', '.join(missing)}",
            _RESTORE_START,
        )
    return passed(
        f"uid {evidence['uid']} may not write to {folder}, and is told of {len(_ADVICE)} ways out"
    )


_RESTORE_START = (
    "if your Dockerfile changes /opt/truetag, /etc/profile.d/truetag_additions.sh, a .pth file of "
    "/opt/venv or the variable PIP_PYTHON (with these the base image sets up a user's Python), "
    "take that change out and build the image again; if it changes none of them, "
    f"{BUILD_ANEW}"
)
CLAIMS = {"users": judge}
NEXT_STEPS = {
    "users": {
        "pip adds packages": _RESTORE_START,
        "pip would add": _RESTORE_START,
        "added packages": _RESTORE_START,
        "noexec": "let Docker store its data on a disk without that option (`docker info` "
        "names its folder as Docker Root Dir), then validate again",
        "is not set": "if your Dockerfile empties this variable, changes the entrypoint or "
        "/etc/profile.d, take that change out, and build the image again; if it changes none of "
        f"them, {BUILD_ANEW}",
        "": "if your Dockerfile changes the entrypoint, /etc/profile.d or a cache variable of the "
        "base image (HF_HOME, XDG_CACHE_HOME and others), take that change out, or let everybody "
        "write to the folder that the variable names (`RUN chmod 1777 FOLDER`), and build the "
        f"image again; if it changes none of them, {BUILD_ANEW}",
    }
}
