"""Which image to pull for a machine, why, and why not the others. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from images.chooser.machine import Machine
from images.config.facts import Facts
from images.config.names import Arch, Minor
from images.config.platforms import Platform
from images.errors import Problem, UserError, command
from images.planning.image import Image
from validate import compute_capability
from validate.compute_capability import runs_on

_NEAREST = 4
_CARDS = ((8, 6), (8, 9))
"""Graphics cards that no board has: in an ARM server they run what they run elsewhere (A10, L4, L40S)."""


class Fit(StrEnum):
    """How a GPU runs an image's code."""

    CUBIN = "cubin"
    PTX = "ptx"
    NO = "no"


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What the person wants of an image."""

    profile: str | None = None
    torch: SpecifierSet = field(default_factory=SpecifierSet)
    python: str = ""
    devel: bool = False


@dataclass(frozen=True, kw_only=True)
class ImageSummary:
    """What the rules must know of an image, whoever says so: the plan, or a site's index.json."""

    name: str
    torch: str
    profile: str | None
    python: str
    default_python: bool
    """The name does not spell its Python out."""
    devel: bool
    arch: Arch | None
    """The one it was made for alone."""
    toolkit_cuda: Minor
    wheel_cuda: Minor
    archs: tuple[Arch, ...]
    ptx: tuple[Arch, ...]
    min_driver: str
    """The minimum of its CUDA major."""
    native_driver: str
    """The first of its wheel's own CUDA."""
    locked: bool = True
    """It can be built, or is published: without a lock, nobody has it."""

    @property
    def arm(self) -> bool:
        """It is for ARM processors."""
        return self.name.endswith(f"-{Platform.ARM64.suffix}")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One image, held against a machine."""

    name: str
    torch: str
    fit: Fit
    reasons: tuple[str, ...]
    """Why it runs there."""
    against: tuple[str, ...]
    """Why it does not; empty if it does."""
    native: bool
    """The driver is of the wheel's own CUDA or newer."""

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "torch": self.torch,
            "fits": not self.against,
            "code": str(self.fit),
            "reasons": list(self.reasons),
            "against": list(self.against),
        }


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Images that run, best first, and the nearest that don't, with one row for those of the same reasons."""

    fitting: tuple[Answer, ...]
    others: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
    """(names, reasons), nearest first."""

    def as_json(self) -> dict[str, Any]:
        others = [{"names": list(names), "against": list(reasons)} for names, reasons in self.others]
        return {"fitting": [answer.as_json() for answer in self.fitting], "others": others}


def summary(image: Image, facts: Facts, *, locked: bool = True) -> ImageSummary:
    """An image of the plan, as the rules see it."""
    pin, own = image.pin("torch"), facts.cuda.get(str(image.wheel_cuda))
    return ImageSummary(
        name=str(image.name),
        torch=pin.version if pin else str(image.name.torch),
        profile=image.profile,
        python=str(image.python),
        default_python=image.name.python is None,
        devel=image.devel,
        arch=image.name.arch,
        toolkit_cuda=image.toolkit_cuda,
        wheel_cuda=image.wheel_cuda,
        archs=image.archs,
        ptx=image.ptx,
        min_driver=image.min_driver,
        native_driver=own.driver if own else image.min_driver,
        locked=locked,
    )


def code_ranges(archs: Sequence[Arch], ptx: Sequence[Arch]) -> list[dict[str, str | None]]:
    """The GPUs that an image's code runs on, as plain data for the browser: `first` to `last`, None for no last one."""
    kinds = [*((Fit.CUBIN, arch, False) for arch in archs), *((Fit.PTX, arch, True) for arch in ptx)]
    rows: list[dict[str, str | None]] = []
    for kind, arch, is_ptx in kinds:
        first, last = compute_capability.gpus_of(arch.pair, ptx=is_ptx)
        rows.append({"code": str(kind), "first": _dotted(first), "last": _dotted(last) if last else None})
    return rows


def _dotted(capability: compute_capability.Capability) -> str:
    return Arch(*capability).capability


def choose(images: Sequence[Image], machine: Machine, wish: Wish, facts: Facts) -> Choice:
    """Rank images of the plan for a machine."""
    return rank([summary(image, facts) for image in images], machine, wish)


def rank(images: Sequence[ImageSummary], machine: Machine, wish: Wish) -> Choice:
    """Rank images: machine code before PTX, newest torch, a CUDA that the driver knows, newest CUDA."""
    answers = {one.name: _answer(one, machine, wish) for one in images}
    fitting = sorted(
        (one for one in images if not answers[one.name].against),
        key=lambda one: _rank(one, answers[one.name]),
        reverse=True,
    )
    # Nobody looks for another profile's image, or for one of another torch, before the rest of it fits.
    failing = sorted(
        (one for one in images if answers[one.name].against),
        key=lambda one: (-len(answers[one.name].against), _rank(one, answers[one.name])),
        reverse=True,
    )
    grouped: dict[tuple[str, ...], list[str]] = {}
    for one in failing:
        if one.profile == wish.profile and one.devel == wish.devel:
            grouped.setdefault(answers[one.name].against, []).append(one.name)
    return Choice(
        fitting=tuple(answers[one.name] for one in fitting),
        others=tuple((tuple(names), reasons) for reasons, names in list(grouped.items())[:_NEAREST]),
    )


def _rank(image: ImageSummary, answer: Answer) -> tuple[Any, ...]:
    """Greater is better. An arch image is its parent without code that this GPU can't run, so smaller."""
    cuda = (image.wheel_cuda, image.toolkit_cuda)
    return (answer.fit is Fit.CUBIN, Version(answer.torch), answer.native, cuda, image.arch is not None)


def _answer(image: ImageSummary, machine: Machine, wish: Wish) -> Answer:
    fits = {arch: _fit(image, arch) for arch in machine.archs}
    worst = max(fits.values(), key=list(Fit).index)
    native = not machine.driver or Version(machine.driver) >= Version(image.native_driver)
    against = (*_unwanted(image, wish), *_wrong_arch(image, machine, fits), *_wrong_driver(image, machine, worst))
    code = [f"machine code for {arch}{_through(image, arch)}" for arch, fit in fits.items() if fit is Fit.CUBIN]
    ptx = [
        f"only PTX for {arch}: compiled at the first run, and by torch alone" for arch in fits if fits[arch] is Fit.PTX
    ]
    return Answer(
        name=image.name,
        torch=image.torch,
        fit=worst,
        reasons=(f"torch {image.torch}", *code, *ptx, _driver_reason(image, machine, native)),
        against=against,
        native=native,
    )


def _fit(image: ImageSummary, arch: Arch) -> Fit:
    return Fit(compute_capability.fit([own.pair for own in image.archs], [own.pair for own in image.ptx], arch.pair))


def _through(image: ImageSummary, arch: Arch) -> str:
    if arch in image.archs:
        return ""
    own = max(own for own in image.archs if runs_on(own.pair, arch.pair))
    return f" through {own}, of the same major"


def _unwanted(image: ImageSummary, wish: Wish) -> Iterator[str]:
    if not image.locked:
        yield f"has no lock: it can't be built before `{command('lock')}` has made one"
    if image.profile != wish.profile:
        yield f"is for the profile {image.profile}" if image.profile else f"has no profile {wish.profile}"
    if not wish.torch.contains(image.torch, prereleases=True):
        yield f"torch {image.torch} is not {wish.torch}"
    if wish.python and image.python != wish.python:
        yield f"Python {image.python} is not {wish.python}"
    if not wish.python and not image.default_python:
        yield f"Python {image.python} was not asked for (--python {image.python})"
    if image.devel != wish.devel:
        yield "has a devel toolkit, which was not asked for (--devel)" if image.devel else "has no devel toolkit"


def _wrong_arch(image: ImageSummary, machine: Machine, fits: dict[Arch, Fit]) -> Iterator[str]:
    if machine.arm and not image.arm:
        yield "is for x86-64, and this GPU's host processor is ARM"
        return
    if image.arm and not machine.arm:
        yield "is for ARM processors"
        return
    for arch, fit in fits.items():
        # Boards' GPUs run code of their family only where somebody has seen it: those that an image names.
        unseen = machine.arm and arch.pair not in _CARDS and arch not in image.archs
        if fit is Fit.NO or unseen:
            yield f"has no code for {arch} (it has {' '.join(map(str, image.archs))})"


def _wrong_driver(image: ImageSummary, machine: Machine, fit: Fit) -> Iterator[str]:
    """Minor version compatibility holds for machine code; PTX needs a driver of its own CUDA (CUDA Compatibility)."""
    if not machine.driver:
        return
    if Version(machine.driver) < Version(image.min_driver):
        yield f"CUDA {image.wheel_cuda.major} needs driver {image.min_driver} or newer"
    elif fit is Fit.PTX and Version(machine.driver) < Version(image.native_driver):
        yield f"PTX of CUDA {image.wheel_cuda} needs driver {image.native_driver} or newer"


def _driver_reason(image: ImageSummary, machine: Machine, native: bool) -> str:
    if not machine.driver:
        return f"needs driver {image.min_driver} or newer"
    if native:
        return f"driver {machine.driver} knows CUDA {image.wheel_cuda} ({image.native_driver} is its first)"
    own, minimum = image.native_driver, image.min_driver
    older = f"driver {machine.driver} is older than CUDA {image.wheel_cuda}'s own {own}"
    return f"{older}, new enough by minor version compatibility ({minimum})"


@dataclass(frozen=True, kw_only=True)
class Known:
    """What a site or recorded runs say of an image besides."""

    get: str
    """The command that gets it."""
    told: str
    """What was validated of it, as a sentence."""
    ran: bool = False
    """Its gpu tier passed."""


def told(choice: Choice, machine: Machine, known: Mapping[str, Known]) -> Iterator[str]:
    """The choice in sentences for a person, the best image first. `known`: of each that fits."""
    yield str(machine)
    if not choice.fitting and not choice.others:
        yield "No image is of this profile and kind: leave out --profile or --devel."
    elif not choice.fitting:
        yield "No image fits."
    for answer in choice.fitting[:1]:
        yield f"Take {answer.name}: {'; '.join(answer.reasons)}"
        yield f"    {known[answer.name].get}"
        yield known[answer.name].told
    if rest := choice.fitting[1:]:
        more = f" and {len(rest) - _NEAREST} more" if len(rest) > _NEAREST else ""
        yield f"These fit too: {', '.join(answer.name for answer in rest[:_NEAREST])}{more}"
        ran = next((answer.name for answer in choice.fitting if known[answer.name].ran), "")
        if ran and ran != choice.fitting[0].name:
            yield f"The first of them whose gpu tier passed: {ran}. {known[ran].told}"
    for names, reasons in choice.others:
        some = ", ".join(names[:_NEAREST]) + (f" and {len(names) - _NEAREST} more" if len(names) > _NEAREST else "")
        yield f"Not {some}: {'; '.join(reasons)}"


def torch_range(text: str) -> SpecifierSet:
    """Read `>=2.7`, `==2.8.*` or `2.8`. Raises UserError."""
    try:
        return SpecifierSet(f"=={text}.*" if re.fullmatch(r"\d+(\.\d+)?", text) else text)
    except InvalidSpecifier:
        then = "write '>=2.7', '<2.9' or 2.8"
        raise UserError(Problem(where=f"--torch {text}", cause="is no range of versions", then=then)) from None
