"""Rules about packages: each fits torch, CUDA, Python and the others, and has a wheel. Pure.

A rule yields findings about a candidate: reasons to refuse the image, and warnings. The sentences
stand in `plan` and in docs/images.md, so they begin with the cause and end with the way out.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from images.config.facts import BitsandbytesFacts, PackageFacts, TorchaoFacts, XformersFacts, within
from images.config.names import Arch, Minor
from images.errors import command
from images.planning import expectations, silent
from images.planning.candidate import Candidate, Finding, Topic, refuse, warn
from images.planning.image import PrivateIndex
from validate.installation import by_installation

Companion = XformersFacts | TorchaoFacts | BitsandbytesFacts
"""What is known of one release of a package that has CUDA code of its own."""


def check_companions(candidate: Candidate) -> Iterator[Finding]:
    """Refuse Triton, xformers, torchao or bitsandbytes that do not fit this torch, CUDA and Python.

    The last three ("companions" of torch) have CUDA code of their own. Releases that facts.yaml
    does not know are left to warn_about_unknown_packages.
    """
    # Which Triton fits is a fact about torch.
    triton = candidate.pins.get("triton")
    if triton and not within(triton, candidate.torch_facts.triton):
        needed = candidate.torch_facts.triton
        yield refuse(
            f"torch {candidate.torch} needs triton{needed}, but the stack pins triton {triton}: "
            f"pin triton{needed} at `stacks.{candidate.name.torch}` in matrix.yaml, then lock again"
        )

    # `releases`: version -> what facts.yaml knows of that release.
    for package, releases in candidate.facts.companions.items():
        version = candidate.pins.get(package, "")
        if version in releases:
            yield from _check_companion(candidate, package, releases)


def _check_companion(
    candidate: Candidate, package: str, releases: Mapping[str, Companion]
) -> Iterator[Finding]:
    """Yield what is wrong with the pinned release of one package that has CUDA code of its own.

    `releases` has every known release of the package, by version: the reasons name one that fits.
    """
    version = candidate.pins[package]
    release = releases[version]
    name = f"{package} {version}"
    wheel_cuda, python = candidate.wheel_cuda, candidate.base.python

    if _fits(candidate, release):
        return

    way_out = _say_which_release_fits(candidate, package, releases)
    if not within(candidate.torch, release.torch):
        yield refuse(
            f"{name} needs torch {release.torch}, but the stack pins torch {candidate.torch}: "
            f"{way_out}"
        )

    wrong_cuda = _explain_wrong_cuda(name, release, wheel_cuda)
    if wrong_cuda:
        yield refuse(f"{wrong_cuda}: {way_out}")

    # facts.yaml says nothing of the Python that torchao needs.
    if not isinstance(release, TorchaoFacts) and not within(f"{python}.0", release.python):
        yield refuse(f"{name} needs Python {release.python}, but the base has {python}: {way_out}")


def _explain_wrong_cuda(name: str, release: Companion, wheel_cuda: Minor) -> str:
    """Return why a release can't use the CUDA that torch's wheel brings; empty if it can.

    `name` is package and version, for the sentence.
    """
    if isinstance(release, XformersFacts) and not _runs_beside(release, wheel_cuda):
        own_cuda = Minor.parse(release.cuda)
        return (
            f"{name} is built for CUDA {own_cuda} and needs libcudart.so.{own_cuda.major}, but "
            f"torch's wheel brings CUDA {wheel_cuda}, so its kernels would not load"
        )
    if isinstance(release, TorchaoFacts) and not _runs_beside(release, wheel_cuda):
        return (
            f"{name} needs libcudart.so.{release.cuda_major}, but torch's wheel brings CUDA "
            f"{wheel_cuda}, so its kernels would not load"
        )
    if isinstance(release, BitsandbytesFacts) and release.library_for(wheel_cuda) is None:
        file = f"libbitsandbytes_cuda{wheel_cuda.digits}.so"
        return f"{name} has no library for CUDA {wheel_cuda} ({file})"
    return ""


def _fits(candidate: Candidate, release: Companion) -> bool:
    """Return whether a release fits the image's torch, CUDA and Python."""
    wheel_cuda = candidate.wheel_cuda
    if not within(candidate.torch, release.torch) or not _runs_beside(release, wheel_cuda):
        return False
    if isinstance(release, BitsandbytesFacts) and release.library_for(wheel_cuda) is None:
        return False
    # facts.yaml says nothing of the Python that torchao needs.
    return isinstance(release, TorchaoFacts) or within(f"{candidate.base.python}.0", release.python)


def _runs_beside(release: Companion, wheel_cuda: Minor) -> bool:
    """Return whether a release works with the CUDA runtime that torch's wheel brings.

    It does if it needs the same CUDA major. True for bitsandbytes, which has a library for each of
    several CUDAs: callers ask it for the fitting one (`library_for`).
    """
    if isinstance(release, XformersFacts):
        return Minor.parse(release.cuda).major == wheel_cuda.major
    if isinstance(release, TorchaoFacts):
        # `cuda_major` is None for a release without CUDA code.
        return release.cuda_major in (None, wheel_cuda.major)
    return True


def explain_unfit_companions(candidate: Candidate) -> dict[str, str]:
    """Return which of xformers, torchao and bitsandbytes can't work in an image: package -> why.

    These packages ("companions" of torch) are compiled for one torch or CUDA. A package is in the
    result if the image does not pin it, and no release that facts.yaml knows fits. Users must not
    add such a package to the image.
    """
    reasons = {}
    for package, releases in candidate.facts.companions.items():
        if package in candidate.pins or not releases:
            continue
        if any(_fits(candidate, release) for release in releases.values()):
            continue
        # Frameworks import such a package if it is installed, and would fail.
        oldest, newest = min(releases, key=Version), max(releases, key=Version)
        reasons[package] = (
            f"no release from {oldest} to {newest} is made for torch {candidate.torch} with "
            f"CUDA {candidate.wheel_cuda}, and packages that find {package} import it, and fail"
        )
    return reasons


def _say_which_release_fits(
    candidate: Candidate, package: str, releases: Mapping[str, Companion]
) -> str:
    """Return the advice to pin the newest release that fits the image, or to leave the package out.

    It is the end of a sentence. `releases` has every known release of the package, by version.
    """
    fitting = [version for version, release in releases.items() if _fits(candidate, release)]
    if fitting:
        newest = max(fitting, key=Version)
        return f"pin {package} {newest} at `stacks.{candidate.name.torch}` in matrix.yaml"
    return (
        f"no release that truetag knows fits this image; leave {package} out, with "
        f"`without: [{package}]` in the image's row of matrix.yaml"
    )


def warn_about_xformers_archs(candidate: Candidate) -> Iterator[Finding]:
    """Warn about GPU architectures that xformers refuses as too new.

    Nothing is yielded if the image does not pin xformers, or facts.yaml does not know its release.
    `choose` says for which GPUs it has no code: torch's own attention runs there.
    """
    release = candidate.facts.xformers.get(candidate.pins.get("xformers", ""))
    if release is None:
        return
    refused = [arch for arch in candidate.supported_archs if release.refuses(arch)]
    if refused:
        yield warn(
            Topic.GPU_CODE,
            f"xformers refuses {_joined(refused)} as too new for its CUTLASS and FlashAttention 3 "
            "operators, so only torch's own flash attention is left there: give it float16 or "
            "bfloat16 inputs, the only ones that it takes",
        )


def _joined(archs: list[Arch]) -> str:
    """Return architectures as a text: `sm_60, sm_70`."""
    return ", ".join(str(arch) for arch in archs)


def warn_about_unknown_packages(candidate: Candidate) -> Iterator[Finding]:
    """Warn about pinned packages that no table knows, and say what is not checked of them.

    `lock` still compares what they require, and the image is measured for what holds of any
    package: its version, its files and libraries, and that it can be imported.
    """
    unknown = []
    for name, version in candidate.pins.items():
        if not _is_known(candidate, name, version):
            unknown.append(f"{name} {version}")
    if unknown:
        how_to_add = by_installation(
            checkout=" (`python -m tools.releases NAME==VERSION` prints a row for facts.yaml)",
            installed="",
        )
        yield warn(
            Topic.UNKNOWN,
            f"truetag has no rules for {', '.join(unknown)}{how_to_add}: `{command('lock')}` "
            "checks that what is required fits your other pins, but nothing checks that compiled "
            f"code is for CUDA {candidate.wheel_cuda} and for these GPUs, or that results are "
            "right, so try this on your GPU once the image is built",
        )


def _is_known(candidate: Candidate, name: str, version: str) -> bool:
    """Return whether truetag knows this release, or needs to know nothing about its package."""
    if name in ("torch", "triton") or name in expectations.WITHOUT_CODE_FOR_GPUS:
        return True
    return version in candidate.facts.releases_of(name)


def warn_about_private_packages(candidate: Candidate) -> Iterator[Finding]:
    """Warn about the packages that private indexes alone have: where they come from.

    There is one warning for each index from which the image has packages.
    """
    releases_of_index: dict[PrivateIndex, list[str]] = {}
    for name, index in candidate.private_indexes.items():
        if name in candidate.pins:
            releases_of_index.setdefault(index, []).append(f"{name} {candidate.pins[name]}")
    for index, releases in releases_of_index.items():
        user_variable, password_variable = index.login_variables
        text = (
            f"{', '.join(releases)}: taken from the private {index} and from no other index: if "
            f"that index asks for a login, whoever locks or builds sets {user_variable} and "
            f"{password_variable}, or writes it into ~/.netrc; nothing else needs to be done"
        )
        yield warn(Topic.PRIVATE, text)


def check_requirements(candidate: Candidate) -> Iterator[Finding]:
    """Refuse packages that contradict the image or each other, and packages that are abandoned.

    Each reason names both sides. No version is moved to make something fit. Whether what they
    require beside the pins has a version in common is left to uv, when the image is locked.
    """
    # Only packages that facts.yaml knows can be compared.
    for name in candidate.package_facts:
        for reason in reasons_against(candidate, name, candidate.pins[name]):
            yield refuse(
                f"{reason}: pin another release of {name} in matrix.yaml, or remove its pin"
            )

    # `replaced`: abandoned distribution -> its successor.
    for name in candidate.pins:
        replacement = candidate.facts.replaced.get(name)
        if replacement:
            yield refuse(
                f"{name} is no longer maintained: pin {replacement.by} instead of it in matrix.yaml"
            )


def check_conflicts(candidate: Candidate) -> Iterator[Finding]:
    """Refuse releases that are known to fail together, though no requirement says so.

    Warn of those that can do all but one thing together.
    """
    for conflict in candidate.facts.conflicts:
        if conflict.applies_to(candidate.pins):
            conflicting = [f"{name} {releases}" for name, releases in conflict.packages.items()]
            yield refuse(
                f"{conflict.sentence(candidate.pins)}; in matrix.yaml, pin one of them outside of "
                f"{' and '.join(conflicting)}, then `{command('lock', str(candidate.name))}`"
            )
    for limit in candidate.facts.limits:
        if limit.applies_to(candidate.pins):
            yield warn(Topic.LIMITS, f"{limit.releases(candidate.pins)}: {limit.why}")


def check_undeclared_requirements(candidate: Candidate) -> Iterator[Finding]:
    """Refuse a package that imports another one without requiring it, unless the matrix pins that.

    The pin is demanded even if a newer Python or another package happens to bring the imported one:
    it does no harm there.
    """
    packages_of_layers = set(chain.from_iterable(candidate.matrix.layers.values()))
    for row in candidate.facts.undeclared:
        version = candidate.pins.get(row.package)
        # check_companions has this release replaced, so what it needs is of no use.
        if row.package == "triton" and not within(version or "0", candidate.torch_facts.triton):
            continue
        if version and within(version, row.releases) and row.needs not in candidate.pins:
            place = f"`stacks.{candidate.name.torch}` in matrix.yaml ({row.tried} works)"
            if row.needs in packages_of_layers:
                step = f"pin it at {place}"
            else:
                step = f"add {row.needs} beside {row.package} in `layers`, and pin it at {place}"
            lock = command("lock", str(candidate.name))
            yield refuse(
                f"{row.package} {version} imports {row.needs} ({row.why}), but does not require "
                f"it: {step}, then `{lock}`"
            )


def warn_about_waivers_and_overrides(candidate: Candidate) -> Iterator[Finding]:
    """Warn about each requirement of a package that the matrix ignores, with its reason.

    There are two ways to ignore one. If the profile *waives* a package, the image lacks it, or has
    another version than required. An *override* is one exact version that is installed, whatever
    packages require.
    """
    for name, reason in candidate.profile.waived.items():
        # `axolotl 0.19.0 requires peft>=0.18`; empty: no package that facts.yaml knows does.
        requirements = ", ".join(_requirements_of(candidate, name))
        if not requirements:
            yield warn(
                Topic.VERSIONS,
                f"no package of the image requires {name}, which the profile "
                f"{candidate.name.profile}, or the one that it extends, waives ({reason}): the "
                f"image works; take {name} out of `waived` there in matrix.yaml, unless another "
                "image needs it",
            )
            continue
        instead = "the image lacks it"
        if name in candidate.pins:
            instead = f"the image has {name} {candidate.pins[name]} instead"
        text = f"{requirements}, but {instead} on purpose (`waived` in matrix.yaml: {reason})"
        yield warn(Topic.VERSIONS, f"{text}: nothing needs to be done")

    for override, reason in candidate.overrides.items():
        text = (
            f"{override} replaces the version that packages require, on purpose (`overrides` in "
            f"matrix.yaml: {reason}): nothing needs to be done"
        )
        yield warn(Topic.VERSIONS, text)


def _requirements_of(candidate: Candidate, name: str) -> Iterator[str]:
    """Yield what each package requires of a distribution: `axolotl 0.19.0 requires peft>=0.18`."""
    for pinned, row in candidate.package_facts.items():
        for required, requirement in requirements_here(row, candidate.base.python):
            if required == name:
                package = f"{pinned} {candidate.pins[pinned]}"
                yield f"{package} requires {requirement.name}{requirement.specifier}"


def warn_about_silent_faults(candidate: Candidate) -> Iterator[Finding]:
    """Warn if versions of the image are known to compute wrong results without an error.

    The table silent_faults.yaml lists such faults. A fault that plain training meets gets a warning
    of its own. All others share one, which names their issues
    (`pytorch/pytorch#196678`).
    """
    # The table also has faults of cuDNN and of processors, which are no pins.
    versions = {**candidate.pins, "processor": candidate.name.platform.machine}
    if candidate.cudnn:
        versions["cudnn"] = candidate.cudnn

    issues_of_rare_faults = []
    for fault in silent.find_faults(versions).values():
        if fault.is_ordinary(candidate.pins["torch"]):
            yield warn(Topic.SILENT, str(fault))
        else:
            issues_of_rare_faults.append(fault.address)

    if issues_of_rare_faults:
        # Nothing else here says what these faults are, so a reader has to find the issues.
        issues = ", ".join(sorted(issues_of_rare_faults))
        text = (
            "silently wrong results at rare shapes or in rare programs: see whether your "
            f"program is one of those in the issues {issues}"
        )
        yield warn(Topic.SILENT_IF_RARE, text)


def reasons_against(candidate: Candidate, name: str, version: str) -> tuple[str, ...]:
    """Return why a package can't be in an image at this version; empty if it can.

    Reasons are that facts.yaml does not know it, that it does not fit the image's torch, CUDA,
    Python or other packages, and that there is neither a wheel nor a way to compile one. The image
    need not pin the package, so this can be asked before it is added.
    """
    row = candidate.facts.packages.get(name, {}).get(version)
    if row is None:
        return (f"images/data/facts.yaml has no row for {name} {version}",)

    reasons = list(_describe_contradictions(candidate, name, version, row))
    # There must be a wheel, or a way to compile one: a `cuda-source` package is published as source
    # that nvcc must compile. Optional packages are an exception, because the image may lack them.
    has_wheel = row.form != "cuda-source" or candidate.find_official_wheel(name, version)
    may_be_lacking = name in candidate.optional and name in candidate.pins
    if not has_wheel and not may_be_lacking:
        reasons += reasons_against_compiling(candidate, name, version)
    return tuple(reasons)


class RequiredPackage(NamedTuple):
    """A requirement of a package, under the canonical name of the distribution that it requires."""

    name: str
    requirement: Requirement


def requirements_here(row: PackageFacts, python: Minor) -> tuple[RequiredPackage, ...]:
    """Return the requirements of a package whose markers hold on Linux x86-64 with this Python.

    Each comes with the canonical name of what is required:
    `("huggingface-hub", Requirement("huggingface_hub>=0.30"))`.
    """
    return _requirements_that_hold(tuple(row.requires), python)


@cache  # Parsing is slow, and most images ask it of the same packages.
def _requirements_that_hold(lines: tuple[str, ...], python: Minor) -> tuple[RequiredPackage, ...]:
    """Return the packages that a package requires on Linux with this Python.

    `lines` are the Requires-Dist lines of its metadata: `torch>=2.6; python_version < "3.13"`.
    Those whose condition (marker) does not hold are left out. Raises InvalidRequirement if a line
    can't be parsed.
    """
    # Profiles, which pin most packages with requirements, are built for x86-64 only. The few such
    # packages in images for arm64 are judged by the same markers.
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
    required = []
    for line in lines:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate(environment):
            name = str(canonicalize_name(requirement.name))
            required.append(RequiredPackage(name, requirement))
    return tuple(required)


def _describe_contradictions(
    candidate: Candidate, name: str, version: str, row: PackageFacts
) -> Iterator[str]:
    """Yield a sentence for each requirement of a package that the image does not fulfil.

    A package may require versions of other packages, of torch, CUDA or Python. `row` is what
    facts.yaml knows of this version. If the image pins another version, the sentence says where: in
    the profile (packages for a framework) or in the stack (the pins for one torch).
    """
    package = f"{name} {version}"
    pins, profile, python = candidate.pins, candidate.profile, candidate.base.python

    # First, the requirements in its metadata.
    for required, requirement in requirements_here(row, python):
        # The image does not pin this package, or the matrix ignores the requirement on purpose.
        if required not in pins or required in profile.waived:
            continue
        # Ranges leave out prereleases by default, but a pin may be one.
        if requirement.specifier.contains(pins[required], prereleases=True):
            continue
        if required in profile.pins or required in profile.optional:
            owner = f"the profile {candidate.name.profile}"
        else:
            owner = f"the stack of torch {candidate.name.torch}"
        yield (
            f"{package} requires {requirement.name}{requirement.specifier}, "
            f"but {owner} pins {required} {pins[required]}"
        )

    # Then the torch, CUDA and Python that its compiled code is for. Metadata does not say that.
    if row.torch and not within(candidate.torch, row.torch):
        yield (
            f"{package} is compiled against torch {row.torch}, "
            f"but the stack pins torch {candidate.torch}"
        )
    if row.cuda_majors and candidate.wheel_cuda.major not in row.cuda_majors:
        majors = ", ".join(str(major) for major in row.cuda_majors)
        yield (
            f"{package} is built for CUDA {majors}, "
            f"but torch's wheel brings CUDA {candidate.wheel_cuda}"
        )
    if row.python and not within(f"{python}.0", row.python):
        yield f"{package} needs Python {row.python}, but the base has {python}"


def warn_about_missing_wheels(candidate: Candidate) -> Iterator[Finding]:
    """Warn about what the image lacks, or will have only when somebody has compiled it.

    These are optional packages that something speaks against, pinned packages without a wheel, and
    compiled extensions of the profile's packages.
    """
    for package, reasons in candidate.declined.items():
        text = (
            f"the image lacks {package} (optional): {'; '.join(reasons)}. Unless you need this "
            "package, nothing needs to be done"
        )
        yield warn(Topic.LACKING, text)

    for name, version in candidate.pins.items():
        if _has_wheel(candidate, name, version):
            continue
        # A required package that nobody can compile is refused (check_requirements): a warning
        # would name a command that fails.
        is_refused = name not in candidate.optional and any(
            reasons_against_compiling(candidate, name, version)
        )
        if not is_refused:
            yield warn(Topic.LACKING, _explain_lack(candidate, name, version))

    # These packages are installed as pure Python until their extensions are compiled. `source` is
    # the row of `sources` in matrix.yaml that says how.
    for name, source in _extensions_of_profile(candidate).items():
        version = candidate.pins[name]
        lack = f"{name} {version} is installed as pure Python, without its compiled extensions"
        obstacles = "; ".join(reasons_against_compiling(candidate, source, version))
        if obstacles:
            text = (
                f"{lack}, as {obstacles}: if your programs need these extensions, remove this "
                f"obstacle, or compile {name} yourself and build with --wheelhouse FOLDER, where "
                "that wheel lies; if not, nothing needs to be done"
            )
            yield warn(Topic.LACKING, text)
        else:
            compile_command = command("wheels", str(candidate.name), source)
            text = (
                f"{lack}, until `{compile_command}` has compiled them and the image is built again"
            )
            yield warn(Topic.LACKING, text)


def _has_wheel(candidate: Candidate, name: str, version: str) -> bool:
    """Return whether a pinned package has a wheel: on an index, or an official one for this image.

    If facts.yaml does not know the package, an index is taken to have a wheel, unless it is
    optional.
    """
    row = candidate.package_facts.get(name)
    if row:
        is_on_index = row.form != "cuda-source"
    else:
        is_on_index = name not in candidate.optional
    return is_on_index or candidate.find_official_wheel(name, version) is not None


def _explain_lack(candidate: Candidate, name: str, version: str) -> str:
    """Return what it means for an image that a pinned package has no wheel, and how to get one.

    Without an optional package the image is built all the same; without a required one it can't be.
    It is not asked about a required one that nobody can compile, as the image is then refused.
    """
    is_optional = name in candidate.optional
    # Why nobody can compile it. Each reason begins with the cause (_why_without_wheel).
    obstacles = "; ".join(reasons_against_compiling(candidate, name, version))
    if is_optional and obstacles:
        return (
            f"{obstacles}: the image is built without {name}, unless a folder of yours has a wheel "
            "of it (--wheelhouse FOLDER)"
        )
    cause = _why_without_wheel(candidate, name, version)
    compile_command = command("wheels", str(candidate.name), name)
    if is_optional:
        return (
            f"{cause}: the image lacks {name} until `{compile_command}` has compiled it and the "
            "image is built again"
        )
    return f"{cause}: no image can be built before `{compile_command}` has compiled {name}"


def compilable_extensions(candidate: Candidate) -> dict[str, str]:
    """Return the profile's packages whose compiled extensions can be made for this image.

    Canonical name -> the row of `sources` in matrix.yaml that makes the package with them.
    """
    extensions = {}
    for name, source in _extensions_of_profile(candidate).items():
        # Somebody can compile them if there is no reason against it.
        if not any(reasons_against_compiling(candidate, source, candidate.pins[name])):
            extensions[name] = source
    return extensions


def _extensions_of_profile(candidate: Candidate) -> dict[str, str]:
    """Return pinned package -> row of `sources`, for the rows under `extensions` of the profile."""
    sources = candidate.matrix.sources
    extensions = {}
    for row in candidate.profile.extensions:
        name = sources[row].distribution or row
        if name in candidate.pins:
            extensions[name] = row
    return extensions


def reasons_against_compiling(candidate: Candidate, name: str, version: str) -> Iterator[str]:
    """Yield why nobody can compile a wheel of a package for this image; nothing if somebody can.

    `name` is a row of `sources` in matrix.yaml, which says how to compile a package, or the name of
    a package that has no such row.
    """
    source = candidate.matrix.sources.get(name)
    # Each reason begins with the cause of the question: why there is no wheel to install.
    cause = _why_without_wheel(candidate, name, version)
    if source is None or version not in source.releases:
        compile_command = command("wheels", str(candidate.name), name)
        yield (
            f"{cause}, and `sources` in matrix.yaml has no row for this release (docs/wheels.md "
            f"shows how to add one, by which `{compile_command}` compiles it)"
        )
        return

    if not within(candidate.torch, source.torch):
        yield (
            f"{cause}, and it compiles on torch {source.torch}, "
            f"but the stack pins torch {candidate.torch}"
        )
    # A package without code for GPUs needs neither nvcc nor a GPU that its code is written for.
    if not source.nvcc:
        return

    # nvcc comes with the toolkit's `devel` wheels, or from where `compiler` says.
    toolkit = candidate.toolkit
    if toolkit is None or not (toolkit.devel or toolkit.compiler):
        yield (
            f"{cause}, and no `compiler` of `toolkits` in matrix.yaml "
            f"has an nvcc of CUDA {candidate.name.cuda}"
        )
    minimum = Arch.parse(source.minimum_arch)
    if not any(arch >= minimum for arch in candidate.supported_archs):
        yield (
            f"{cause}, and it compiles for {minimum} and newer, "
            "but the image supports no such architecture"
        )


def _why_without_wheel(candidate: Candidate, name: str, version: str) -> str:
    """Return why a package has no wheel to install, as the first half of a sentence.

    Either no index is asked for it, or it is published as source only, or its project has official
    wheels and none for this image.
    """
    # An optional package that is not known may be the user's own, which no index has.
    if not _is_known(candidate, name, version) and name in candidate.optional:
        return f"no index is asked for {name} {version}, as it is optional"
    # `prebuilt`: the official wheels that are on no index.
    if not any(release.package == name for release in candidate.facts.prebuilt):
        return f"{name} {version} is published as source only"
    abi = "new" if candidate.variant.cxx11_abi else "old"
    return (
        f"no official wheel of {name} {version} is known for torch {candidate.name.torch}, "
        f"CUDA {candidate.wheel_cuda.major}, Python {candidate.base.python}, {abi} C++ ABI"
    )
