"""From a candidate that is accepted to the image that is built. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from images.config.matrix import Sources
from images.config.names import Arch, Minor
from images.config.schema import Matrix
from images.planning import profiles, requirements
from images.planning.candidate import Candidate
from images.planning.image import Image, Pin, Pruning
from images.planning.official import official_wheels
from images.planning.rules.compiled import extensions_of
from validate.environment import allocator

_ALLOCATOR = "PYTORCH_ALLOC_CONF"
"""The matrix's name for it, whatever the torch release calls it."""


def image_of(candidate: Candidate, sources: Sources, min_driver: str, warnings: tuple[str, ...]) -> Image:
    """The image of a candidate that no rule refuses."""
    matrix, facts = sources.matrix, candidate.facts
    default_index = candidate.wheel_cuda == Minor.parse(candidate.torch_facts.default_cuda)
    variant = f"cu{candidate.wheel_cuda.digits}"
    pins = tuple(_pins(candidate, matrix, "" if default_index else variant))
    own = any(pin.layer == profiles.LAYER for pin in pins)
    return Image(
        name=candidate.name,
        base=candidate.base,
        python=candidate.base.python,
        toolkit_cuda=candidate.name.cuda,
        wheel_cuda=candidate.wheel_cuda,
        index=None if default_index else facts.torch_index.format(variant=variant),
        archs=candidate.supported_archs,
        ptx=tuple(map(Arch.parse, candidate.variant.ptx)),
        min_driver=min_driver,
        cxx11_abi=candidate.variant.cxx11_abi,
        pins=pins,
        toolkit=_toolkit(_toolkit_parts(candidate)),
        nvcc_suite=_nvcc_suite(candidate),
        layers=profiles.layers(matrix, candidate.profile),
        library_layers=tuple(map(tuple, matrix.library_layers)),
        environment=_environment(candidate, matrix),
        revision=sources.revision_on(candidate.name.platform),
        prebuilt=official_wheels(candidate),
        warnings=warnings,
        from_source=tuple(sorted(matrix.pure_python)) if own else (),
        waived=tuple(sorted(candidate.profile.waived)) if candidate.profile else (),
        unproven=candidate.profile.unproven if candidate.profile else {},
        pruning=_pruning(candidate, matrix),
        entrypoint=candidate.profile.entrypoint if candidate.profile else "",
    )


def _toolkit_parts(candidate: Candidate) -> tuple[str, ...]:
    if candidate.toolkit is None:
        return ()
    return (*candidate.toolkit.parts, *(candidate.toolkit.devel if candidate.name.devel else ()))


def _nvcc_suite(candidate: Candidate) -> str:
    toolkit = candidate.toolkit
    if not candidate.name.devel or toolkit is None or toolkit.devel or toolkit.compiler is None:
        return ""
    return toolkit.compiler.debian


def _pins(candidate: Candidate, matrix: Matrix, local: str) -> Iterator[Pin]:
    """In layer order. Only torch's own wheel has the variant in its version on PyTorch's index."""
    pins, optional, known, extensions = candidate.pins, candidate.optional, candidate.known, extensions_of(candidate)
    for layer in profiles.layers(matrix, candidate.profile):
        for name in matrix.layers[layer] if layer in matrix.layers else _own(candidate, matrix):
            if name in pins:
                plain = _plain_pin(name, pins[name], layer, name in optional, local if name == "torch" else "")
                special = name in known or name in extensions
                yield _pin(candidate, plain, extensions.get(name, "")) if special else plain


def _own(candidate: Candidate, matrix: Matrix) -> list[str]:
    """What no layer of the matrix installs is the profile's own."""
    layered = set[str]().union(*matrix.layers.values())
    return [name for name in candidate.pins if name not in layered]


def _pin(candidate: Candidate, pin: Pin, extensions: str) -> Pin:
    """`extensions`: the row of `sources` that makes its compiled extensions."""
    if extensions:
        minimum = Arch.parse(candidate.sources[extensions].minimum_arch)
        return replace(pin, extensions=extensions, minimum_arch=minimum)
    row = candidate.known.get(pin.name)
    if row is None or row.form != "cuda-source":
        return pin
    applying = requirements.applying(row, candidate.base.python)
    needs = tuple(sorted(one.canonical for one in applying if one.on not in candidate.pins))
    source = candidate.sources.get(pin.name)
    minimum_arch = Arch.parse(source.minimum_arch) if source and source.nvcc else None
    return _compiled_pin(pin.name, pin.version, pin.layer, pin.optional, pin.local, minimum_arch, needs)


@cache
def _plain_pin(name: str, version: str, layer: str, optional: bool, local: str) -> Pin:
    """The same pin stands in many images."""
    return Pin(name=name, version=version, layer=layer, optional=optional, local=local)


@cache
def _compiled_pin(
    name: str, version: str, layer: str, optional: bool, local: str, minimum_arch: Arch | None, needs: tuple[str, ...]
) -> Pin:
    """The same compiled pin, too."""
    pin = _plain_pin(name, version, layer, optional, local)
    return replace(pin, compiled=True, minimum_arch=minimum_arch, needs=needs)


@cache
def _toolkit(requirements: tuple[str, ...]) -> tuple[Pin, ...]:
    split = (requirement.partition("==") for requirement in requirements)
    return tuple(Pin(name=name, version=version, layer="toolkit") for name, _, version in split)


def _pruning(candidate: Candidate, matrix: Matrix) -> Pruning | None:
    if candidate.name.arch is None:
        return None
    bitsandbytes = candidate.facts.bitsandbytes.get(candidate.pins.get("bitsandbytes", ""))
    kept = (bitsandbytes.file_for(candidate.wheel_cuda), "bitsandbytes/libbitsandbytes_cpu.so") if bitsandbytes else ()
    alternatives = {"bitsandbytes/libbitsandbytes_*.so": kept} if kept else {}
    return Pruning(arch=candidate.name.arch, nvidia=matrix.prune.nvidia, alternatives=alternatives)


def _environment(candidate: Candidate, matrix: Matrix) -> dict[str, str]:
    named = allocator.variable((candidate.name.torch.major, candidate.name.torch.minor))
    return {
        **{named if key == _ALLOCATOR else key: value for key, value in matrix.environment.items()},
        "CUDA_HOME": f"/usr/local/cuda-{candidate.name.cuda}",
        "NVIDIA_REQUIRE_CUDA": f"cuda>={candidate.wheel_cuda.major}.0",
        "TORCH_CUDA_ARCH_LIST": ";".join(arch.capability for arch in candidate.supported_archs),
        **(candidate.profile.environment if candidate.profile else {}),
    }
