"""Surveys and audits as small values."""

from collections.abc import Sequence
from typing import Any

from images.audit.model import Audit, Check, LibraryCode, Outcome, Severity

SITE = "/opt/venv/lib/python3.11/site-packages"


def distribution(
    name: str, version: str, *requires: str, installer: str = "pip", location: str = SITE
) -> dict[str, Any]:
    return {"name": name, "version": version, "location": location, "installer": installer, "requires": list(requires)}


def environment(*distributions: dict[str, Any], torch: tuple[str, str] = ("2.7.1+cu126", "12.6")) -> dict[str, Any]:
    version, cuda = torch
    return {
        "prefix": "/opt/venv",
        "kind": "venv",
        "python": "/opt/venv/bin/python3",
        "version": "3.11",
        "path": [SITE],
        "distributions": list(distributions),
        "torch": {"file": f"{SITE}/torch/version.py", "version": version, "cuda": cuda} if version else {},
    }


def code(path: str, owner: str, **archs: int) -> LibraryCode:
    return LibraryCode(path=f"{SITE}/{path}", owner=owner, nvidia=owner.startswith("nvidia"), archs=archs)


def check(text: str, *, name: str = "libraries", subject: str = "libraries", fix: str = "") -> Check:
    return Check(
        check=name,
        subject=subject,
        outcome=Outcome.FAULT,
        severity=Severity.ERROR,
        text=text,
        fix=fix,
        environment="/opt/venv",
    )


def audit(checks: Sequence[Check] = ()) -> Audit:
    return Audit(
        image="some/image:1",
        digest="sha256:0",
        date="2026-11-22T00:00:00+00:00",
        size=10**9,
        system="Debian",
        user="",
        checks=tuple(checks),
    )
