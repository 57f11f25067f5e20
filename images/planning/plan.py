"""From names and selectors to accepted and refused images. Pure: the same files give the same plan."""

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from packaging.version import Version

from images.config import selectors
from images.config.facts import Facts
from images.config.matrix import Sources
from images.config.names import Arch, ImageName, Minor
from images.config.platforms import Platform
from images.config.schema import ImageRow, Matrix
from images.errors import Problem, UserError, command
from images.planning import expectations, rules
from images.planning.candidate import PROFILE_LAYER, Candidate, resolve_profile
from images.planning.image import Base, Image, Pin, Pruning
from images.planning.rules import stack
from images.planning.rules.packages import applying, extensions_of, none_fits, unfit
from validate.environment import allocator_variable

_ALLOCATOR = "PYTORCH_ALLOC_CONF"
"""The matrix's name for it, whatever the torch release calls it."""
_DRIVER = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
"""NVIDIA's container runtime gives no GPU to an image without them; a matrix may say otherwise."""
_AS_IN_MATRIX: Mapping[str, str] = {}
"""Pins in place of the matrix's: none."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One image with the plan's answer. `image` is there when it is accepted."""

    image_name: ImageName
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    image: Image | None = None
    torch: str | None = None
    python: Minor | None = None
    wheel_cuda: Minor | None = None
    pins: Mapping[str, str] | None = None
    archs: tuple[Arch, ...] = ()
    min_driver: str | None = None
    kept: str = ""
    """Until when no nightly run moves its pins, and why; empty: it moves them."""

    @property
    def name(self) -> str:
        return str(self.image_name)

    @property
    def profile(self) -> str | None:
        return self.image_name.profile

    @property
    def versions(self) -> dict[str, Minor | None]:
        """What conditions such as `torch>=2.8` compare."""
        return {
            "torch": self.image_name.torch,
            "cuda": self.image_name.cuda,
            "wheel": self.wheel_cuda,
            "python": self.python,
        }


@lru_cache(maxsize=2)
def plan(sources: Sources) -> tuple[Planned, ...]:
    """Every image of the matrix, accepted or refused, in the matrix's order."""
    return tuple(
        _planned(name, row, sources) for row in sources.matrix.images for name in row.names()
    )


class NoImageError(UserError):
    """Each selector matches something, but no image matches all of them."""


def select(wanted: Sequence[str], sources: Sources) -> tuple[Planned, ...]:
    """The images that selectors mean. A whole name that the matrix lacks is planned ad hoc.

    Names and globs add up, conditions all have to hold. Raises UserError for a selector that matches nothing,
    NoImageError for selectors that no image matches together.
    """
    parsed = [selectors.parse(sources.matrix.aliases.get(text, text)) for text in wanted]
    globs = [item.value for item in parsed if not item.key]
    conditions = [item for item in parsed if item.key]
    named = {one.name: one for glob in globs for one in _named(glob, sources)}
    chosen = tuple(named.values()) if globs else plan(sources)
    both = tuple(image for image in chosen if all(condition(image) for condition in conditions))
    if not both:
        everything = plan(sources)
        for condition in conditions:
            if not any(map(condition, (*everything, *chosen))):
                raise selectors.unmatched(condition, [image.name for image in everything])
        cause = "each matches something, but no image matches all of them"
        then = f"drop one; `{command('plan')}` lists all images"
        raise NoImageError(Problem(where=" ".join(wanted), cause=cause, then=then))
    return both


def _named(glob: str, sources: Sources) -> list[Planned]:
    """The images that a name or a glob means, and no other is planned. Raises UserError where there are none."""
    rows = [(name, row) for row in sources.matrix.images for name in row.names()]
    if matches := [(name, row) for name, row in rows if fnmatch.fnmatchcase(str(name), glob)]:
        return [_planned(name, row, sources) for name, row in matches]
    if not (wanted := selectors.image_name(glob)):
        raise selectors.unmatched(glob, [*(str(name) for name, _ in rows), *sources.matrix.aliases])
    planned = plan_one(wanted, sources)
    if not planned.image:
        close = ", ".join(nearest(wanted, [image for image in plan(sources) if image.image]))
        planned = replace(
            planned, reasons=(*planned.reasons, f"nearest images of the matrix: {close}")
        )
    return [planned]


def nearest(name: ImageName, others: Iterable[Planned], count: int = 3) -> tuple[str, ...]:
    """The images that differ least: same profile, an arch that serves, then the torch minor, then the CUDA version."""

    def distance(planned: Planned) -> tuple[bool | int | str, ...]:
        other = planned.image_name
        return (
            other.profile != name.profile,
            other.platform is not name.platform,
            name.arch is not None and name.arch not in planned.archs,
            other.devel != name.devel,
            abs(other.torch.major - name.torch.major),
            abs(other.torch.minor - name.torch.minor),
            abs(other.cuda.major - name.cuda.major),
            abs(other.cuda.minor - name.cuda.minor),
            planned.name,
        )

    return tuple(planned.name for planned in sorted(others, key=distance)[:count])


def plan_one(
    name: ImageName, sources: Sources, *, pins: Mapping[str, str] = _AS_IN_MATRIX
) -> Planned:
    """One image, from the matrix's row if there is one, else ad hoc from the stack of its torch.

    `pins`: versions in place of the matrix's, to ask whether the rules would accept them.
    """
    plain = replace(name, platform=Platform.AMD64)
    row = sources.matrix.row(plain) or ImageRow(name=str(plain))
    return _planned(name, row, sources, pins)


def _planned(
    name: ImageName, row: ImageRow, sources: Sources, pins: Mapping[str, str] = _AS_IN_MATRIX
) -> Planned:
    matrix, facts = sources.matrix, sources.facts.on(name.platform)
    # The stack's torch, else the newest known release of that minor.
    known = [text for text in facts.torch if Minor.parse(text) == name.torch]
    release = matrix.stacks.get(str(name.torch), {}).get("torch") or max(
        known, key=Version, default=None
    )
    if hopeless := _impossible(name, release, matrix, facts):
        return Planned(image_name=name, reasons=(*hopeless, *_meant(name, matrix)), torch=release)
    candidate = _candidate(name, row, matrix, facts, pins)
    findings = [finding for rule in rules.RULES for finding in rule(candidate)]
    min_driver = facts.minimum_drivers[str(candidate.wheel_cuda.major)].driver
    planned = Planned(
        image_name=name,
        reasons=tuple(finding.text for finding in findings if finding.refuses),
        warnings=tuple(finding.text for finding in findings if not finding.refuses),
        torch=candidate.torch,
        python=candidate.base.python,
        wheel_cuda=candidate.wheel_cuda,
        pins=candidate.pins,
        archs=candidate.supported_archs,
        min_driver=min_driver,
    )
    excluded = [one.reason for one in matrix.exclude if selectors.parse(one.select)(planned)]
    reasons = (*planned.reasons, *(f"excluded by matrix.yaml: {reason}" for reason in excluded))
    if reasons:
        return replace(planned, reasons=(*reasons, *_meant(name, matrix)))
    kept = str(matrix.nightly.kept.get(str(name.torch), ""))
    return replace(
        planned, image=_image_of(candidate, sources, min_driver, planned.warnings), kept=kept
    )


def _meant(name: ImageName, matrix: Matrix) -> list[str]:
    """What a refused image that an alias names is told besides."""
    aliases = [alias for alias, text in matrix.aliases.items() if text == str(name)]
    return [
        f"the alias {one} means it: point that at an accepted image (`aliases` in matrix.yaml)"
        for one in aliases
    ]


def _impossible(
    name: ImageName, release: str | None, matrix: Matrix, facts: Facts
) -> tuple[str, ...]:
    """Reasons that leave nothing for the rules to look at: they need a torch wheel and a stack."""
    if name.platform is Platform.ARM64 and release not in facts.arm64.torch:
        first = min(facts.arm64.torch, key=Version)
        shown = f"torch {release or name.torch}"
        return (
            f"{shown} has no wheel for CUDA on aarch64 that was measured: {first} is the first on the index",
        )
    if release is None:
        known = ", ".join(
            str(minor) for minor in sorted({Minor.parse(text) for text in facts.torch})
        )
        return (f"nothing is known of torch {name.torch} (images/data/facts.yaml knows {known})",)
    if release not in facts.torch:
        return (f"nothing is known of torch {release}: add its row to images/data/facts.yaml",)
    reasons = []
    if stack.choose_variant(facts.torch[release], name.cuda) is None:
        builds = sorted(map(Minor.parse, facts.torch[release].variants))
        why = f"none for CUDA {name.cuda.major}"
        if any(build.major == name.cuda.major for build in builds):
            why = f"the oldest for CUDA {name.cuda.major} is newer than toolkit {name.cuda}"
        reasons.append(
            f"torch {release} has wheels for {', '.join(f'cu{build.digits}' for build in builds)}: {why}"
        )
    if str(name.torch) not in matrix.stacks:
        reasons.append(
            f"matrix.yaml pins no stack for torch {name.torch} (`stacks` has {', '.join(matrix.stacks)})"
        )
    if name.profile and name.profile not in matrix.profiles:
        reasons.append(
            f"matrix.yaml has no profile {name.profile!r} (it has {', '.join(matrix.profiles) or 'none'})"
        )
    elif name.profile and str(name.torch) not in (fits := matrix.profiles[name.profile].stacks):
        reasons.append(f"the profile {name.profile} is pinned for torch {', '.join(fits)} alone")
    if name.python and str(name.python) == matrix.bases[matrix.defaults.base].python:
        plain = replace(name, python=None)
        reasons.append(
            f"Python {name.python} is the default and is not spelled out: the name is {plain}"
        )
    return tuple(reasons)


def _candidate(
    name: ImageName, row: ImageRow, matrix: Matrix, facts: Facts, pins: Mapping[str, str]
) -> Candidate:
    profile = resolve_profile(matrix, name.profile, name.torch)
    stack_pins = {**matrix.common, **matrix.stacks[str(name.torch)]}
    wanted = {**stack_pins, **profile.pins, **pins}
    wanted = {key: version for key, version in wanted.items() if key not in row.without}
    # Optional pins that no index has for this platform.
    lacking = facts.arm64.lacking if name.platform is Platform.ARM64 else {}
    declined = [key for key in matrix.optional if key in wanted and key in lacking]
    bases = [
        key for key, base in matrix.bases.items() if name.python and base.python == str(name.python)
    ]
    key = next(iter(bases), matrix.defaults.base)
    base = matrix.bases[key]
    torch_facts, cuda = facts.torch[wanted["torch"]], str(name.cuda)
    wheel_cuda = stack.choose_variant(torch_facts, name.cuda) or name.cuda
    overrides = {}  # of torch's CUDA major or of none
    for requirement, why in matrix.overrides.get(str(name.torch), {}).items():
        package, major = requirement.partition("==")[0], re.search(r"-cu(\d+)==", requirement)
        if package not in row.without and (major is None or int(major[1]) == wheel_cuda.major):
            overrides[requirement] = why
    candidate = Candidate(
        name=name,
        matrix=matrix,
        facts=facts,
        base=Base(
            key=key,
            reference=base.reference,
            suite=base.suite or None,
            python=Minor.parse(base.python),
            glibc=Minor.parse(base.glibc),
            platform=name.platform,
        ),
        torch=wanted["torch"],
        torch_facts=torch_facts,
        wheel_cuda=wheel_cuda,
        variant=torch_facts.variants[str(wheel_cuda)],
        toolkit=matrix.toolkits.get(cuda),
        toolkit_facts=facts.cuda.get(cuda),
        requested_archs=(name.arch,) if name.arch else tuple(sorted(map(Arch.parse, row.archs))),
        profile=profile,
        stack=stack_pins,
        pins={key: version for key, version in wanted.items() if key not in declined},
        optional=frozenset(matrix.optional),
        declined={
            f"{key} {wanted[key]}": (f"no wheel for aarch64 ({lacking[key]})",) for key in declined
        },
        overrides=overrides,
    )
    for key, version in profile.optional.items():
        if reasons := unfit(candidate, key, version):
            candidate = replace(
                candidate, declined={**candidate.declined, f"{key} {version}": reasons}
            )
        else:  # it may lack what must be compiled
            compiled = {key} if facts.packages[key][version].form == "cuda-source" else set()
            pins, optional = {**candidate.pins, key: version}, candidate.optional | compiled
            candidate = replace(candidate, pins=pins, optional=optional)
    return candidate


def _image_of(
    candidate: Candidate, sources: Sources, min_driver: str, warnings: tuple[str, ...]
) -> Image:
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
    own_name = {
        _ALLOCATOR: allocator_variable((candidate.name.torch.major, candidate.name.torch.minor))
    }
    pruning = None
    if candidate.name.arch:
        alternatives = {}
        if bitsandbytes := candidate.facts.bitsandbytes.get(candidate.pins.get("bitsandbytes", "")):
            kept = (
                bitsandbytes.file_for(candidate.wheel_cuda),
                "bitsandbytes/libbitsandbytes_cpu.so",
            )
            alternatives = {"bitsandbytes/libbitsandbytes_*.so": kept}
        pruning = Pruning(
            arch=candidate.name.arch, nvidia=matrix.prune.nvidia, alternatives=alternatives
        )
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
            Pin(name=name, version=version, layer="toolkit")
            for name, version in (part.split("==") for part in parts)
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
        prebuilt=tuple(
            wheel for pin in candidate.pins.items() if (wheel := candidate.official_wheel(*pin))
        ),
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
    installed, sources, made_by = (
        candidate.matrix.layers,
        candidate.matrix.sources,
        extensions_of(candidate),
    )
    layered = {name for names in installed.values() for name in names}
    own = [name for name in candidate.pins if name not in layered]
    pins = []
    wanted = [
        (layer, name)
        for layer in layers
        for name in installed.get(layer, own)
        if name in candidate.pins
    ]
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
            needs=tuple(
                sorted(f"{on}{one.specifier}" for on, one in required if on not in candidate.pins)
            ),
            extensions=made_by.get(name, ""),
        )
        pins.append(pin)
    return tuple(pins)
