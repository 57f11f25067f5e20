"""Packages that no index has as a wheel: an official one by hash, else whether and where they can be compiled."""

from __future__ import annotations

from collections.abc import Iterator

from images.config.facts import within
from images.config.names import Arch
from images.planning.candidate import Candidate
from images.planning.official import combination, is_released, official_wheel
from images.planning.rules.rule import Finding, rule, warn


@rule
def wheels_of_no_index_are_said(candidate: Candidate) -> Iterator[Finding]:
    """What is neither an index's wheel nor an official one, and who makes it then."""
    known = candidate.known
    for name, version in candidate.pins.items():
        row, optional = known.get(name), name in candidate.optional
        indexed = row.form != "cuda-source" if row else not optional
        if indexed or official_wheel(candidate, name, version):
            continue
        if optional and (hopeless := [*uncompilable(candidate, name, version)]):
            yield warn(f"{'; '.join(hopeless)}: built without it, unless a wheelhouse has one (--wheelhouse)")
            continue
        until = "the image lacks it until" if optional else "no image can be built before"
        command = f"`nox -s wheels -- {candidate.name} {name}`"
        yield warn(f"{_published(candidate, name, version)}: {until} {command} has compiled it")


@rule
def extensions_are_said(candidate: Candidate) -> Iterator[Finding]:
    """Whether the compiled extensions of a profile's packages can be had, and by which command."""
    possible = extensions_of(candidate)
    for name, row in _named_extensions(candidate).items():
        what = f"{name} {candidate.pins.get(name, '')} lacks its compiled extensions"
        if name in possible:
            yield warn(f"{what} until `nox -s wheels -- {candidate.name} {row}` has compiled them")
        elif name in candidate.pins:
            yield warn(f"{what}: {'; '.join(uncompilable(candidate, row, candidate.pins[name]))}")


def extensions_of(candidate: Candidate) -> dict[str, str]:
    """Distribution -> the row of `sources` that makes it with its compiled extensions, of those that can be made."""
    if not (candidate.profile and candidate.profile.extensions):
        return {}
    return {
        name: row
        for name, row in _named_extensions(candidate).items()
        if name in candidate.pins and not any(uncompilable(candidate, row, candidate.pins[name]))
    }


def _named_extensions(candidate: Candidate) -> dict[str, str]:
    """Distribution -> row of `sources`, as the profile names them. One that names no row is the matrix's fault."""
    rows = candidate.profile.extensions if candidate.profile else ()
    return {candidate.sources[row].distribution or row: row for row in rows if row in candidate.sources}


def uncompilable(candidate: Candidate, name: str, version: str) -> Iterator[str]:
    """Why no wheel of a package that is source only can be made for an image, wherever it is tried."""
    source, what = candidate.sources.get(name), _published(candidate, name, version)
    if source is None or version not in source.releases:
        yield f"{what}, and `sources` in matrix.yaml does not have it"
        return
    if not within(candidate.torch, source.torch):
        yield f"{what} and compiles on torch {source.torch}, the stack pins {candidate.torch}"
    if source.nvcc and not (candidate.toolkit and (candidate.toolkit.devel or candidate.toolkit.compiler)):
        yield f"{what}, and no `compiler` of `toolkits` in matrix.yaml has an nvcc of CUDA {candidate.name.cuda}"
    if source.nvcc and not any(arch >= Arch.parse(source.minimum_arch) for arch in candidate.supported_archs):
        minimum = Arch.parse(source.minimum_arch)
        yield f"{what} and compiles for {minimum} and newer, the image supports no such architecture"


def _published(candidate: Candidate, name: str, version: str) -> str:
    if is_released(candidate, name):
        return f"no official wheel of {name} {version} is known for {combination(candidate)}"
    return f"{name} {version} is published as source only"
