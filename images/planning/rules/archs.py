"""GPU architectures: what the parts have device code for. validate/compute_capability.py says which code runs where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from images.config.facts import DeviceCode, covers
from images.config.names import Arch
from images.config.platforms import Platform
from images.planning.candidate import Candidate
from images.planning.rules.rule import Finding, refuse, rule, warn
from validate.compute_capability import ON_ARM_ALONE


@rule
def archs_are_of_this_processor(candidate: Candidate) -> Iterator[Finding]:
    on_arm = candidate.name.platform is Platform.ARM64
    for arch in candidate.asked_archs:
        board = candidate.facts.arm64.boards.get(arch.capability)
        if not on_arm and arch.pair in ON_ARM_ALONE:
            yield refuse(f"{arch} is a GPU of boards with ARM processors, and images are for x86-64")
        if arch in candidate.unassembled:
            yield refuse(f"triton {candidate.pins['triton']} can't assemble for {arch}: torch.compile would fail there")
        if on_arm and board and board.unfit:
            yield refuse(f"{arch} is the GPU of {' and '.join(board.names)}: {board.unfit}")


@rule
def archs_are_covered(candidate: Candidate) -> Iterator[Finding]:
    for arch in candidate.asked_archs:
        for what, code in candidate.binaries.items():
            covered = code.covers(arch)
            if covered == "no":
                yield refuse(f"{what} has no code for {arch} (it has {_listed(code)})")
            elif covered == "ptx":
                yield warn(f"{what} runs on {arch} only through PTX, compiled by the driver at first use")
        if candidate.toolkit_facts and arch.capability not in candidate.toolkit_facts.nvcc_archs:
            yield refuse(f"CUDA {candidate.name.cuda} cannot compile for {arch}")


@rule
def xformers_covers_archs(candidate: Candidate) -> Iterator[Finding]:
    row = candidate.facts.xformers.get(candidate.pins.get("xformers", ""))
    if row is None:
        return
    yield from _xformers_code(tuple(row.archs), tuple(row.ptx), candidate.supported_archs)


@cache
def _xformers_code(archs: tuple[str, ...], ptx: tuple[str, ...], supported: tuple[Arch, ...]) -> tuple[Finding, ...]:
    """Many images ask the same."""
    fits = {arch: covers(archs, ptx, arch) for arch in supported}
    found = []
    if lacking := [arch for arch, fit in fits.items() if fit == "no"]:
        found.append(warn(f"xformers has no kernels for {_join(lacking)}: torch's own attention runs there"))
    if late := [arch for arch, fit in fits.items() if fit == "ptx"]:
        found.append(warn(f"xformers reaches {_join(late)} only through PTX, compiled by the driver at first use"))
    return tuple(found)


@rule
def some_arch_is_left(candidate: Candidate) -> Iterator[Finding]:
    if not candidate.asked_archs and not candidate.supported_archs:
        yield refuse(f"no GPU architecture is covered by {' and '.join(candidate.binaries)} together")


def _listed(code: DeviceCode) -> str:
    return ", ".join([*code.archs, *(f"PTX {text}" for text in code.ptx)])


def _join(archs: Sequence[Arch]) -> str:
    return ", ".join(map(str, archs))
