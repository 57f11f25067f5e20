"""The plan: which images of the matrix can be built, and why the others can't. Pure.

The same matrix.yaml and facts.yaml always give the same plan.
"""

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from packaging.version import Version

from images.config import selectors
from images.config.facts import Facts, PackageFacts
from images.config.matrix import Sources
from images.config.names import Arch, ImageName, Minor
from images.config.platforms import Platform
from images.config.schema import ImageRow, Matrix
from images.config.selectors import Selector
from images.errors import Problem, UserError, command
from images.planning import expectations, rules
from images.planning.candidate import PROFILE_LAYER, Candidate, Finding, resolve_profile
from images.planning.image import Base, Image, Pin, Pruning
from images.planning.rules import stack
from images.planning.rules.packages import (
    compilable_extensions,
    explain_unfit_companions,
    reasons_against,
    requirements_here,
)
from validate.compute_capability import ON_ARM_ALONE
from validate.environment import allocator_variable
from validate.installation import by_installation

_ALLOCATOR_VARIABLE = "PYTORCH_ALLOC_CONF"
"""The allocator's variable in matrix.yaml. Older torch releases read it under another name."""
_DRIVER_VARIABLES = {
    "NVIDIA_VISIBLE_DEVICES": "all",
    "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
}
"""Without these, NVIDIA's container runtime gives no GPU. The matrix may set other values."""
_NO_CHANGES: Mapping[str, str] = {}
"""The default of `pins`: every package at the matrix's version."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """An image with the plan's answer: `image` if it is accepted, else `reasons`.

    The other fields are set as far as they are known; of an unknown torch, only the name is.
    """

    image_name: ImageName
    reasons: tuple[str, ...] = ()
    """Why it is refused; empty if it is accepted."""
    findings: tuple[Finding, ...] = ()
    """The warnings of the rules, each with its topic."""
    image: Image | None = None
    torch: str | None = None
    python: Minor | None = None
    wheel_cuda: Minor | None = None
    pins: Mapping[str, str] | None = None
    archs: tuple[Arch, ...] = ()
    min_driver: str | None = None
    kept_reason: str = ""
    """Until when nightly runs leave its pins alone, and why; empty: they may move them."""

    @property
    def name(self) -> str:
        return str(self.image_name)

    @property
    def profile(self) -> str | None:
        return self.image_name.profile

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(finding.text for finding in self.findings)

    @property
    def versions(self) -> dict[str, Minor | None]:
        """The versions that selectors such as `torch>=2.8` compare, by the selector's key."""
        return {
            "torch": self.image_name.torch,
            "cuda": self.image_name.cuda,
            "wheel": self.wheel_cuda,
            "python": self.python,
        }


@lru_cache(maxsize=2)
def plan(sources: Sources) -> tuple[Planned, ...]:
    """Return every image of the matrix, accepted or refused, in the matrix's order."""
    planned = []
    for row in sources.matrix.images:
        for name in row.names():
            planned.append(_plan_image(name, row, sources))
    return tuple(planned)


class NoImageError(UserError):
    """Each selector matches something, but no image matches all of them."""


def select(texts: Sequence[str], sources: Sources) -> tuple[Planned, ...]:
    """Return the images that selectors mean, accepted or refused; without selectors, all.

    An image must match one of the names and globs, if `texts` has any, and all conditions such as
    `torch>=2.8`. A whole name that the matrix lacks is planned as if the matrix had it.

    Raises UserError for a selector that matches nothing, and NoImageError if each selector matches
    some image but none matches all.
    """
    names, conditions = [], []
    for text in texts:
        selector = selectors.parse(sources.matrix.aliases.get(text, text))
        # Only conditions have a key. All others are names, and globs of names.
        if selector.key:
            conditions.append(selector)
        else:
            names.append(selector.value)

    candidates = plan(sources)
    if names:
        # Two globs may match the same image, which must not be returned twice.
        by_name: dict[str, Planned] = {}
        for name in names:
            for image in _plan_named(name, sources):
                by_name[image.name] = image
        candidates = tuple(by_name.values())

    _require_matches(conditions, candidates, sources)
    matching = []
    for image in candidates:
        if all(condition(image) for condition in conditions):
            matching.append(image)
    if matching:
        return tuple(matching)

    # Each condition holds for some image: only their combination is the cause.
    cause = "each of these matches some image, but no image matches all of them"
    then = f"leave one of them out; `{command('plan')}` lists all images"
    raise NoImageError(Problem(where=" ".join(texts), cause=cause, then=then))


def _require_matches(
    conditions: Sequence[Selector], candidates: Sequence[Planned], sources: Sources
) -> None:
    """Raise UserError for the first condition that holds for no image, so that it may be a mistake.

    For example `torch=9.9`. `profile!=nosuch` holds for every image, and is refused as well if no
    image has that profile: it would leave out nothing. Images are those of the matrix and
    `candidates`, which may be named without being in it.
    """
    images = (*plan(sources), *candidates)
    for condition in conditions:
        # Of `profile!=NAME`, look whether anything has the profile NAME.
        looked_for = condition
        if condition.op == "!=" and not condition.is_of_version:
            looked_for = replace(condition, op="=")
        if not any(looked_for(image) for image in images):
            raise selectors.unmatched_condition(condition, plan(sources))


def _plan_named(name: str, sources: Sources) -> list[Planned]:
    """Plan the images that a name or a glob of a user means, and return them.

    A whole name that is not in the matrix is planned, too. If it is refused, the reasons end with
    the nearest images of the matrix. Raises UserError for a glob that matches nothing, and for a
    text that can't be the name of an image.
    """
    names_in_matrix = []
    planned = []
    for row in sources.matrix.images:
        for image_name in row.names():
            names_in_matrix.append(str(image_name))
            if fnmatch.fnmatchcase(str(image_name), name):
                planned.append(_plan_image(image_name, row, sources))
    if planned:
        return planned

    # This is None for a glob, and for a text that can't be a name.
    unknown = selectors.image_name(name)
    if unknown is None:
        raise selectors.unmatched(name, [*names_in_matrix, *sources.matrix.aliases])
    image = plan_one(unknown, sources)
    # `image.image` is None if the plan refuses it.
    if image.image is None:
        accepted = [other for other in plan(sources) if other.image]
        # A GPU that only boards with ARM processors have is served by images for these.
        meant = unknown
        if unknown.arch in ON_ARM_ALONE:
            meant = replace(unknown, platform=Platform.ARM64)
        nearest_names = list(nearest(meant, accepted))
        # A torch that nobody knows may be a typing error: put the most similar names first.
        minors = {Minor.parse(release) for release in sources.facts.torch}
        if unknown.torch not in minors:
            names = [other.name for other in accepted]
            # torch52 has the characters of torch25.
            swapped = [other for other in names if sorted(other) == sorted(name)]
            similar = [*swapped, *selectors.most_similar(name, names)]
            nearest_names = list(dict.fromkeys([*similar, *nearest_names]))[: len(nearest_names)]
        # A matrix of one's own may have no image that can be built.
        if nearest_names:
            hint = f"nearest images of the matrix: {', '.join(nearest_names)}"
            image = replace(image, reasons=(*image.reasons, hint))
    return [image]


def nearest(name: ImageName, others: Iterable[Planned], count: int = 3) -> tuple[str, ...]:
    """Return the names of the `count` images that differ least from `name`, the nearest first.

    `others` are the planned images to choose from. They are compared by profile, platform, whether
    they serve the GPU architecture of the name, -devel, torch release and CUDA, in this order.
    """

    def distance(planned: Planned) -> tuple[bool | int | str, ...]:
        """Return a key to sort images by: how they differ from `name`, what counts most first."""
        other = planned.image_name
        # False sorts before true, so images with the same value come first.
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

    ordered = sorted(others, key=distance)
    return tuple(planned.name for planned in ordered[:count])


def plan_one(
    name: ImageName, sources: Sources, *, pins: Mapping[str, str] = _NO_CHANGES
) -> Planned:
    """Plan one image, by its row in the matrix, or by its name only if the matrix lacks it.

    `pins` replaces versions of the matrix, to ask whether the rules would accept others.
    """
    # A row of the matrix has the name for linux/amd64, and lists its other platforms.
    row_name = replace(name, platform=Platform.AMD64)
    row = sources.matrix.row(row_name) or ImageRow(name=str(row_name))
    return _plan_image(name, row, sources, pins)


def _plan_image(
    name: ImageName, row: ImageRow, sources: Sources, pins: Mapping[str, str] = _NO_CHANGES
) -> Planned:
    """Plan one image: run the rules, apply the matrix's exclusions, and resolve it if none refuses.

    `row` is its row in the matrix, and `pins` (package -> version) replaces versions of the matrix.
    The result has an `image` if nothing refuses it, and otherwise the `reasons`.
    """
    matrix, facts = sources.matrix, sources.facts.on(name.platform)

    # Without a torch wheel and a stack there is nothing that rules could judge.
    torch = _choose_torch_release(name, matrix, facts)
    reasons_without_candidate = tuple(_reasons_without_candidate(name, torch, matrix, facts))
    if reasons_without_candidate:
        reasons = (*reasons_without_candidate, *_alias_reasons(name, matrix))
        return Planned(image_name=name, reasons=reasons, torch=torch)

    candidate = _make_candidate(name, row, matrix, facts, pins)
    reasons_of_rules, warnings = [], []
    for rule in rules.RULES:
        for finding in rule(candidate):
            if finding.topic:
                warnings.append(finding)
            else:
                reasons_of_rules.append(finding.text)
    planned = Planned(
        image_name=name,
        reasons=tuple(reasons_of_rules),
        findings=tuple(warnings),
        torch=candidate.torch,
        python=candidate.base.python,
        wheel_cuda=candidate.wheel_cuda,
        pins=candidate.pins,
        archs=candidate.supported_archs,
        min_driver=facts.minimum_drivers[str(candidate.wheel_cuda.major)].driver,
    )

    exclusions = _find_exclusions(planned, matrix)
    if planned.reasons or exclusions:
        reasons = (*planned.reasons, *exclusions, *_alias_reasons(name, matrix))
        return replace(planned, reasons=reasons)

    return replace(
        planned,
        image=_resolve_image(candidate, sources, planned.warnings),
        kept_reason=str(matrix.nightly.kept.get(str(name.torch), "")),
    )


def _find_exclusions(planned: Planned, matrix: Matrix) -> list[str]:
    """Return the reasons for which the matrix leaves out an image that could be built."""
    exclusions = []
    for exclusion in matrix.exclude:
        # `select` is a selector of images, such as `torch>=2.8`.
        is_excluded = selectors.parse(exclusion.select)
        if is_excluded(planned):
            exclusions.append(f"excluded by matrix.yaml: {exclusion.reason}")
    return exclusions


def _choose_torch_release(name: ImageName, matrix: Matrix, facts: Facts) -> str | None:
    """Return the torch release of an image: its stack's, else the newest known one of that minor.

    None if no release of that minor is known.
    """
    pinned = matrix.stacks.get(str(name.torch), {}).get("torch")
    if pinned:
        return pinned
    releases = [release for release in facts.torch if Minor.parse(release) == name.torch]
    return max(releases, key=Version, default=None)


def _alias_reasons(name: ImageName, matrix: Matrix) -> list[str]:
    """Return a sentence for each alias that points at a refused image: it must be moved."""
    reasons = []
    for alias, target in matrix.aliases.items():
        if target == str(name):
            reasons.append(
                f"the alias {alias} names this image: "
                f"write another image at `aliases.{alias}` in matrix.yaml"
            )
    return reasons


def _reasons_without_candidate(
    name: ImageName, torch: str | None, matrix: Matrix, facts: Facts
) -> Iterator[str]:
    """Yield why the image of a name can't even be judged by the rules; nothing if it can.

    Reasons are that no release of torch is known, or none has a wheel for the CUDA; that the matrix
    has no stack or profile for it; and that the name has the default Python, which names leave out.

    `torch` is the release that the name's minor stands for; None if no release of it is known.
    """
    # If nothing is known of this torch, nothing else can be said.
    if name.platform is Platform.ARM64 and torch not in facts.arm64.torch:
        yield _explain_torch_without_arm(name, torch, matrix, facts)
        return
    if torch is None or torch not in facts.torch:
        yield _explain_unknown_torch(name, torch, facts)
        return

    if stack.choose_variant(facts.torch[torch], name.cuda) is None:
        yield _explain_missing_wheel(torch, name.cuda, facts)
    if str(name.torch) not in matrix.stacks:
        stacks = ", ".join(matrix.stacks)
        yield (
            f"`stacks` in matrix.yaml has no torch {name.torch}, only {stacks}: name an image of "
            f"one of these, or pin a stack for torch {name.torch} there"
        )

    yield from _find_profile_reasons(name, matrix)
    if name.python and str(name.python) == matrix.bases[matrix.defaults.base].python:
        short_name = replace(name, python=None)
        yield (f"Python {name.python} is the default, which names leave out: write {short_name}")


def _explain_torch_without_arm(
    name: ImageName, torch: str | None, matrix: Matrix, facts: Facts
) -> str:
    """Return the reason that a torch release has no known wheel for CUDA on Arm processors.

    `torch` is the release; None if only its minor, that of the name, is known.
    """
    first = min(facts.arm64.torch, key=Version)
    cause = (
        f"no wheel of torch {torch or name.torch} for CUDA on aarch64 was measured: {first} is the "
        "first that PyPI has, and older ones, which only PyTorch's own index has, are not used"
    )
    # A GPU that the name asks for may need a newer torch than the first.
    compiling_stack = ""
    if name.arch:
        compiling_stack = stack.find_first_stack_that_compiles_for(name.arch, matrix, facts)
    if compiling_stack:
        then = f"name an image of {compiling_stack}, the oldest here that knows {name.arch}"
    else:
        then = f"name an image of torch {Minor.parse(first)} or newer"
    return f"{cause}: {then}"


def _explain_unknown_torch(name: ImageName, torch: str | None, facts: Facts) -> str:
    """Return the reason that facts.yaml does not have the torch of an image, and what to do.

    `torch` is the release that the matrix pins; None: it pins none, and facts.yaml has no release
    of the name's minor.
    """
    releases = sorted(facts.torch, key=Version)
    if torch is None:
        minors = sorted({Minor.parse(release) for release in releases})
        known = ", ".join(str(minor) for minor in minors)
        return (
            f"nothing is known of torch {name.torch}: name an image of a torch that this truetag "
            f"knows ({known}), or take a newer truetag"
        )

    known = ", ".join(release for release in releases if Minor.parse(release) == name.torch)
    then = by_installation(
        checkout="add its row to images/data/facts.yaml",
        installed=f"pin one that this truetag knows ({known or 'none of this minor'}), or "
        "take a newer truetag",
    )
    return f"nothing is known of torch {torch}: {then}"


def _find_profile_reasons(name: ImageName, matrix: Matrix) -> Iterator[str]:
    """Yield why the matrix can't give an image its profile; nothing if it can, or has none."""
    if not name.profile:
        return
    profile = matrix.profiles.get(name.profile)
    if profile is None:
        profiles = ", ".join(matrix.profiles) or "none"
        without_profile = replace(name, profile=None)
        yield (
            f"matrix.yaml has no profile {name.profile!r}: name one that it has ({profiles}), "
            f"or the image without a profile ({without_profile})"
        )
    elif str(name.torch) not in profile.stacks:
        minors_of_profile = ", ".join(profile.stacks)
        yield (
            f"the profile {name.profile} has pins for torch {minors_of_profile} only: name an "
            f"image of one of these, or pin its packages for torch {name.torch} under "
            f"`profiles.{name.profile}.stacks` in matrix.yaml"
        )


def _explain_missing_wheel(torch: str, toolkit: Minor, facts: Facts) -> str:
    """Return why an image of this CUDA can't have this torch: there is no wheel for it.

    `torch` is a release that facts.yaml has (`2.7.1`), and `toolkit` the CUDA of the image's name.
    The sentence lists the CUDAs that there are wheels for.
    """
    cudas = sorted(Minor.parse(text) for text in facts.torch[torch].variants)
    wheels = ", ".join(f"cu{cuda.digits}" for cuda in cudas)
    # A wheel for an older minor of the toolkit's CUDA would do, too (`stack.choose_variant`).
    if any(cuda.major == toolkit.major for cuda in cudas):
        lacking = f"{toolkit}, nor for an older CUDA {toolkit.major}"
    else:
        lacking = str(toolkit.major)
    return (
        f"torch {torch} has no wheel for CUDA {lacking} (it has {wheels}): "
        "name an image of a CUDA that it has, or of another torch"
    )


def _find_optional_without_arm(
    packages: Iterable[str], matrix: Matrix, facts: Facts
) -> dict[str, str]:
    """Return the optional ones among packages that have no wheel for Arm processors, and why.

    An image for Arm goes without them. The plan warns of that (`warn_about_missing_wheels`), and
    does not refuse the image.
    """
    names = set(packages)
    reasons = {}
    for package in matrix.optional:
        if package in names and package in facts.arm64.lacking:
            reasons[package] = f"no wheel for aarch64 ({facts.arm64.lacking[package]})"
    return reasons


def _make_candidate(
    name: ImageName, row: ImageRow, matrix: Matrix, facts: Facts, pins: Mapping[str, str]
) -> Candidate:
    """Return the image as a candidate: what the matrix asks for, and what the facts know of it.

    `row` is the image's row in the matrix, and `pins` replaces versions of the matrix. Packages
    that the row names under `without` are left out.
    """
    # The profile's versions replace those of the stack, and `pins` replaces both.
    profile = resolve_profile(matrix, name.profile, name.torch)
    stack_pins = {**matrix.common, **matrix.stacks[str(name.torch)]}
    versions = {}
    for package, version in {**stack_pins, **profile.pins, **pins}.items():
        if package not in row.without:
            versions[package] = version

    declined = {}
    if name.platform is Platform.ARM64:
        for package, reason in _find_optional_without_arm(versions, matrix, facts).items():
            declined[f"{package} {versions.pop(package)}"] = (reason,)

    torch_facts = facts.torch[versions["torch"]]
    # `choose_variant` never returns None here: `_reasons_without_candidate` has refused such
    # images.
    wheel_cuda = stack.choose_variant(torch_facts, name.cuda) or name.cuda
    if name.arch:
        requested_archs = [name.arch]
    else:
        requested_archs = sorted(Arch.parse(text) for text in row.archs)
    candidate = Candidate(
        name=name,
        matrix=matrix,
        facts=facts,
        base=_choose_base(name, matrix),
        torch=versions["torch"],
        torch_facts=torch_facts,
        wheel_cuda=wheel_cuda,
        variant=torch_facts.variants[str(wheel_cuda)],
        toolkit=matrix.toolkits.get(str(name.cuda)),
        toolkit_facts=facts.cuda.get(str(name.cuda)),
        requested_archs=tuple(requested_archs),
        profile=profile,
        pins=versions,
        optional=frozenset(matrix.optional),
        declined=declined,
        overrides=_choose_overrides(name, row, matrix, wheel_cuda),
    )
    return _with_optional_packages(candidate)


def _choose_base(name: ImageName, matrix: Matrix) -> Base:
    """Return the first base with the Python that the name asks for, or else the default base.

    If no base has that Python, the default base is returned, and a rule refuses the image. A name
    without a Python means the default base.
    """
    key = matrix.defaults.base
    if name.python:
        for other, row in matrix.bases.items():
            if row.python == str(name.python):
                key = other
                break
    base = matrix.bases[key]
    return Base(
        key=key,
        reference=base.reference,
        suite=base.suite or None,
        python=Minor.parse(base.python),
        glibc=Minor.parse(base.glibc),
        custom=base.custom,
        platform=name.platform,
    )


def _choose_overrides(
    name: ImageName, row: ImageRow, matrix: Matrix, wheel_cuda: Minor
) -> dict[str, str]:
    """Return the versions that an image takes in place of those that torch requires, and why.

    matrix.yaml lists such overrides for each torch: an exact requirement -> the reason. Libraries
    for another CUDA major than torch's (`nvidia-cudnn-cu12==9.15.1.9`) are left out, and so are
    packages that the image's row names under `without`.
    """
    overrides = {}
    for requirement, reason in matrix.overrides.get(str(name.torch), {}).items():
        package = requirement.partition("==")[0]
        # A package without a CUDA major in its name (None) is for any CUDA.
        cuda_major = re.search(r"-cu(\d+)==", requirement)
        is_for_other_cuda = cuda_major and int(cuda_major[1]) != wheel_cuda.major
        if package not in row.without and not is_for_other_cuda:
            overrides[requirement] = reason
    return overrides


def _with_optional_packages(candidate: Candidate) -> Candidate:
    """Return the candidate with the profile's optional packages, each pinned or declined.

    A package is declined if something speaks against it in this image: `declined` has the reasons.
    """
    # Each package must fit those that were pinned before it.
    for package, version in candidate.profile.optional.items():
        reasons = reasons_against(candidate, package, version)
        if reasons:
            declined = {**candidate.declined, f"{package} {version}": reasons}
            candidate = replace(candidate, declined=declined)
            continue
        candidate = replace(candidate, pins={**candidate.pins, package: version})
        # A package that must be compiled may be lacking until somebody has compiled it.
        if candidate.facts.packages[package][version].form == "cuda-source":
            candidate = replace(candidate, optional=candidate.optional | {package})
    return candidate


def _choose_waived(candidate: Candidate) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the packages that others require and the image goes without, and replacements.

    The profile and the matrix say which packages these are (`waived`). If the image pins one that
    the profile waives, it is not left out, but has another version than others require. Such pins
    are the replacements: `("peft==0.18.1",)`.
    """
    replaced = sorted(candidate.profile.waived.keys() & candidate.pins)
    replacements = [f"{package}=={candidate.pins[package]}" for package in replaced]
    waived = {*candidate.profile.waived}
    for package in candidate.pins:
        waived.update(candidate.matrix.waived.get(package, ()))
    waived.difference_update(replaced)
    return tuple(sorted(waived)), tuple(replacements)


def _resolve_image(candidate: Candidate, sources: Sources, warnings: tuple[str, ...]) -> Image:
    """Return the image of a candidate that no rule refuses. `warnings` are those of the rules."""
    matrix, name = candidate.matrix, candidate.name
    layers = _layer_names(candidate)

    # torch has a wheel for each of several CUDAs. The default index has one of them; all others are
    # on torch's own index, with the CUDA as local version: torch 2.7.1+cu128.
    index = None
    torch_local = ""
    is_on_default_index = candidate.wheel_cuda == Minor.parse(candidate.torch_facts.default_cuda)
    if not is_on_default_index:
        torch_local = f"cu{candidate.wheel_cuda.digits}"
        index = candidate.facts.torch_index.format(variant=torch_local)
    pins = _make_pins(candidate, layers, torch_local)

    waived, replacements = _choose_waived(candidate)
    # Some projects publish wheels themselves, and not on an index.
    prebuilt = []
    for package, version in candidate.pins.items():
        wheel = candidate.find_official_wheel(package, version)
        if wheel:
            prebuilt.append(wheel)

    minimum_driver = candidate.facts.minimum_drivers[str(candidate.wheel_cuda.major)]
    return Image(
        name=name,
        base=candidate.base,
        python=candidate.base.python,
        toolkit_cuda=name.cuda,
        wheel_cuda=candidate.wheel_cuda,
        index=index,
        archs=candidate.supported_archs,
        ptx=tuple(Arch.parse(capability) for capability in candidate.variant.ptx),
        min_driver=minimum_driver.driver,
        cxx11_abi=candidate.variant.cxx11_abi,
        pins=pins,
        toolkit=_make_toolkit_pins(candidate),
        nvcc_suite=_nvcc_suite(candidate),
        layers=layers,
        environment=_environment(candidate),
        revision=sources.revision_on(name.platform),
        prebuilt=tuple(prebuilt),
        warnings=warnings,
        from_source=tuple(sorted(matrix.pure_python)),
        cudnn=candidate.cudnn,
        overrides=(*candidate.overrides, *replacements),
        waived=waived,
        unfit=explain_unfit_companions(candidate),
        unproven=expectations.find_unproven_claims(candidate.pins),
        pruning=_pruning(candidate),
        entrypoint=candidate.profile.entrypoint,
        prefix=matrix.prefix,
        reserved=tuple(sorted(candidate.private_indexes.keys() - candidate.pins)),
    )


def _layer_names(candidate: Candidate) -> tuple[str, ...]:
    """Return the image's Python layers, bottom first: the matrix's and the profile's.

    The matrix's last layer changes most often, so a profile's packages lie below it.
    """
    *lower_layers, top_layer = candidate.matrix.layers
    if candidate.name.profile:
        return (*lower_layers, PROFILE_LAYER, top_layer)
    return (*lower_layers, top_layer)


def _make_pins(candidate: Candidate, layers: Sequence[str], torch_local: str) -> tuple[Pin, ...]:
    """Return the image's packages in the order of its layers.

    `layers` are the names of the image's layers, bottom first. Packages that no layer of the matrix
    installs are in the profile's layer. `torch_local` is the local version (`cu128`) of torch's
    wheel; empty if that is on the default index.
    """
    layered = candidate.matrix.layered_packages()
    unlayered = [name for name in candidate.pins if name not in layered]
    packages_of_layer = {**candidate.matrix.layers, PROFILE_LAYER: unlayered}
    # Package -> the row of `sources` that makes it with its compiled extensions.
    extension_rows = compilable_extensions(candidate)

    pins = []
    for layer in layers:
        # A layer may list packages that this image does not have.
        for name in packages_of_layer[layer]:
            if name in candidate.pins:
                pin = _make_pin(candidate, name, layer, extension_rows.get(name, ""))
                if name == "torch":
                    pin = replace(pin, local=torch_local)
                pins.append(pin)
    return tuple(pins)


def _make_pin(candidate: Candidate, name: str, layer: str, extension_source: str) -> Pin:
    """Return one package of the image: its exact version, its layer, and how it is installed.

    Some packages can be had from an index as pure Python, and compiled with extensions as well.
    `extension_source` names the row of `sources` in matrix.yaml that compiles this package with its
    extensions; empty if none does.
    """
    # `cuda-source`: indexes have only the source, which nvcc must compile. A package with an
    # `extension_source` is not such: an index has it as pure Python, and a compiled wheel may take
    # its place.
    facts = candidate.package_facts.get(name)
    is_compiled = facts is not None and facts.form == "cuda-source" and not extension_source

    # No index is asked what a compiled package requires, so its requirements are listed here.
    needs: list[str] = []
    if facts and is_compiled:
        needs = _unpinned_requirements(candidate, facts)

    # The oldest GPU that the package has code for. It is known only if we compile that code.
    minimum_arch = None
    source = candidate.matrix.sources.get(extension_source or name)
    if source:
        has_gpu_code = bool(extension_source) or (is_compiled and source.nvcc)
        if has_gpu_code:
            minimum_arch = Arch.parse(source.minimum_arch)

    return Pin(
        name=name,
        version=candidate.pins[name],
        layer=layer,
        optional=name in candidate.optional,
        compiled=is_compiled,
        minimum_arch=minimum_arch,
        needs=tuple(needs),
        extension_source=extension_source,
        index=candidate.private_indexes.get(name),
    )


def _unpinned_requirements(candidate: Candidate, facts: PackageFacts) -> list[str]:
    """Return what a package requires and the image does not pin, sorted: `einops>=0.8`.

    The lock has these as requirements of their own. uv could not find them out: no index has a
    wheel of the package.
    """
    requirements = []
    for required, requirement in requirements_here(facts, candidate.base.python):
        if required not in candidate.pins:
            requirements.append(f"{required}{requirement.specifier}")
    return sorted(requirements)


def _make_toolkit_pins(candidate: Candidate) -> tuple[Pin, ...]:
    """Return the NVIDIA wheels from which the CUDA toolkit (/usr/local/cuda-X.Y) is installed.

    A -devel image also has those of the compiler. Empty if matrix.yaml has no such toolkit.
    """
    toolkit = candidate.toolkit
    if toolkit is None:
        return ()
    parts = list(toolkit.parts)
    if candidate.name.devel:
        parts += toolkit.devel
    pins = []
    # A part is an exact requirement: `nvidia-cuda-nvcc-cu12==12.6.85`.
    for part in parts:
        package, version = part.split("==")
        pins.append(Pin(name=package, version=version, layer="toolkit"))
    return tuple(pins)


def _nvcc_suite(candidate: Candidate) -> str:
    """Return the Debian suite from whose packages a -devel image gets nvcc.

    Empty for other images, and if wheels bring nvcc.
    """
    toolkit = candidate.toolkit
    if candidate.name.devel and toolkit and not toolkit.devel and toolkit.compiler:
        return toolkit.compiler.debian
    return ""


def _environment(candidate: Candidate) -> dict[str, str]:
    """Return the environment variables that an image sets: name -> value.

    They are those of the matrix, those that NVIDIA's container runtime and compilers read, and
    those of the image's profile, which replace the others.
    """
    torch = candidate.name.torch
    environment = {}
    for name, value in candidate.matrix.environment.items():
        # Older torch releases read the allocator's settings from a variable of another name.
        if name == _ALLOCATOR_VARIABLE:
            name = allocator_variable((torch.major, torch.minor))
        environment[name] = value
    # Without these, NVIDIA's container runtime gives no GPU.
    for name, value in _DRIVER_VARIABLES.items():
        environment.setdefault(name, value)
    # torch's extension builder reads the architectures that it compiles for from the variable
    # TORCH_CUDA_ARCH_LIST: `8.0;9.0`.
    capabilities = [arch.capability for arch in candidate.supported_archs]
    return {
        **environment,
        "CUDA_HOME": f"/usr/local/cuda-{candidate.name.cuda}",
        "NVIDIA_REQUIRE_CUDA": f"cuda>={candidate.wheel_cuda.major}.0",
        "TORCH_CUDA_ARCH_LIST": ";".join(capabilities),
        **candidate.profile.environment,
    }


def _pruning(candidate: Candidate) -> Pruning | None:
    """Return which GPU code is taken out of an image's libraries to make it smaller.

    Only images for one GPU architecture (`-sm90`) are pruned: None for any other image.
    """
    if candidate.name.arch is None:
        return None
    # bitsandbytes has a library for each CUDA version. It loads the one for torch's CUDA, or the
    # one without GPU code; all others are taken out.
    alternatives = {}
    bitsandbytes = candidate.facts.bitsandbytes.get(candidate.pins.get("bitsandbytes", ""))
    if bitsandbytes:
        # Pattern of libraries -> those of them that stay.
        alternatives["bitsandbytes/libbitsandbytes_*.so"] = (
            bitsandbytes.file_for(candidate.wheel_cuda),
            "bitsandbytes/libbitsandbytes_cpu.so",
        )
    return Pruning(
        arch=candidate.name.arch, nvidia=candidate.matrix.prune.nvidia, alternatives=alternatives
    )
