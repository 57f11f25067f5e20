"""Which image to pull for a machine, why, and why not the others. Pure, but for reading gpu_models.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from functools import cache
from typing import Any

import yaml
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import Field

from images.config import paths
from images.config.facts import Capability, DeviceCode, Facts, Row, Sentence
from images.config.names import Arch, Minor
from images.errors import Problem, UserError
from images.hardware.inventory import Inventory
from images.planning.image import Image
from images.planning.rules import ON_ARM_ALONE

MODELS = paths.DATA / "gpu_models.yaml"
_BRANDS = frozenset({"nvidia", "geforce", "tesla"})
"""Words that drivers and people put in front or leave out: `NVIDIA A100-SXM4-80GB`, `Tesla T4`, `RTX 4090`. Not Quadro:
a Quadro RTX 6000 is no RTX 6000 Ada."""
_VARIANTS = re.compile(
    r"\d+gb|\d+g|sxm\d?|pcie?|pg\d+|nvl|hbm\d\w?|laptop|gpu|notebook|mobile|max|q|super|generation|edition|server|"
    r"workstation|sff|d|oam|cnx|mig|dgx|spark"
)
"""Words of a model's variants, which all have its capability."""
_WORDS = re.compile(r"[a-z0-9]+")
_NEAREST = 4


class ModelRow(Row):
    """GPU models of one compute capability."""

    capability: Capability
    names: list[Sentence] = Field(min_length=1)
    arm: bool = False
    """Their host processor is ARM."""
    source: Sentence


class Models(Row):
    """gpu_models.yaml."""

    current: Sentence
    older: Sentence
    models: list[ModelRow] = Field(min_length=1)


class Fit(StrEnum):
    """How a GPU runs an image's code."""

    CUBIN = "cubin"
    PTX = "ptx"
    NO = "no"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where the image shall run. `driver` is empty where it is not known."""

    gpus: tuple[str, ...]
    archs: tuple[Arch, ...]
    """Of all its GPUs, each once, ascending."""
    driver: str = ""
    arm: bool = False

    def __str__(self) -> str:
        driver = f"driver {self.driver}" if self.driver else "driver not known"
        return f"{', '.join(self.gpus)} ({', '.join(map(str, self.archs))}), {driver}"


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What the person wants of an image."""

    profile: str | None = None
    torch: SpecifierSet = field(default_factory=SpecifierSet)
    python: str = ""
    devel: bool = False


@dataclass(frozen=True, kw_only=True)
class Offer:
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
    """The floor of its CUDA major."""
    native_driver: str
    """The first of its wheel's own CUDA."""


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


def offer(image: Image, facts: Facts) -> Offer:
    """An image of the plan, as the rules see it."""
    pin, own = image.pin("torch"), facts.cuda.get(str(image.wheel_cuda))
    return Offer(
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
    )


def choose(images: Sequence[Image], machine: Machine, wish: Wish, facts: Facts) -> Choice:
    """Rank images of the plan for a machine."""
    return among([offer(image, facts) for image in images], machine, wish)


def among(offers: Sequence[Offer], machine: Machine, wish: Wish) -> Choice:
    """Rank offers: machine code before PTX, newest torch, a CUDA that the driver knows, newest CUDA."""
    answers = {one.name: _answer(one, machine, wish) for one in offers}
    fitting = sorted(
        (one for one in offers if not answers[one.name].against),
        key=lambda one: _rank(one, answers[one.name]),
        reverse=True,
    )
    # Nobody looks for another profile's image, or for one of another torch, before the rest of it fits.
    failing = sorted(
        (one for one in offers if answers[one.name].against),
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


def _rank(it: Offer, answer: Answer) -> tuple[Any, ...]:
    """Greater is better. An arch image is its parent without code that this GPU can't run, so smaller."""
    cuda = (it.wheel_cuda, it.toolkit_cuda)
    return (answer.fit is Fit.CUBIN, Version(answer.torch), answer.native, cuda, it.arch is not None)


def _answer(it: Offer, machine: Machine, wish: Wish) -> Answer:
    fits = {arch: _fit(it, arch) for arch in machine.archs}
    worst = max(fits.values(), key=list(Fit).index)
    native = not machine.driver or Version(machine.driver) >= Version(it.native_driver)
    against = (*_unwanted(it, wish), *_wrong_arch(it, machine, fits), *_wrong_driver(it, machine, worst))
    code = [f"machine code for {arch}{_through(it, arch)}" for arch, fit in fits.items() if fit is Fit.CUBIN]
    ptx = [
        f"only PTX for {arch}: compiled at the first run, and by torch alone" for arch in fits if fits[arch] is Fit.PTX
    ]
    return Answer(
        name=it.name,
        torch=it.torch,
        fit=worst,
        reasons=(f"torch {it.torch}", *code, *ptx, _driver_reason(it, machine, native)),
        against=against,
        native=native,
    )


def _fit(it: Offer, arch: Arch) -> Fit:
    code = DeviceCode(archs=[own.capability for own in it.archs], ptx=[own.capability for own in it.ptx])
    return Fit(code.covers(arch))


def _through(it: Offer, arch: Arch) -> str:
    if arch in it.archs:
        return ""
    own = max(own for own in it.archs if own.major == arch.major and own <= arch)
    return f" through {own}, of the same major"


def _unwanted(it: Offer, wish: Wish) -> Iterator[str]:
    if it.profile != wish.profile:
        yield f"is for the profile {it.profile}" if it.profile else f"has no profile {wish.profile}"
    if not wish.torch.contains(it.torch, prereleases=True):
        yield f"torch {it.torch} is not {wish.torch}"
    if wish.python and it.python != wish.python:
        yield f"Python {it.python} is not {wish.python}"
    if not wish.python and not it.default_python:
        yield f"Python {it.python} was not asked for (--python {it.python})"
    if it.devel != wish.devel:
        yield "has a whole toolkit, which was not asked for (--devel)" if it.devel else "has no whole toolkit"


def _wrong_arch(it: Offer, machine: Machine, fits: dict[Arch, Fit]) -> Iterator[str]:
    if machine.arm:
        yield "is for x86-64, and this GPU's host processor is ARM"
        return
    for arch, fit in fits.items():
        if fit is Fit.NO:
            yield f"has no code for {arch} (it has {' '.join(map(str, it.archs))})"


def _wrong_driver(it: Offer, machine: Machine, fit: Fit) -> Iterator[str]:
    """Minor version compatibility holds for machine code; PTX needs a driver of its own CUDA (CUDA Compatibility)."""
    if not machine.driver:
        return
    if Version(machine.driver) < Version(it.min_driver):
        yield f"CUDA {it.wheel_cuda.major} needs driver {it.min_driver} or newer"
    elif fit is Fit.PTX and Version(machine.driver) < Version(it.native_driver):
        yield f"PTX of CUDA {it.wheel_cuda} needs driver {it.native_driver} or newer"


def _driver_reason(it: Offer, machine: Machine, native: bool) -> str:
    if not machine.driver:
        return f"needs driver {it.min_driver} or newer"
    if native:
        return f"driver {machine.driver} knows CUDA {it.wheel_cuda} ({it.native_driver} is its first)"
    return f"driver {machine.driver} is older than CUDA {it.wheel_cuda}'s own {it.native_driver}, new enough by minor \
version compatibility ({it.min_driver})"


@dataclass(frozen=True, kw_only=True)
class Known:
    """What a site says of an image besides."""

    get: str
    """The command that gets it."""
    told: str
    """What was proven of it, as a sentence."""


def told(
    choice: Choice, machine: Machine, repository: str = "", known: Mapping[str, Known] | None = None
) -> Iterator[str]:
    """The choice in sentences for a person, the best image first."""
    yield str(machine)
    if not choice.fitting:
        yield "No image fits."
    for answer in choice.fitting[:1]:
        pull = f"docker pull {repository}:{answer.name}" if repository else f"nox -s build -- {answer.name}"
        said = (known or {}).get(answer.name)
        yield f"Take {answer.name}: {'; '.join(answer.reasons)}"
        yield f"    {said.get if said else pull}"
        if said:
            yield said.told
    if rest := choice.fitting[1:]:
        more = f" and {len(rest) - _NEAREST} more" if len(rest) > _NEAREST else ""
        yield f"These fit too: {', '.join(answer.name for answer in rest[:_NEAREST])}{more}"
    for names, reasons in choice.others:
        some = ", ".join(names[:_NEAREST]) + (f" and {len(names) - _NEAREST} more" if len(names) > _NEAREST else "")
        yield f"Not {some}: {'; '.join(reasons)}"


# --- the machine ----------------------------------------------------------------------------------------------------


def machine_of(found: Inventory) -> Machine:
    """The machine as its driver describes it: no table is asked."""
    archs = sorted({Arch(*gpu.capability) for gpu in found.gpus})
    gpus = tuple(dict.fromkeys(gpu.name for gpu in found.gpus))
    arm = all(arch in ON_ARM_ALONE for arch in archs)
    return Machine(gpus=gpus, archs=tuple(archs), driver=driver(found.driver) if found.driver else "", arm=arm)


def machine(gpu: str, arch: str, driver_text: str) -> Machine:
    """The machine as a person describes it. Raises UserError: unknown model, arch or driver."""
    number = driver(driver_text) if driver_text else ""
    if arch:
        try:
            found = Arch.parse(arch)
        except ValueError as error:
            raise UserError(
                Problem(where=f"--arch {arch}", cause=str(error), then="write sm_89, sm89 or 8.9")
            ) from None
        name, arm = gpu or str(found), found in ON_ARM_ALONE
    else:
        name, row = model(gpu)
        found, arm = Arch.parse(row.capability), row.arm
    return Machine(gpus=(name,), archs=(found,), driver=number, arm=arm)


def driver(text: str) -> str:
    """Read a driver's version, `550.90` or `550.90.07`. Raises UserError."""
    try:
        Version(text)
    except InvalidVersion:
        cause, then = "is no version of a driver", "write it as nvidia-smi does: 550.90.07"
        raise UserError(Problem(where=f"--driver {text}", cause=cause, then=then)) from None
    return text


def torch_range(text: str) -> SpecifierSet:
    """Read `>=2.7`, `==2.8.*` or `2.8`. Raises UserError."""
    try:
        return SpecifierSet(f"=={text}.*" if re.fullmatch(r"\d+(\.\d+)?", text) else text)
    except InvalidSpecifier:
        then = "write '>=2.7', '<2.9' or 2.8"
        raise UserError(Problem(where=f"--torch {text}", cause="is no range of versions", then=then)) from None


def model(text: str) -> tuple[str, ModelRow]:
    """The model that a driver's or a person's name means, and its row. Raises UserError naming near ones.

    All words of the model must be there; what else is there must name a brand or a variant. The longest model wins.
    """
    asked = _words(text)
    fitting = [
        (name, row)
        for name, row in _by_name().items()
        if (own := _words(name)) and own <= asked and all(map(_VARIANTS.fullmatch, asked - own))
    ]
    if not fitting:
        raise UserError(
            Problem(where=f"--gpu {text!r}", cause="is no GPU of images/data/gpu_models.yaml", then=_near(text))
        )
    return max(fitting, key=lambda item: len(_words(item[0])))


def _near(text: str) -> str:
    short = {" ".join(sorted(_words(name))): name for name in _by_name()}
    close = [short[key] for key in get_close_matches(" ".join(sorted(_words(text))), short, n=3, cutoff=0.6)]
    near = f"nearest: {', '.join(close)}; " if close else ""
    return f"{near}or name its architecture: --arch sm89 (`nvidia-smi --query-gpu=compute_cap --format=csv` prints 8.9)"


def _words(text: str) -> frozenset[str]:
    """Lower case, without brands, and with `RTX4090`, `RTX 4090` and `4090Ti` taken apart alike."""
    spaced = re.sub(r"(?<=rtx|gtx)(?=\d)|(?<=\d)(?=ti\b)", " ", text.lower())
    return frozenset(_WORDS.findall(spaced)) - _BRANDS


def vocabulary() -> dict[str, Any]:
    """What `model` and `machine` read names by, as plain data: the site's chooser reads them by the same."""
    models = [{"name": name, "capability": row.capability, "arm": row.arm} for name, row in _by_name().items()]
    return {
        "brands": sorted(_BRANDS),
        "variants": _VARIANTS.pattern,
        "arm_alone": sorted(map(str, ON_ARM_ALONE)),
        "models": models,
    }


@cache
def _by_name() -> dict[str, ModelRow]:
    rows = Models.model_validate(yaml.safe_load(MODELS.read_text(encoding="utf-8"))).models
    return {name: row for row in rows for name in row.names}
