"""C8: caches and additions lie where this user may write, whatever is mounted on the image's cache folder.

The trial starts one container a claim, as the user and with the mount that the claim names. A folder that the user may
not write to can't be helped from inside: there, what is measured is whether the image says what to do.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

from validate.claims import Claim
from validate.contracts.home import CacheFolder, HomeEvidence, HomeExpect, Interpreter, Mounted
from validate.environment import user_environment

_SECONDS = 300
_QUESTION = "import importlib.util, sys; print(sys.prefix); print(importlib.util.find_spec('torch').origin)"


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, HomeEvidence]]:
    given = user_environment.recorded().environ
    for claim in claims:
        expect = cast(HomeExpect, claim.expect)
        yield (
            claim.subject,
            {
                "uid": os.getuid(),
                "gid": os.getgid(),
                "mounted": _mounted(expect["folder"]),
                "caches": {name: _cache(given.get(name, "")) for name in expect["caches"]},
                "additions": _additions(given),
            },
        )


def _mounted(folder: str) -> Mounted:
    """What lies on the cache folder: whether something is mounted there, and whose it is."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    try:
        facts = Path(folder).stat()
    except OSError as error:
        return {"mounted": False, "owner": -1, "mode": error.strerror or str(error)}
    mounted = any(line.split()[4] == folder for line in lines)
    return {"mounted": mounted, "owner": facts.st_uid, "mode": f"{facts.st_mode & 0o7777:o}"}


def _cache(path: str) -> CacheFolder:
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


def _additions(given: Mapping[str, str]) -> Interpreter:
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
