"""Contracts of the static tier."""

from __future__ import annotations

from typing import Literal, TypedDict

from validate.binaries.kernel_states import KernelByDesign

DeviceCodeKind = Literal["kernels", "files", "pruned"]


class CodeGap(TypedDict):
    """Archs that upstream claims and one of its files lacks."""

    cuda: int
    file: str
    archs: list[int]
    reason: str


class LibraryCodeExpect(TypedDict):
    kind: Literal["files"]
    files: list[str]
    also: list[str]
    archs: dict[str, str]
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
    by_design_of: dict[str, list[KernelByDesign]]


DeviceCodeExpect = KernelCodeExpect | LibraryCodeExpect | PrunedCodeExpect
