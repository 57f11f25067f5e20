"""Choose an image for a machine: which one to pull, why, and why not the others.

This module is pure, apart from reading gpu_models.yaml.
"""

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache, partial
from typing import Annotated, Any, Literal, NamedTuple

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version
from pydantic import ConfigDict, Field

from images.config import yamlfile
from images.config.facts import Capability, Facts, MinorText, Row, Sentence, VersionText
from images.config.names import Arch, ImageName, Minor
from images.config.platforms import Platform
from images.errors import UserError, command, wrong
from images.hardware.inventory import Inventory
from images.planning import silent
from images.planning.image import Image
from validate import compute_capability
from validate.compute_capability import ON_ARM_ALONE, Fit, runs_on
from validate.judging import listed

_MOST_NAMED = 4
"""How many images or models a sentence names, and how many groups of unfit images are shown."""
_MOST_SIMILAR = 3
"""How many models are proposed for a name that is none."""
_OTHER_MAKERS = re.compile(
    r"\b(amd|radeon|instinct|firepro|mi ?\d{2,3}[a-z]?|rx ?\d{3,4}|gfx\d+|"
    r"intel|arc|gaudi ?\d?|tpu)\b"
)
"""Makers and models of accelerators that do not run CUDA."""
_some = partial(listed, limit=_MOST_NAMED)
version_of = cache(Version)
"""Parse a version. Cached: the site's table compares the same few for each GPU and driver."""
_CARDS = ((8, 6), (8, 9))
"""Graphics cards (A10, L4, L40S), which no ARM board has built in. In an ARM server they run the
same code as elsewhere."""
_HOPPER = Arch(9, 0)
"""H100 and H200 beside x86-64, GH200 (Grace Hopper) beside an ARM host processor."""
_NO_LOCK = "has no lock"
"""The beginning of the reason against an image that can't be built yet."""
_FIRST_BRANCH = 100
"""Branches of drivers for Linux have three digits since 2007; CUDA's majors have two."""
_TRITONS_FIRST = Arch(7, 0)
"""torch/_inductor/scheduler.py raises GPUTooOldForTriton below it."""
_CUDA_11_DRIVER = "450.80.02"
_CUDA_12_DRIVER = "525.60.13"
"""The oldest drivers for them (`minimum_drivers` of images/data/facts.yaml)."""
_CUDA_11_ARCHS = (Arch(3, 7), Arch(9, 0))
"""The oldest and the newest GPU that torch 2.7.1 for CUDA 11.8 has code for (same file)."""
_FITS: tuple[Fit, ...] = ("cubin", "ptx", "no")
"""How a GPU may run an image's code, best first."""
_BRANDS = frozenset({"nvidia", "geforce", "tesla"})
"""Words that drivers and people put in front or leave out: `NVIDIA A100-SXM4-80GB`, `Tesla T4`,
`RTX 4090`. Not Quadro: a Quadro RTX 6000 is no RTX 6000 Ada."""
_VARIANTS = re.compile(
    r"\d+gb|\d+g|sxm\d?|pcie?|pg\d+|nvl\d*|hbm\d\w?|laptop|gpu|notebook|mobile|embedded|with|max|q|"
    r"design|super|generation|edition|server|workstation|active|sff|d|v\d|3e|ac|lc|oem|oam|cnx|mig|"
    r"dgx|nvgpu"
)
"""Words of a model's variants, which all have its capability."""

_LAST_MAJOR = 29
"""The highest first number of an architecture that is taken for one. Those of today end at 12."""
_GIVE_ARCH = (
    "give --arch the compute capability, which `nvidia-smi --query-gpu=compute_cap "
    "--format=csv,noheader` prints on that machine"
)


# --- GPU models -----------------------------------------------------------------------------------


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
    """The last branch that runs them; None: there is none yet."""
    last_cuda: int | None = None
    """The last CUDA, by its major version, whose toolkit and libraries know them."""
    modules: Literal["open", "either", "proprietary"]
    """Which of NVIDIA's kernel modules run them."""
    source: Sentence


@cache
def drivers() -> dict[Arch, DriverRow]:
    """Return the row of gpu_models.yaml about drivers for each architecture.

    An architecture has none if its drivers come with a board's own system (Jetson).
    """
    rows: dict[Arch, DriverRow] = {}
    for fields in yamlfile.table("gpu_models.yaml")["drivers"]:
        row = DriverRow.model_validate(fields)
        for capability in row.capabilities:
            rows[Arch.parse(capability)] = row
    return rows


@cache
def models() -> dict[str, ModelRow]:
    """Return the row of gpu_models.yaml for each GPU model, by the model's name there."""
    rows: dict[str, ModelRow] = {}
    for fields in yamlfile.table("gpu_models.yaml")["models"]:
        row = ModelRow.model_validate(fields)
        for name in row.names:
            rows[name] = row
    return rows


@cache
def find_model(text: str) -> tuple[str, ModelRow]:
    """Return the name and the row of the GPU model that a text means, as gpu_models.yaml has them.

    The text is a driver's or a person's: `NVIDIA H100 80GB HBM3`, `rtx 3090`. Words are compared
    without brands and variants (`NVIDIA`, `80GB`). Of the models that have all words of the text,
    the one with the fewest words is meant: `RTX 3090` is no RTX 3090 Ti. Raises UserError, which
    names similar models, if no model has all words, or several may be meant.
    """
    text_words = frozenset(model_words(text).split())
    # Name of each model that has all words of the text -> the model's words.
    candidates: dict[str, frozenset[str]] = {}
    for name, words in _words_of_models().items():
        if text_words and text_words <= words:
            candidates[name] = words

    # Leave out a model if another one has only some of its words (`<`: a proper subset).
    most_general = []
    for name, words in candidates.items():
        if not any(other_words < words for other_words in candidates.values()):
            most_general.append(name)
    if len(most_general) == 1:
        name = most_general[0]
        return name, models()[name]
    raise _no_single_model(text, most_general)


@cache
def _words_of_models() -> dict[str, frozenset[str]]:
    """Return the words that tell each model of the table from all others, by its name there."""
    return {name: frozenset(model_words(name).split()) for name in models()}


def _no_single_model(text: str, fitting: Sequence[str]) -> UserError:
    """Return the error that the text given as --gpu does not mean one GPU model.

    `fitting` are the models that it may mean: several, or none. Then the error names models that
    are spelled like the text.
    """
    # Of `AMD EPYC, 8 x H100`, the H100. It is named, and not taken: `Intel Arc Pro A40` is no A40.
    named = [] if fitting else _models_named_in(text)
    # `Radeon RX 7900` fits no model of NVIDIA.
    if not fitting and not named and _OTHER_MAKERS.search(text.lower()):
        return wrong(
            f"--gpu {text!r}",
            "this is no GPU of NVIDIA, and truetag's images are for CUDA",
            "name a GPU of NVIDIA; for others, pytorch.org has wheels (ROCm, XPU)",
        )

    if fitting:
        cause = f"this fits {len(fitting)} GPU models that truetag knows: one must be chosen"
    elif named:
        cause = f"this has more words than NVIDIA's {_some(named)}, which truetag knows"
    else:
        cause = "this is no GPU model that truetag knows"
    similar = list(fitting) or _similar_models(text)
    if named:
        options = " ".join(f"--gpu '{name}'" for name in named)
        name_a_model = f"if you mean that, write `{options}`; or "
    elif similar:
        name_a_model = f"give --gpu the name of one ({_some(similar)}); or "
    else:
        name_a_model = ""
    return wrong(f"--gpu {text!r}", cause, f"{name_a_model}{_GIVE_ARCH}")


def _models_named_in(text: str) -> list[str]:
    """Return the models of which a text has all words: of `8 x RTX 3090 Ti`, only the RTX 3090 Ti.

    The text is longer than a model's name: a machine's description, for example.
    """
    text_words = frozenset(model_words(text).split())
    named = {name: words for name, words in _words_of_models().items() if words <= text_words}
    # Leave out a model if another one has its words and more (`<`: a proper subset).
    models_named = []
    for name, words in named.items():
        if not any(words < other_words for other_words in named.values()):
            models_named.append(name)
    return models_named


def _similar_models(text: str) -> list[str]:
    """Return up to three models whose names are spelled like the text, the nearest first."""
    words = model_words(text)
    name_by_words = {model_words(name): name for name in models()}
    close = get_close_matches(words, name_by_words, n=2 * _MOST_SIMILAR, cutoff=0.6)
    # A wrong digit is more likely than a letter in its place: RTX 5900 means RTX 5090 rather than
    # RTX A500.
    form = re.sub(r"\d", "0", words)
    close.sort(key=lambda other: re.sub(r"\d", "0", other) != form)
    return [name_by_words[other] for other in close[:_MOST_SIMILAR]]


def model_words(name: str) -> str:
    """Return the words that tell a model from all others, sorted, with a space between them.

    They are in lower case, without brands and words of variants: `NVIDIA GeForce RTX4090 Laptop
    GPU` gives `4090 rtx`. Series, number and `Ti` count as words of their own.
    """
    spaced = re.sub(r"(?<=rtx|gtx)(?=\d)|(?<=\d)(?=ti\b)", " ", name.lower())
    words = set(re.findall(r"[a-z0-9]+", spaced)) - _BRANDS
    return " ".join(sorted(word for word in words if not _VARIANTS.fullmatch(word)))


def model_of(name: str) -> str:
    """Return the table's name of a GPU, or the driver's name for it if the table has none."""
    try:
        return find_model(name)[0]
    except UserError:
        return name


# --- what a person gives --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine that an image shall run on."""

    gpus: tuple[str, ...]
    """The names of its GPUs, each once; empty if only architectures are known."""
    archs: tuple[Arch, ...]
    """The architectures of its GPUs, each once, ascending."""
    driver: str = ""
    """The version of its driver, `570.86.16`, or a branch of drivers, `570`, which stands for all
    its releases. Empty: not known."""
    arm: bool = False
    """Whether its host processor is ARM."""
    wsl: bool = False
    """Whether it is Windows with WSL 2: the driver is that of Windows."""

    def __str__(self) -> str:
        gpus = ", ".join(self.gpus)
        archs = ", ".join(str(arch) for arch in self.archs)
        described = f"{gpus} ({archs})" if gpus else archs
        return f"{described}, {self.driver_text}"

    @property
    def driver_text(self) -> str:
        """Return its driver in words: `driver 570.86.16`, `driver branch 570`."""
        if not self.driver:
            return "driver not known"
        text = f"driver {self.driver}" if "." in self.driver else f"driver branch {self.driver}"
        return f"Windows {text}" if self.wsl else text

    @property
    def branch(self) -> int:
        """Return the branch of its driver: 570 for Linux' 570.86.16 and Windows' 572.16.

        Windows counts on within a branch: 572 to 576 are of 570 (NVIDIA's release notes of R570
        for Windows). Branches begin at multiples of five.
        """
        number = int(self.driver.partition(".")[0])
        return number // 5 * 5 if self.wsl else number

    def has_driver(self, version: str) -> bool:
        """Return whether its driver is this version or a newer one.

        True for a driver that is not known: it speaks against no image. A branch without a release
        counts as its newest one.
        """
        if not self.driver:
            return True
        if "." not in self.driver:
            return self.branch >= int(version.partition(".")[0])
        return version_of(self.driver) >= version_of(version)


def machine_from_inventory(inventory: Inventory, processor: Platform | None) -> Machine:
    """Return the machine for which an image is chosen, as its NVIDIA driver describes it.

    `inventory` has what the driver says. `processor` is that of the machine; None: not known. It
    does not follow from the GPUs: the architecture sm_90 is that of an H100 in an x86-64 machine,
    and of a GH200, which has an ARM processor.
    """
    archs = sorted({Arch(*gpu.capability) for gpu in inventory.gpus})
    names = dict.fromkeys(gpu.name for gpu in inventory.gpus)
    driver = ""
    if inventory.driver:
        driver = parse_driver(inventory.driver)
    return Machine(
        gpus=tuple(names), archs=tuple(archs), driver=driver, arm=processor is Platform.ARM64
    )


def machine_from_options(
    gpus: Sequence[str], archs: Sequence[str], driver: str, *, wsl: bool = False
) -> Machine:
    """Return the machine that a person describes with --gpu, --arch, --driver and --wsl.

    `gpus` are names of models (`RTX 4090`), `archs` architectures (`sm_89`): one for each name, in
    the same order, or instead of names. `driver` is a version; empty: not known. Raises UserError
    for an unknown model without an architecture, for an unreadable architecture or driver, and for
    a model of another architecture than the one beside it.
    """
    driver_version = parse_driver(driver) if driver else ""
    if gpus and archs and len(gpus) != len(archs):
        cause = f"--gpu is given {len(gpus)} times, and --arch {len(archs)} times"
        then = "give one --arch for each --gpu, in the same order, or only one of the two options"
        raise wrong("--arch", cause, then)

    if not gpus and not archs:
        then = f"name the GPU, too (--gpu 'RTX 4090', for example), or {_GIVE_ARCH}"
        raise wrong("--gpu", "no GPU is named, and what runs there depends on it", then)

    described = []
    for index in range(max(len(gpus), len(archs))):
        gpu = gpus[index] if gpus else ""
        arch = archs[index] if archs else ""
        described.append(_describe_gpu(gpu, arch))
    arms = {gpu.arm for gpu in described}
    if len(arms) > 1:
        names = listed([gpu.name or str(gpu.arch) for gpu in described])
        cause = f"no image fits {names} together: one has an x86-64 host processor, another ARM"
        raise wrong("--gpu", cause, "give the command once for each of them")
    return Machine(
        gpus=tuple(dict.fromkeys(gpu.name for gpu in described if gpu.name)),
        archs=tuple(sorted({gpu.arch for gpu in described})),
        driver=driver_version,
        arm=arms == {True},
        wsl=wsl,
    )


class _DescribedGpu(NamedTuple):
    """A GPU, as a person describes it."""

    name: str
    """Empty if only the architecture is given."""
    arch: Arch
    arm: bool
    """Whether the processor beside it is ARM."""


def _describe_gpu(gpu: str, arch: str) -> _DescribedGpu:
    """Return the GPU of one --gpu and the --arch beside it; either may be empty.

    Raises UserError if it is not known, or if the two contradict each other.
    """
    try:
        arch_of_option = Arch.parse(arch) if arch else None
    except ValueError as error:
        raise wrong(
            f"--arch {arch}", str(error), "give --arch sm_89, sm89 or 8.9, for example"
        ) from None

    if arch_of_option and arch_of_option.major > _LAST_MAJOR:
        then = "give --arch sm_89, sm89 or 8.9, for example"
        raise wrong(f"--arch {arch}", "no GPU has this architecture", then)

    # No model, or one that the table lacks, is described by its architecture alone.
    try:
        name, row = find_model(gpu)
    except UserError:
        if arch_of_option is None:
            raise
        is_arm = arch_of_option in ON_ARM_ALONE
        return _DescribedGpu(gpu, arch_of_option, is_arm)

    arch_of_model = Arch.parse(row.capability)
    if arch_of_option and arch_of_option != arch_of_model:
        cause = f"{name}, which --gpu names, has the architecture {arch_of_model}"
        raise wrong(f"--arch {arch}", cause, "leave --arch out, or leave --gpu out")
    return _DescribedGpu(name, arch_of_model, row.arm)


def parse_driver(text: str) -> str:
    """Return a driver's version, such as `550.90` or `550.90.07`, as it was given.

    Raises UserError for another text, and for CUDA's version, which nvidia-smi shows beside it.
    """
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)*", text):
        raise wrong(
            f"--driver {text}",
            "this is no version of a driver",
            "write it as nvidia-smi prints it: --driver 550.90.07, for example",
        )
    branch = int(text.partition(".")[0])
    if 0 < branch < _FIRST_BRANCH:
        raise wrong(
            f"--driver {text}",
            "this is a version of CUDA, which nvidia-smi prints beside that of the driver",
            "give --driver the version that `nvidia-smi --query-gpu=driver_version "
            "--format=csv,noheader` prints",
        )
    return text


def torch_range(text: str) -> SpecifierSet:
    """Return the range of torch versions that `>=2.7`, `==2.8.*`, `2.8` or `2.7.1` means.

    `2.8` means all its patch releases. Raises UserError for another text.
    """
    specifier = text
    if re.fullmatch(r"[0-9]+(\.[0-9]+){0,2}", text):
        is_patch_release = text.count(".") > 1
        specifier = f"=={text}" if is_patch_release else f"=={text}.*"
    try:
        return SpecifierSet(specifier)
    except InvalidSpecifier:
        raise wrong(
            f"--torch {text}",
            "this is no version of torch, and no range of versions",
            "give --torch '>=2.7', '<2.9', 2.8 or 2.7.1, for example",
        ) from None


def python_minor(text: str) -> str:
    """Return the minor release of a Python version: `3.11` for `3.11` or `3.11.9`.

    Raises UserError for another text.
    """
    version = re.fullmatch(r"([0-9]+\.[0-9]+)(\.[0-9]+)?", text)
    if not version:
        raise wrong(f"--python {text}", "this is no version of Python", "give --python 3.11, say")
    return version[1]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the person wants of an image."""

    profile: str | None = None
    """The image's profile; None: an image without one."""
    torch: SpecifierSet = field(default_factory=SpecifierSet)
    """The torch versions that are acceptable; by default, all."""
    python: str = ""
    """Its Python, such as `3.11`; empty: the matrix's own."""
    devel: bool = False
    """Whether it has the devel toolkit."""


# --- what the choice knows of an image ------------------------------------------------------------


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
    """Compilers of run time (Triton's ptxas, NVRTC, with devel nvcc), and the GPUs each knows."""
    silent: list[str] = []
    """Silent faults that plain training meets there."""
    libraries: dict[str, list[Capability]] = {}
    """Optional packages, and the known GPUs that each has machine code of its own for."""
    passed_on: list[str] = []
    """GPU models on which the newest run of its gpu tier passed."""
    blocked: str = ""
    """Why it can't be built yet, with the next command. Empty: it can be, or is published."""

    def fit(self, gpu: Arch) -> Fit:
        """Return how a GPU runs its code: `cubin` (machine code), `ptx` or `no`."""
        archs = [Arch.parse(capability) for capability in self.archs]
        ptx = [Arch.parse(capability) for capability in self.ptx]
        return compute_capability.fit(archs, ptx, gpu)


def summarize(
    image: Image, facts: Facts, blocked: str = "", passed_on: Collection[str] = ()
) -> ImageSummary:
    """Return what is needed to choose an image for a machine: versions, GPUs, drivers and faults.

    `facts` is facts.yaml, which has the drivers and compilers of each CUDA. `blocked`: why the
    image can't be built yet; empty: it can. `passed_on`: the GPUs on which its tests with a GPU
    passed, by the names that drivers give them.
    """
    torch = image.pin("torch")
    triton = image.pin("triton")
    arch = image.name.arch
    cuda = facts.cuda.get(str(image.wheel_cuda))

    # The compilers that compile GPU code while programs run. Only a -devel image has nvcc.
    triton_version = triton.version if triton else ""
    nvcc_cuda = image.toolkit_cuda if image.name.devel else None
    compilers = facts.run_time_compilers(triton_version, image.wheel_cuda, nvcc_cuda)

    # Faults of which plain training computes wrong numbers without an error.
    ordinary_faults = []
    for fault in silent.find_faults(image.versions).values():
        if fault.is_ordinary(image.versions["torch"]):
            ordinary_faults.append(str(fault))

    return ImageSummary(
        name=str(image.name),
        profile=image.name.profile,
        torch=torch.version if torch else str(image.name.torch),
        python=str(image.python),
        default_python=image.name.python is None,
        devel=image.name.devel,
        arch=arch.capability if arch else None,
        toolkit_cuda=str(image.toolkit_cuda),
        wheel_cuda=str(image.wheel_cuda),
        archs=[arch.capability for arch in image.archs],
        ptx=[arch.capability for arch in image.ptx],
        min_driver=image.min_driver,
        native_driver=cuda.driver if cuda else image.min_driver,
        compilers=compilers,
        silent=ordinary_faults,
        libraries=_gpus_of_optional_packages(image, facts),
        passed_on=sorted({model_of(name) for name in passed_on}),
        blocked=blocked,
    )


def _gpus_of_optional_packages(image: Image, facts: Facts) -> dict[str, list[str]]:
    """Return the capabilities that each optional package has machine code of its own for.

    The key is the package with its version. These are packages that the image runs without, and
    whose code can differ from that of torch and bitsandbytes: xformers, our prebuilt wheels and
    flash-attn-4. Only capabilities of GPUs in the table of models are looked at.
    """
    gpus = sorted({Arch.parse(row.capability) for row in models().values()})
    versions = {pin.name: pin.version for pin in image.pins}
    capabilities: dict[str, list[str]] = {}

    xformers = versions.get("xformers", "")
    xformers_facts = facts.xformers.get(xformers)
    if xformers_facts:
        served = []
        for gpu in gpus:
            if xformers_facts.covers(gpu) == "cubin" and not xformers_facts.refuses(gpu):
                served.append(gpu.capability)
        capabilities[f"xformers {xformers}"] = served

    for wheel in image.prebuilt:
        served = [gpu.capability for gpu in gpus if wheel.covers(gpu) == "cubin"]
        capabilities[f"{wheel.name} {wheel.version}"] = served

    # flash-attn-4 has no machine code: it compiles its kernels at run time, for these GPUs.
    flash_attn_4 = versions.get("flash-attn-4", "")
    flash_attn_4_facts = facts.compilers.get("flash-attn-4", {}).get(flash_attn_4)
    if flash_attn_4_facts:
        capabilities[f"flash-attn-4 {flash_attn_4}"] = flash_attn_4_facts.archs
    return capabilities


# --- the choice -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Answer:
    """How one image fits a machine and what the person wants."""

    image: ImageSummary
    fit: Fit
    """How that of the machine's GPUs runs its code that runs it worst."""
    reasons: tuple[str, ...]
    """What a person should know of the image on this machine."""
    against: tuple[str, ...]
    """Why the image can't be taken; empty: it can."""
    driver_knows_cuda: bool
    """The driver is of the wheel's own CUDA or newer, or is not known."""
    passed: bool
    """Its gpu tier passed on every GPU of this machine."""

    @property
    def name(self) -> str:
        return self.image.name

    @property
    def rank(self) -> tuple[Any, ...]:
        """Return a key to sort answers by; the greatest belongs to the best image.

        The first values count most. Of two booleans, true is the greater.
        """
        image = self.image
        wheel_cuda, toolkit_cuda = Minor.parse(image.wheel_cuda), Minor.parse(image.toolkit_cuda)
        return (
            self.passed,
            self.fit == "cubin",
            version_of(image.torch),
            self.driver_knows_cuda,
            wheel_cuda,
            # A toolkit that is newer than the wheel writes PTX that needs a newer driver.
            toolkit_cuda == wheel_cuda,
            toolkit_cuda,
            # An image for one architecture is its parent without code for other GPUs: smaller.
            image.arch is not None,
        )

    def as_json(self) -> dict[str, Any]:
        """Return the entry of this image in the output of `choose --json`."""
        return {
            "name": self.name,
            "torch": self.image.torch,
            "fits": not self.against,
            "code": self.fit,
            "reasons": list(self.reasons),
            "against": list(self.against),
        }


class UnfitImages(NamedTuple):
    """Images that can't be taken for the same reasons."""

    names: tuple[str, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The images that run on a machine, and the nearest that don't."""

    fitting: tuple[Answer, ...]
    """Best first."""
    others: tuple[UnfitImages, ...]
    """Nearest first."""

    def as_json(self) -> dict[str, Any]:
        """Return the choice as `choose --json` prints it."""
        others = [
            {"names": list(unfit.names), "against": list(unfit.reasons)} for unfit in self.others
        ]
        return {"fitting": [answer.as_json() for answer in self.fitting], "others": others}


def choose(images: Sequence[ImageSummary], machine: Machine, options: Options) -> Choice:
    """Choose images for a machine: those that run on it and are as a person wants, best first.

    `machine` has the GPUs and the driver, `options` what the person wants. The choice also names
    the images that come nearest without fitting, grouped by the reasons against them. They are only
    of the wanted profile and kind (devel or not), and at most four groups (_MOST_NAMED).
    """
    answers = [answer(image, machine, options) for image in images]
    fitting = [candidate for candidate in answers if not candidate.against]
    fitting.sort(key=lambda candidate: candidate.rank, reverse=True)

    def nearness(candidate: Answer) -> tuple[Any, ...]:
        """Return a key to sort images that don't fit by: the nearest has the greatest."""
        # Images of the wanted torch come first: the person wants to know why they don't run. Then
        # those with the fewest reasons against them.
        has_wanted_torch = options.torch.contains(candidate.image.torch, prereleases=True)
        return has_wanted_torch, -len(candidate.against), candidate.rank

    unfit = [candidate for candidate in answers if candidate.against]
    unfit.sort(key=nearness, reverse=True)
    # Images with the same reasons share a sentence, at the place of the nearest of them.
    names_by_reasons: dict[tuple[str, ...], list[str]] = {}
    for candidate in unfit:
        image = candidate.image
        if image.profile == options.profile and image.devel == options.devel:
            names_by_reasons.setdefault(candidate.against, []).append(image.name)
    others = [UnfitImages(tuple(names), reasons) for reasons, names in names_by_reasons.items()]
    return Choice(fitting=tuple(fitting), others=tuple(others[:_MOST_NAMED]))


def find_next_step(images: Sequence[ImageSummary], machine: Machine, options: Options) -> str:
    """Return what a person can do if none of these images fits a machine, as a sentence.

    For example `update the driver to 525.60.13 or newer, for cu126-torch25`. Three changes are
    tried, alone and together: that every image has a lock (its packages with their hashes), that
    the machine has another driver, and that the person gives no options. The result names the
    fewest changes with which an image fits.
    """
    if _conflict_of_drivers(machine):
        return "choose for each kind of GPU by itself, in a machine of its own"
    # The machine's driver is too old or too new for its GPUs.
    if list(wrong_for_gpu(machine)):
        return f"install {_usable_branches(machine)}, and choose again with its number as --driver"

    def needed_driver(fits: Answer) -> Version:
        """Return the driver that an image needs, to compare it with that of another."""
        return version_of(_oldest_driver(fits.image, fits.fit, machine))

    # Each change alone, then each pair, then all three. The lock is first, as it changes nothing on
    # the machine.
    possible_changes = ("lock", "driver", "options")
    for count in range(1, len(possible_changes) + 1):
        for changes in itertools.combinations(possible_changes, count):
            fitting = _choose_after(changes, images, machine, options).fitting
            if not fitting:
                continue
            best = fitting[0]
            # Name the image that is content with the oldest driver.
            if "driver" in changes:
                best = min(fitting, key=needed_driver)
            return "; ".join(_steps_to(best, changes, machine))

    archs = ", ".join(str(arch) for arch in machine.archs)
    return (
        f"no image of the matrix has code for {archs}: add a stack whose torch has it "
        "(docs/matrix.md), or take another GPU"
    )


def advice_for_old_driver(machine: Machine) -> str:
    """Return what runs on a driver that is too old for CUDA 12 and may not be updated, or "".

    No image of ours does, but torch has wheels for CUDA 11. Empty: the driver is not known, newer,
    or older than CUDA 11 needs, or those wheels have no code for the GPUs of the machine.
    """
    if machine.has_driver(_CUDA_12_DRIVER) or not machine.has_driver(_CUDA_11_DRIVER):
        return ""
    oldest, newest = _CUDA_11_ARCHS
    if machine.arm or not all(oldest <= arch <= newest for arch in machine.archs):
        return ""
    return (
        "if the driver must stay: torch's own wheels for CUDA 11.8 run on it, which end with 2.7.1 "
        "(`pip install torch==2.7.1 --index-url https://download.pytorch.org/whl/cu118`), without "
        "xformers and torchao; on data-centre GPUs NVIDIA's cuda-compat packages are another way"
    )


def _usable_branches(machine: Machine) -> str:
    """Return in words which branches of drivers run all GPUs of a machine.

    At least one of its architectures is in the table of drivers, and a driver runs all of them.
    """
    rows = [row for _, row in _driver_rows(machine)]
    first = max(row.first for row in rows)
    last_row = _row_of_last_branch(machine)
    if last_row:
        return f"a driver of branch {first} to {last_row.last}"
    return f"driver {first} or newer"


def _row_of_last_branch(machine: Machine) -> DriverRow | None:
    """Return the row of the GPU whose drivers end first, of those of a machine; None if none end.

    The row's `last` is then the last branch of drivers that runs all GPUs of the machine.
    """
    ending = [row for _, row in _driver_rows(machine) if row.last]
    return min(ending, key=lambda row: row.last or 0, default=None)


def _choose_after(
    changes: Collection[str], images: Sequence[ImageSummary], machine: Machine, options: Options
) -> Choice:
    """Choose images as if these changes were made: `driver`, `lock` and `options`, or some of them.

    `driver`: the machine has any driver that an image needs. `lock`: each image has its lock.
    `options`: the person does not describe the image.
    """
    if "driver" in changes:
        # An unknown driver speaks against no image.
        machine = replace(machine, driver="")
    if "lock" in changes:
        images = [image.model_copy(update={"blocked": ""}) for image in images]
    if "options" in changes:
        options = Options()
    return choose(images, machine, options)


def _oldest_driver(image: ImageSummary, fit: Fit, machine: Machine) -> str:
    """Return the oldest driver, a version or a branch, with which an image runs on all its GPUs.

    `fit`: how that of the GPUs runs the image's code that runs it worst. Both the image's CUDA and
    each GPU need a driver, and the newest of these is the answer.
    """
    oldest = image.native_driver if fit == "ptx" else image.min_driver
    for _, row in _driver_rows(machine):
        if row.first > int(oldest.partition(".")[0]):
            oldest = str(row.first)
    return oldest


def _steps_to(best: Answer, changes: Collection[str], machine: Machine) -> Iterator[str]:
    """Yield what a person does so that an image fits a machine.

    `changes` says what is in the way: `driver`, `lock`, `options`.
    """
    image = best.image
    if "options" in changes:
        yield f"leave out the options that describe the image: {image.name} fits then"
    if "driver" in changes:
        of_windows = " of Windows" if machine.wsl else ""
        needed = _oldest_driver(image, best.fit, machine)
        yield f"update the driver{of_windows} to {needed} or newer, for {image.name}"
        if advice := advice_for_old_driver(machine):
            yield advice
    if "lock" in changes:
        lock = command("lock", image.name)
        yield f"`{lock}` on a machine that reaches its package index, then build {image.name}"


def answer(image: ImageSummary, machine: Machine, options: Options) -> Answer:
    """Return what speaks for an image on a machine, what to know, and what speaks against it.

    An image fits if nothing speaks against it: `against` is empty. If the machine has several GPUs,
    it must fit each. `options` is what the person wants.
    """
    # How each GPU runs its code: `cubin` (machine code), `ptx` or `no`.
    fit_by_arch = {arch: image.fit(arch) for arch in machine.archs}
    # _FITS has the best fit first.
    worst_fit = max(fit_by_arch.values(), key=_FITS.index)
    # A GPU without a name in the table of models counts under the name that its driver gives it.
    models_here = {model_of(gpu) for gpu in machine.gpus}
    return Answer(
        image=image,
        fit=worst_fit,
        reasons=(
            f"torch {image.torch}",
            *_code_reasons(image, fit_by_arch),
            # A warning, not a reason against it: known faults of its versions, which give wrong
            # numbers without an error.
            *image.silent,
            _driver_reason(image, machine, worst_fit),
            *_kernel_module_reasons(machine),
            *_end_of_support(machine),
        ),
        against=(
            *_unwanted_properties(image, options),
            *wrong_for_gpu(machine),
            *_wrong_arch(image, machine, fit_by_arch),
            *_too_old_driver(image, machine, worst_fit),
        ),
        driver_knows_cuda=machine.has_driver(image.native_driver),
        # The tests of the image passed on every model of this machine.
        passed=bool(models_here) and models_here <= set(image.passed_on),
    )


def _too_old_driver(image: ImageSummary, machine: Machine, worst_fit: Fit) -> Iterator[str]:
    """Yield why the machine's driver is too old for the image; nothing if it is not known.

    `worst_fit` is how that of the GPUs runs the image's code that runs it worst: by machine code,
    or by PTX, which the driver compiles. Machine code runs on drivers of older minors of the same
    CUDA major, too (minor version compatibility). PTX needs a driver of its own CUDA (NVIDIA, "CUDA
    Compatibility").
    """
    if not machine.has_driver(image.min_driver):
        cuda_major = image.wheel_cuda.partition(".")[0]
        yield f"CUDA {cuda_major} needs driver {image.min_driver} or newer"
    elif worst_fit == "ptx" and not machine.has_driver(image.native_driver):
        yield f"PTX of CUDA {image.wheel_cuda} needs driver {image.native_driver} or newer"


def _code_reasons(image: ImageSummary, fit_by_arch: Mapping[Arch, Fit]) -> Iterator[str]:
    """Yield sentences about the code that an image has for these GPUs, and about what it lacks.

    `fit_by_arch`: architecture of a GPU -> how it runs the image's code (`cubin` is machine code).
    """
    # The sentences about machine code come first, then those about PTX.
    for arch, fit in fit_by_arch.items():
        if fit == "cubin":
            yield _machine_code_reason(image, arch)
    for arch, fit in fit_by_arch.items():
        if fit == "ptx":
            yield f"only PTX for {arch}: compiled at the first run, and by torch alone"

    # torch.compile writes kernels in Triton.
    too_old = [str(arch) for arch in fit_by_arch if arch < _TRITONS_FIRST]
    if too_old:
        yield f"torch.compile refuses {', '.join(too_old)}: Triton begins at {_TRITONS_FIRST}"

    # Optional packages, such as xformers -> the GPUs that each has machine code for.
    for package, capabilities in image.libraries.items():
        lacking = [str(arch) for arch in fit_by_arch if arch.capability not in capabilities]
        if lacking:
            yield f"{package} has no machine code of its own for {', '.join(lacking)}"


def _machine_code_reason(image: ImageSummary, gpu: Arch) -> str:
    """Return a sentence about the machine code of an image that a GPU of this architecture runs.

    The GPU runs code for its own architecture, or else for the nearest older one of its major: an
    sm_89 runs code for sm_86.
    """
    # There is such code: this is asked only of images whose machine code the GPU runs.
    archs_of_image = [Arch.parse(capability) for capability in image.archs]
    used = max(arch for arch in archs_of_image if runs_on(arch, gpu))
    through = "" if used == gpu else f" through {used}, of the same major"
    return f"machine code for {gpu}{through}"


def _driver_reason(image: ImageSummary, machine: Machine, worst_fit: Fit) -> str:
    """Return how the machine's driver serves the image's CUDA, or which driver it needs.

    It is shown only for images that the driver runs: _too_old_driver speaks of the others. The
    image's `native_driver` is the first driver that knows its CUDA, `min_driver` the first that
    runs it. `worst_fit`: see `_oldest_driver`.
    """
    if not machine.driver:
        oldest = _oldest_driver(image, worst_fit, machine)
        last_row = _row_of_last_branch(machine)
        if last_row:
            return f"needs a driver from {oldest} to branch {last_row.last}"
        return f"needs driver {oldest} or newer"
    if machine.has_driver(image.native_driver):
        return (
            f"{machine.driver_text} knows CUDA {image.wheel_cuda} "
            f"({image.native_driver} is its first)"
        )
    return (
        f"{machine.driver_text} is older than CUDA {image.wheel_cuda}'s own "
        f"{image.native_driver}, new enough by minor version compatibility ({image.min_driver})"
    )


def _kernel_module_reasons(machine: Machine) -> Iterator[str]:
    """Yield each architecture of the machine that needs one kind of NVIDIA's kernel modules.

    The driver's kernel modules are open or proprietary. Most GPUs run with either. Windows has
    neither.
    """
    if machine.wsl:
        return
    # Name of the architecture (`Blackwell`) -> `open`, `either` or `proprietary`.
    modules_by_architecture: dict[str, str] = {}
    for arch in machine.archs:
        row = drivers().get(arch)
        if row:
            modules_by_architecture[row.architecture] = row.modules
    # Hopper runs with either, but beside an ARM processor with the open ones only.
    if machine.arm and _HOPPER in machine.archs:
        modules_by_architecture["Grace Hopper"] = "open"

    for architecture, modules in modules_by_architecture.items():
        if modules != "either":
            yield f"{architecture} needs the driver's {modules} kernel modules"


def _end_of_support(machine: Machine) -> Iterator[str]:
    """Yield the last CUDA and the last drivers that know all GPUs of a machine, if these ended."""
    row = _row_of_last_branch(machine)
    if row:
        yield (
            f"CUDA {row.last_cuda}.x and driver branch {row.last} are the last for "
            f"{row.architecture}"
        )


def wrong_for_gpu(machine: Machine) -> Iterator[str]:
    """Yield why the machine's driver can't run its GPUs, whatever image is chosen.

    For example `sm_120 (Blackwell) needs driver 570 or newer`. A driver is named by its branch, the
    first number of its version: 570 of 570.86.16. Each GPU architecture has a first branch that
    knows it, and some have a last one. If the machine has GPUs that no driver runs together, that
    alone is said. Nothing is said of a driver that is not known.
    """
    conflict = _conflict_of_drivers(machine)
    if conflict:
        yield conflict
        return
    if not machine.driver:
        return
    for arch, row in _driver_rows(machine):
        if machine.branch < row.first:
            needs_open = row.modules == "open" and not machine.wsl
            modules = ", with the open kernel modules" if needs_open else ""
            yield f"{arch} ({row.architecture}) needs driver {row.first} or newer{modules}"
        if row.last and machine.branch > row.last:
            yield f"branch {row.last} is the last driver for {arch} ({row.architecture})"


def _driver_rows(machine: Machine) -> list[tuple[Arch, DriverRow]]:
    """Return what gpu_models.yaml says about the drivers of each architecture of a machine.

    Left out are architectures whose driver comes with a board's own system (Jetson), and such as we
    do not know.
    """
    rows = []
    for arch in machine.archs:
        row = drivers().get(arch)
        if row:
            rows.append((arch, row))
    return rows


def _conflict_of_drivers(machine: Machine) -> str:
    """Return why no driver runs all GPUs of a machine; empty if one does.

    A machine has one driver with one kind of kernel modules. So a V100, which needs the proprietary
    ones, and a B200, which needs the open ones, are never in one (unslothai/unsloth#5876).
    """
    rows = _driver_rows(machine)
    for arch, row in rows:
        for other_arch, other in rows:
            # Names of architectures, such as Volta, say more than capabilities.
            pair = f"{arch} ({row.architecture}) and {other_arch} ({other.architecture})"
            if row.last and row.last < other.first:
                return (
                    f"no driver serves both {pair}: branch {row.last} is the last of the one, "
                    f"{other.first} the first of the other"
                )
            if not machine.wsl and (row.modules, other.modules) == ("proprietary", "open"):
                return (
                    f"no driver serves both {pair}: the one needs the proprietary kernel modules, "
                    "the other the open ones"
                )
    return ""


def _unwanted_properties(image: ImageSummary, options: Options) -> Iterator[str]:
    """Yield each property of the image that is not as the person wants it.

    Compared are profile, torch, Python, and the devel toolkit (the whole CUDA compiler). An image
    that can't be built yet is unwanted, too.
    """
    if image.blocked:
        yield f"{_NO_LOCK}: it can't be built before `{command('lock')}` has made one"
    if image.profile != options.profile:
        if image.profile:
            yield f"is for the profile {image.profile}"
        else:
            yield f"has no profile {options.profile}"
    if not options.torch.contains(image.torch, prereleases=True):
        yield f"torch {image.torch} is not {options.torch}"
    if options.python and image.python != options.python:
        yield f"Python {image.python} is not {options.python}"
    if not options.python and not image.default_python:
        yield f"Python {image.python} was not asked for (--python {image.python})"
    if image.devel and not options.devel:
        yield "has a devel toolkit, which was not asked for (--devel)"
    if options.devel and not image.devel:
        yield "has no devel toolkit"


def _wrong_arch(
    image: ImageSummary, machine: Machine, fit_by_arch: Mapping[Arch, Fit]
) -> Iterator[str]:
    """Yield why the image can't run on this machine's processor or GPUs, whatever the driver.

    `fit_by_arch`: architecture of a GPU -> how it runs the image's code: `cubin` (machine code),
    `ptx` or `no`.
    """
    is_for_arm = image.name.endswith(f"-{Platform.ARM64.suffix}")
    if machine.arm and not is_for_arm:
        yield "is for x86-64, and this GPU's host processor is ARM"
        return
    if is_for_arm and not machine.arm:
        yield "is for ARM processors"
        return
    for arch, fit in fit_by_arch.items():
        # `fit` follows CUDA's rule that code also runs on newer GPUs of its major. For GPUs that
        # are built into an ARM board or superchip, we trust that rule only where it was tried: on
        # those that the image names. A graphics card in an ARM server needs no trial.
        is_built_in = machine.arm and arch not in _CARDS
        is_untried = is_built_in and arch.capability not in image.archs
        if fit == "no" or is_untried:
            archs = " ".join(str(Arch.parse(capability)) for capability in image.archs)
            yield f"has no code for {arch} (its libraries all have {archs})"
            continue
        for program, known_capabilities in image.compilers.items():
            if arch.capability not in known_capabilities:
                yield f"{program} does not know {arch}: what torch.compile or Triton compiles fails"


# --- the choice in sentences ----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Known:
    """What a site or recorded runs know of an image, besides its summary."""

    get: str
    """How to get it."""
    sentence: str
    """What was proved of it on this machine's GPUs."""


def sentences(
    choice: Choice, machine: Machine, known: Known | None, next_step: str
) -> Iterator[str]:
    """Yield the lines that tell a person which image to take, and why not the others.

    `known`: how to get the first image that fits, and what was proved of it here; None: none fits.
    `next_step`: what to do if none fits (`find_next_step`).
    """
    yield str(machine)
    driver_faults = list(wrong_for_gpu(machine))
    if choice.fitting and known:
        best, *also_fitting = choice.fitting
        yield f"Take {best.name}: {'; '.join(best.reasons)}"
        yield f"    {known.get}"
        yield known.sentence
        if also_fitting:
            yield f"These fit too: {_some([candidate.name for candidate in also_fitting])}"
            yield from _why_no_newer_torch(best, also_fitting, machine)
    elif driver_faults:
        # No image can help: reasons against single images would mislead.
        yield f"No image fits: {'; '.join(driver_faults)}."
        yield f"next: {next_step}"
        return
    else:
        # What only lacks a lock would fit: the next step says how to make it.
        unlocked: list[str] = []
        for unfit in choice.others:
            if len(unfit.reasons) == 1 and unfit.reasons[0].startswith(_NO_LOCK):
                unlocked += unfit.names
        if unlocked:
            yield f"None that can be built now fits; {_some(unlocked)} would, with a lock."
        else:
            yield "No image fits."
        yield f"next: {next_step}"

    for unfit in choice.others:
        which = "Not"
        # People ask why they get an older torch than there is: mostly, the driver is too old. The
        # first image of a group has the newest torch.
        if choice.fitting and "needs driver" in unfit.reasons[0]:
            torch = Minor.parse(choice.fitting[0].image.torch)
            if ImageName.parse(unfit.names[0]).torch > torch:
                which = "Not the newer torch of"
        yield f"{which} {_some(unfit.names)}: {'; '.join(unfit.reasons)}"


def _why_no_newer_torch(
    best: Answer, also_fitting: Sequence[Answer], machine: Machine
) -> Iterator[str]:
    """Yield why the images that fit and have a newer torch come behind the best one.

    Two things count more than a newer torch (`Answer.rank`): tests that passed on these GPUs, and
    machine code for them.
    """
    torch = version_of(best.image.torch)
    newer = [other for other in also_fitting if version_of(other.image.torch) > torch]
    if newer:
        reason = f"its gpu tier has not passed on {', '.join(machine.gpus)}"
        if newer[0].passed or not best.passed:
            reason = f"it has only PTX for {', '.join(map(str, machine.archs))}"
        yield f"Not the newer torch of {_some([other.name for other in newer])}: {reason}"
