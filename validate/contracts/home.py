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
