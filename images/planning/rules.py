"""Why a combination can't exist, or what to warn about. Pure: one small function a rule, all of them run.

To add a rule: write a function from Candidate to findings and put it into RULES.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, cached_property

from packaging.version import Version

from images.config.facts import (
    CudaFacts,
    DeviceCode,
    Facts,
    FlashAttnFacts,
    PackageFacts,
    TorchFacts,
    TorchVariant,
    within,
)
from images.config.matrix import SourceRow, ToolkitRow
from images.config.names import Arch, ImageName, Minor
from images.planning import profiles, requirements
from images.planning.image import Base
from images.planning.profiles import Resolved
from images.planning.requirements import Unmet
from validate.compute_capability import ON_ARM_ALONE


class Weight(StrEnum):
    """What a finding does to an image."""

    REFUSE = "refuse"
    WARN = "warn"


@dataclass(frozen=True)
class Finding:
    """One thing a rule has to say about a combination."""

    weight: Weight
    text: str


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A combination before it is judged: what the matrix asks, beside what the facts know of it."""

    name: ImageName
    facts: Facts
    base: Base
    gcc: int
    """Major of the base's gcc."""
    torch: str
    torch_facts: TorchFacts
    wheel_cuda: Minor
    variant: TorchVariant
    pins: Mapping[str, str]
    optional: frozenset[str]
    toolkit: ToolkitRow | None
    toolkit_facts: CudaFacts | None
    asked_archs: tuple[Arch, ...] = ()
    """What the name or the matrix asks for; empty: whatever all parts cover."""
    known_toolkits: tuple[Minor, ...] = field(default=())
    profile: Resolved | None = None
    stack: Mapping[str, str] = field(default_factory=dict)
    """The pins of the stack alone."""
    declined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What the profile offers and this image can't have -> why not."""
    sources: Mapping[str, SourceRow] = field(default_factory=dict)
    """What can be compiled here."""

    @cached_property
    def known(self) -> Mapping[str, PackageFacts]:
        """Pinned distribution -> what the facts know of it at that version."""
        packages, pins = self.facts.packages, self.pins
        return {name: row for name in pins if name in packages and (row := packages[name].get(pins[name]))}

    @cached_property
    def binaries(self) -> Mapping[str, DeviceCode]:
        """The parts whose device code decides where the image runs at all: torch, and bitsandbytes' library."""
        parts: dict[str, DeviceCode] = {f"torch {self.torch} cu{self.wheel_cuda.digits}": self.variant}
        version = self.pins.get("bitsandbytes", "")
        row = self.facts.bitsandbytes.get(version)
        library = row.library_for(self.wheel_cuda) if row else None
        if row and library:
            parts[f"bitsandbytes {version} cu{library.digits}"] = row.libraries[str(library)]
        return parts

    @cached_property
    def promised_archs(self) -> tuple[Arch, ...]:
        """What the image promises: the asked ones, else torch's that every other part has machine code for too."""
        if self.asked_archs:
            return self.asked_archs
        compiles = set(self.toolkit_facts.nvcc_archs) if self.toolkit_facts else set(self.variant.archs)
        own = sorted(Arch.parse(text) for text in self.variant.archs if text in compiles)
        return tuple(arch for arch in own if all(code.covers(arch) == "cubin" for code in self.binaries.values()))


Rule = Callable[[Candidate], Iterator[Finding]]


def choose_variant(torch: TorchFacts, toolkit: Minor) -> Minor | None:
    """The CUDA build of torch to put beside a toolkit: its own, else the nearest lower minor of the same major.

    CUDA's minor version compatibility allows the difference; torch's extension builder only warns about it.
    """
    return _nearest(tuple(torch.variants), toolkit)


@cache
def _nearest(variants: tuple[str, ...], toolkit: Minor) -> Minor | None:
    same_major = [minor for minor in map(Minor.parse, variants) if minor.major == toolkit.major]
    return max((minor for minor in same_major if minor <= toolkit), default=None)


def no_variant(torch_version: str, torch: TorchFacts, toolkit: Minor) -> str:
    """Why `choose_variant` found nothing."""
    has = ", ".join(f"cu{minor.digits}" for minor in sorted(map(Minor.parse, torch.variants)))
    if any(Minor.parse(text).major == toolkit.major for text in torch.variants):
        why = f"the oldest for CUDA {toolkit.major} is newer than toolkit {toolkit}"
    else:
        why = f"none for CUDA {toolkit.major}"
    return f"torch {torch_version} has wheels for {has}: {why}"


def wheel_is_older_than_toolkit(it: Candidate) -> Iterator[Finding]:
    if it.wheel_cuda != it.name.cuda:
        yield _warn(
            f"torch {it.torch} has no cu{it.name.cuda.digits} wheel: toolkit {it.name.cuda} beside its "
            f"cu{it.wheel_cuda.digits} wheel (CUDA minor version compatibility)"
        )


def variant_is_verified(it: Candidate) -> Iterator[Finding]:
    if it.variant.unverified:
        yield _warn(f"archs of torch {it.torch} cu{it.wheel_cuda.digits} are not measured ({it.variant.unverified})")


def toolkit_is_known(it: Candidate) -> Iterator[Finding]:
    if it.toolkit is None or it.toolkit_facts is None:
        known = ", ".join(map(str, it.known_toolkits))
        yield _refuse(f"no parts for a CUDA {it.name.cuda} toolkit in matrix.yaml (`toolkits` has {known})")


def devel_has_a_provider(it: Candidate) -> Iterator[Finding]:
    if it.name.devel and it.toolkit and not it.toolkit.devel:
        yield _refuse(
            f"-devel needs a whole CUDA {it.name.cuda} toolkit, and its nvcc is published as wheels only from 13.0 on: "
            "use a -devel image of CUDA 13, or this image without -devel on a base that has nvcc (--base REF)"
        )


def devel_compiler_fits(it: Candidate) -> Iterator[Finding]:
    if it.name.devel and it.toolkit_facts and it.gcc > it.toolkit_facts.gcc_max:
        yield _refuse(
            f"nvcc {it.name.cuda} accepts gcc up to {it.toolkit_facts.gcc_max}, {it.base.key} has gcc {it.gcc}"
        )


def default_python_is_not_spelled_out(it: Candidate) -> Iterator[Finding]:
    if it.name.python is None:
        return
    if it.base.python != it.name.python:
        yield _refuse(f"no base in matrix.yaml has Python {it.name.python}")


def torch_supports_python(it: Candidate) -> Iterator[Finding]:
    if str(it.base.python) not in it.torch_facts.pythons:
        has = ", ".join(it.torch_facts.pythons)
        yield _refuse(f"torch {it.torch} has no wheel for Python {it.base.python} (it has {has})")


def triton_is_torchs(it: Candidate) -> Iterator[Finding]:
    triton = it.pins.get("triton")
    if triton and not within(triton, it.torch_facts.triton):
        yield _refuse(f"torch {it.torch} needs triton{it.torch_facts.triton}, the stack pins {triton}")


def xformers_fits(it: Candidate) -> Iterator[Finding]:
    version = it.pins.get("xformers")
    if version is None:
        return
    row = it.facts.xformers.get(version)
    if row is None:
        yield _refuse(f"nothing is known of xformers {version}: add its row to images/data/facts.yaml")
        return
    majors = {other: (facts.torch, Minor.parse(facts.cuda).major) for other, facts in it.facts.xformers.items()}
    yield from _made_for_this_torch(it, "xformers", version, majors)
    own = Minor.parse(row.cuda)
    if own.major != it.wheel_cuda.major:
        yield _refuse(
            f"xformers {version} is built for CUDA {own} and needs libcudart.so.{own.major}, torch's wheel brings "
            f"CUDA {it.wheel_cuda}: its kernels would not load. Leave it out (`without: [xformers]`), or take a "
            f"cu{own.major}x variant of torch {it.torch}"
        )
    if not _python_fits(it.base.python, row.python):
        yield _refuse(f"xformers {version} needs Python {row.python}, the base has {it.base.python}")


def torchao_fits(it: Candidate) -> Iterator[Finding]:
    version = it.pins.get("torchao")
    if version is None:
        return
    row = it.facts.torchao.get(version)
    if row is None:
        yield _refuse(f"nothing is known of torchao {version}: add its row to images/data/facts.yaml")
        return
    majors = {other: (facts.torch, facts.cuda_major) for other, facts in it.facts.torchao.items()}
    yield from _made_for_this_torch(it, "torchao", version, majors)
    if row.cuda_major and row.cuda_major != it.wheel_cuda.major:
        yield _refuse(
            f"torchao {version} needs libcudart.so.{row.cuda_major}, torch's wheel brings CUDA {it.wheel_cuda}: "
            "leave it out (`without: [torchao]`)"
        )


def _made_for_this_torch(
    it: Candidate, package: str, version: str, known: Mapping[str, tuple[str, int | None]]
) -> Iterator[Finding]:
    """`known` is version -> the torch it goes with, and the CUDA major it is linked with (None: with none)."""
    if within(it.torch, known[version][0]):
        return
    fitting = [
        other
        for other, (torch, major) in known.items()
        if within(it.torch, torch) and major in (None, it.wheel_cuda.major)
    ]
    fix = f"pin {max(fitting, key=Version)}" if fitting else f"leave {package} out of the stack"
    yield _refuse(f"{package} {version} needs torch {known[version][0]}, the stack pins {it.torch}: {fix}")


def bitsandbytes_fits(it: Candidate) -> Iterator[Finding]:
    version = it.pins.get("bitsandbytes")
    if version is None:
        return
    row = it.facts.bitsandbytes.get(version)
    if row is None:
        yield _refuse(f"nothing is known of bitsandbytes {version}: add its row to images/data/facts.yaml")
        return
    library = row.library_for(it.wheel_cuda)
    if library is None:
        others = [other for other, facts in it.facts.bitsandbytes.items() if facts.library_for(it.wheel_cuda)]
        fix = f"; pin {' or '.join(others)}" if others else ""
        yield _refuse(
            f"bitsandbytes {version} has no library for CUDA {it.wheel_cuda} "
            f"(libbitsandbytes_cuda{it.wheel_cuda.digits}.so; lookup: {row.lookup}){fix}"
        )
    elif library != it.wheel_cuda:
        yield _warn(f"bitsandbytes {version} runs its CUDA {library} library beside torch's CUDA {it.wheel_cuda}")
    if not within(it.torch, row.torch):
        yield _refuse(f"bitsandbytes {version} needs torch {row.torch}, the stack pins {it.torch}")
    if not _python_fits(it.base.python, row.python):
        yield _refuse(f"bitsandbytes {version} needs Python {row.python}, the base has {it.base.python}")


def flash_attn_has_a_wheel(it: Candidate) -> Iterator[Finding]:
    version = it.pins.get("flash-attn")
    if version is None or prebuilt_flash_attn(it) is not None:
        return
    text = f"no official flash-attn {version} wheel for {_flash_attn_key(it)}"
    if "flash-attn" in it.optional:
        yield _warn(f"{text}: built without it, unless a wheelhouse has one (--wheelhouse)")
    else:
        yield _refuse(f"{text}: mark it optional in matrix.yaml")


def archs_are_of_this_processor(it: Candidate) -> Iterator[Finding]:
    for arch in it.asked_archs:
        if arch.pair in ON_ARM_ALONE:
            yield _refuse(f"{arch} is a GPU of boards with ARM processors, and images are for x86-64")


def archs_are_covered(it: Candidate) -> Iterator[Finding]:
    for arch in it.asked_archs:
        for what, code in it.binaries.items():
            covered = code.covers(arch)
            if covered == "no":
                yield _refuse(f"{what} has no code for {arch} (it has {_listed(code)})")
            elif covered == "ptx":
                yield _warn(f"{what} runs on {arch} only through PTX, compiled by the driver at first use")
        if it.toolkit_facts and arch.capability not in it.toolkit_facts.nvcc_archs:
            yield _refuse(f"CUDA {it.name.cuda} cannot compile for {arch}")


def xformers_covers_archs(it: Candidate) -> Iterator[Finding]:
    row = it.facts.xformers.get(it.pins.get("xformers", ""))
    if row is None:
        return
    promised = it.promised_archs
    lacking = [arch for arch in promised if row.covers(arch) == "no"]
    compiled_late = [arch for arch in promised if row.covers(arch) == "ptx"]
    if lacking:
        yield _warn(f"xformers has no kernels for {_join(lacking)}: torch's own attention runs there")
    if compiled_late:
        yield _warn(f"xformers reaches {_join(compiled_late)} only through PTX, compiled by the driver at first use")


def some_arch_is_left(it: Candidate) -> Iterator[Finding]:
    if not it.asked_archs and not it.promised_archs:
        yield _refuse(f"no GPU architecture is covered by {' and '.join(it.binaries)} together")


def profile_overrides_are_said(it: Candidate) -> Iterator[Finding]:
    for name, version in it.profile.pins.items() if it.profile else ():
        if name in it.stack and it.stack[name] != version:
            yield _warn(f"the profile {it.name.profile} pins {name} {version} over the stack's {it.stack[name]}")


def profile_packages_are_known(it: Candidate) -> Iterator[Finding]:
    for name, version in it.profile.pins.items() if it.profile else ():
        if name not in it.stack and version not in it.facts.packages.get(name, {}):
            row = f"`python -m images facts {name}=={version}` prints its row for images/data/facts.yaml"
            yield _refuse(f"nothing is known of {name} {version}: {row}")


def requirements_agree(it: Candidate) -> Iterator[Finding]:
    """What contradicts is refused with both sides named; nothing is moved to make it fit."""
    known = {(name, it.pins[name]): row for name, row in it.known.items()}
    for (name, version), row in known.items():
        yield from map(_refuse, unfit(it, name, version, row))
    for found in requirements.clashing(known, frozenset(it.pins), it.base.python):
        yield _refuse(f"{found.by} requires {found.requirement}, which excludes the {found.on} {found.found}")


def nothing_dead_is_pinned(it: Candidate) -> Iterator[Finding]:
    for name in it.pins:
        if successor := it.facts.replaced.get(name):
            yield _refuse(f"{name} is dead: pin {successor.by} instead")


def waivers_are_said(it: Candidate) -> Iterator[Finding]:
    waived = it.profile.waived if it.profile else {}
    for name, reason in waived.items():
        asking = [found for pin in it.pins for found in _unmet(it, pin) if found.on == name and not found.found]
        by = ", ".join(f"{found.by} requires {found.requirement}" for found in asking) or f"nothing requires {name}"
        yield _warn(f"{by}: waived, {reason}")


def declined_offers_are_said(it: Candidate) -> Iterator[Finding]:
    for name, reasons in it.declined.items():
        yield _warn(f"goes without {name} (optional): {'; '.join(reasons)}")


def compiled_packages_are_said(it: Candidate) -> Iterator[Finding]:
    for name, row in it.known.items():
        if row.form == "cuda-source":
            version = it.pins[name]
            until = "the image goes without it until" if name in it.optional else "no image can be built before"
            command = f"`nox -s wheels -- {it.name} {name}`"
            yield _warn(f"{name} {version} is published as source only: {until} {command} has compiled it")


def unfit(it: Candidate, name: str, version: str, row: PackageFacts) -> Iterator[str]:
    """Why a package of known facts has no place in an image, in sentences."""
    waived = frozenset(it.profile.waived) if it.profile else frozenset()
    for found in requirements.unmet(name, version, row, it.pins, frozenset(), it.base.python):
        if found.on not in waived:
            owner = profiles.owner(found.on, it.profile, it.name.torch)
            yield f"{found.by} requires {found.requirement}, {owner} pins {found.on} {found.found}"
    if row.torch and not within(it.torch, row.torch):
        yield f"{name} {version} is compiled against torch {row.torch}, the stack pins {it.torch}"
    if row.cuda_majors and it.wheel_cuda.major not in row.cuda_majors:
        majors = ", ".join(map(str, row.cuda_majors))
        yield f"{name} {version} is built for CUDA {majors}, torch's wheel brings CUDA {it.wheel_cuda}"
    if row.python and not _python_fits(it.base.python, row.python):
        yield f"{name} {version} needs Python {row.python}, the base has {it.base.python}"
    if row.form == "cuda-source":
        yield from _uncompilable(it, name, version)


def _uncompilable(it: Candidate, name: str, version: str) -> Iterator[str]:
    """Why no wheel of a package that is source only can be made for an image, wherever it is tried."""
    source, what = it.sources.get(name), f"{name} {version} is published as source only"
    if source is None or version not in source.releases:
        yield f"{what}, and `sources` in matrix.yaml does not have it"
        return
    if not within(it.torch, source.torch):
        yield f"{what} and compiles on torch {source.torch}, the stack pins {it.torch}"
    if source.nvcc and not (it.toolkit and (it.toolkit.devel or it.toolkit.compiler)):
        yield f"{what}, and `toolkits` in matrix.yaml names nobody who has an nvcc of CUDA {it.name.cuda}"
    if source.nvcc and not any(arch >= Arch.parse(source.floor) for arch in it.promised_archs):
        yield f"{what} and compiles for {Arch.parse(source.floor)} and newer, the image promises no such architecture"


def _unmet(it: Candidate, name: str) -> Iterator[Unmet]:
    row = it.known.get(name)
    if row and it.profile:
        yield from requirements.unmet(name, it.pins[name], row, it.pins, frozenset(it.profile.waived), it.base.python)


RULES: tuple[Rule, ...] = (
    wheel_is_older_than_toolkit,
    variant_is_verified,
    toolkit_is_known,
    devel_has_a_provider,
    devel_compiler_fits,
    default_python_is_not_spelled_out,
    torch_supports_python,
    triton_is_torchs,
    xformers_fits,
    torchao_fits,
    bitsandbytes_fits,
    flash_attn_has_a_wheel,
    archs_are_of_this_processor,
    archs_are_covered,
    xformers_covers_archs,
    some_arch_is_left,
    profile_overrides_are_said,
    profile_packages_are_known,
    requirements_agree,
    nothing_dead_is_pinned,
    waivers_are_said,
    declined_offers_are_said,
    compiled_packages_are_said,
)


def apply(candidate: Candidate, rules: Sequence[Rule] = RULES) -> tuple[Finding, ...]:
    """Every finding of every rule, in the rules' order."""
    return tuple(finding for rule in rules for finding in rule(candidate))


def min_driver(facts: Facts, wheel_cuda: Minor) -> str:
    """The oldest driver that runs this CUDA major (minor version compatibility)."""
    return facts.driver_floors[str(wheel_cuda.major)].driver


def prebuilt_flash_attn(it: Candidate) -> FlashAttnFacts | None:
    """The row of official wheels that has this very combination, ABI included."""
    version = it.pins.get("flash-attn")
    for row in it.facts.flash_attn:
        if (
            version in row.versions
            and str(it.name.torch) in row.torch
            and it.wheel_cuda.major in row.cuda_majors
            and str(it.base.python) in row.pythons
            and it.variant.cxx11_abi in row.cxx11_abi
        ):
            return row
    return None


def flash_attn_filename(it: Candidate) -> str:
    """The official wheel's file name (scheme of flash-attn 2.7.0 and later)."""
    tag, abi = f"cp{it.base.python.digits}", "TRUE" if it.variant.cxx11_abi else "FALSE"
    build = f"cu{it.wheel_cuda.major}torch{it.name.torch}cxx11abi{abi}"
    return f"flash_attn-{it.pins['flash-attn']}+{build}-{tag}-{tag}-linux_x86_64.whl"


def _flash_attn_key(it: Candidate) -> str:
    abi = "new" if it.variant.cxx11_abi else "old"
    return f"torch {it.name.torch}, CUDA {it.wheel_cuda.major}, Python {it.base.python}, {abi} C++ ABI"


def _python_fits(python: Minor, wanted: str) -> bool:
    return within(f"{python}.0", wanted)


def _listed(code: DeviceCode) -> str:
    return ", ".join([*code.archs, *(f"PTX {text}" for text in code.ptx)])


def _join(archs: Sequence[Arch]) -> str:
    return ", ".join(map(str, archs))


def _refuse(text: str) -> Finding:
    return Finding(Weight.REFUSE, text)


def _warn(text: str) -> Finding:
    return Finding(Weight.WARN, text)
