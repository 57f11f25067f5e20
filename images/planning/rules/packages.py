"""Packages: each must be made for this torch, CUDA and Python, agree with the others, and be had somewhere. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from images.config.facts import BitsandbytesFacts, PackageFacts, TorchaoFacts, XformersFacts, within
from images.config.names import Arch, Minor
from images.errors import command
from images.planning import silent
from images.planning.candidate import Candidate, Finding, refuse, warn

Companion = XformersFacts | TorchaoFacts | BitsandbytesFacts


def companions_fit(candidate: Candidate) -> Iterator[Finding]:
    """Triton, and packages with CUDA code of their own, are known, and made for this torch, CUDA and Python."""
    triton = candidate.pins.get("triton")
    if triton and not within(triton, candidate.torch_facts.triton):
        yield refuse(
            f"torch {candidate.torch} needs triton{candidate.torch_facts.triton}, the stack pins {triton}"
        )
    for package, known in candidate.facts.companions.items():
        version = candidate.pins.get(package, "")
        if version in known:
            yield from _fits(candidate, package, known)
        elif version and package not in candidate.facts.arm64.lacking:
            yield refuse(
                f"nothing is known of {package} {version}: add its row to images/data/facts.yaml"
            )


def _fits(candidate: Candidate, package: str, known: Mapping[str, Companion]) -> Iterator[Finding]:
    what, wheel = f"{package} {candidate.pins[package]}", candidate.wheel_cuda
    row, torch = known[candidate.pins[package]], f"the stack pins {candidate.torch}"
    if not within(candidate.torch, row.torch):
        fitting = [
            one
            for one, other in known.items()
            if within(candidate.torch, other.torch) and _links(other, wheel)
        ]
        fix = f"pin {max(fitting, key=Version)}" if fitting else f"leave {package} out of the stack"
        yield refuse(f"{what} needs torch {row.torch}, {torch}: {fix}")
    if isinstance(row, XformersFacts) and not _links(row, wheel):
        own = Minor.parse(row.cuda)
        yield refuse(
            f"{what} is built for CUDA {own} and needs libcudart.so.{own.major}, torch's wheel brings CUDA {wheel}: "
            "its kernels would not load. Leave it out (`without: [xformers]`), or take a "
            f"cu{own.major}x variant of torch {candidate.torch}"
        )
    elif isinstance(row, TorchaoFacts) and not _links(row, wheel):
        needs = f"{what} needs libcudart.so.{row.cuda_major}, torch's wheel brings CUDA {wheel}"
        yield refuse(f"{needs}: leave it out (`without: [torchao]`)")
    elif isinstance(row, BitsandbytesFacts) and (library := row.library_for(wheel)) != wheel:
        others = [
            one for one, facts in candidate.facts.bitsandbytes.items() if facts.library_for(wheel)
        ]
        fix = f"; pin {' or '.join(others)}" if others else ""
        lacks = f"{what} has no library for CUDA {wheel} (libbitsandbytes_cuda{wheel.digits}.so; lookup: {row.lookup})"
        runs = f"{what} runs its CUDA {library} library beside torch's CUDA {wheel}"
        yield warn(runs) if library else refuse(f"{lacks}{fix}")
    if not isinstance(row, TorchaoFacts) and not within(f"{candidate.base.python}.0", row.python):
        yield refuse(f"{what} needs Python {row.python}, the base has {candidate.base.python}")


def _links(row: Companion, wheel_cuda: Minor) -> bool:
    """Whether a release is linked with the CUDA major that torch's wheel brings, or with none."""
    major = (
        Minor.parse(row.cuda).major
        if isinstance(row, XformersFacts)
        else getattr(row, "cuda_major", None)
    )
    return major in (None, wheel_cuda.major)


def none_fits(candidate: Candidate) -> dict[str, str]:
    """Package with kernels that a candidate lacks, and that has no known release for its torch and CUDA -> why."""
    why = {}
    for name, known in candidate.facts.companions.items():
        tried = (replace(candidate, pins={**candidate.pins, name: version}) for version in known)
        if (
            known
            and name not in candidate.pins
            and all(any(one.refuses for one in _fits(of, name, known)) for of in tried)
        ):
            why[name] = (
                f"no release from {min(known, key=Version)} to {max(known, key=Version)} is made for "
                f"torch {candidate.torch} with CUDA {candidate.wheel_cuda}, and what finds it imports it, and fails"
            )
    return why


def xformers_covers_archs(candidate: Candidate) -> Iterator[Finding]:
    row = candidate.facts.xformers.get(candidate.pins.get("xformers", ""))
    fits = {arch: row.covers(arch) for arch in candidate.supported_archs} if row else {}
    if lacking := ", ".join(str(arch) for arch, fit in fits.items() if fit == "no"):
        yield warn(f"xformers has no kernels for {lacking}: torch's own attention runs there")
    refused = [arch for arch in fits if row and row.refuses(arch)]
    if late := ", ".join(map(str, refused)):
        yield warn(
            f"xformers' CUTLASS and FlashAttention 3 refuse {late}: flash alone is left, torch's own, in 16 bit"
        )
    if late := ", ".join(
        str(arch) for arch, fit in fits.items() if fit == "ptx" and arch not in refused
    ):
        yield warn(
            f"xformers has no machine code for {late}: its attention calls torch's own kernels there"
        )


def profile_pins_are_known_and_said(candidate: Candidate) -> Iterator[Finding]:
    for name, version in candidate.profile.pins.items():
        own = candidate.stack.get(name)
        if own is None and version not in candidate.facts.packages.get(name, {}):
            row = f"`python -m tools.releases {name}=={version}` prints its row for images/data/facts.yaml"
            yield refuse(f"nothing is known of {name} {version}: {row}")
        if own not in (None, version):
            yield warn(
                f"the profile {candidate.name.profile} pins {name} {version} over the stack's {own}"
            )


def requirements_agree(candidate: Candidate) -> Iterator[Finding]:
    """What contradicts is refused with both sides named, and what is dead; nothing is moved to make it fit."""
    for name in candidate.known:
        yield from map(refuse, unfit(candidate, name, candidate.pins[name]))
    yield from map(refuse, _clashing(candidate))
    for name in candidate.pins:
        if replaced := candidate.facts.replaced.get(name):
            yield refuse(f"{name} is no longer maintained: pin {replaced.by} instead")


def releases_do_not_conflict(candidate: Candidate) -> Iterator[Finding]:
    """Releases that are known to fail together are refused, though no requirement forbids them."""
    for conflict in candidate.facts.conflicts:
        if conflict.explains(candidate.pins):
            yield refuse(conflict.told(candidate.pins))


def waivers_and_overrides_are_said(candidate: Candidate) -> Iterator[Finding]:
    for name, reason in candidate.profile.waived.items():
        asking = [
            f"{pin} {candidate.pins[pin]} requires {requirement.name}{requirement.specifier}"
            for pin, row in candidate.known.items()
            for on, requirement in applying(tuple(row.requires), candidate.base.python)
            if on == name
        ]
        yield warn(f"{', '.join(asking) or f'nothing requires {name}'}: waived, {reason}")
    for requirement, reason in candidate.overrides.items():
        yield warn(f"{requirement} whatever is required: {reason}")


def silent_faults_are_said(candidate: Candidate) -> Iterator[Finding]:
    """Those that plain training meets in a sentence each; of the others, which they are."""
    found = silent.known(
        {**candidate.pins, **({"cudnn": candidate.cudnn} if candidate.cudnn else {})}
    )
    ordinary = {name for name, row in found.items() if row.is_ordinary(candidate.pins["torch"])}
    yield from (warn(str(row)) for name, row in found.items() if name in ordinary)
    if rare := sorted(row.issue for name, row in found.items() if name not in ordinary):
        yield warn(f"silently wrong at rare shapes or programs: {', '.join(rare)}")


def unfit(candidate: Candidate, name: str, version: str) -> tuple[str, ...]:
    """Why a package has no place in an image; empty: it has."""
    row = candidate.facts.packages.get(name, {}).get(version)
    if row is None:
        return (f"nothing is known of {name} {version}",)
    against = _contradictions(candidate, name, version, row)
    source_only = row.form == "cuda-source" and not candidate.official_wheel(name, version)
    source_only = source_only and not (
        name in candidate.optional and name in candidate.pins
    )  # the image may lack it
    return (*against, *(uncompilable(candidate, name, version) if source_only else ()))


@cache
def applying(requires: tuple[str, ...], python: Minor) -> tuple[tuple[str, Requirement], ...]:
    """(canonical name, requirement) that hold on Linux x86-64 with this Python: profiles are built there alone.

    Kept: parsing takes long, and most images ask it of the same rows.
    """
    environment = {
        "extra": "",
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{python}.0",
        "python_version": str(python),
        "sys_platform": "linux",
    }
    parsed = map(Requirement, requires)
    holding = (one for one in parsed if one.marker is None or one.marker.evaluate(environment))
    return tuple((str(canonicalize_name(one.name)), one) for one in holding)


def _contradictions(
    candidate: Candidate, name: str, version: str, row: PackageFacts
) -> Iterator[str]:
    """What a package requires and this image contradicts."""
    what, pins, profile = f"{name} {version}", candidate.pins, candidate.profile
    for on, requirement in applying(tuple(row.requires), candidate.base.python):
        if (
            on in pins
            and on not in profile.waived
            and not requirement.specifier.contains(pins[on], prereleases=True)
        ):
            own = on in profile.pins or on in profile.optional
            owner = (
                f"the profile {candidate.name.profile}"
                if own
                else f"the stack of torch {candidate.name.torch}"
            )
            yield f"{what} requires {requirement.name}{requirement.specifier}, {owner} pins {on} {pins[on]}"
    if row.torch and not within(candidate.torch, row.torch):
        yield f"{what} is compiled against torch {row.torch}, the stack pins {candidate.torch}"
    if row.cuda_majors and candidate.wheel_cuda.major not in row.cuda_majors:
        majors = ", ".join(map(str, row.cuda_majors))
        yield f"{what} is built for CUDA {majors}, torch's wheel brings CUDA {candidate.wheel_cuda}"
    if row.python and not within(f"{candidate.base.python}.0", row.python):
        yield f"{what} needs Python {row.python}, the base has {candidate.base.python}"


def _clashing(candidate: Candidate) -> Iterator[str]:
    """Two packages that ask for different versions of a third that nobody pins."""
    asked = [
        (f"{name} {candidate.pins[name]}", on, requirement)
        for name, row in candidate.known.items()
        for on, requirement in applying(tuple(row.requires), candidate.base.python)
        if on not in candidate.pins
    ]
    exact: dict[str, tuple[str, str]] = {}
    for by, on, requirement in asked:
        for wanted in requirement.specifier:
            if wanted.operator == "==" and "*" not in wanted.version:
                exact.setdefault(on, (by, wanted.version))
    for by, on, requirement in asked:
        first, version = exact.get(on, (by, ""))
        if first != by and not requirement.specifier.contains(version, prereleases=True):
            what = f"{requirement.name}{requirement.specifier}"
            yield f"{by} requires {what}, which excludes the {on} {version} that {first} requires"


def wheels_of_no_index_are_said(candidate: Candidate) -> Iterator[Finding]:
    """What is left out for that; who makes what is neither an index's wheel nor an official one; and the same of a
    profile's packages whose compiled extensions no index has."""
    for name, reasons in candidate.declined.items():
        yield warn(f"lacks {name} (optional): {'; '.join(reasons)}")
    for name, version in candidate.pins.items():
        row, optional = candidate.known.get(name), name in candidate.optional
        indexed = row.form != "cuda-source" if row else not optional
        if indexed or candidate.official_wheel(name, version):
            continue
        if optional and (hopeless := "; ".join(uncompilable(candidate, name, version))):
            yield warn(f"{hopeless}: built without it, unless a wheelhouse has one (--wheelhouse)")
            continue
        until = "the image lacks it until" if optional else "no image can be built before"
        compile_it = command("wheels", str(candidate.name), name)
        yield warn(
            f"{_published(candidate, name, version)}: {until} `{compile_it}` has compiled it"
        )
    for name, source in _named_extensions(candidate).items():
        lacks = f"{name} {candidate.pins[name]} lacks its compiled extensions"
        until = f" until `{command('wheels', str(candidate.name), source)}` has compiled them"
        hopeless = "; ".join(uncompilable(candidate, source, candidate.pins[name]))
        yield warn(f"{lacks}: {hopeless}" if hopeless else f"{lacks}{until}")


def extensions_of(candidate: Candidate) -> dict[str, str]:
    """Distribution -> the row of `sources` that makes it with its compiled extensions, of those that can be made."""
    named = _named_extensions(candidate).items()
    return {
        name: row
        for name, row in named
        if not any(uncompilable(candidate, row, candidate.pins[name]))
    }


def _named_extensions(candidate: Candidate) -> dict[str, str]:
    """Pinned distribution -> row of `sources`, as the profile names them."""
    sources, rows = candidate.matrix.sources, candidate.profile.extensions
    named = {sources[row].distribution or row: row for row in rows if row in sources}
    return {name: row for name, row in named.items() if name in candidate.pins}


def uncompilable(candidate: Candidate, name: str, version: str) -> Iterator[str]:
    """Why no wheel of a package that is source only can be made for an image, wherever it is tried."""
    source, what = candidate.matrix.sources.get(name), _published(candidate, name, version)
    if source is None or version not in source.releases:
        yield f"{what}, and `sources` in matrix.yaml does not have it"
        return
    if not within(candidate.torch, source.torch):
        yield f"{what} and compiles on torch {source.torch}, the stack pins {candidate.torch}"
    if source.nvcc and not (
        candidate.toolkit and (candidate.toolkit.devel or candidate.toolkit.compiler)
    ):
        yield f"{what}, and no `compiler` of `toolkits` in matrix.yaml has an nvcc of CUDA {candidate.name.cuda}"
    minimum = Arch.parse(source.minimum_arch)
    if source.nvcc and not any(arch >= minimum for arch in candidate.supported_archs):
        yield f"{what} and compiles for {minimum} and newer, the image supports no such architecture"


def _published(candidate: Candidate, name: str, version: str) -> str:
    if not any(release.package == name for release in candidate.facts.prebuilt):
        return f"{name} {version} is published as source only"
    torch, cuda, python = candidate.name.torch, candidate.wheel_cuda.major, candidate.base.python
    build = f"torch {torch}, CUDA {cuda}, Python {python}, {'new' if candidate.variant.cxx11_abi else 'old'} C++ ABI"
    return f"no official wheel of {name} {version} is known for {build}"
