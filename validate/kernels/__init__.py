"""The table of kernels: one file each. Adding a kernel is adding a file and its name in FILES.

A file `kernels/NAME.py` holds `KERNEL`: what it claims, on which GPUs (`supports`), how it is run and what plain
torch makes of the same inputs (`cases`), how far they may differ (`tolerance`), what must be told apart (controls), and
which CUDA kernels show that it ran (`expected_kernels`). Files that begin with an underscore are shared.
Nothing here imports torch: the host writes claims from this table, `runner.py` measures inside the container.
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
"""What a kernel gives beside comparisons of tensors."""
Mark = Callable[[tuple[str, str] | None], None]
"""Begins a stretch of a profile (_timeline.py)."""
Capability = tuple[int, int]
Supports = Callable[[Capability, Mapping[str, str]], str | None]


def below(capability: Capability, least: Capability, why: str) -> str | None:
    """Why this compute capability does not do; None: it is the least or later."""
    if capability >= least:
        return None
    return (
        f"{why}: compute capability {capability[0]}.{capability[1]} is below {least[0]}.{least[1]}"
    )


def from_capability(major: int, minor: int, why: str) -> Supports:
    """A gate: the kernel is claimed from this compute capability on."""
    return lambda capability, _versions: below(capability, (major, minor), why)


class SeededRandom:
    """What kernels' files make their inputs with: seeded by the case, so that no case depends on another."""

    def __init__(
        self, torch: Any, name: str, device: str = "cuda", mark: Mark = lambda _stretch: None
    ) -> None:
        self.torch = torch
        self.device = device
        self._name = name.rpartition("/")[2]
        self._mark = mark
        self._generator = torch.Generator().manual_seed(SEED ^ zlib.crc32(name.encode()))

    def begin(self, kind: str | None) -> None:
        """What runs from here on is `asked` for, `plain` torch's, or (None) nobody's."""
        self._mark((self._name, kind) if kind else None)

    def normal(self, *shape: int, deviation: float = 1.0) -> Any:
        """N(0, deviation) in float64, on the CPU."""
        return deviation * self.torch.randn(
            *shape, generator=self._generator, dtype=self.torch.float64
        )

    def integers(self, low: int, high: int, *shape: int, dtype: str = "int64") -> Any:
        """Whole numbers in [low, high), on the CPU."""
        return self.torch.randint(low, high, shape, generator=self._generator).to(
            getattr(self.torch, dtype)
        )


@dataclass(frozen=True, kw_only=True)
class Case:
    """One set of inputs. `run` and `plain` get them by name and return a tensor, or tensors by name."""

    dtype: str
    inputs: Mapping[str, Any]
    """Tensors on the CPU: float64 ones are rounded to `dtype` first, so that no input's rounding counts as an error."""
    run: Callable[..., Any]
    plain: Callable[..., Any]
    """The same in plain torch, in whatever dtype and on whatever device its inputs are."""
    grad_inputs: Sequence[str] = ()
    """Inputs whose gradients are compared as well."""
    controls: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    """Beside the scaled one that every case has: what spoils a forward result, and must be told apart."""


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One row of the table."""

    check: str
    """The claim's check: `attention`."""
    probe: str
    """The probe that runs it, `gpu.MODULE`: kernels of one probe share a process."""
    package: str
    """The distribution that brings it: an image that pins it is held to the kernel."""
    statement: str
    cases: Mapping[str, Callable[[SeededRandom], Case]] = field(default_factory=dict)
    tolerance: Mapping[str, str | float] = field(
        default_factory=lambda: {"float16": RULE_T, "bfloat16": RULE_T}
    )
    """Of cases: dtype -> RULE_T, or the largest relative error (0: exact)."""
    observe: Callable[[SeededRandom], Observed] | None = None
    figures: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Name -> least and most: two-sided, as a quantiser that errs too little has not quantised."""
    facts: Mapping[str, object] = field(default_factory=dict)
    expected_kernels: Mapping[str, Sequence[Name]] = field(default_factory=dict)
    """Part -> what its CUDA kernel is called, version by version. A name that is not known fails nothing."""
    other_kernels: Mapping[str, str] = field(default_factory=dict)
    """Pattern of CUDA kernels -> whose they are: seen where none of its own is, they are the wrong ones."""
    aside_kernels: Sequence[str] = (EAGER, PRODUCT)
    """Patterns of CUDA kernels that run around it, or as a control: they do not show that it ran."""
    libraries: Sequence[str] = ()
    """Patterns of files that must be mapped into the process."""
    supports: Supports = lambda _capability, _versions: None
    leaves_out: Callable[[Mapping[str, str]], Mapping[str, str]] = lambda _versions: {}
    """Cases that these versions can't do, and why, with the source."""
    excludes: Callable[[Mapping[str, str]], str | None] = lambda _versions: None
    """Why these versions can't do it on any GPU, with the source: then nothing is claimed."""
    needs_capability: Mapping[str, tuple[Capability, str]] = field(default_factory=dict)
    """Case -> the compute capability from which on the GPU can do it, and whose rule that is. Such a case is named by
    its dtype first, which no other case has."""
    declines: Callable[[SeededRandom], Sequence[str]] | None = None
    """The library's own reasons for not running here."""
    needs: Sequence[str] = ()
    """Other distributions without which it can't be run."""

    def gated(self, capability: Capability) -> Mapping[str, str]:
        """Cases that a GPU can't do, and why."""
        reasons = {
            case: below(capability, least, why)
            for case, (least, why) in self.needs_capability.items()
        }
        return {case: reason for case, reason in reasons.items() if reason}


def dtype_of(case: str) -> str:
    """The dtype that a case of `needs_capability` is named by: `bfloat16 cross`."""
    return case.partition(" ")[0]


def expected_path(row: Kernel, versions: Mapping[str, str]) -> dict[str, Any]:
    """What is expected of the CUDA kernels that run, with the names they have in these versions."""
    known = (patterns(names, versions) for names in row.expected_kernels.values())
    deciding = sorted({name.of for names in row.expected_kernels.values() for name in names})
    return {
        "expected_kernels": ["|".join(found) for found in known if found],
        "other_kernels": dict(row.other_kernels),
        "aside_kernels": list(row.aside_kernels),
        **(
            {"names_of": " and ".join(f"{name} {versions[name]}" for name in deciding)}
            if deciding
            else {}
        ),
    }


def table() -> Mapping[str, Kernel]:
    """Return every kernel by its claim's subject: the file's name with dashes, without the check's name before it."""
    rows = {}
    for name in FILES:
        row = _row(name)
        rows[name.replace("_", "-").removeprefix(f"{row.check}-")] = row
    return rows


def kernel(check: str, subject: str) -> Kernel:
    """Return the kernel of a claim, from CHECK_SUBJECT.py or SUBJECT.py. Raises ImportError."""
    name = subject.replace("-", "_")
    with_check = f"{check}_{name}".replace("-", "_")
    return _row(with_check if with_check in FILES else name)


def _row(name: str) -> Kernel:
    row: Kernel = importlib.import_module(f"{__name__}.{name}").KERNEL
    return row
