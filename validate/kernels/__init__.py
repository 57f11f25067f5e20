"""Lists the GPU kernels that are checked, one file each, and defines what such a file says.

Adding a kernel is adding a file and its name in FILES. A file `kernels/NAME.py` holds `KERNEL`:
what it claims, why a GPU cannot run it (`gpu_obstacle`), how it is run and what plain torch
computes from the same inputs (`cases`), how far the two may differ (`tolerance`), wrong results
that must be noticed (controls), and which CUDA kernels show that it ran (`expected_kernels`). Files
that begin with an underscore are shared. Nothing here imports torch: the host writes claims from
this table, and `runner.py` measures inside the container.
"""

import importlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from validate.harness import seeding
from validate.judging import RULE_T as RULE_T
from validate.kernels._evidence import ObservedEvidence
from validate.kernels._names import EAGER, PRODUCT, Name, patterns

FILES = (
    "bitsandbytes_adamw8bit",
    "bitsandbytes_fp4",
    "bitsandbytes_int8",
    "bitsandbytes_nf4",
    "bitsandbytes_paged_adamw8bit",
    "compile_fullgraph",
    "conv_fp32",
    "flash_attn_4_dense",
    "flash_attn_4_features",
    "flash_attn_4_varlen",
    "flash_attn_dense",
    "flash_attn_varlen",
    "fp8_scaled_mm",
    "fp8_torchao_inference",
    "fp8_torchao_training",
    "gemm_fp32",
    "liger_fused_linear_cross_entropy",
    "liger_rms_norm",
    "liger_rope",
    "liger_swiglu",
    "sdpa_cudnn",
    "sdpa_efficient",
    "sdpa_flash",
    "sdpa_flash_attn_4",
    "sdpa_math",
    "svd_fp32",
    "tf32_switch",
    "transformers_flash_attn_4",
    "triton_jit",
    "xformers_cutlass",
    "xformers_flash",
)
"""The files of kernels: CHECK_SUBJECT, or SUBJECT where a check has kernels of several packages."""
SEED = seeding.seed_of_run()
Observed = ObservedEvidence
"""What a kernel's `observe` returns: figures and facts, instead of tensors to compare."""
Mark = Callable[[tuple[str, str] | None], None]
"""A function that begins a stretch of the profile (_timeline.py): it gets a case and who computes
it, or None if what follows belongs to no case."""
Capability = tuple[int, int]
"""A GPU's compute capability, major and minor."""
GpuObstacle = Callable[[Capability, Mapping[str, str]], str | None]
"""Given a capability and packages' versions, returns why a kernel cannot run; None: it can."""


def explain_too_old(capability: Capability, least: Capability, reason: str) -> str | None:
    """Return why a GPU with less than the least compute capability cannot run something.

    Returns None if its capability suffices.

    reason: begins the result, and says what needs the least capability. `FP8 needs Ada or Hopper`
        gives `FP8 needs Ada or Hopper: compute capability 8.0 is below 8.9`.
    """
    if capability >= least:
        return None
    return (
        f"{reason}: compute capability {capability[0]}.{capability[1]} "
        f"is below {least[0]}.{least[1]}"
    )


def from_capability(major: int, minor: int, reason: str) -> GpuObstacle:
    """Return a `Kernel.gpu_obstacle` that allows the kernel from this compute capability on.

    reason: why older GPUs cannot run it. The text about such a GPU begins with it.
    """
    return lambda capability, _versions: explain_too_old(capability, (major, minor), reason)


class SeededRandom:
    """Makes the inputs of a case. It is seeded by the case, so that no case depends on another."""

    def __init__(
        self, torch: Any, name: str, device: str = "cuda", mark: Mark = lambda _stretch: None
    ) -> None:
        """Seed the random numbers of a case. They depend on its name and on the seed of this run.

        torch: the module, which this file does not import.
        name: `KERNEL/CASE`; or `KERNEL`, for what is measured besides its cases.
        device: where the case runs. Its inputs are made on the CPU.
        mark: tells the profiler what runs from now on; by default, nothing is profiled.
        """
        self.torch = torch
        self.device = device
        # A profile is of one kernel, so the name of the case is enough there.
        self._case_name = name.rpartition("/")[2]
        self._mark = mark
        case_number = zlib.crc32(name.encode())
        self._generator = torch.Generator().manual_seed(SEED ^ case_number)

    def begin(self, kind: str | None) -> None:
        """Tell the profiler that what runs from now on belongs to this case.

        kind: what runs: the kernel (_timeline.CLAIMED), plain torch (PLAIN), or None: neither.
        """
        if kind:
            self._mark((self._case_name, kind))
        else:
            self._mark(None)

    def normal(self, *shape: int, deviation: float = 1.0) -> Any:
        """Return normal numbers with mean 0 and this standard deviation: float64, on the CPU."""
        return deviation * self.torch.randn(
            *shape, generator=self._generator, dtype=self.torch.float64
        )

    def integers(self, low: int, high: int, *shape: int, dtype: str = "int64") -> Any:
        """Return a tensor of whole numbers in [low, high) on the CPU."""
        numbers = self.torch.randint(low, high, shape, generator=self._generator)
        return numbers.to(getattr(self.torch, dtype))


@dataclass(frozen=True, kw_only=True)
class Case:
    """One set of inputs, and two ways to compute from them.

    `run` and `plain` get the inputs by name. They return a tensor, or tensors by name.
    """

    dtype: str
    inputs: Mapping[str, Any]
    """Tensors on the CPU. Those in float64 are rounded to `dtype` before anything is computed, so
    that the rounding of an input does not count as an error."""
    run: Callable[..., Any]
    """Runs the kernel."""
    plain: Callable[..., Any]
    """Computes the same in plain torch, in the dtype and on the device of its inputs."""
    grad_inputs: Sequence[str] = ()
    """Inputs whose gradients are compared as well."""
    controls: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    """Functions that spoil a forward result. The tolerance must notice each of them, as well as a
    scaled result, which every case has."""


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One row of the table: a kernel that is claimed, run and judged."""

    check: str
    """The claim's check: `attention`."""
    probe: str
    """The probe that runs it, `gpu.MODULE`. Kernels of one probe share a process."""
    package: str
    """The distribution that brings the kernel. An image that pins it must have the kernel."""
    statement: str
    """The claim, as a sentence for people."""
    cases: Mapping[str, Callable[[SeededRandom], Case]] = field(default_factory=dict)
    tolerance: Mapping[str, str | float] = field(
        default_factory=lambda: {"float16": RULE_T, "bfloat16": RULE_T}
    )
    """Of cases: dtype -> RULE_T, or the largest relative error (0: exact)."""
    observe: Callable[[SeededRandom], Observed] | None = None
    """Measures the figures and facts, after the cases ran."""
    figures: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Name -> the least and the most that may be measured. There is a least, because a quantiser
    that errs too little has not quantised."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """Name -> the value that must be measured."""
    expected_kernels: Mapping[str, Sequence[Name]] = field(default_factory=dict)
    """Part of the kernel (`forward`) -> the names of its CUDA kernel, version by version. Nothing
    fails for a version in which no name is known."""
    other_kernels: Mapping[str, str] = field(default_factory=dict)
    """Pattern of CUDA kernels -> whose they are: `cuDNN's`. If such a kernel ran for a case, and no
    expected one, the wrong kernel ran."""
    aside_kernels: Sequence[str] = (EAGER, PRODUCT)
    """Patterns of CUDA kernels that run around this one or as a control. They do not show that it
    ran, and they are not taken for this one under a new name."""
    libraries: Sequence[str] = ()
    """Patterns of files that must be mapped into the process."""
    gpu_obstacle: GpuObstacle = lambda _capability, _versions: None
    """Returns why a GPU cannot run this kernel; None: it can."""
    leaves_out: Callable[[Mapping[str, str]], Mapping[str, str]] = lambda _versions: {}
    """Given packages' versions, returns cases that cannot run with them -> why, with the source."""
    version_obstacle: Callable[[Mapping[str, str]], str | None] = lambda _versions: None
    """Given packages' versions, returns why no GPU can run the kernel with them, with the source;
    None: some can. With a reason the claim is not applicable."""
    needs_capability: Mapping[str, tuple[Capability, str]] = field(default_factory=dict)
    """Case -> the least compute capability that can run it, and whose rule that is. Such a case's
    name begins with its dtype, which no other case has."""
    declines: Callable[[SeededRandom], Sequence[str]] | None = None
    """Asks the library why it cannot run here, in its own words; empty: it can."""
    needs: Sequence[str] = ()
    """Other distributions without which this kernel cannot run."""

    def find_cases_beyond(self, capability: Capability) -> Mapping[str, str]:
        """Return the cases that a GPU of this compute capability is too old for -> the reason."""
        reasons = {}
        for case, (least, rule) in self.needs_capability.items():
            reason = explain_too_old(capability, least, rule)
            if reason:
                reasons[case] = reason
        return reasons


def dtype_of(case: str) -> str:
    """Return the dtype of a case of `needs_capability`: `bfloat16` of `bfloat16 cross`."""
    return case.partition(" ")[0]


def expected_path(kernel: Kernel, versions: Mapping[str, str]) -> dict[str, Any]:
    """Return which CUDA kernels must be seen to run for a kernel of the table (PathExpect).

    `expected_kernels` has a pattern of names for each part of the kernel, such as its backward.
    `other_kernels` must not run in their place, and `aside_kernels` may run. `names_of` says for
    people which versions the names are of: `flash-attn 2.7.4`. It is missing if no name is known.

    versions: package -> version. The names depend on the version of the package with the kernel.
        Raises KeyError if that package is missing.
    """
    expected = []
    distributions: set[str] = set()
    for names in kernel.expected_kernels.values():
        # Each part of the kernel, such as its backward, gets one pattern, which fits each name that
        # is known in these versions. If none is known, the part gets no pattern.
        known_patterns = patterns(names, versions)
        if known_patterns:
            expected.append("|".join(known_patterns))
        distributions.update(name.distribution for name in names)

    path: dict[str, Any] = {
        "expected_kernels": expected,
        "other_kernels": dict(kernel.other_kernels),
        "aside_kernels": list(kernel.aside_kernels),
    }
    if distributions:
        with_versions = [f"{name} {versions[name]}" for name in sorted(distributions)]
        path["names_of"] = " and ".join(with_versions)
    return path


def table() -> Mapping[str, Kernel]:
    """Return all kernels by the subject of their claims: liger_rms_norm.py is `rms-norm`.

    The subject is the file's name with dashes, without the name of the check, here `liger`. No two
    files have the same one.
    """
    kernels = {}
    for file in FILES:
        kernel = _load(file)
        name = file.replace("_", "-")
        subject = name.removeprefix(f"{kernel.check}-")
        kernels[subject] = kernel
    return kernels


def kernel_of(check: str, subject: str) -> Kernel:
    """Return the kernel of a claim, from the file CHECK_SUBJECT.py or SUBJECT.py.

    Raises ImportError if there is no such file.
    """
    file = subject.replace("-", "_")
    file_with_check = f"{check}_{subject}".replace("-", "_")
    if file_with_check in FILES:
        file = file_with_check
    return _load(file)


def _load(file: str) -> Kernel:
    """Import a kernel's file, and return its KERNEL."""
    kernel: Kernel = importlib.import_module(f"{__name__}.{file}").KERNEL
    return kernel
