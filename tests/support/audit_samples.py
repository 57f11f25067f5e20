"""Make parts of a survey, as an audit reads them."""

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
    *distributions: dict[str, Any],
    torch: tuple[str, str] = ("2.7.1+cu126", "12.6"),
    processor: str = "x86_64",
) -> dict[str, Any]:
    """Return an environment with these distributions.

    `torch`: its version and CUDA; an empty version: it has none. `processor`: that of its
    libraries; empty: it has no library.
    """
    version, cuda = torch
    torch_row = {"file": f"{SITE}/torch/version.py", "version": version, "cuda": cuda}
    return {
        "prefix": "/opt/venv",
        "kind": "venv",
        "python": "/opt/venv/bin/python3",
        "version": "3.11",
        "path": [SITE],
        "distributions": list(distributions),
        "torch": torch_row if version else {},
        "processors": {processor: 10} if processor else {},
    }


def code(path: str, owner: str, **archs: int) -> LibraryCode:
    """Return the device code of a library below site-packages: architecture -> bytes."""
    return LibraryCode(
        path=f"{SITE}/{path}", owner=owner, nvidia=owner.startswith("nvidia"), archs=archs
    )
