"""Contracts of the cpu tier: C1 to C10."""

from __future__ import annotations

from typing import TypedDict

from validate.contracts import Error, Measured, Raised


class NothingExpected(TypedDict):
    """The judge knows it all."""


# ---- C1


class ImportsExpect(TypedDict):
    modules: list[str]
    first: bool
    """Also in a new process, before anything else."""
    after: bool
    """Also after torch."""
    complaints: list[str]
    harmless: dict[str, str]


class Imported(Measured):
    said: list[str]


class ImportsEvidence(TypedDict):
    orders: dict[str, Imported]


# ---- C2


class SelectionExpect(TypedDict):
    cuda: str


class _WithSelection(TypedDict, total=False):
    selection: SelectionExpect


class NativeRow(_WithSelection, total=False):
    """What a row of the table of native code may say; the rest is the same for all."""

    modules: list[str]
    loading: str
    cuda_major: int | None
    symbols: list[str]
    operators: list[str]
    libraries: list[str]


class NativeExpect(_WithSelection):
    modules: list[str]
    loading: str
    """`import`, or `by-path` where an import without a GPU takes another library."""
    cuda_major: int | None
    symbols: list[str]
    operators: list[str]
    libraries: list[str]


class _LibraryDetails(TypedDict, total=False):
    mapped: bool
    missing_symbols: list[str]


class NativeLibrary(_LibraryDetails):
    mapped_by_import: bool
    load_error: str | None


class Selection(Measured, total=False):
    torch_cuda: str
    file: str
    override: str | None


class CudaRuntime(TypedDict):
    file: str
    owner: str | None
    major: int
    version: int


class InstalledFiles(TypedDict):
    """What is known of a distribution before anything of it is loaded."""

    version: str
    root: str
    files: dict[str, bool]


class Loaded(Measured, total=False):
    """What loading it shows."""

    imports: dict[str, Raised | None]
    warnings: list[str]
    libraries: dict[str, NativeLibrary]
    operators: dict[str, bool | None]
    selection: Selection | None
    cuda_runtimes: list[CudaRuntime]
    mapped: dict[str, str | None]


class NativeEvidence(Loaded, InstalledFiles):
    """Both. Without evidence: it is not installed."""


# ---- C3


LookedUp = TypedDict("LookedUp", {"from": str, "command": str, "path": "str | None"})


class Built(TypedDict):
    exit_code: int
    stderr: str
    file: str
    bytes: int


class Answer(Measured, total=False):
    answer: int


class Refusal(TypedDict):
    refused: bool


CExtensionEvidence = TypedDict(
    "CExtensionEvidence",
    {
        "compiler": LookedUp,
        "version": str,
        "include": str,
        "python_h": bool,
        "build": Built,
        "control": Refusal,
        "expected": int,
        "import": Answer,
        "error": Error,
    },
    total=False,
)
"""As far as it came. (`import` is no name in a class.)"""


class LauncherEvidence(Measured, total=False):
    """As far as it came."""

    compiler: LookedUp
    stub_driver: bool
    triton: str
    made: list[str]
    functions: list[str]


# ---- C4


class TritonExpect(TypedDict):
    arch: int
    bogus: int
    """An arch that does not exist: the control."""
    kernels: list[str]


class CompiledKernel(Measured, total=False):
    bytes: int
    machine: int | None
    arch: int | None
    abi: int
    flags: str
    entry: bool
    ptx_target: str
    compile_seconds: float


class _Ptxas(Measured, total=False):
    ptxas: dict[str, object]
    """Program -> version, or `error`."""


class Toolchain(_Ptxas):
    triton: str
    jit: str
    environment: dict[str, str]


class TritonEvidence(Toolchain):
    kernels: dict[str, CompiledKernel]
    control: CompiledKernel


# ---- C5


class CompileEvidence(Measured):
    torch: str
    environment: dict[str, str]
    captured: int
    graphs: int
    breaks: int
    generated: int
    libraries: list[str]
    mapped: list[str]
    plain_error: float
    found_error: float
    control_error: float


# ---- C6


class NumpyEvidence(Measured):
    torch: str
    numpy: str
    shared: dict[str, bool]
    copied_sum: float


class TorchvisionEvidence(Measured):
    torchvision: str
    kept: list[int]
    control: list[int]


# ---- C7


class ThreadsExpect(TypedDict):
    modules: list[str]
    bundled: dict[str, str]
    """OpenMP runtimes that may be loaded beside torch's: path pattern -> why."""


class ThreadsEvidence(Measured):
    cores: int
    torch_threads: int
    busy_threads: int
    environment: dict[str, str]
    not_imported: dict[str, Error]
    openmp: list[str]


# ---- C8


class ArbitraryUidExpect(TypedDict):
    uid: int


class Step(Measured, total=False):
    answer: object


class Trained(TypedDict):
    losses: list[float]
    checkpoint: bool


class ArbitraryUidEvidence(TypedDict):
    uid: int
    known: bool
    root_is_writable: bool
    interfaces: list[str]
    steps: dict[str, Step]


# ---- C9


class _OfExtension(TypedDict, total=False):
    extension: str
    """`sve` on AArch64; absent: AVX-512."""


class InstructionsExpect(_OfExtension):
    most: int
    """Such instructions that a file without a check may seem to hold."""
    per_bytes: int
    """Bytes of code that may look like one more."""


class _OnAarch64(TypedDict, total=False):
    sve: int


class VectorCode(_OnAarch64):
    """What a file's machine code shows: bytes of it, AVX-512 instructions or SVE's, whether it asks for the processor's
    kind."""

    path: str
    code: int
    avx512: int
    asks: bool


class NotAsking(VectorCode):
    owners: list[str]


class InstructionsEvidence(TypedDict):
    files: int
    bytes: int
    asking: int
    not_asking: list[NotAsking]


# ---- C10, and G10 on a GPU


class QuantiserExpect(TypedDict):
    quant_type: str
    block_size: int
    mean_error: float
    mean_error_sigma: float
    """Over 1024 x 1024 values."""


class Comparison(TypedDict):
    """Errors in the 2-norm, relative to the float64 reference."""

    error: float
    plain_error: float
    controls: dict[str, float]


class Versions(Measured):
    """Of the distributions that take part; None: not installed."""

    versions: dict[str, str | None]


class LogitsEvidence(Versions):
    comparisons: dict[str, Comparison]


Projection = TypedDict(
    "Projection",
    {
        "class": str,
        "weight_class": str,
        "dtype": str,
        "bytes": int,
        "values": int,
        "quant_type": "str | None",
        "block_size": "int | None",
        "scale_bytes": int,
        "mean_error": float,
        "decoder_difference": float,
        "error": Error,
    },
    total=False,
)
"""A layer as loading in 4-bit left it. Errors in units of the weights' deviation."""


class WeightsEvidence(Versions):
    projections: dict[str, Projection]


class Adapter(TypedDict):
    before: float
    after: float
    error: float
    control: float


class LoraEvidence(Versions):
    loss: float
    plain_loss: float
    adapters: dict[str, Adapter]
    base_changed: list[str]
    base_count: int


# ---- C12


class BytecodeExpect(TypedDict):
    known: dict[str, list[str]]
    """Distribution -> digests of its bytecode that was compiled again and found right before, of the same sources."""


class BytecodeEvidence(TypedDict):
    files: int
    compiled: int
    """How many of them were compiled again."""
    digests: dict[str, str]
    """Distribution -> the digest of its bytecode, where none of it is wrong."""
    wrong: dict[str, str]
    """Path -> what is wrong."""
    wrong_count: int
