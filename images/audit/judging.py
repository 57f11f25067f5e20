"""How claims about anybody's image are judged: by the suite's judges, by others where those expect more. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from validate.checks import Judges
from validate.checks.static import environment, files, libraries, symbols
from validate.judging import Finding, conclude, passed

_ASIDE = frozenset(("tests", "test", "docs", "examples", "benchmarks", "scripts"))
"""Top folders that packages should not install, and often do: two of them may own one file there."""


def _files(subject: str, expect: Any, evidence: Any) -> Finding:
    """S2 without what conda installed: it rewrites files, and keeps hashes of its own."""
    conda = set(expect["conda"])
    own: Any = {
        **evidence,
        "wrong": [one for one in evidence["wrong"] if not {name.partition(" ")[0] for name in one["owners"]} <= conda],
        "in_conflict": [one for one in evidence["in_conflict"] if not _is_aside(one)],
        "unowned": [],
        "unowned_count": 0,
        "without_record": [one for one in evidence["without_record"] if one["name"] not in conda],
    }
    if not evidence["files"]:
        return passed("no distribution records a file: there is nothing to compare")
    return files.judge(subject, expect, own)


def _strays(subject: str, expect: Any, evidence: Any) -> Finding:
    if expect["kind"] == "conda":
        return passed("conda owns files that no RECORD lists: not looked at")
    own: Any = {**evidence, "files": 1, "wrong": [], "without_record": []}
    own["in_conflict"] = [one for one in evidence["in_conflict"] if _is_aside(one)]
    found = files.judge(subject, expect, own)
    return found if found.status != "PASS" else passed("every file that Python can import has an owner")


def _is_aside(one: Mapping[str, Any]) -> bool:
    """No code, or in a folder that packages install by mistake."""
    path = PurePosixPath(one["path"])
    inside = next((path.parts[at + 1 :] for at, part in enumerate(path.parts) if part.endswith("-packages")), ())
    return (path.suffix not in (".py", ".so") and ".so." not in path.name) or (bool(inside) and inside[0] in _ASIDE)


def _linked(subject: str, expect: Any, evidence: Any) -> Finding:
    """S3 without rivals, and S4."""
    if not evidence["files"]:
        return passed("there is no shared library in this environment")
    if subject == "symbols":
        return symbols.judge(subject, expect, evidence)
    own: Any = {**evidence, "second_owners": []}
    return libraries.judge(subject, expect, own)


def _rivals(_subject: str, _expect: Any, evidence: Any) -> Finding:
    found = [
        f"{one['name']} of {', '.join(one['owners'])} has a rival on the loader's path: {one['other']}"
        for one in evidence["second_owners"]
    ]
    return conclude(found, "no package's CUDA library has a rival on the loader's path")


def _start(subject: str, expect: Any, evidence: Any) -> Finding:
    """S7's start-up code alone: variables are told once, for the whole image."""
    own: Any = {**evidence, "denied": {}, "in_files": [], "settings_files": {}, "required": {}}
    found = environment.judge(subject, expect, own)
    return found if found.status != "PASS" else passed("nothing of unknown owner runs when Python starts")


AUDIT_JUDGES: Judges = {
    "S2 files": _files,
    "S2 strays": _strays,
    "S3 libraries": _linked,
    "S3 rivals": _rivals,
    "S4": _linked,
    "S7": _start,
}
"""They stand before the suite's own (validate/judge.py)."""
