"""hygiene: what a build leaves behind costs every pull, and a credential in an image belongs to whoever pulls it.

Every folder of the image is walked, on its own file system alone: what is mounted there is not the image's. Each file
that no package has a checksum of is read for credentials; what is found is told by kind and line, never quoted.
"""

import contextlib
import os
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from validate.checks import RunAs, Settings
from validate.claims import Claim
from validate.environment import credentials, debian, installed, wheel_contents
from validate.environment.image_paths import read_image_paths, source_of_bytecode
from validate.environment.patterns import first_of
from validate.judging import Finding, conclude, failed, listed, passed, unproven

SETTINGS = Settings(reads_files_only=True, shared_reads=(debian.owned, read_image_paths), run_as=RunAs.ROOT)

_LARGEST_TEXT, _LARGEST_PROGRAM = 64 << 20, 4 << 20
_MOST_LISTED = 40
_DPKGS_OWN = f"{debian.DATABASE}/info/"


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    given, _, everything = installed.of_user()
    entries = (entry for one in everything for entry in one.entries or () if entry.sha256)
    held = {debian.real(entry.path) for entry in entries if not wheel_contents.is_note(entry.path)}
    held |= debian.owned().md5.keys()
    patterns = {pattern: what for claim in claims for pattern, what in claim.expect["leftovers"].items()}
    evidence = _look(patterns, held, _home(given.environ.get("HOME", "")))
    for claim in claims:
        yield claim.subject, evidence


def _home(path: str) -> Mapping[str, Any]:
    """The image's own home, before a validation run puts an empty one in its place."""
    try:
        mode = Path(path).stat().st_mode
    except OSError as error:
        return {"path": path, "error": error.strerror or str(error)}
    return {"path": path, "mode": f"{stat.S_IMODE(mode):o}", "for_all": mode & 0o007 == 0o007}


def _look(leftovers: Mapping[str, str], held: Collection[str], home: Mapping[str, Any]) -> Mapping[str, Any]:
    leftover = first_of(leftovers)
    left: dict[str, dict[str, Any]] = {}
    secrets: list[Mapping[str, Any]] = []
    files = read = 0
    device, (found, unreadable) = os.lstat("/").st_dev, read_image_paths()
    for path, facts in sorted(found.items()):
        if not stat.S_ISREG(facts.st_mode) or not facts.st_size or facts.st_dev != device:
            continue
        files += 1
        if pattern := leftover(path):
            entry = left.setdefault(pattern, {"files": 0, "bytes": 0, "example": path})
            entry["files"] += 1
            entry["bytes"] += facts.st_size
        if kind := credentials.by_name(path):
            secrets.append({"path": path, "line": 0, "kind": kind})
        elif path not in held and source_of_bytecode(path) not in held and not path.startswith(_DPKGS_OWN):
            read += 1
            secrets += _credentials(path, facts.st_size)
    return {
        "files": files,
        "read": read,
        "unreadable": unreadable[:_MOST_LISTED],
        "leftovers": left,
        "secrets": secrets[:_MOST_LISTED],
        "secrets_count": len(secrets),
        "home": home,
    }


def _credentials(path: str, size: int) -> Iterator[Mapping[str, Any]]:
    content = b""
    with contextlib.suppress(OSError), Path(path).open("rb") as stream:
        content = stream.read(credentials.SMALL)
        if size <= (_LARGEST_PROGRAM if b"\0" in content else _LARGEST_TEXT):
            content += stream.read()
    for line, kind in credentials.of_file(content, path):
        yield {"path": path, "line": line, "kind": kind}


def judge_leftovers(_subject: str, expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """expect: {leftovers: {path pattern: what it is}, of a child told: patterns of what is told and no fault}.

    evidence of all: {files, read, unreadable, leftovers: {pattern: {files, bytes, example}}, secrets: [{path, line (0:
    the file's name tells), kind}], secrets_count, home: {path, mode, for_all: to write to} or {path, error}}.
    """
    found = {
        pattern: f"{one['files']} files ({one['bytes'] / 1e6:.1f} MB) of {expect['leftovers'][pattern]} are left: "
        f"{one['example']}"
        for pattern, one in evidence["leftovers"].items()
    }
    told = [found[pattern] for pattern in expect.get("told", ()) if pattern in found]
    faults = [text for text in found.values() if text not in told]
    good = f"none of {evidence['files']} files is a build's leftover"
    return _concluded(evidence, faults, f"{good}, but {listed(told)}" if told else good)


def judge_secrets(_subject: str, expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    faults = [
        f"{one['path']} holds {one['kind']}" + (f" (line {one['line']})" if one["line"] else "")
        for one in evidence["secrets"]
    ]
    return _concluded(evidence, faults, f"no credential in {evidence['read']} small files")


def _concluded(evidence: Mapping[str, Any], faults: Sequence[str], good: str) -> Finding:
    if not faults and evidence["unreadable"]:
        return unproven(f"{good}, but {listed(evidence['unreadable'])} can't be read by this user")
    return conclude(faults, good)


def judge_home(_subject: str, expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    home = evidence["home"]
    if "error" in home:
        return failed(f"the home {home['path']!r} can't be used: {home['error']}")
    if not home["for_all"]:
        return failed(f"the home {home['path']} is not for every user to write to (mode {home['mode']})")
    return passed(f"{home['path']} is for every user to write to")


CLAIMS = {
    "hygiene/leftovers": judge_leftovers,
    "hygiene/secrets": judge_secrets,
    "hygiene/home": judge_home,
}
