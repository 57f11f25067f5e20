"""Which image to pull for a machine, why, and why not the others. Pure, but for reading gpu_models.yaml."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache, partial
from typing import Annotated, Any, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version
from pydantic import ConfigDict, Field

from images.config import yamlfile
from images.config.facts import Capability, Facts, MinorText, Row, Sentence, VersionText
from images.config.names import Arch, Minor
from images.config.platforms import Platform
from images.errors import UserError, command, wrong
from images.hardware.inventory import Inventory
from images.planning import silent
from images.planning.image import Image
from validate import compute_capability
from validate.compute_capability import ON_ARM_ALONE, Fit, runs_on
from validate.judging import listed

_NEAREST = 4
_some = partial(listed, limit=_NEAREST)
version_of = cache(Version)
"""The site's table compares the same few versions for each GPU and driver."""
_CARDS = ((8, 6), (8, 9))
"""Graphics cards that no board has: in an ARM server they run what they run elsewhere (A10, L4, L40S)."""
_GRACE_HOPPER = Arch(9, 0)
"""GH200, where the host processor is ARM; beside x86-64 it is an H100 or H200."""
_FIRST_BRANCH = 100
"""Branches of drivers for Linux have three digits since 2007; CUDA's majors have two."""
_TRITONS_FIRST = Arch(7, 0)
"""torch/_inductor/scheduler.py raises GPUTooOldForTriton below it."""
_BRANDS = frozenset({"nvidia", "geforce", "tesla"})
"""Words that drivers and people put in front or leave out: `NVIDIA A100-SXM4-80GB`, `Tesla T4`, `RTX 4090`. Not Quadro:
a Quadro RTX 6000 is no RTX 6000 Ada."""
_VARIANTS = re.compile(
    r"\d+gb|\d+g|sxm\d?|pcie?|pg\d+|nvl\d*|hbm\d\w?|laptop|gpu|notebook|mobile|embedded|with|max|q|design|super|"
    r"generation|edition|server|workstation|active|sff|d|v\d|3e|ac|lc|oem|oam|cnx|mig|dgx|spark|nvgpu"
)
"""Words of a model's variants, which all have its capability."""


class ModelRow(Row):
    """GPU models of one compute capability."""

    capability: Capability
    names: list[Sentence] = Field(min_length=1)
    arm: bool = False
    source: Sentence


class DriverRow(Row):
    """The drivers of GPUs of some compute capabilities."""

    architecture: Sentence
    capabilities: list[Capability]
    first: int
    """The first branch that knows them, as 570 of 570.86.16."""
    last: int | None = None
    modules: Literal["open", "either", "proprietary"]
    """Which of NVIDIA's kernel modules run them."""
    source: Sentence


@cache
def drivers() -> dict[Arch, DriverRow]:
    """Architecture -> its row of gpu_models.yaml; none where drivers come with a board's own system (Jetson)."""
    rows = map(DriverRow.model_validate, yamlfile.table("gpu_models.yaml")["drivers"])
    return {Arch.parse(text): row for row in rows for text in row.capabilities}


@cache
def models() -> dict[str, ModelRow]:
    """Model -> its row of gpu_models.yaml."""
    rows = map(ModelRow.model_validate, yamlfile.table("gpu_models.yaml")["models"])
    return {name: row for row in rows for name in row.names}


@cache
def find_model(text: str) -> tuple[str, ModelRow]:
    """The model that a driver's or a person's name means, and its row. Raises UserError naming near ones.

    Of the models that have all its words (brands and variants apart), the one whose words all others of them have too.
    """
    asked = frozenset(key(text).split())
    wider = {
        name: own for name in models() if asked and asked <= (own := frozenset(key(name).split()))
    }
    least = [
        name for name, own in wider.items() if not any(other < own for other in wider.values())
    ]
    if len(least) == 1:
        return least[0], models()[least[0]]
    short = {key(name): name for name in models()}
    near = [short[one] for one in get_close_matches(key(text), short, n=3, cutoff=0.6)]
    told = f"nearest: {_some(least or near)}; or " if least or near else ""
    then = f"{told}give --arch what `nvidia-smi --query-gpu=compute_cap --format=csv` prints there"
    raise wrong(
        f"--gpu {text!r}",
        f"is {'more than one' if least else 'no'} GPU of images/data/gpu_models.yaml",
        then,
    )


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


def detected(found: Inventory, processor: Platform | None) -> Machine:
    """The machine as its driver and its kernel describe it, without the table of models.

    A GPU does not tell its processor: sm_90 is an H100 beside x86-64, and a GH200.
    """
    archs = sorted({Arch(*gpu.capability) for gpu in found.gpus})
    gpus = tuple(dict.fromkeys(gpu.name for gpu in found.gpus))
    driver = parse_driver(found.driver) if found.driver else ""
    return Machine(gpus=gpus, archs=tuple(archs), driver=driver, arm=processor is Platform.ARM64)


def described(gpu: str, arch: str, driver: str) -> Machine:
    """The machine as a person describes it. Raises UserError: unknown model, arch or driver, or two that contradict."""
    number = parse_driver(driver) if driver else ""
    try:
        found = Arch.parse(arch) if arch else None
    except ValueError as error:
        raise wrong(f"--arch {arch}", str(error), "write sm_89, sm89 or 8.9") from None
    try:
        name, row = find_model(gpu)
    except UserError:
        if found is None:
            raise
        return Machine(
            gpus=(gpu or str(found),), archs=(found,), driver=number, arm=found in ON_ARM_ALONE
        )
    own = Arch.parse(row.capability)
    if found and found != own:
        raise wrong(f"--arch {arch}", f"{name} is {own}", f"leave out --arch, or give {own}")
    return Machine(gpus=(name,), archs=(own,), driver=number, arm=row.arm)


def parse_driver(text: str) -> str:
    """Read a driver's version, `550.90` or `550.90.07`. Raises UserError."""
    cause, then = "is no version of a driver", "write it as nvidia-smi does: 550.90.07"
    if re.fullmatch(r"[0-9]+(\.[0-9]+)*", text):
        if not 0 < int(text.partition(".")[0]) < _FIRST_BRANCH:
            return text
        cause, then = (
            "is CUDA's version",
            "give what `nvidia-smi --query-gpu=driver_version --format=csv` prints",
        )
    raise wrong(f"--driver {text}", cause, then)


def torch_range(text: str) -> SpecifierSet:
    """Read `>=2.7`, `==2.8.*`, `2.8` or `2.7.1`. Raises UserError."""
    whole = f"=={text}" if text.count(".") > 1 else f"=={text}.*"
    try:
        return SpecifierSet(whole if re.fullmatch(r"[0-9]+(\.[0-9]+){0,2}", text) else text)
    except InvalidSpecifier:
        raise wrong(
            f"--torch {text}", "is no range of versions", "write '>=2.7', '<2.9', 2.8 or 2.7.1"
        ) from None


def python_minor(text: str) -> str:
    """Read `3.11`, or `3.11.9` as `3.11`. Raises UserError."""
    if found := re.fullmatch(r"([0-9]+\.[0-9]+)(\.[0-9]+)?", text):
        return found[1]
    raise wrong(f"--python {text}", "is no version of Python", "write 3.11")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the person wants of an image."""

    profile: str | None = None
    torch: SpecifierSet = field(default_factory=SpecifierSet)
    python: str = ""
    devel: bool = False


class ImageSummary(Row):
    """What the choice must know of an image, whoever says so: the plan, or a site's index.json."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    name: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    profile: str | None
    torch: VersionText
    python: MinorText
    default_python: bool
    """The matrix's own Python: the name does not spell it out."""
    devel: bool
    """Has the devel toolkit: the whole CUDA compiler."""
    arch: Capability | None
    """`9.0`: an image that was made for this architecture alone."""
    toolkit_cuda: MinorText
    wheel_cuda: MinorText
    """The CUDA that torch was compiled for."""
    archs: list[Capability]
    """Compute capabilities that all its libraries have machine code for, ascending."""
    ptx: list[Capability]
    """Those that torch has PTX of."""
    min_driver: VersionText
    """Oldest driver that runs it: the minimum of the CUDA major."""
    native_driver: VersionText
    """First driver of the wheel's own CUDA; PTX needs it."""
    compilers: dict[str, list[Capability]] = {}
    """What compiles while programs run (Triton's ptxas, NVRTC, with devel nvcc), and the GPUs each knows."""
    silent: list[str] = []
    """Silent faults that plain training meets there."""
    libraries: dict[str, list[Capability]] = {}
    """Packages that the rest runs without, and the known GPUs that each has machine code of its own for."""
    passed_on: list[str] = []
    """GPU models on which the newest run of its gpu tier passed."""
    blocked: str = ""
    """Why nobody can build it yet: it has no lock, with the next command. Empty: it can be built, or is published."""

    def fit(self, gpu: Arch) -> Fit:
        """How a GPU runs its code: `cubin`, `ptx` or `no`."""
        archs, ptx = (list(map(Arch.parse, code)) for code in (self.archs, self.ptx))
        return compute_capability.fit(archs, ptx, gpu)


def summary(
    image: Image, facts: Facts, blocked: str = "", passed_on: Collection[str] = ()
) -> ImageSummary:
    """An image of the plan, as the choice sees it. `passed_on`: names of GPUs, as drivers have them."""
    pin, own = image.pin("torch"), facts.cuda.get(str(image.wheel_cuda))
    triton = image.pin("triton")
    compilers = facts.run_time_compilers(
        triton.version if triton else "",
        image.wheel_cuda,
        image.toolkit_cuda if image.name.devel else None,
    )
    return ImageSummary(
        name=str(image.name),
        profile=image.name.profile,
        torch=pin.version if pin else str(image.name.torch),
        python=str(image.python),
        default_python=image.name.python is None,
        devel=image.name.devel,
        arch=image.name.arch.capability if image.name.arch else None,
        toolkit_cuda=str(image.toolkit_cuda),
        wheel_cuda=str(image.wheel_cuda),
        archs=[arch.capability for arch in image.archs],
        ptx=[arch.capability for arch in image.ptx],
        min_driver=image.min_driver,
        native_driver=own.driver if own else image.min_driver,
        compilers=compilers,
        silent=[
            str(row)
            for row in silent.known(image.versions).values()
            if row.is_ordinary(image.versions["torch"])
        ],
        libraries=dict(_libraries(image, facts)),
        passed_on=sorted({model_of(name) for name in passed_on}),
        blocked=blocked,
    )


def model_of(name: str) -> str:
    """The table's name of a GPU; one that the table lacks keeps the name that its driver gives it."""
    try:
        return find_model(name)[0]
    except UserError:
        return name


def _libraries(image: Image, facts: Facts) -> Iterator[tuple[str, list[str]]]:
    """Packages with kernels that torch's and bitsandbytes' archs don't speak of, and the known GPUs they serve."""
    gpus = sorted({Arch.parse(row.capability) for row in models().values()})
    versions = {pin.name: pin.version for pin in image.pins}
    if (version := versions.get("xformers", "")) and (row := facts.xformers.get(version)):
        served = [
            gpu.capability for gpu in gpus if row.covers(gpu) == "cubin" and not row.refuses(gpu)
        ]
        yield f"xformers {version}", served
    for wheel in image.prebuilt:
        fits = {gpu.capability: compute_capability.fit(wheel.archs, wheel.ptx, gpu) for gpu in gpus}
        yield f"{wheel.name} {wheel.version}", [gpu for gpu, fit in fits.items() if fit == "cubin"]
    if (version := versions.get("flash-attn-4", "")) in (
        known := facts.compilers.get("flash-attn-4", {})
    ):
        yield f"flash-attn-4 {version}", known[version].archs


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One image, held against a machine."""

    image: ImageSummary
    fit: Fit
    reasons: tuple[str, ...]
    against: tuple[str, ...]
    native: bool
    """The driver is of the wheel's own CUDA or newer."""
    passed: bool
    """Its gpu tier passed on every GPU of this machine."""

    @property
    def name(self) -> str:
        return self.image.name

    @property
    def rank(self) -> tuple[Any, ...]:
        """Greater is better: passed on this GPU, machine code, newest torch, a CUDA that the driver knows, newest CUDA,
        with a toolkit of it: PTX of a newer one wants a newer driver.

        An arch image is its parent without code that this GPU can't run, so smaller.
        """
        image = self.image
        wheel, toolkit = Minor.parse(image.wheel_cuda), Minor.parse(image.toolkit_cuda)
        cuda = (wheel, toolkit == wheel, toolkit)
        return (
            self.passed,
            self.fit == "cubin",
            version_of(image.torch),
            self.native,
            cuda,
            image.arch is not None,
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "torch": self.image.torch,
            "fits": not self.against,
            "code": self.fit,
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
        others = [
            {"names": list(names), "against": list(reasons)} for names, reasons in self.others
        ]
        return {"fitting": [answer.as_json() for answer in self.fitting], "others": others}


def rank(images: Sequence[ImageSummary], machine: Machine, options: Options) -> Choice:
    """The images that run on a machine with what is wanted, best first, and why the nearest others don't."""
    answers = [answer(image, machine, options) for image in images]
    fitting = sorted(
        (one for one in answers if not one.against), key=lambda one: one.rank, reverse=True
    )
    # First those of the torch that was asked for: why they don't run is what the person wants to know.
    failing = sorted(
        (one for one in answers if one.against),
        key=lambda one: (
            options.torch.contains(one.image.torch, prereleases=True),
            -len(one.against),
            one.rank,
        ),
        reverse=True,
    )
    grouped: dict[tuple[str, ...], list[str]] = {}
    for one in failing:
        if one.image.profile == options.profile and one.image.devel == options.devel:
            grouped.setdefault(one.against, []).append(one.name)
    others = [(tuple(names), reasons) for reasons, names in grouped.items()]
    return Choice(fitting=tuple(fitting), others=tuple(others[:_NEAREST]))


def answer(image: ImageSummary, machine: Machine, options: Options) -> Answer:
    """One image, held against a machine and what is wanted."""
    fits = {arch: image.fit(arch) for arch in machine.archs}
    worst = max(fits.values(), key=("cubin", "ptx", "no").index)
    native = not machine.driver or version_of(machine.driver) >= version_of(image.native_driver)
    against = [
        *_unwanted(image, options),
        *wrong_for_gpu(machine),
        *_wrong_arch(image, machine, fits),
    ]
    # Minor version compatibility holds for machine code; PTX needs a driver of its own CUDA (CUDA Compatibility).
    if machine.driver and version_of(machine.driver) < version_of(image.min_driver):
        against.append(
            f"CUDA {image.wheel_cuda.partition('.')[0]} needs driver {image.min_driver} or newer"
        )
    elif worst == "ptx" and not native:
        against.append(
            f"PTX of CUDA {image.wheel_cuda} needs driver {image.native_driver} or newer"
        )
    passed = bool(machine.gpus) and {model_of(gpu) for gpu in machine.gpus} <= set(image.passed_on)
    reasons = [f"torch {image.torch}"]
    for arch, fit in fits.items():
        if fit == "cubin":
            own = max(own for own in map(Arch.parse, image.archs) if runs_on(own, arch))
            through = "" if own == arch else f" through {own}, of the same major"
            reasons.append(f"machine code for {arch}{through}")
    ptx = [arch for arch, fit in fits.items() if fit == "ptx"]
    reasons += [
        f"only PTX for {arch}: compiled at the first run, and by torch alone" for arch in ptx
    ]
    if old := ", ".join(str(arch) for arch in fits if arch < _TRITONS_FIRST):
        reasons.append(f"torch.compile refuses {old}: Triton begins at {_TRITONS_FIRST}")
    for name, served in image.libraries.items():
        if lacking := ", ".join(str(arch) for arch in fits if arch.capability not in served):
            reasons.append(f"{name} has no machine code of its own for {lacking}")
    reasons += image.silent
    if not machine.driver:
        reasons.append(f"needs driver {image.min_driver} or newer")
    elif native:
        reasons.append(
            f"driver {machine.driver} knows CUDA {image.wheel_cuda} ({image.native_driver} is its first)"
        )
    else:
        older = f"driver {machine.driver} is older than CUDA {image.wheel_cuda}'s own {image.native_driver}"
        reasons.append(f"{older}, new enough by minor version compatibility ({image.min_driver})")
    modules = {
        row.architecture: row.modules for arch in machine.archs if (row := drivers().get(arch))
    }
    if machine.arm and _GRACE_HOPPER in machine.archs:
        modules["Grace Hopper"] = "open"
    needed = {architecture: kind for architecture, kind in modules.items() if kind != "either"}
    reasons += [
        f"{architecture} needs the driver's {kind} kernel modules"
        for architecture, kind in needed.items()
    ]
    return Answer(
        image=image,
        fit=worst,
        reasons=tuple(reasons),
        against=tuple(against),
        native=native,
        passed=passed,
    )


def wrong_for_gpu(machine: Machine) -> Iterator[str]:
    """Why a driver can't run these GPUs, whatever the image: each architecture has a first and a last branch."""
    branch = int(machine.driver.partition(".")[0] or 0)
    for arch in machine.archs if machine.driver else ():
        row = drivers().get(arch)
        if row and branch < row.first:
            also = ", with the open kernel modules" if row.modules == "open" else ""
            yield f"{arch} ({row.architecture}) needs driver {row.first} or newer{also}"
        if row and row.last and branch > row.last:
            yield f"branch {row.last} is the last driver for {arch} ({row.architecture})"


def _unwanted(image: ImageSummary, options: Options) -> Iterator[str]:
    if image.blocked:
        yield f"has no lock: it can't be built before `{command('lock')}` has made one"
    if image.profile != options.profile:
        yield (
            f"is for the profile {image.profile}"
            if image.profile
            else f"has no profile {options.profile}"
        )
    if not options.torch.contains(image.torch, prereleases=True):
        yield f"torch {image.torch} is not {options.torch}"
    if options.python and image.python != options.python:
        yield f"Python {image.python} is not {options.python}"
    if not options.python and not image.default_python:
        yield f"Python {image.python} was not asked for (--python {image.python})"
    if image.devel != options.devel:
        yield (
            "has a devel toolkit, which was not asked for (--devel)"
            if image.devel
            else "has no devel toolkit"
        )


def _wrong_arch(image: ImageSummary, machine: Machine, fits: Mapping[Arch, Fit]) -> Iterator[str]:
    for_arm = image.name.endswith(f"-{Platform.ARM64.suffix}")
    if machine.arm and not for_arm:
        yield "is for x86-64, and this GPU's host processor is ARM"
    elif for_arm and not machine.arm:
        yield "is for ARM processors"
    else:
        for arch, fit in fits.items():
            # Boards' GPUs run code of their family only where somebody has seen it: those that an image names.
            unseen = machine.arm and arch not in _CARDS and arch.capability not in image.archs
            if fit == "no" or unseen:
                yield f"has no code for {arch} (it has {' '.join(str(Arch.parse(text)) for text in image.archs)})"
                continue
            for program, known in image.compilers.items():
                if arch.capability not in known:
                    yield f"{program} does not know {arch}: what is compiled at run time fails there"


@dataclass(frozen=True, kw_only=True)
class Known:
    """What a site or recorded runs say of an image besides."""

    get: str
    sentence: str


def sentences(choice: Choice, machine: Machine, known: Mapping[str, Known]) -> Iterator[str]:
    """The choice for a person, the best image first. `known`: of each that fits."""
    yield str(machine)
    if not choice.fitting:
        none = "No image is of this profile and kind: leave out --profile or --devel."
        if faults := "; ".join(wrong_for_gpu(machine)):
            yield f"No image fits: {faults}."
            return
        yield "No image fits." if choice.others else none
    for best in choice.fitting[:1]:
        yield f"Take {best.name}: {'; '.join(best.reasons)}"
        yield f"    {known[best.name].get}"
        yield known[best.name].sentence
    if rest := [one.name for one in choice.fitting[1:]]:
        yield f"These fit too: {_some(rest)}"
    for names, reasons in choice.others:
        yield f"Not {_some(names)}: {'; '.join(reasons)}"


def key(name: str) -> str:
    """The words that tell one model from all others, as one text: `RTX4090`, `RTX 4090` and `4090Ti` come apart."""
    spaced = re.sub(r"(?<=rtx|gtx)(?=\d)|(?<=\d)(?=ti\b)", " ", name.lower())
    words = {*re.findall(r"[a-z0-9]+", spaced)} - _BRANDS
    return " ".join(sorted(word for word in words if not _VARIANTS.fullmatch(word)))
