"""The shared libraries and programs of an image, and the process that `import torch` leaves: what S3 and S4 look at."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from validate.binaries import elf, machines
from validate.binaries.elf import Elf, ElfError
from validate.binaries.loader import Files, Missing, Process

_PRELOADED = ("libnvrtc", "libnvJitLink")
"""What torch/__init__.py loads by path after libtorch_global_deps.so (torch 2.6 to 2.15)."""


@dataclass(frozen=True)
class Found:
    """A library or program, read."""

    path: str
    elf: Elf
    owners: tuple[str, ...]


class Unreadable(TypedDict):
    """A file that the loader could not read, and why."""

    path: str
    error: str


def objects(locations: Sequence[str], owners: Iterable[str]) -> Iterator[str]:
    """Files below sys.path's package folders, and files that distributions own elsewhere (the scripts folder)."""
    yield from objects_under(locations)
    for path in owners:
        if "/bin/" in path and not path.startswith(tuple(f"{location}/" for location in locations)):
            yield path


def objects_under(folders: Iterable[str]) -> Iterator[str]:
    """Files named as shared libraries, and files in folders of programs."""
    for top in folders:
        for folder, _, names in os.walk(top):
            for name in names:
                if name.endswith(".so") or ".so." in name or Path(folder).name == "bin":
                    yield f"{folder}/{name}"


def read_all(
    paths: Iterable[str], owners: Mapping[str, tuple[str, ...]], files: Files
) -> tuple[list[Found], list[Unreadable]]:
    """Readable ELF files, and those named as libraries (or begun as ELF) that the loader could not read."""
    found: list[Found] = []
    unreadable: list[Unreadable] = []
    for path in dict.fromkeys(paths):
        if not _claims_to_be_elf(path):
            continue
        try:
            seen = elf.read(path)
        except (OSError, ElfError) as error:
            unreadable.append({"path": path, "error": str(error)})
            continue
        if seen.machine != files.machine.number:
            wrong = f"it is built for {machines.spoken(seen.machine)}, not {files.machine.spoken}"
            unreadable.append({"path": path, "error": wrong})
        elif files.loadable(path):
            found.append(Found(path, seen, owners.get(path, ())))
    return found, unreadable


def _claims_to_be_elf(path: str) -> bool:
    """By its name, or by its first bytes. Linker scripts, which are text named `.so`, are for compilers only."""
    if Path(path).is_fifo():  # to read it is to wait for ever
        return False
    try:
        with Path(path).open("rb") as stream:
            head = stream.read(512)
    except OSError:
        return True
    if head[:4] == elf.MAGIC:
        return True
    name = Path(path).name
    named = name.endswith(".so") or (".so." in name and name.rpartition(".so.")[2].replace(".", "").isdigit())
    return named and not (head.isascii() and (b"INPUT" in head or b"GROUP" in head))


def import_torch(process: Process, locations: Sequence[str], found: Sequence[Found]) -> list[Missing]:
    """What `import torch` loads, in its order; gives back what it would not find."""
    folders = [Path(location, "torch", "lib") for location in locations]
    folder = next((folder for folder in folders if folder.is_dir()), None)
    if folder is None:
        return []
    missing = process.load(str(folder / "libtorch_global_deps.so"))
    for library in found:
        if stem(library.elf.soname) in _PRELOADED and f"{os.sep}nvidia{os.sep}" in library.path:
            missing += process.load(library.path)
    return missing + process.load(str(folder / "libtorch_python.so"))


def stem(name: str) -> str:
    """`libcudart` of `libcudart.so.12`."""
    return name.partition(".so")[0]
