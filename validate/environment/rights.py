"""Who may change or read files of an image, and which bytecode Python would not take."""

import _imp
import contextlib
import os
import re
import stat
import struct
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

_EVERYBODYS = re.compile(r"/(tmp|var/tmp|workspace|run/lock|dev/shm|home/[^/]*)(/.*)?", re.DOTALL)
"""Folders that are for everybody to write to, and those below."""
_OF_SERVICES = ("/var/", "/run/")
"""Debian's packages make files of services' own users there, whose numbers are below this (Debian policy, 9.2.2)."""
_USERS = 1000
_STEPS = ("/opt/", "/usr/local/cuda-")
OPEN = ("/tmp", "/var/tmp")
"""Of those, the ones that Debian makes for everybody."""
_BEGINNINGS = (b"\x7fELF", b"#!")
_OPEN = ("system.posix_acl_access", "system.posix_acl_default")
_CHECKED_BY_HASH = 3
_MAGIC = {"310": 3439, "311": 3495, "312": 3531, "313": 3571, "314": 3627}
"""Python's release -> the number that its bytecode begins with (CPython, pycore_magic_number.h)."""
_SHARED = 0o1777


def guarded(explained: set[str]) -> set[str]:
    """These paths and every folder above one of them."""
    found = set(explained)
    for path in explained:
        folder = path.rpartition("/")[0]
        while folder and folder not in found:
            found.add(folder)
            folder = folder.rpartition("/")[0]
    return found


def loose(
    found: Mapping[str, os.stat_result], kept: set[str], read: set[str], shared: Collection[str] = OPEN, made: float = 0
) -> Iterator[tuple[str, str]]:
    """Path -> who but root may change it, or cannot use it, or that its time voids or freezes what is made of it.

    `kept`: files of known owners and the folders above; `read`: what every user must be able to read and start;
    `shared`: folders for everybody, who can't remove others' files there; `made`: the one time of all that our steps
    write, of a build that is held to it.
    """
    tomorrow = time.time() + 86400
    for path, facts in found.items():
        if path in shared and (facts.st_uid or stat.S_IMODE(facts.st_mode) != _SHARED):
            yield path, f"has mode {stat.S_IMODE(facts.st_mode):o} and uid {facts.st_uid}: it is root's, for everybody"
        if stat.S_ISLNK(facts.st_mode) or _EVERYBODYS.fullmatch(path):
            continue
        if facts.st_mtime > tomorrow or (made and facts.st_mtime != made and path in kept and path.startswith(_STEPS)):
            yield path, f"is dated {time.strftime('%Y-%m-%d', time.gmtime(facts.st_mtime))}, which no build does"
        if path in kept:
            least = _USERS if path.startswith(_OF_SERVICES) else 1
            if facts.st_uid >= least:
                yield path, f"belongs to uid {facts.st_uid}"
            elif _has_list(path):  # the mode's bits of the group are then its mask
                yield path, "has an access list"
            # Kubernetes' users of any number are of root's group.
            elif facts.st_mode & stat.S_IWGRP and (facts.st_gid >= least or (made and not facts.st_gid)):
                yield path, f"may be changed by group {facts.st_gid}"
        if stat.S_ISDIR(facts.st_mode) and path in kept and facts.st_mode & stat.S_IWOTH:
            yield path, "is a folder for everybody to put files into"
        if path in read:
            needed = 0o005 if stat.S_ISDIR(facts.st_mode) or _is_program(path, facts) else 0o004
            if facts.st_mode & needed != needed:
                yield path, f"has mode {stat.S_IMODE(facts.st_mode):o}: users can't use it"


def _has_list(path: str) -> bool:
    with contextlib.suppress(OSError):
        return not set(_OPEN).isdisjoint(os.listxattr(path, follow_symlinks=False))
    return False


def _is_program(path: str, facts: os.stat_result) -> bool:
    """Whether a file in a folder of programs is one, by its first bytes."""
    if not path.rpartition("/")[0].endswith("/bin") or not stat.S_ISREG(facts.st_mode):
        return False
    with contextlib.suppress(OSError), open(path, "rb") as stream:  # noqa: PTH123
        return stream.read(4).startswith(_BEGINNINGS)
    return False


def void(bytecode: Mapping[str, str], found: Mapping[str, os.stat_result]) -> Iterator[str]:
    """Bytecode that Python compiles at each start, or never again. `bytecode`: its path -> its source (PEP 552)."""
    for path, source in bytecode.items():
        try:
            with open(path, "rb", buffering=0) as stream:  # noqa: PTH123  9,000 times
                magic, flags, written = struct.unpack("<II8s", stream.read(16))
        except (OSError, struct.error):
            yield path
            continue
        facts = found.get(source)
        if facts and stat.S_ISLNK(facts.st_mode):
            with contextlib.suppress(OSError):
                facts = os.stat(source)  # noqa: PTH116
        known = _MAGIC.get(path.rpartition(".cpython-")[2][:3])
        due = facts and struct.pack("<II", int(facts.st_mtime) & 0xFFFFFFFF, facts.st_size & 0xFFFFFFFF)
        if flags == _CHECKED_BY_HASH:
            due, flags = _imp.source_hash(magic, Path(source).read_bytes()), 0
        if flags or (due and written != due) or (known and magic != 0x0A0D0000 + known):
            yield path
