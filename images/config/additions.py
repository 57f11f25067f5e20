"""additions.yaml: packages that people add to an image, what fits which torch, and what to take instead."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from images.config import paths, yamlfile
from images.config.facts import Row

PACKAGES = paths.DATA / "additions.yaml"


class Package(Row):
    """A package that people add."""

    requirement: str = ""
    """What is typed after `pip install`; default: its name."""
    module: str = ""
    """What is imported of it; default: its name."""
    torch: dict[str, str] = {}
    """Minor version of torch -> the release that is built for it: pip looks at no other, of dozens."""
    instead: str = ""
    """What to take where it is refused: `pip` in the image says so, too."""


@cache
def packages(path: Path = PACKAGES) -> Mapping[str, Package]:
    """Name -> row, with the defaults filled in. Raises UserError; pydantic's error for a row that is none."""
    data = yamlfile.parse(path.name, path.read_text(encoding="utf-8")).data
    return {
        name: Package(**{"requirement": name, "module": name.replace("-", "_"), **(row or {})})
        for name, row in data.items()
    }
