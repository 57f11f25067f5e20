"""From a candidate that no rule refuses to the image that is built. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from images.config.matrix import Sources
from images.config.names import Arch, Minor
from images.planning import expectations
from images.planning.candidate import PROFILE_LAYER, Candidate
from images.planning.image import Image, Pin, Pruning
from images.planning.rules.packages import applying, extensions_of, none_fits
from validate.environment import allocator_variable

_ALLOCATOR = "PYTORCH_ALLOC_CONF"
"""The matrix's name for it, whatever the torch release calls it."""
_DRIVER = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
"""NVIDIA's container runtime gives no GPU to an image without them; a matrix may say otherwise."""


def image_of(candidate: Candidate, sources: Sources, min_driver: str, warnings: tuple[str, ...]) -> Image:
    """The image of a candidate that no rule refuses."""
    matrix, profile, toolkit = candidate.matrix, candidate.name.profile, candidate.toolkit
    variant = f"cu{candidate.wheel_cuda.digits}"
    default_index = candidate.wheel_cuda == Minor.parse(candidate.torch_facts.default_cuda)
    *lower, top = matrix.layers  # a profile's own layer comes below the last, which moves most
    layers = (*lower, *([PROFILE_LAYER] if profile else []), top)
    pins = _pins(candidate, layers, torch_local="" if default_index else variant)
    own_layer = any(pin.layer == PROFILE_LAYER for pin in pins)
    with_pins = {name for pin in candidate.pins for name in matrix.waived.get(pin, ())}
    replaced = sorted(candidate.profile.waived.keys() & candidate.pins)
    parts = [*toolkit.parts, *(toolkit.devel if candidate.name.devel else ())] if toolkit else []
    nvcc_of_debian = candidate.name.devel and toolkit and not toolkit.devel and toolkit.compiler
    own_name = {_ALLOCATOR: allocator_variable((candidate.name.torch.major, candidate.name.torch.minor))}
    pruning = None
    if candidate.name.arch:
        alternatives = {}
        if bitsandbytes := candidate.facts.bitsandbytes.get(candidate.pins.get("bitsandbytes", "")):
            kept = (bitsandbytes.file_for(candidate.wheel_cuda), "bitsandbytes/libbitsandbytes_cpu.so")
            alternatives = {"bitsandbytes/libbitsandbytes_*.so": kept}
        pruning = Pruning(arch=candidate.name.arch, nvidia=matrix.prune.nvidia, alternatives=alternatives)
    return Image(
        name=candidate.name,
        base=candidate.base,
        python=candidate.base.python,
        toolkit_cuda=candidate.name.cuda,
        wheel_cuda=candidate.wheel_cuda,
        index=None if default_index else candidate.facts.torch_index.format(variant=variant),
        archs=candidate.supported_archs,
        ptx=tuple(map(Arch.parse, candidate.variant.ptx)),
        min_driver=min_driver,
        cxx11_abi=candidate.variant.cxx11_abi,
        pins=pins,
        toolkit=tuple(
            Pin(name=name, version=version, layer="toolkit") for name, version in (part.split("==") for part in parts)
        ),
        nvcc_suite=nvcc_of_debian.debian if nvcc_of_debian else "",
        layers=layers,
        environment={
            **{own_name.get(key, key): value for key, value in matrix.environment.items()},
            **{key: value for key, value in _DRIVER.items() if key not in matrix.environment},
            "CUDA_HOME": f"/usr/local/cuda-{candidate.name.cuda}",
            "NVIDIA_REQUIRE_CUDA": f"cuda>={candidate.wheel_cuda.major}.0",
            "TORCH_CUDA_ARCH_LIST": ";".join(arch.capability for arch in candidate.supported_archs),
            **candidate.profile.environment,
        },
        revision=sources.revision_on(candidate.name.platform),
        prebuilt=tuple(wheel for pin in candidate.pins.items() if (wheel := candidate.official_wheel(*pin))),
        warnings=warnings,
        from_source=tuple(sorted(matrix.pure_python)) if own_layer else (),
        cudnn=candidate.cudnn,
        overrides=(*candidate.overrides, *(f"{name}=={candidate.pins[name]}" for name in replaced)),
        waived=tuple(sorted({*with_pins, *candidate.profile.waived} - {*replaced})),
        unfit=none_fits(candidate),
        unproven=expectations.unproven(candidate.pins),
        pruning=pruning,
        entrypoint=candidate.profile.entrypoint,
        prefix=matrix.prefix,
    )


def _pins(candidate: Candidate, layers: Sequence[str], torch_local: str) -> tuple[Pin, ...]:
    """In layer order. A profile's own layer has what no layer of the matrix installs."""
    installed, sources, made_by = candidate.matrix.layers, candidate.matrix.sources, extensions_of(candidate)
    layered = {name for names in installed.values() for name in names}
    own = [name for name in candidate.pins if name not in layered]
    pins = []
    wanted = [(layer, name) for layer in layers for name in installed.get(layer, own) if name in candidate.pins]
    for layer, name in wanted:
        row, source = candidate.known.get(name), sources.get(made_by.get(name, name))
        compiled = row if row and row.form == "cuda-source" and name not in made_by else None
        has_code = source and (name in made_by or (compiled and source.nvcc))
        required = applying(tuple(compiled.requires), candidate.base.python) if compiled else ()
        pin = Pin(
            name=name,
            version=candidate.pins[name],
            layer=layer,
            optional=name in candidate.optional,
            local=torch_local if name == "torch" else "",
            compiled=compiled is not None,
            minimum_arch=Arch.parse(source.minimum_arch) if source and has_code else None,
            needs=tuple(sorted(f"{on}{one.specifier}" for on, one in required if on not in candidate.pins)),
            extensions=made_by.get(name, ""),
        )
        pins.append(pin)
    return tuple(pins)
