"""What the world ships, typed: the rows of facts.yaml. Each row carries its source."""

import re
from collections.abc import Callable, Iterable, Mapping
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


def _read(what: str, parse: Callable[[str], object], value: object) -> str:
    """A text that `parse` can read, kept as it is written."""
    text = str(value)
    try:
        parse(text)
    except ValueError:
        raise ValueError(f"{text!r} is no {what}") from None
    return text


def word(pattern: str, what: str, but: tuple[str, ...] = ()) -> BeforeValidator:
    """Text that goes into a Dockerfile, a file name or a tag as it stands."""

    def checked(value: object) -> str:
        text = str(value)
        if not re.fullmatch(pattern, text, re.ASCII) or text in but:
            raise ValueError(f"{text!r} is no {what}")
        return text

    return BeforeValidator(checked)


VersionText = Annotated[str, BeforeValidator(partial(_read, "version (PEP 440)", Version))]
RangeText = Annotated[str, BeforeValidator(partial(_read, "version range (PEP 440)", SpecifierSet))]
RequirementText = Annotated[
    str, BeforeValidator(partial(_read, "requirement (PEP 508)", Requirement))
]
ReleaseRange = Annotated[str, StringConstraints(pattern=r"^(>=|<)\d+(\.\d+)*(,<\d+(\.\d+)*)?$")]
"""`>=4.45`, `<5` or both: containers compare it without packaging (validate/checks/static/pins.py)."""
Capability = Annotated[str, BeforeValidator(lambda value: Arch.parse(str(value)).capability)]
MinorText = Annotated[
    str, word(r"\d+\.\d+", "version of the form X.Y"), Field(pattern=r"^\d+\.\d+$")
]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Sentence = Annotated[str, StringConstraints(min_length=1)]
Source = str | dict[str, str]


@cache
def within(version: str, wanted: str) -> bool:
    """Whether a version lies in a range (PEP 440): `2.7.1` in `==2.7.*`. Kept: each image asks the same."""
    return version in SpecifierSet(wanted)


def nearest(cudas: Iterable[Minor], wanted: Minor) -> Minor | None:
    """By bitsandbytes' rule `same-major`: exact, else the highest lower minor of that major, else its lowest higher."""
    own = [one for one in cudas if one.major == wanted.major]
    return max((one for one in own if one <= wanted), default=min(own, default=None))


class Row(BaseModel):
    """A row of either YAML file: unknown keys are errors, and nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DeviceCode(Row):
    """The GPU architectures a binary holds: machine code (`archs`) and PTX."""

    archs: list[Capability]
    ptx: list[Capability] = []

    def covers(self, arch: Arch) -> compute_capability.Fit:
        """How a GPU of `arch` runs it: `cubin`, `ptx` or `no`."""
        cubins, ptx = (tuple(map(Arch.parse, targets)) for targets in (self.archs, self.ptx))
        return compute_capability.fit(cubins, ptx, arch)


class TorchVariant(DeviceCode):
    """One CUDA build of a torch release."""

    cxx11_abi: bool
    cudnn: str = ""
    """The cuDNN that its wheel requires: as locks found it, of other indexes as pytorch's
    .github/scripts/generate_binary_build_matrix.py of that release has it. Empty: not known."""
    unverified: str = ""


class TorchFacts(Row):
    """One torch release. `variants` are keyed by CUDA version; the default index has `default_cuda` alone."""

    default_cuda: MinorText
    variants: dict[MinorText, TorchVariant]
    triton: RangeText
    requires_python: RangeText
    pythons: list[MinorText]
    cxx_standard: int
    source: Source
    note: str = ""


class XformersFacts(DeviceCode):
    """One xformers release: the torch it is bound to, and the CUDA its default wheel was built with."""

    torch: RangeText
    cuda: MinorText
    python: RangeText
    newest: Capability | None = None
    """The newest GPU that its own operators accept, whatever code they have; None: any."""
    source: Source

    def refuses(self, arch: Arch) -> bool:
        """Whether its CUTLASS and FlashAttention 3 operators refuse a GPU as too new."""
        return self.newest is not None and arch > Arch.parse(self.newest)


class PrebuiltWheel(Row):
    """One official wheel: what it was built for, the file, and the only bytes that are taken for it."""

    torch: MinorText
    cuda: int
    """CUDA major of the torch it goes with."""
    cxx11_abi: bool
    python: MinorText
    file: str
    """As the release names it: tags and file names of a release differ."""
    sha256: Sha256


class PrebuiltRelease(DeviceCode):
    """Official wheels of one version that lie in one place and hold code for the same GPUs. No index has them."""

    package: str
    """Canonical name."""
    version: VersionText
    address: Annotated[str, StringConstraints(pattern=r"^https://\S+/$")]
    """Where the files lie."""
    wheels: list[PrebuiltWheel]
    source: Source

    def model_post_init(self, _context: Any) -> None:
        """Refuses a file whose name says otherwise than its row: a hash beside another row's name is a slip."""
        for wheel in self.wheels:
            name, version, _, tags = parse_wheel_filename(wheel.file)
            python = f"cp{wheel.python.replace('.', '')}"
            local = f"cu{wheel.cuda}torch{wheel.torch}cxx11abi{str(wheel.cxx11_abi).lower()}"
            said = {
                f"package {name}": name == self.package,
                f"version {version.public}": version.public == str(Version(self.version)),
                f"build {version.local}": version.local in (None, local),
                f"tags {', '.join(map(str, tags))}": Tag(python, python, "linux_x86_64") in tags,
            }
            if wrong := ", ".join(text for text, fits in said.items() if not fits):
                raise ValueError(f"{wheel.file} is not the wheel of its row: {wrong}")


class BitsandbytesFacts(Row):
    """One bitsandbytes release: its CUDA libraries and the rule by which it picks one."""

    torch: RangeText
    python: RangeText
    lookup: Literal["exact", "same-major"]
    libraries: dict[MinorText, DeviceCode]
    source: Source

    def library_for(self, wheel_cuda: Minor) -> Minor | None:
        """The library that bitsandbytes loads beside a torch of this CUDA (its own rule: cextension.py)."""
        own = {*map(Minor.parse, self.libraries)}
        if self.lookup == "exact":
            return wheel_cuda if wheel_cuda in own else None
        return nearest(own, wheel_cuda)

    def file_for(self, wheel_cuda: Minor) -> str:
        """The path of that library, or of the one it would look for in vain."""
        return f"bitsandbytes/libbitsandbytes_cuda{(self.library_for(wheel_cuda) or wheel_cuda).digits}.so"


class TorchaoFacts(Row):
    """One torchao release: its torch, and the CUDA major its default wheel's libraries need (None: it has none)."""

    torch: RangeText
    cuda_major: int | None = None
    source: Source


class PackageFacts(DeviceCode):
    """One release of a framework, or of what one asks for: its requirements, and what its binaries were made for."""

    archs: list[Capability] = []
    """Empty: nothing was read of its device code, or it has none."""

    form: Literal["wheel", "source", "cuda-source"] = "wheel"
    """What an index has of it: a wheel; pure Python as source; source that only nvcc can compile."""
    python: RangeText = ""
    requires: list[RequirementText] = []
    """Requires-Dist, of the release itself without its extras."""
    torch: RangeText = ""
    """The torch its binaries were compiled against, where its metadata does not say so."""
    cuda_majors: list[int] = []
    """CUDA majors its binaries run with; empty: any."""
    note: str = ""
    source: Source


class CudaFacts(Row):
    """One CUDA toolkit release line."""

    release: VersionText
    driver: VersionText
    """What came with the first release of the line: from it on, a driver knows this CUDA."""
    nvcc_archs: list[Capability]
    gcc_max: int
    wheels_hold_nvcc: bool
    source: Source


class MinimumDriver(Row):
    """The oldest driver that runs any minor of a CUDA major (minor version compatibility)."""

    driver: VersionText
    source: Source


class CompilerFacts(Row):
    """A release of what compiles while a program runs, and the GPUs that it compiles for."""

    archs: list[Capability]
    source: Source


class Replacement(Row):
    """A dead distribution and its successor."""

    by: str
    source: Source


class Conflict(Row):
    """Releases that fail together, whatever is done with them, though nothing that they require forbids it.

    Judged in images (planning), in derived images (claim pins/additions) and in audits.
    """

    packages: dict[str, ReleaseRange] = Field(min_length=2)
    """Canonical name -> the releases that take part in it."""
    why: Sentence
    source: Source

    def applies_to(self, versions: Mapping[str, str]) -> bool:
        """Return whether all of these packages are among `versions` (canonical name -> version) in these releases."""
        return all(
            name in versions and within(versions[name], releases)
            for name, releases in self.packages.items()
        )

    def sentence(self, versions: Mapping[str, str]) -> str:
        """Return the sentence for people: which packages, and why."""
        releases = [f"{name} {versions[name]}" for name in self.packages]
        return f"{' and '.join(releases)} fail together: {self.why}"


class FailingAddition(Row):
    """What a derived image may add, and what fails in it then. Judged by the claim pins/additions."""

    name: str
    """A package, or a variable that is switched on."""
    unless: list[str] = []
    """Packages (`huggingface-hub>=1`: in these releases), variables, or `nvcc`: with any of them it works."""
    why: Sentence
    source: Source


class Arm64Torch(Row):
    """The aarch64 wheel of a torch release on the default index, by its CUDA version."""

    variants: dict[MinorText, DeviceCode]
    hollow: list[str] = []
    """Libraries that have device code in the x86-64 wheel and none here."""
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
    """What differs on linux/arm64, each measured in the aarch64 wheels; the rest holds on either platform."""

    torch: dict[VersionText, Arm64Torch] = {}
    bitsandbytes: dict[VersionText, Arm64Bitsandbytes] = {}
    torchao: dict[VersionText, TorchaoFacts] = {}
    device_code: dict[str, DeviceCode] = {}
    lacking: dict[str, Sentence] = {}
    """Distributions of which no index has an aarch64 wheel -> what was looked at."""
    boards: dict[Capability, Board] = {}


class Facts(Row):
    """The whole of facts.yaml."""

    collected: str
    torch_index: str
    """Address of the index that has every torch variant; `{variant}` stands for cu126 and the like."""
    torch: dict[VersionText, TorchFacts]
    xformers: dict[VersionText, XformersFacts]
    prebuilt: list[PrebuiltRelease]
    bitsandbytes: dict[VersionText, BitsandbytesFacts]
    torchao: dict[VersionText, TorchaoFacts]
    packages: dict[str, dict[VersionText, PackageFacts]] = {}
    """Canonical name -> version -> what is known of it."""
    replaced: dict[str, Replacement] = {}
    """Distributions that pages still name though they are dead."""
    conflicts: list[Conflict] = []
    """Releases that fail together."""
    failing_additions: list[FailingAddition] = []
    """What fails where a derived image adds it."""
    cuda: dict[MinorText, CudaFacts]
    minimum_drivers: dict[str, MinimumDriver]
    device_code: dict[str, DeviceCode] = {}
    """`NAME==VERSION` of a library that may take the place of another -> what each of its files has code for."""
    compilers: dict[str, dict[VersionText, CompilerFacts]] = {}
    """Distribution -> version -> what it compiles for."""
    arm64: Arm64Facts = Arm64Facts()

    @property
    def companions(
        self,
    ) -> dict[str, Mapping[str, XformersFacts | TorchaoFacts | BitsandbytesFacts]]:
        """Packages with CUDA code of their own -> version -> what is known of it."""
        return {
            "xformers": self.xformers,
            "torchao": self.torchao,
            "bitsandbytes": self.bitsandbytes,
        }

    def compile_at_run_time(
        self, triton: str, wheel_cuda: Minor, nvcc: Minor | None = None
    ) -> dict[str, list[str]]:
        """What compiles while programs run in an image, and for which GPUs. Of what nothing is known, nothing is said.

        NVRTC is of torch's own CUDA and knows what that CUDA's nvcc knows.
        """
        row = self.compilers.get("triton", {}).get(triton)
        found = {f"the ptxas of Triton {triton}": row.archs} if row else {}
        for program, cuda in (("NVRTC", wheel_cuda), *([("nvcc", nvcc)] if nvcc else [])):
            if toolkit := self.cuda.get(str(cuda)):
                found[f"{program} of CUDA {cuda}"] = toolkit.nvcc_archs
        return found

    def model_post_init(self, _context: Any) -> None:
        cudas = {cuda for torch in self.torch.values() for cuda in torch.variants}
        if unknown := sorted(
            cuda for cuda in cudas if cuda.split(".")[0] not in self.minimum_drivers
        ):
            raise ValueError(f"no minimum driver for CUDA {', '.join(unknown)}")

    def on(self, platform: Platform) -> Self:
        """What the world ships for a platform. Of what was not measured there, nothing is known."""
        if platform is Platform.AMD64:
            return self
        torch = {}
        for version, row in self.arm64.torch.items():
            everywhere = self.torch[
                version
            ].variants  # C++ ABI and cuDNN are those of the release, on every platform
            measured = {
                cuda: everywhere[cuda].model_copy(
                    update={"archs": code.archs, "ptx": code.ptx, "unverified": ""}
                )
                for cuda, code in row.variants.items()
                if cuda in everywhere
            }
            torch[version] = self.torch[version].model_copy(update={"variants": measured})
        bitsandbytes = {
            version: self.bitsandbytes[version].model_copy(update={"libraries": row.libraries})
            for version, row in self.arm64.bitsandbytes.items()
        }
        own = {
            "torch": torch,
            "bitsandbytes": bitsandbytes,
            "torchao": self.arm64.torchao,
            "device_code": self.arm64.device_code,
        }
        return self.model_copy(update={**own, "xformers": {}, "prebuilt": []})
