"""From a candidate that is accepted to the image that is built. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType

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
    pins = _pins(candidate, sources, "" if default_index else variant)
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
        library_layers=sources.library_layers,
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


def _pins(candidate: Candidate, sources: Sources, local: str) -> tuple[Pin, ...]:
    """In layer order."""
    known, extensions = candidate.known, extensions_of(candidate)
    names = profiles.layers(sources.matrix, candidate.profile)
    plain = _plain_pins(tuple(candidate.pins.items()), names, sources.layers, candidate.optional, local)
    if not (known or extensions):
        return plain
    return tuple(
        _pin(candidate, pin, extensions.get(pin.name, "")) if pin.name in known or pin.name in extensions else pin
        for pin in plain
    )


@cache
def _plain_pins(
    pinned: tuple[tuple[str, str], ...],
    names: tuple[str, ...],
    layers: tuple[tuple[str, tuple[str, ...]], ...],
    optional: frozenset[str],
    local: str,
) -> tuple[Pin, ...]:
    """The pins as if nothing were known of them. Images of one profile and torch share them.

    `names`: the image's layers, of which the profile's own has what no layer of the matrix (`layers`) installs.
    `local`: the variant, which on PyTorch's index torch's own wheel alone has in its version.
    """
    versions, installed = dict(pinned), dict(layers)
    layered = {name for held in installed.values() for name in held}
    own = tuple(name for name in versions if name not in layered)
    return tuple(
        _plain_pin(name, versions[name], layer, name in optional, local if name == "torch" else "")
        for layer in names
        for name in installed.get(layer, own)
        if name in versions
    )


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


def _environment(candidate: Candidate, matrix: Matrix) -> Mapping[str, str]:
    own = candidate.profile.environment if candidate.profile else {}
    versions = (candidate.name.torch, candidate.name.cuda, candidate.wheel_cuda)
    return _variables(tuple(matrix.environment.items()), tuple(own.items()), versions, candidate.supported_archs)


@cache
def _variables(
    everywhere: tuple[tuple[str, str], ...],
    own: tuple[tuple[str, str], ...],
    versions: tuple[Minor, Minor, Minor],
    archs: tuple[Arch, ...],
) -> Mapping[str, str]:
    """The same for many images. `versions`: torch, the toolkit, torch's CUDA."""
    torch, cuda, wheel_cuda = versions
    allocator_variable = allocator.variable((torch.major, torch.minor))
    variables = {
        **{allocator_variable if key == _ALLOCATOR else key: value for key, value in everywhere},
        "CUDA_HOME": f"/usr/local/cuda-{cuda}",
        "NVIDIA_REQUIRE_CUDA": f"cuda>={wheel_cuda.major}.0",
        "TORCH_CUDA_ARCH_LIST": ";".join(arch.capability for arch in archs),
        **dict(own),
    }
    return MappingProxyType(variables)
