"""Packages that are published as source only: whether and where they can be compiled."""

from __future__ import annotations

from collections.abc import Iterator

from images.config.facts import within
from images.config.names import Arch
from images.planning.candidate import Candidate
from images.planning.rules.rule import Finding, rule, warn


@rule
def compiled_packages_are_said(candidate: Candidate) -> Iterator[Finding]:
    for name, row in candidate.known.items():
        if row.form == "cuda-source":
            version = candidate.pins[name]
            until = "the image goes without it until" if name in candidate.optional else "no image can be built before"
            command = f"`nox -s wheels -- {candidate.name} {name}`"
            yield warn(f"{name} {version} is published as source only: {until} {command} has compiled it")


def uncompilable(candidate: Candidate, name: str, version: str) -> Iterator[str]:
    """Why no wheel of a package that is source only can be made for an image, wherever it is tried."""
    source, what = candidate.sources.get(name), f"{name} {version} is published as source only"
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
