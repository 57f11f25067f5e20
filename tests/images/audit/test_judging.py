"""How claims about foreign images are judged: conda's and Debian's habits are no faults, the rest is."""

from __future__ import annotations

from typing import Any

import pytest

from images.audit.judging import AUDIT_JUDGES
from images.planning import expectations
from validate.judging import Finding, Status

SITE = "/opt/venv/lib/python3.11/site-packages"
EMPTY = {"files": 10, "distributions": 1, "wrong": [], "in_conflict": [], "unowned": [], "without_record": []}


def _judge(subject: str, *, kind: str = "venv", conda: tuple[str, ...] = (), **found: Any) -> Finding:
    expect = {"unowned": expectations.START_FILES, "conda": list(conda), "kind": kind}
    counts = {f"{name}_count": len(found.get(name, ())) for name in ("wrong", "in_conflict", "unowned")}
    return AUDIT_JUDGES[f"S2 {subject}"](subject, expect, {**EMPTY, **counts, **found})


def _conflict(path: str) -> dict[str, object]:
    return {"path": path, "owners": ["a 1", "b 1"], "holds": ["a 1"]}


@pytest.mark.parametrize(
    ("subject", "found", "fault"),
    [
        ("files", {}, ""),
        ("files", {"wrong": [{"path": f"{SITE}/a.py", "owners": {"a 1": "altered"}}]}, "a.py of a 1 is altered"),
        ("files", {"wrong": [{"path": f"{SITE}/a.py", "owners": {"c 1": "altered"}}], "conda": ("c",)}, ""),
        ("files", {"in_conflict": [_conflict(f"{SITE}/a/x.so")]}, "x.so is claimed by a 1 and b 1"),
        ("files", {"in_conflict": [_conflict(f"{SITE}/tests/__init__.py")]}, ""),
        ("files", {"in_conflict": [_conflict(f"{SITE}/a/README.md")]}, ""),
        ("files", {"unowned": [f"{SITE}/x.py"]}, ""),
        ("strays", {"unowned": [f"{SITE}/x.py"]}, "x.py belongs to no distribution"),
        ("strays", {"unowned": [f"{SITE}/x.py"], "kind": "conda"}, ""),
        ("strays", {"in_conflict": [_conflict(f"{SITE}/tests/__init__.py")]}, "tests/__init__.py is claimed by"),
        ("strays", {}, ""),
        ("files", {"files": 0}, ""),
    ],
)
def test_files_and_strays(subject: str, found: dict[str, Any], fault: str) -> None:
    finding = _judge(subject, **found)
    assert finding.status is (Status.FAIL if fault else Status.PASS)
    assert fault in finding.reason
