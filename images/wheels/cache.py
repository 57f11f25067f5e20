"""The wheel cache: wheels compiled here, by a key of what they were made from. `KEY/` has wheel and `record.json`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from images.config.schema import Matrix
from images.errors import UserError
from images.host import cache as host_cache
from images.host.hashing import sha256, sha256_of_file
from images.planning.image import Image, Pin
from images.wheels.prebuilt import FindWheel
from images.wheels.recipe import BaseCompilers, for_base, recipe_for

RECORD = "record.json"


CachedWheel = tuple[Path, Mapping[str, Any]]
"""A wheel, and its record."""


def find(folder: Path, key: str, on_progress: Callable[[str], None] = lambda _text: None) -> CachedWheel | None:
    """The wheel of a key in a folder of compiled wheels. One that is damaged is told and not taken."""
    place = folder / key
    try:
        record = json.loads((place / RECORD).read_text())
        wheel = place / record["wheel"]
        if sha256_of_file(wheel) == record["sha256"]:
            return wheel, record
    except FileNotFoundError:
        if not place.exists():
            return None
    except (OSError, ValueError, LookupError, TypeError):
        pass
    on_progress(f"{place} is not what its record says: not taken")
    return None


def store(folder: Path, key: str, filename: str, content: bytes, record: Mapping[str, Any]) -> CachedWheel:
    """Put a wheel in, in place of whatever lay there. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".new-") as scratch:
        made = Path(scratch, key)
        made.mkdir()
        (made / filename).write_bytes(content)
        whole = {**record, "wheel": filename, "sha256": sha256(content), "bytes": len(content)}
        (made / RECORD).write_text(json.dumps(whole, indent=1) + "\n")
        place = folder / key
        if place.exists():
            place.rename(Path(scratch, "old"))
        made.rename(place)
    return place / filename, whole


def wheel_finder(
    matrix: Matrix, folder: Path, compilers: Callable[[Image], BaseCompilers | None] = lambda _image: None
) -> FindWheel:
    """Looks for the wheel of an image's pin in the wheel cache; `compilers` reads those of a custom base."""

    def look(image: Image, pin: Pin) -> Path | None:
        row = pin.extensions or pin.name
        if row not in matrix.sources:
            return None
        try:
            wanted = recipe_for(image, row, matrix)
        except UserError:  # nobody can compile it: the plan says why
            return None
        cached = find(folder, for_base(compilers(image), wanted).key)
        return cached[0] if cached else None

    return look


def default() -> Path:
    """The folder of the person who runs this, which all checkouts share."""
    return host_cache.folder() / "wheelhouse"
