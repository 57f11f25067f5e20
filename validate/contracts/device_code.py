"""Contracts of S5: device code, in three kinds of claim."""

from __future__ import annotations

from typing import Literal, TypedDict

from validate.binaries.kernel_states import KernelByDesign

DeviceCodeKind = Literal["kernels", "files", "pruned"]
"""Each kernel; each file as a whole; which code no claimed arch has a use for."""


class CodeGap(TypedDict):
    """Archs that upstream claims and one of its files lacks."""

    cuda: int
    file: str
    archs: list[int]
    reason: str


class LibraryCodeExpect(TypedDict):
    kind: Literal["files"]
    files: list[str]
    """Patterns of files that must hold code."""
    also: list[str]
    """Patterns of files that may."""
    archs: dict[str, str]
    """Arch (90) -> cubin or jit."""
    known_gaps: list[CodeGap]


class KernelCodeExpect(TypedDict):
    kind: Literal["kernels"]
    files: list[str]
    also: list[str]
    archs: dict[str, str]
    known_gaps: list[CodeGap]
    by_design: list[KernelByDesign]


class PrunedCodeExpect(TypedDict):
    kind: Literal["pruned"]
    files: list[str]
    archs: dict[str, str]
    nvidia: bool
    """NVIDIA's own libraries are pruned, too."""
    by_design_of: dict[str, list[KernelByDesign]]
    """By distribution."""


DeviceCodeExpect = KernelCodeExpect | LibraryCodeExpect | PrunedCodeExpect


class Served(TypedDict, total=False):
    """What the kernels of a file are on one arch: how many in each state, and some names."""

    cubin: int
    jit: int
    absent: int
    stub: int
    emptied: int
    by_design: int
    for_other_archs: int
    named: dict[str, list[str]]


class _Unread(TypedDict, total=False):
    error: str


class CodeOfFile(_Unread, total=False):
    """`error`, or what its kind of claim asks: `served` and `hidden`, or the rest."""

    archs: list[str]
    regions: int
    kernels: int
    served: dict[str, Served | str]
    """Arch -> kernels by state; of a file as a whole cubin, jit or none."""
    hidden: dict[str, int]
    """Arch -> regions whose code is marked as taken out, though it is needed."""
    surplus: list[str]
    surplus_entries: int
    surplus_bytes: int
    marked: list[str]
    marked_bytes: int
    whole: int


class DeviceCodeEvidence(TypedDict):
    files: dict[str, CodeOfFile]
