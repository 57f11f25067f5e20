"""What wheels bring that are in no lock: official ones by hash, and those that were compiled. Read where they lie."""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from packaging.utils import canonicalize_name, parse_wheel_filename

from images.context import pruner
from images.locking.contents import rows_of
from images.planning.image import Image
from images.wheels.prebuilt import FindWheel
from validate.environment import wheel_contents
from validate.environment.wheel_contents import Contents


def contents(image: Image, files: Iterable[Path]) -> dict[str, Contents]:
    """Distribution -> what its wheel brings, of the image's own pins among these wheels.

    Those that a build prunes are left out: what that leaves of them is not known here.
    """
    names = {pin.name for pin in image.pins}
    found = {str(canonicalize_name(parse_wheel_filename(path.name)[0])): path for path in files}
    wanted = {name: path for name, path in found.items() if name in names and not pruner.reads(image.pruning, name)}
    return {name: one for name, path in wanted.items() if (one := _contents(path))}


def kept(image: Image, missing: Mapping[str, str], compiled: FindWheel, cache: Path) -> dict[str, Contents]:
    """The same of wheels that a build would find on this machine, for an image that goes without `missing`."""
    return contents(image, _kept(image, missing, compiled, cache))


def _kept(image: Image, missing: Mapping[str, str], compiled: FindWheel, cache: Path) -> Iterator[Path]:
    official = {wheel.name: cache / "wheels" / wheel.filename for wheel in image.prebuilt}
    for pin in image.pins:
        if pin.name in missing or (pin.lacking in missing if pin.extensions else pin.locked):
            continue
        found = compiled(image, pin) or official.get(pin.name)
        if found and found.is_file():
            yield found


def _contents(wheel: Path) -> Contents | None:
    """None: it is no wheel that can be read, which whoever installs it says."""
    try:
        with zipfile.ZipFile(wheel) as opened:
            return wheel_contents.contents(rows_of(opened))
    except (OSError, zipfile.BadZipFile, csv.Error, KeyError, UnicodeDecodeError):
        return None
