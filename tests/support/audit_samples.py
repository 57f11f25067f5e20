"""Surveys as small values."""

from typing import Any

from images.audit.device_code import LibraryCode

SITE = "/opt/venv/lib/python3.11/site-packages"


def distribution(
    name: str, version: str, *requires: str, installer: str = "pip", location: str = SITE
) -> dict[str, Any]:
    return {
        "name": name,
        "version": version,
        "location": location,
        "installer": installer,
        "requires": list(requires),
    }


def environment(
    *distributions: dict[str, Any], torch: tuple[str, str] = ("2.7.1+cu126", "12.6")
) -> dict[str, Any]:
    version, cuda = torch
    return {
        "prefix": "/opt/venv",
        "kind": "venv",
        "python": "/opt/venv/bin/python3",
        "version": "3.11",
        "path": [SITE],
        "distributions": list(distributions),
        "torch": {"file": f"{SITE}/torch/version.py", "version": version, "cuda": cuda}
        if version
        else {},
    }


def code(path: str, owner: str, **archs: int) -> LibraryCode:
    return LibraryCode(
        path=f"{SITE}/{path}", owner=owner, nvidia=owner.startswith("nvidia"), archs=archs
    )
