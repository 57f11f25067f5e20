"""users: caches and additions lie where this user may write, whatever is mounted on the image's cache folder.

The run starts one container a claim, as the user and with the mount that the claim names. A folder that the user may
not write to can't be helped from inside: there, what is measured is whether the image says what to do.
"""

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from validate.checks import RunAs, Settings
from validate.claims import Claim
from validate.environment import user_environment
from validate.judging import Finding, conclude, failed, passed, unproven

SETTINGS = Settings(run_as=RunAs.EACH_CLAIM)

_SECONDS = 300
_QUESTION = "import importlib.util, sys; print(sys.prefix); print(importlib.util.find_spec('torch').origin)"


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    given = user_environment.recorded().environ
    for claim in claims:
        evidence = {
            "uid": os.getuid(),
            "gid": os.getgid(),
            "mounted": _mounted(claim.expect["folder"]),
            "caches": {name: _cache(given.get(name, "")) for name in claim.expect["caches"]},
            "additions": _additions(given),
        }
        yield claim.subject, evidence


def _mounted(folder: str) -> Mapping[str, Any]:
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    try:
        facts = Path(folder).stat()
    except OSError as error:
        return {"mounted": False, "owner": -1, "mode": error.strerror or str(error)}
    mounted = any(line.split()[4] == folder for line in lines)
    return {"mounted": mounted, "owner": facts.st_uid, "mode": f"{facts.st_mode & 0o7777:o}"}


def _cache(path: str) -> Mapping[str, Any]:
    """As the libraries do it: make the folder, write a file into it."""
    if not path:
        return {"path": "", "error": "not set"}
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path) as file:
            file.write(b"written")
    except OSError as error:
        return {"path": path, "error": f"{error.strerror}: {error.filename}"}
    return {"path": path, "executable": not os.statvfs(path).f_flag & os.ST_NOEXEC}


def _additions(given: Mapping[str, str]) -> Mapping[str, Any]:
    """The interpreter that pip installs for, made if there is none yet."""
    python = given.get("PIP_PYTHON", "")
    try:
        done = subprocess.run(
            [python, "-c", _QUESTION], env=dict(given), capture_output=True, text=True, timeout=_SECONDS, cwd="/"
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


def judge(_subject: str, expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """users of a mount. The run's own conditions are judged first.

    expect: {uid, gid, folder: on which the run mounts something, mount: `volume`, `own` or `foreign`
    (images/validation/containers.py), caches: {variable: the folder that it names}, writable: otherwise the user must
    be told what to do}.

    evidence: {uid, gid, mounted: {mounted: whether something lies on the folder, owner, mode}, caches: {variable:
    {path, executable or error}}, additions: {python: that pip installs for, code, prefix, writable: whether that is,
    torch: the file that it imports, said} or {python, error}}.
    """
    mounted = evidence["mounted"]
    if (evidence["uid"], evidence["gid"]) != (expect["uid"], expect["gid"]):
        return unproven(f"the probe ran as {evidence['uid']}:{evidence['gid']}, not {expect['uid']}:{expect['gid']}")
    if not mounted["mounted"]:
        return unproven(f"nothing is mounted on {expect['folder']} ({mounted['mode']})")
    if not expect["writable"]:
        return _told(expect, evidence)
    good = f"uid {evidence['uid']}:{evidence['gid']} writes {len(expect['caches'])} caches and adds packages there"
    return conclude(_faults(expect, evidence), good)


def _faults(expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Iterator[str]:
    mounted = evidence["mounted"]
    whose = f"uid {mounted['owner']}'s, mode {mounted['mode']}"
    for name, wanted in expect["caches"].items():
        found = evidence["caches"][name]
        if found["path"] != wanted:
            yield f"{name} is {found['path'] or 'not set'}, {wanted} is expected"
        elif "error" in found:
            yield f"uid {evidence['uid']} can't write {name} ({found['error']}; {expect['folder']} is {whose})"
        elif not found["executable"]:
            yield f"{name}={found['path']} is mounted noexec: what is compiled there can't be loaded"
    added = evidence["additions"]
    if "error" in added or added["code"] != 0:
        yield f"{added['python'] or 'PIP_PYTHON'} does not run: {added.get('error') or added['said'][-300:]}"
    elif not added["prefix"].startswith(f"{expect['folder']}/") or not added["writable"]:
        yield f"packages would be added to {added['prefix']}, which is not the user's"
    elif not added["torch"] or added["torch"].startswith(f"{added['prefix']}/"):
        yield f"there, torch is {added['torch'] or 'not found'} and not the image's"


def _told(expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """Nothing can be written there: pip must still start, and whoever adds a package be told what to do."""
    added = evidence["additions"]
    if all("error" not in found for found in evidence["caches"].values()):
        return unproven(f"{expect['folder']} can be written to: this is not the case that was to be tried")
    if "error" in added or added["code"] != 0:
        return failed(f"python does not start: {added.get('error') or added['said'][-300:]}")
    if lacking := [advice for advice in _ADVICE if advice not in added["said"]]:
        return failed(f"who may not write to {expect['folder']} is not told of {', '.join(lacking)}")
    return passed(f"uid {evidence['uid']} may not write to {expect['folder']}, and is told of {len(_ADVICE)} ways out")


CLAIMS = {"users": judge}
