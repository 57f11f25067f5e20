"""Contracts of C8 beside the arbitrary UID: the caches' folder under each kind of mount."""

from __future__ import annotations

from typing import TypedDict


class HomeExpect(TypedDict):
    uid: int
    gid: int
    folder: str
    """On which the trial mounts something."""
    mount: str
    """A key of validate.claims.MOUNTS."""
    caches: dict[str, str]
    """Variable -> the folder that it names."""
    writable: bool
    """Otherwise the user must be told what to do."""


class Mounted(TypedDict):
    mounted: bool
    owner: int
    mode: str


class _CacheDetails(TypedDict, total=False):
    executable: bool
    error: str


class CacheFolder(_CacheDetails):
    path: str


class _InterpreterDetails(TypedDict, total=False):
    code: int
    prefix: str
    torch: str
    writable: bool
    said: str
    error: str


class Interpreter(_InterpreterDetails):
    python: str


class HomeEvidence(TypedDict):
    uid: int
    gid: int
    mounted: Mounted
    caches: dict[str, CacheFolder]
    additions: Interpreter


# ---- C11


class AdditionsExpect(TypedDict):
    uid: int
    gid: int
    folder: str
    mount: str
    held: dict[str, str]
    """Distribution -> version that no addition may move."""


class Installed(TypedDict):
    """How one run of pip ended."""

    code: int
    said: str


class Torch(TypedDict):
    version: str
    file: str


class AdditionsEvidence(TypedDict):
    uid: int
    constraints: dict[str, str]
    """What the file that pip is told of says."""
    plain: Installed
    """A package that needs nothing."""
    imported: str
    """Where that was imported from; empty: nowhere."""
    mover: Installed
    """A package that needs another torch, which pip is offered."""
    control: Installed
    """The same without the constraints."""
    before: Torch
    after: Torch
