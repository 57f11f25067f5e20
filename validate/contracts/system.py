"""Contracts of S9: the programs that a training job calls, and rdma-core for NCCL."""

from __future__ import annotations

from typing import TypedDict

# ---- S9 tools


class ToolsExpect(TypedDict):
    programs: dict[str, list[str]]
    """Program -> the arguments that make it tell its version."""


class _ProgramDetails(TypedDict, total=False):
    version: str
    error: str


class Program(_ProgramDetails):
    path: str | None


class ToolsEvidence(TypedDict):
    programs: dict[str, Program]


# ---- S9 verbs


class OpenedLibrary(TypedDict):
    names: list[str]
    """As they are tried, the first that is found."""
    symbols: dict[str, str]
    """Function -> the version under which it is asked for (dlvsym). Without them, the library is closed again."""
    by_nccl: bool
    """Otherwise another program of the network's user space opens it."""


class VerbsExpect(TypedDict):
    libraries: dict[str, OpenedLibrary]
    """By the SONAME."""
    providers: list[str]
    """Drivers of network cards that must be there, as rdma-core names them."""


class FoundLibrary(TypedDict):
    path: str | None
    missing: list[str]
    """Libraries that it needs and the loader does not find."""
    lacking: list[str]
    """FUNCTION@VERSION that it does not export."""


class _ProviderDetails(TypedDict, total=False):
    error: str


class Provider(_ProviderDetails):
    path: str
    missing: list[str]
    versions: list[str]
    """VERSION of LIBRARY that it needs and that library does not define."""


class Nccl(TypedDict):
    path: str | None
    opens: list[str]
    """Names in it of the libraries that are asked for."""
    asks: list[str]
    """Names in it of verbs."""


class VerbsEvidence(TypedDict):
    nccl: Nccl
    libraries: dict[str, FoundLibrary]
    providers: dict[str, Provider]
