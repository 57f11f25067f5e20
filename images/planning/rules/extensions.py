"""Packages with CUDA code of their own: each must be made for this torch, this CUDA and this Python."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import TypeVar

from packaging.version import Version

from images.config.facts import within
from images.config.names import Minor
from images.planning.candidate import Candidate
from images.planning.rules.python import python_fits
from images.planning.rules.rule import Finding, refuse, rule, warn

Row = TypeVar("Row")


@rule
def triton_is_torchs(candidate: Candidate) -> Iterator[Finding]:
    triton = candidate.pins.get("triton")
    if triton and not within(triton, candidate.torch_facts.triton):
        yield refuse(f"torch {candidate.torch} needs triton{candidate.torch_facts.triton}, the stack pins {triton}")


@rule
def xformers_fits(candidate: Candidate) -> Iterator[Finding]:
    version, row = yield from _pinned(candidate, "xformers", candidate.facts.xformers)
    if row is None:
        return
    own = Minor.parse(row.cuda)
    if not within(candidate.torch, row.torch):
        rows = candidate.facts.xformers.items()
        majors = {other: (facts.torch, Minor.parse(facts.cuda).major) for other, facts in rows}
        yield _made_for_another_torch(candidate, "xformers", version, majors)
    if own.major != candidate.wheel_cuda.major:
        yield refuse(
            f"xformers {version} is built for CUDA {own} and needs libcudart.so.{own.major}, torch's wheel brings "
            f"CUDA {candidate.wheel_cuda}: its kernels would not load. Leave it out (`without: [xformers]`), or take a "
            f"cu{own.major}x variant of torch {candidate.torch}"
        )
    if not python_fits(candidate.base.python, row.python):
        yield refuse(f"xformers {version} needs Python {row.python}, the base has {candidate.base.python}")


@rule
def torchao_fits(candidate: Candidate) -> Iterator[Finding]:
    version, row = yield from _pinned(candidate, "torchao", candidate.facts.torchao)
    if row is None:
        return
    if not within(candidate.torch, row.torch):
        majors = {other: (facts.torch, facts.cuda_major) for other, facts in candidate.facts.torchao.items()}
        yield _made_for_another_torch(candidate, "torchao", version, majors)
    if row.cuda_major and row.cuda_major != candidate.wheel_cuda.major:
        yield refuse(
            f"torchao {version} needs libcudart.so.{row.cuda_major}, torch's wheel brings CUDA {candidate.wheel_cuda}: "
            "leave it out (`without: [torchao]`)"
        )


def _pinned(
    candidate: Candidate, package: str, known: Mapping[str, Row]
) -> Generator[Finding, None, tuple[str, Row | None]]:
    """The version that the stack pins, and what is known of it. None: not pinned, or unknown, which is refused here."""
    version = candidate.pins.get(package, "")
    row = known.get(version)
    if version and row is None and package not in candidate.facts.arm64.lacking:
        yield refuse(f"nothing is known of {package} {version}: add its row to images/data/facts.yaml")
    return version, row


def _made_for_another_torch(
    candidate: Candidate, package: str, version: str, known: Mapping[str, tuple[str, int | None]]
) -> Finding:
    """`known` is version -> the torch it goes with, and the CUDA major it is linked with (None: with none)."""
    fitting = [
        other
        for other, (torch, major) in known.items()
        if within(candidate.torch, torch) and major in (None, candidate.wheel_cuda.major)
    ]
    fix = f"pin {max(fitting, key=Version)}" if fitting else f"leave {package} out of the stack"
    return refuse(f"{package} {version} needs torch {known[version][0]}, the stack pins {candidate.torch}: {fix}")


@rule
def bitsandbytes_fits(candidate: Candidate) -> Iterator[Finding]:
    version, row = yield from _pinned(candidate, "bitsandbytes", candidate.facts.bitsandbytes)
    if row is None:
        return
    library = row.library_for(candidate.wheel_cuda)
    if library is None:
        others = [
            other for other, facts in candidate.facts.bitsandbytes.items() if facts.library_for(candidate.wheel_cuda)
        ]
        fix = f"; pin {' or '.join(others)}" if others else ""
        yield refuse(
            f"bitsandbytes {version} has no library for CUDA {candidate.wheel_cuda} "
            f"(libbitsandbytes_cuda{candidate.wheel_cuda.digits}.so; lookup: {row.lookup}){fix}"
        )
    elif library != candidate.wheel_cuda:
        yield warn(f"bitsandbytes {version} runs its CUDA {library} library beside torch's CUDA {candidate.wheel_cuda}")
    if not within(candidate.torch, row.torch):
        yield refuse(f"bitsandbytes {version} needs torch {row.torch}, the stack pins {candidate.torch}")
    if not python_fits(candidate.base.python, row.python):
        yield refuse(f"bitsandbytes {version} needs Python {row.python}, the base has {candidate.base.python}")
