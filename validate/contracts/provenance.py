"""Contracts of S10: what is in an image is what was to be put into it, as known from outside."""

from __future__ import annotations

from typing import TypedDict

# ---- S10 wheels


class LockedWheel(TypedDict):
    """What one wheel of the lock brings (validate/environment/wheel_contents.py)."""

    digest: str
    tags: str


class LockedSource(TypedDict):
    """What a source archive of the lock has."""

    files: str
    """Long tags of contents."""
    made: list[str]
    """Files that its build makes: patterns of paths below site-packages."""


class WheelsExpect(TypedDict):
    versions: dict[str, str]
    """Distribution -> its version in the lock, without a local part: what was moved is S1's affair."""
    wheels: dict[str, list[LockedWheel]]
    """Distribution -> the wheels of it that the lock has, one of which was installed."""
    sources: dict[str, LockedSource]
    unknown: dict[str, str]
    """Distribution -> why it is not known what its file brings."""


class HeldDistribution(TypedDict):
    """One installed distribution that the lock names."""

    record: str
    version: str
    digest: str
    files: int
    strange: list[str]
    """Files that are in the RECORD and not in the wheel, or there with another hash."""
    strange_count: int
    lacking: int
    """Files of the wheel that are not in the RECORD so."""
    launchers: list[str]
    """Commands that are not what an installer writes for their entry points."""


class WheelsEvidence(TypedDict):
    distributions: dict[str, list[HeldDistribution]]


# ---- S10 files, lookup, privileges


class Toolkit(TypedDict):
    home: str
    files: str
    """Long tags of paths below `home`, and of licences."""


class OwnersExpect(TypedDict):
    toolkit: Toolkit
    steps: dict[str, str]
    """Path -> sha256, of what our build steps write."""
    copies: dict[str, str]
    """Path -> the file of a package that it is a copy of."""
    links: dict[str, str]
    """Pattern -> why links to other files stand there that no package lists."""
    generated: dict[str, str]
    """Pattern -> why files stand there that nobody lists."""
    path: list[str]
    """Folders of the PATH, in their order."""
    plugins: dict[str, str]
    """Pattern of a file's name, or of a path -> who loads it if it is there."""
    free: bool
    """It is a child: files of its own may lie there."""
    privileged: dict[str, str]
    """Path -> mode, of programs that Debian brings with more rights than their caller's."""


class AlteredFile(TypedDict):
    path: str
    owner: str


class Privileged(TypedDict):
    path: str
    mode: str
    capabilities: bool


class OwnersEvidence(TypedDict):
    files: int
    unowned: list[str]
    unowned_count: int
    excused: dict[str, int]
    altered: list[AlteredFile]
    altered_count: int
    path: list[str]
    in_front: list[str]
    """Programs of no owner that are found before another of their name."""
    loadable: list[str]
    """Libraries of no owner where the loader looks."""
    plugins: dict[str, str]
    """Files of no owner that something loads if they are there -> who does."""
    privileged: list[Privileged]
    writable: list[str]
    """What every user may change."""
    authorities: int
    """Certificates that are trusted and in no package."""
    accounts: list[str]
