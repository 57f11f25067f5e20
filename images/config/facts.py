"""The types of facts.yaml: what is known of torch releases, packages, drivers and GPUs.

Every row names its source.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache, partial
from typing import Annotated, Any, Literal, Self

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag
from packaging.utils import parse_wheel_filename
from packaging.version import Version
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from images.config.names import Arch, Minor
from images.config.platforms import Platform
from validate import compute_capability


def _parsable(what: str, parse: Callable[[str], object], value: object) -> str:
    """Return a value as text, unchanged, if `parse` can read it.

    Raises ValueError otherwise; `what` names the expected kind in its message.
    """
    text = str(value)
    try:
        parse(text)
    except ValueError:
        raise ValueError(f"{text!r} is no {what}") from None
    return text


def word(pattern: str, what: str, reserved: tuple[str, ...] = ()) -> BeforeValidator:
    """Return a validator for text that goes unchanged into a Dockerfile, a file name or a tag.

    The whole text must match `pattern` and be none of `reserved`. `what` names the expected kind in
    the message of the error. The validator returns the value as text, or raises ValueError.
    """

    def checked(value: object) -> str:
        text = str(value)
        if not re.fullmatch(pattern, text, re.ASCII) or text in reserved:
            raise ValueError(f"{text!r} is no {what}")
        return text

    return BeforeValidator(checked)


VersionText = Annotated[str, BeforeValidator(partial(_parsable, "version (PEP 440)", Version))]
RangeText = Annotated[
    str, BeforeValidator(partial(_parsable, "version range (PEP 440)", SpecifierSet))
]
RequirementText = Annotated[
    str, BeforeValidator(partial(_parsable, "requirement (PEP 508)", Requirement))
]
ReleaseRange = Annotated[str, StringConstraints(pattern=r"^(>=|<)\d+(\.\d+)*(,<\d+(\.\d+)*)?$")]
"""`>=4.45`, `<5` or both. Containers compare it without `packaging` (checks/static/pins.py)."""
Capability = Annotated[str, BeforeValidator(lambda value: Arch.parse(str(value)).capability)]
MinorText = Annotated[
    str, word(r"\d+\.\d+", "version of the form X.Y"), Field(pattern=r"^\d+\.\d+$")
]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Sentence = Annotated[str, StringConstraints(min_length=1)]
Source = str | dict[str, str]


@cache  # Parsing is slow, and each image asks the same.
def within(version: str, version_range: str) -> bool:
    """Return whether a version lies in a range (PEP 440): `2.7.1` is in `==2.7.*`."""
    return version in SpecifierSet(version_range)


def nearest(cudas: Iterable[Minor], torch_cuda: Minor) -> Minor | None:
    """Return the CUDA of the library that bitsandbytes loads, which has one for each of `cudas`.

    It takes the library for torch's CUDA. If there is none, it takes the nearest lower minor of the
    same major, else the nearest higher one. None if there is no library of that major.
    """
    same_major = [cuda for cuda in cudas if cuda.major == torch_cuda.major]
    not_newer = [cuda for cuda in same_major if cuda <= torch_cuda]
    if not_newer:
        return max(not_newer)
    return min(same_major, default=None)


class Row(BaseModel):
    """A row of a YAML file. Unknown keys are errors, and nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DeviceCode(Row):
    """The GPU architectures a binary holds: machine code (`archs`) and PTX."""

    archs: list[Capability]
    ptx: list[Capability] = []

    def covers(self, arch: Arch) -> compute_capability.Fit:
        """Return how a GPU of `arch` runs it: `cubin` (machine code), `ptx`, or `no`."""
        cubins = tuple(Arch.parse(text) for text in self.archs)
        ptx = tuple(Arch.parse(text) for text in self.ptx)
        return compute_capability.fit(cubins, ptx, arch)


class TorchVariant(DeviceCode):
    """One CUDA build of a torch release."""

    cxx11_abi: bool
    cudnn: str = ""
    """The cuDNN that its wheel requires; empty: not known.

    Locks have it. For other indexes it is what pytorch's
    .github/scripts/generate_binary_build_matrix.py of that release says."""
    unverified: str = ""
    """Why its architectures were not measured; empty: they were."""


class TorchFacts(Row):
    """One torch release. `variants` are by CUDA; the default index has only `default_cuda`."""

    default_cuda: MinorText
    variants: dict[MinorText, TorchVariant]
    triton: RangeText
    pythons: list[MinorText]
    source: Source
    note: str = ""


class XformersFacts(DeviceCode):
    """One xformers release: the torch that it needs, and the CUDA that its wheel was built with."""

    torch: RangeText
    cuda: MinorText
    python: RangeText
    newest: Capability | None = None
    """The newest GPU that its operators accept, whatever code they have; None: any."""
    source: Source

    def refuses(self, arch: Arch) -> bool:
        """Return whether its CUTLASS and FlashAttention 3 operators refuse a GPU as too new."""
        return self.newest is not None and arch > Arch.parse(self.newest)


class PrebuiltWheel(Row):
    """One official wheel: what it was built for, its file, and its hash."""

    torch: MinorText
    cuda: int
    """CUDA major of the torch it goes with."""
    cxx11_abi: bool
    python: MinorText
    file: str
    """Its name in the release, which may differ from the release's tag."""
    sha256: Sha256


class PrebuiltRelease(DeviceCode):
    """Official wheels of one version, in one place, for the same GPUs. No index has them."""

    package: str
    """Canonical name."""
    version: VersionText
    address: Annotated[str, StringConstraints(pattern=r"^https://\S+/$")]
    """Where the files lie."""
    wheels: list[PrebuiltWheel]
    source: Source

    def model_post_init(self, _context: Any) -> None:
        """Raise ValueError if a wheel's file name contradicts what its row in facts.yaml says.

        pydantic calls this after it has read the row.
        """
        for wheel in self.wheels:
            contradictions = self._contradictions(wheel)
            if contradictions:
                cause = ", ".join(contradictions)
                raise ValueError(f"{wheel.file} is not the wheel of its row: {cause}")

    def _contradictions(self, wheel: PrebuiltWheel) -> list[str]:
        """Return the parts of a wheel's file name that contradict its row: `version 2.8.3`.

        `wheel` is the row: the file name, and the CUDA, torch, C++ ABI and Python that it is for.
        The list is empty if package, version, build and tags agree.
        """
        name, version, _, tags = parse_wheel_filename(wheel.file)
        contradictions = []
        if name != self.package:
            contradictions.append(f"package {name}")
        # `public` is the version without its local part.
        if version.public != str(Version(self.version)):
            contradictions.append(f"version {version.public}")
        # A file name need not have a local version (+cu12torch2.7cxx11abitrue), but a wrong one is
        # a contradiction.
        build = f"cu{wheel.cuda}torch{wheel.torch}cxx11abi{str(wheel.cxx11_abi).lower()}"
        if version.local not in (None, build):
            contradictions.append(f"build {version.local}")
        python = f"cp{wheel.python.replace('.', '')}"
        if Tag(python, python, "linux_x86_64") not in tags:
            contradictions.append(f"tags {', '.join(map(str, tags))}")
        return contradictions


class BitsandbytesFacts(Row):
    """One bitsandbytes release: its CUDA libraries and the rule by which it picks one."""

    torch: RangeText
    python: RangeText
    lookup: Literal["exact", "same-major"]
    libraries: dict[MinorText, DeviceCode]
    source: Source

    def library_for(self, wheel_cuda: Minor) -> Minor | None:
        """Return which library bitsandbytes loads beside torch's CUDA, by the library's CUDA.

        None if it finds none. The rules are those of its cextension.py.
        """
        cudas = {Minor.parse(text) for text in self.libraries}
        if self.lookup == "exact":
            return wheel_cuda if wheel_cuda in cudas else None
        return nearest(cudas, wheel_cuda)

    def file_for(self, wheel_cuda: Minor) -> str:
        """Return the path of the library that bitsandbytes looks for beside torch's CUDA.

        The file does not exist if `library_for` finds none.
        """
        cuda = self.library_for(wheel_cuda) or wheel_cuda
        return f"bitsandbytes/libbitsandbytes_cuda{cuda.digits}.so"


class TorchaoFacts(Row):
    """One torchao release: its torch, and the CUDA major that its libraries need, if it has any."""

    torch: RangeText
    cuda_major: int | None = None
    source: Source


class PackageFacts(DeviceCode):
    """One release of a framework, or of what one requires: its requirements, torch and CUDA."""

    archs: list[Capability] = []
    """Empty: its device code was not read, or it has none."""

    form: Literal["wheel", "source", "cuda-source"] = "wheel"
    """What an index has: a wheel, pure Python as source, or source that only nvcc can compile."""
    python: RangeText = ""
    requires: list[RequirementText] = []
    """Its Requires-Dist lines, without those of extras."""
    torch: RangeText = ""
    """The torch that its binaries were compiled against, if its metadata does not say so."""
    cuda_majors: list[int] = []
    """CUDA majors its binaries run with; empty: any."""
    note: str = ""
    source: Source


class CudaFacts(Row):
    """One CUDA toolkit release line."""

    release: VersionText
    driver: VersionText
    """The first driver that knows this CUDA: it came with the first release of the line."""
    nvcc_archs: list[Capability]
    gcc_max: int
    source: Source


class MinimumDriver(Row):
    """The oldest driver that runs any minor of a CUDA major (minor version compatibility)."""

    driver: VersionText
    source: Source


class CompilerFacts(Row):
    """A release of a run-time compiler, and the GPUs that it compiles for."""

    archs: list[Capability]
    source: Source


class Replacement(Row):
    """The successor of an abandoned distribution."""

    by: str
    source: Source


class Conflict(Row):
    """Releases that always fail together, though none of their requirements forbids it.

    Judged in images (planning), in derived images (claim pins/additions) and in audits.
    """

    packages: dict[str, ReleaseRange] = Field(min_length=2)
    """Canonical name -> the releases that are part of the conflict."""
    why: Sentence
    fix: Sentence | None = None
    """What to do in an environment, if it is more than to take newer releases."""
    source: Source

    def applies_to(self, versions: Mapping[str, str]) -> bool:
        """Return whether `versions`, by canonical name, have all the releases that conflict."""
        for name, releases in self.packages.items():
            if name not in versions or not within(versions[name], releases):
                return False
        return True

    def releases(self, versions: Mapping[str, str]) -> str:
        """Return which of these versions are meant: `peft 0.19.1 and transformers 4.41.2`."""
        return " and ".join(f"{name} {versions[name]}" for name in self.packages)

    def sentence(self, versions: Mapping[str, str]) -> str:
        """Return the sentence for people: which of these versions fail together, and why."""
        return f"{self.releases(versions)} fail together: {self.why}"

    def requirements_without(self, versions: Mapping[str, str]) -> list[str]:
        """Return requirements of the packages that no longer conflict and downgrade none of them.

        A package whose releases are too old (`<0.18`) gets the first that is not: `peft>=0.18`. All
        others stay, or become newer. `versions` are the installed ones, by canonical name.
        """
        requirements = []
        for name, releases in self.packages.items():
            is_too_old = releases.startswith("<") and "," not in releases
            least = releases.removeprefix("<") if is_too_old else versions[name]
            requirements.append(f"{name}>={least}")
        return requirements


class Undeclared(Row):
    """A package that imports another one at run time, and does not require it."""

    package: str
    releases: ReleaseRange
    needs: str
    """The distribution that it imports, which no lock has unless it is pinned."""
    tried: VersionText
    """A version of it that works with these releases."""
    why: Sentence
    source: Source


class FailingAddition(Row):
    """An addition to a derived image that fails there. Judged by the claim pins/additions."""

    name: str
    """A package, or a variable that is switched on."""
    unless: list[str] = []
    """Any of these makes it work: packages (`huggingface-hub>=1`), variables, or `nvcc`."""
    why: Sentence
    source: Source


class Arm64Torch(Row):
    """The aarch64 wheel of a torch release on the default index, by its CUDA version."""

    variants: dict[MinorText, DeviceCode]
    hollow: list[str] = []
    """Libraries with device code in the x86-64 wheel and none in this one."""
    source: Source


class Arm64Bitsandbytes(Row):
    """The aarch64 wheel of a bitsandbytes release."""

    libraries: dict[MinorText, DeviceCode]
    source: Source


class Board(Row):
    """A GPU of boards and superchips with ARM processors."""

    names: list[str]
    unfit: Sentence | None = None
    """Why images for linux/arm64 do not run there."""
    source: Source


class Arm64Facts(Row):
    """What differs on linux/arm64, measured in aarch64 wheels. All else holds on both platforms."""

    torch: dict[VersionText, Arm64Torch] = {}
    bitsandbytes: dict[VersionText, Arm64Bitsandbytes] = {}
    torchao: dict[VersionText, TorchaoFacts] = {}
    device_code: dict[str, DeviceCode] = {}
    lacking: dict[str, Sentence] = {}
    """Distributions without an aarch64 wheel on any index -> how that was found out."""
    boards: dict[Capability, Board] = {}


class Facts(Row):
    """The whole of facts.yaml."""

    torch_index: str
    """The index that has every torch variant; `{variant}` stands for cu126 and the like."""
    torch: dict[VersionText, TorchFacts]
    xformers: dict[VersionText, XformersFacts]
    prebuilt: list[PrebuiltRelease]
    bitsandbytes: dict[VersionText, BitsandbytesFacts]
    torchao: dict[VersionText, TorchaoFacts]
    packages: dict[str, dict[VersionText, PackageFacts]] = {}
    """Canonical name -> version -> what is known of it."""
    replaced: dict[str, Replacement] = {}
    """Abandoned distributions that pages still name."""
    conflicts: list[Conflict] = []
    """Releases that fail together."""
    limits: list[Conflict] = []
    """Releases that work together, but not for what the row says. Only planning warns of them."""
    undeclared: list[Undeclared] = []
    """Packages that import what they do not require."""
    failing_additions: list[FailingAddition] = []
    """What fails if a derived image adds it."""
    cuda: dict[MinorText, CudaFacts]
    minimum_drivers: dict[str, MinimumDriver]
    device_code: dict[str, DeviceCode] = {}
    """`NAME==VERSION` of a library that may replace another -> the code in each of its files."""
    compilers: dict[str, dict[VersionText, CompilerFacts]] = {}
    """Distribution of a run-time compiler -> version -> what it compiles for."""
    arm64: Arm64Facts = Arm64Facts()

    @property
    def companions(
        self,
    ) -> dict[str, Mapping[str, XformersFacts | TorchaoFacts | BitsandbytesFacts]]:
        """The packages with CUDA code of their own -> version -> what is known of that release."""
        return {
            "xformers": self.xformers,
            "torchao": self.torchao,
            "bitsandbytes": self.bitsandbytes,
        }

    def releases_of(self, package: str) -> Collection[str]:
        """Return the versions of a package of which something is known; torch is in `torch`."""
        return [*self.companions.get(package, ()), *self.packages.get(package, ())]

    def run_time_compilers(
        self, triton: str, wheel_cuda: Minor, nvcc: Minor | None = None
    ) -> dict[str, list[str]]:
        """Return the compilers that an image runs for GPU code: name for messages -> capabilities.

        They are the ptxas of Triton (`triton` is its version; empty: there is none), NVRTC of
        torch's CUDA, and nvcc of the toolkit (`nvcc` is its CUDA; None: there is none). Compilers
        that facts.yaml does not know are left out.
        """
        compilers = {}
        row = self.compilers.get("triton", {}).get(triton)
        if row:
            compilers[f"the ptxas of Triton {triton}"] = row.archs
        # NVRTC knows the GPUs that the nvcc of its CUDA knows.
        toolkit_of_torch = self.cuda.get(str(wheel_cuda))
        if toolkit_of_torch:
            compilers[f"NVRTC of CUDA {wheel_cuda}"] = toolkit_of_torch.nvcc_archs
        toolkit = self.cuda.get(str(nvcc)) if nvcc else None
        if toolkit:
            compilers[f"nvcc of CUDA {nvcc}"] = toolkit.nvcc_archs
        return compilers

    def model_post_init(self, _context: Any) -> None:
        """Raise ValueError if `minimum_drivers` lacks a CUDA for which torch has wheels.

        `minimum_drivers` has a row for each major release of CUDA. pydantic calls this after it has
        read facts.yaml.
        """
        cudas: set[str] = set()
        for torch in self.torch.values():
            cudas.update(torch.variants)

        without_driver = []
        for cuda in sorted(cudas):
            major = cuda.split(".")[0]
            if major not in self.minimum_drivers:
                without_driver.append(cuda)
        if without_driver:
            raise ValueError(f"`minimum_drivers` has no row for CUDA {', '.join(without_driver)}")

    def on(self, platform: Platform) -> Self:
        """Return the facts for a platform.

        For linux/arm64, the tables under `arm64` replace those for x86-64. Other tables, such as
        those of CUDA and of drivers, hold on both platforms. Raises KeyError if `arm64` has a
        release of torch or bitsandbytes that the tables for x86-64 lack.
        """
        if platform is Platform.AMD64:
            return self

        # On linux/arm64, a bitsandbytes release only has other CUDA libraries.
        bitsandbytes = {}
        for version, row in self.arm64.bitsandbytes.items():
            on_amd64 = self.bitsandbytes[version]
            bitsandbytes[version] = on_amd64.model_copy(update={"libraries": row.libraries})
        return self.model_copy(
            update={
                "torch": {version: self._torch_on_arm64(version) for version in self.arm64.torch},
                "bitsandbytes": bitsandbytes,
                "torchao": self.arm64.torchao,
                "device_code": self.arm64.device_code,
                # No aarch64 wheel of these was measured.
                "xformers": {},
                "prebuilt": [],
            }
        )

    def _torch_on_arm64(self, version: str) -> TorchFacts:
        """Return a torch release with the CUDA variants and device code of its aarch64 wheels.

        Raises KeyError for a release that facts.yaml has for one platform only. A CUDA of which
        there is no wheel on x86-64 is left out.
        """
        on_amd64 = self.torch[version]
        variants = {}
        for cuda, code in self.arm64.torch[version].variants.items():
            # C++ ABI and cuDNN are the same on every platform.
            if cuda in on_amd64.variants:
                measured = {"archs": code.archs, "ptx": code.ptx, "unverified": ""}
                variants[cuda] = on_amd64.variants[cuda].model_copy(update=measured)
        return on_amd64.model_copy(update={"variants": variants})
