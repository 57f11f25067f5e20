"""From names and selectors to accepted and refused images. Pure: the same files give the same plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from packaging.version import Version

from images.config import selectors, yamlfile
from images.config.facts import Facts
from images.config.matrix import Sources
from images.config.names import Arch, ImageName, Minor
from images.config.platforms import Platform
from images.config.schema import ImageRow, Matrix
from images.errors import Problem, UserError
from images.planning import profiles, rules
from images.planning.assemble import image_of
from images.planning.candidate import Candidate
from images.planning.image import Base, Image
from images.planning.profiles import Resolved
from images.planning.rules import torch_build
from images.planning.rules.required import unfit
from images.planning.rules.rule import Finding, Weight


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

    @property
    def name(self) -> str:
        return str(self.image_name)

    @property
    def accepted(self) -> bool:
        return self.image is not None

    @property
    def profile(self) -> str | None:
        return self.image_name.profile

    @property
    def platform(self) -> Platform:
        return self.image_name.platform

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
    pins_by_profile = _pins_by_profile(sources.matrix)
    return tuple(_planned(name, row, sources, pins_by_profile) for row in sources.matrix.images for name in row.names())


class NoImageError(UserError):
    """Each selector matches something, but no image matches all of them."""


def select(wanted: Sequence[str], sources: Sources) -> tuple[Planned, ...]:
    """The images that selectors mean. A whole name that the matrix lacks is planned ad hoc.

    Names and globs add up, conditions all have to hold. Raises UserError for a selector that matches nothing,
    NoImageError for selectors that no image matches together.
    """
    everything = plan(sources)
    if not wanted:
        return everything
    parsed = [selectors.parse(sources.matrix.aliases.get(text, text)) for text in wanted]
    globs = [item for item in parsed if isinstance(item, selectors.Glob)]
    conditions = [item for item in parsed if isinstance(item, selectors.Condition)]
    chosen = _named(globs, everything, sources) if globs else everything
    for condition in conditions:
        if not any(map(condition, (*everything, *chosen))):
            raise selectors.unmatched(condition, [image.name for image in everything])
    both = tuple(image for image in chosen if all(condition(image) for condition in conditions))
    if not both:
        cause = "each matches something, but no image matches all of them"
        raise NoImageError(
            Problem(where=" ".join(wanted), cause=cause, then="drop one; `nox -s plan` lists all images")
        )
    return both


def _named(globs: Sequence[selectors.Glob], everything: Sequence[Planned], sources: Sources) -> tuple[Planned, ...]:
    found: dict[str, Planned] = {}
    for glob in globs:
        matches = [image for image in everything if glob(image)]
        if not matches and selectors.is_image_name(glob):
            matches = [_ad_hoc(ImageName.parse(glob.pattern), everything, sources)]
        if not matches:
            raise selectors.unmatched(glob, [*(image.name for image in everything), *sources.matrix.aliases])
        found.update((image.name, image) for image in matches)
    return tuple(found.values())


def _ad_hoc(name: ImageName, everything: Sequence[Planned], sources: Sources) -> Planned:
    planned = plan_one(name, sources)
    if planned.accepted:
        return planned
    close = ", ".join(nearest(name, [image for image in everything if image.accepted]))
    return replace(planned, reasons=(*planned.reasons, f"nearest images of the matrix: {close}"))


def nearest(name: ImageName, others: Iterable[Planned], count: int = 3) -> tuple[str, ...]:
    """The images that differ least: same profile, an arch that serves, then the torch minor, then the CUDA version."""

    def distance(planned: Planned) -> tuple[bool, bool, bool, bool, int, int, int, int, str]:
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


def check(sources: Sources) -> tuple[Planned, ...]:
    """The whole plan. Raises UserError with everything that is wrong in the matrix, at once."""
    planned = plan(sources)
    problems = [*sources.problems, *profiles.problems(sources.matrix, sources.matrix_file)]
    problems += _alias_problems(planned, sources)
    problems += _nightly_problems(planned, sources)
    if problems:
        raise UserError(sorted(problems, key=lambda problem: _line(problem.where)))
    return planned


def _alias_problems(planned: Sequence[Planned], sources: Sources) -> Iterator[Problem]:
    by_name = {image.name: image for image in planned}
    left_out = {str(path[1]) for path in sources.left_out if path[0] == "stacks" and len(path) > 1}
    for alias, name in sources.matrix.aliases.items():
        image = by_name.get(name)
        if image is None:
            where, close = sources.matrix_file.where(("aliases", alias)), nearest(ImageName.parse(name), planned)
            cause = f"the alias {alias!r} names {name}, which is not in `images`"
            yield Problem(where=where, cause=cause, then=f"name one of {', '.join(close)}")
        elif not image.accepted and str(image.image_name.torch) not in left_out:
            where = sources.matrix_file.where(("aliases", alias))
            cause = f"the alias {alias!r} names {name}, which is refused: {'; '.join(image.reasons)}"
            yield Problem(where=where, cause=cause, then="point it at an accepted image, or fix that image")


def _nightly_problems(planned: Sequence[Planned], sources: Sources) -> Iterator[Problem]:
    """Selectors of the nightly run that match no image: what they name would be left out without a word."""
    tracked = sources.matrix.nightly.track
    rows: list[tuple[yamlfile.Path, str]] = [(("nightly", "track", index), text) for index, text in enumerate(tracked)]
    rows += [(("xfail", index, "select"), row.select) for index, row in enumerate(sources.matrix.xfail)]
    for path, text in rows:
        selector = selectors.parse(text)
        if not any(map(selector, planned)):
            (problem,) = selectors.unmatched(selector, [image.name for image in planned]).problems
            yield replace(problem, where=sources.matrix_file.where(path), cause=f"{text} {problem.cause}")


def _line(where: str) -> tuple[str, int]:
    file, _, line = where.rpartition(":")
    return (file or where, int(line) if line.isdigit() else 0)


def plan_one(name: ImageName, sources: Sources) -> Planned:
    """One image, from the matrix's row if there is one, else ad hoc from the stack of its torch."""
    plain = replace(name, platform=Platform.AMD64)
    return _planned(
        name, sources.matrix.row(plain) or ImageRow(name=str(plain)), sources, _pins_by_profile(sources.matrix)
    )


def _planned(name: ImageName, row: ImageRow, sources: Sources, pins_by_profile: _PinsByProfile) -> Planned:
    matrix, facts = sources.matrix, sources.facts_on(name.platform)
    if hopeless := _impossible(name, matrix, facts):
        return Planned(image_name=name, reasons=hopeless, torch=_release(name.torch, matrix, facts))
    candidate = _candidate(name, row, sources, pins_by_profile(name.profile, name.torch))
    findings = rules.apply(candidate)
    reasons = tuple(_texts(findings, Weight.REFUSE)) + (_excluded(name, candidate, matrix) if matrix.exclude else ())
    warnings = tuple(_texts(findings, Weight.WARN))
    min_driver = torch_build.min_driver(facts, candidate.wheel_cuda)
    return Planned(
        image_name=name,
        reasons=reasons,
        warnings=warnings,
        image=None if reasons else image_of(candidate, sources, min_driver, warnings),
        torch=candidate.torch,
        python=candidate.base.python,
        wheel_cuda=candidate.wheel_cuda,
        pins=candidate.pins,
        archs=candidate.supported_archs,
        min_driver=min_driver,
    )


def _impossible(name: ImageName, matrix: Matrix, facts: Facts) -> tuple[str, ...]:
    """Reasons that make a candidate impossible, checked before the rules: these need a torch wheel and a stack."""
    release = _release(name.torch, matrix, facts)
    if name.platform is Platform.ARM64 and release not in facts.arm64.torch:
        first = min(facts.arm64.torch, key=Version)
        shown = f"torch {release or name.torch}"
        return (f"{shown} has no wheel for CUDA on aarch64 that was measured: {first} is the first on the index",)
    if release is None:
        known = ", ".join(str(minor) for minor in sorted({Minor.parse(text) for text in facts.torch}))
        return (f"nothing is known of torch {name.torch} (images/data/facts.yaml knows {known})",)
    reasons = []
    if release not in facts.torch:
        return (f"nothing is known of torch {release}: add its row to images/data/facts.yaml",)
    if torch_build.choose_variant(facts.torch[release], name.cuda) is None:
        reasons.append(torch_build.no_variant(release, facts.torch[release], name.cuda))
    if str(name.torch) not in matrix.stacks:
        has = ", ".join(matrix.stacks)
        reasons.append(f"matrix.yaml pins no stack for torch {name.torch} (`stacks` has {has})")
    if unknown := profiles.refusal(matrix, name.profile, name.torch):
        reasons.append(unknown)
    if name.python and name.python == Minor.parse(matrix.bases[matrix.defaults.base].python):
        plain = replace(name, python=None)
        reasons.append(f"Python {name.python} is the default and is not spelled out: the name is {plain}")
    return tuple(reasons)


def _release(torch: Minor, matrix: Matrix, facts: Facts) -> str | None:
    """The stack's torch, else the newest known release of that minor."""
    if pinned := matrix.stacks.get(str(torch), {}).get("torch"):
        return pinned
    return max((text for text in facts.torch if Minor.parse(text) == torch), key=Version, default=None)


@dataclass(frozen=True)
class _ProfilePins:
    """What a profile asks over the stack of a torch, before an image's own row is looked at."""

    profile: Resolved | None
    stack: Mapping[str, str]
    pins: Mapping[str, str]


_PinsByProfile = Callable[[str | None, Minor], _ProfilePins]


def _pins_by_profile(matrix: Matrix) -> _PinsByProfile:
    """Answers are kept for one plan: a profile and a torch are asked for with each toolkit and Python."""

    @cache
    def pins_of(profile: str | None, torch: Minor) -> _ProfilePins:
        stack = {**matrix.common, **matrix.stacks[str(torch)]}
        resolved = profiles.resolve(matrix, profile, torch)
        return _ProfilePins(resolved, stack, {**stack, **(resolved.pins if resolved else {})})

    return pins_of


def _candidate(name: ImageName, row: ImageRow, sources: Sources, wanted: _ProfilePins) -> Candidate:
    matrix, facts = sources.matrix, sources.facts_on(name.platform)
    profile, pins = wanted.profile, wanted.pins
    declined = _without_a_wheel(name, pins, sources)
    if row.without or declined:
        pins = {key: version for key, version in pins.items() if key not in row.without and key not in declined}
    torch = pins["torch"]
    wheel_cuda = torch_build.choose_variant(facts.torch[torch], name.cuda) or name.cuda
    key = _base_key(name, matrix)
    candidate = Candidate(
        name=name,
        facts=facts,
        base=_base(key, matrix, name.platform),
        gcc=matrix.bases[key].gcc,
        torch=torch,
        torch_facts=facts.torch[torch],
        wheel_cuda=wheel_cuda,
        variant=facts.torch[torch].variants[str(wheel_cuda)],
        pins=pins,
        optional=sources.optional,
        toolkit=matrix.toolkits.get(str(name.cuda)),
        toolkit_facts=facts.cuda.get(str(name.cuda)),
        asked_archs=(name.arch,) if name.arch else tuple(sorted(map(Arch.parse, row.archs))),
        known_toolkits=tuple(matrix.toolkits),
        devel_images=sources.devel_images,
        profile=profile,
        stack=wanted.stack,
        sources=matrix.sources,
        declined={f"{key} {wanted.pins[key]}": (reason,) for key, reason in declined.items() if key not in row.without},
    )
    return _with_optional(candidate) if profile else candidate


def _without_a_wheel(name: ImageName, asked: Mapping[str, str], sources: Sources) -> dict[str, str]:
    """Optional pins that an image of this platform goes without, with the reason."""
    if name.platform is not Platform.ARM64:
        return {}
    lacking = sources.facts.arm64.lacking
    return {
        key: f"no wheel for aarch64 ({lacking[key]})"
        for key in sources.matrix.optional
        if key in asked and key in lacking
    }


def _with_optional(candidate: Candidate) -> Candidate:
    """The candidate with what its profile names as optional and the facts allow; the rest is noted with the reasons."""
    for name, version in candidate.profile.optional.items() if candidate.profile else ():
        row = candidate.facts.packages.get(name, {}).get(version)
        unknown = f"nothing is known of {name} {version}"
        reasons = tuple(unfit(candidate, name, version, row)) if row else (unknown,)
        if reasons:
            candidate = replace(candidate, declined={**candidate.declined, f"{name} {version}": reasons})
        else:
            left_out = {name} if row and row.form == "cuda-source" else set()
            candidate = replace(
                candidate, pins={**candidate.pins, name: version}, optional=candidate.optional | left_out
            )
    return candidate


def bases(sources: Sources) -> tuple[Base, ...]:
    """Every base of the matrix."""
    return tuple(_base(key, sources.matrix, Platform.AMD64) for key in sources.matrix.bases)


def _base(key: str, matrix: Matrix, platform: Platform) -> Base:
    row = matrix.bases[key]
    return _same_base(key, row.reference, row.suite or None, row.python, row.glibc, platform)


@cache
def _same_base(key: str, reference: str, suite: str | None, python: str, glibc: str, platform: Platform) -> Base:
    """The same base stands below many images."""
    return Base(
        key=key,
        reference=reference,
        suite=suite,
        python=Minor.parse(python),
        glibc=Minor.parse(glibc),
        platform=platform,
    )


def _base_key(name: ImageName, matrix: Matrix) -> str:
    wanted = name.python
    if wanted is None:
        return matrix.defaults.base
    fitting = (key for key, base in matrix.bases.items() if Minor.parse(base.python) == wanted)
    return next(fitting, matrix.defaults.base)


def _excluded(name: ImageName, candidate: Candidate, matrix: Matrix) -> tuple[str, ...]:
    seen = Planned(
        image_name=name,
        python=candidate.base.python,
        wheel_cuda=candidate.wheel_cuda,
        archs=candidate.supported_archs,
    )
    return tuple(
        f"excluded by matrix.yaml: {row.reason}" for row in matrix.exclude if selectors.parse(row.select)(seen)
    )


def _texts(findings: Sequence[Finding], weight: Weight) -> Iterator[str]:
    return (finding.text for finding in findings if finding.weight is weight)
