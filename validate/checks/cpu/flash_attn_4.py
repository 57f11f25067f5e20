"""flash-attn-4: flash-attn-4 has no compiled code: nvidia-cutlass-dsl compiles it at a user's first step, and where it
can't, that step fails. Forward and backward compile for each arch without a GPU, and an arch that does not exist is
refused."""

import importlib
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, TypedDict, cast

from validate.binaries.cubin import EM_CUDA, cubin_facts
from validate.checks import Settings
from validate.claims import Claim
from validate.harness.forked import half_of_the_cores, measure_in_forks
from validate.judging import Finding, failed, joined, passed, root_cause

SETTINGS = Settings(begins_with_torch=True)

_SHAPE = {"query": (2, 256, 4, 64), "key": (2, 256, 2, 64), "value": (2, 256, 2, 64)}
"""(batch, length, heads, dim): grouped heads, as most models have."""


class FlashAttn4Expect(TypedDict):
    """The architecture, one that does not exist, and parts of the names of what is compiled."""

    arch: int
    bogus: int
    kernels: Sequence[str]


class Cubin(TypedDict):
    """A compiled kernel, and the GPU that it says it is for."""

    bytes: int
    machine: int | None
    arch: int | None


class Compiled(TypedDict, total=False):
    """Cubins by file, or `error`."""

    cubins: Mapping[str, Cubin]
    compile_seconds: float
    error: dict[str, Any]


class FlashAttn4Evidence(TypedDict):
    """`control`: what became of the architecture that does not exist."""

    compiled: Compiled
    control: Compiled


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, FlashAttn4Evidence]]:
    """Yield the cubins of each arch, each from a fork that has torch: the compiler reads its arch as it is imported."""
    importlib.import_module("torch")
    asked = [partial(_compiled, 90, claims[0].expect["bogus"], backward=False)]
    for claim in claims:
        arch, backward = claim.expect["arch"], "flash_bwd" in claim.expect["kernels"]
        asked.append(partial(_compiled, arch, arch, backward=backward))
    control, *found = (
        evidence
        for _, evidence in sorted(measure_in_forks(asked, half_of_the_cores()), key=itemgetter(0))
    )
    control.get("error", {}).pop("log", None)
    for claim, compiled in zip(claims, found):  # noqa: B905  Python 3.9
        yield claim.subject, {"compiled": compiled, "control": control}


def _compiled(kernel_arch: int, target: int, *, backward: bool) -> Compiled:
    """Compile with tensors that have a shape and no memory. The variables are flash-attn-4's own for machines without a
    GPU (flash_attn/cute/interface.py, `_get_device_arch`); what depends on the count of SMs is only how work is spread.
    """
    torch: Any = importlib.import_module("torch")
    fake: Any = importlib.import_module("torch._subclasses.fake_tensor").FakeTensorMode
    with tempfile.TemporaryDirectory(prefix="flash-attn-4-") as folder:
        os.environ.update(
            FLASH_ATTENTION_ARCH=f"sm_{kernel_arch}",
            FLASH_ATTENTION_NUM_SMS="132",
            CUTE_DSL_ARCH=f"sm_{target}" + ("a" if target >= 90 else ""),
            CUTE_DSL_KEEP="cubin",
            CUTE_DSL_DUMP_DIR=folder,
        )
        flash: Any = importlib.import_module("flash_attn.cute.interface")
        started = time.monotonic()
        with fake():
            query, key, value = (
                torch.empty(*one, dtype=torch.bfloat16, device="cuda") for one in _SHAPE.values()
            )
            out, lse = flash._flash_attn_fwd(query, key, value, causal=True, return_lse=True)[:2]
            if backward:
                flash._flash_attn_bwd(
                    query, key, value, out, torch.empty_like(out), lse, causal=True
                )
        found = sorted(path for path in Path(folder).rglob("*") if path.suffix == ".cubin")
        return {
            "cubins": {path.name: cast("Cubin", cubin_facts(path.read_bytes())) for path in found},
            "compile_seconds": round(time.monotonic() - started, 3),
        }


def judge(_subject: str, expect: FlashAttn4Expect, evidence: FlashAttn4Evidence) -> Finding:
    """Judge that each kernel became a cubin for this architecture, and none for the one that does not exist."""
    arch, compiled = expect["arch"], evidence["compiled"]
    if "error" in compiled:
        return failed(f"nothing compiled for sm_{arch}: {root_cause(compiled['error'])}")
    cubins = compiled["cubins"]
    problems = [
        f"{part} was not compiled"
        for part in expect["kernels"]
        if not any(part in name for name in cubins)
    ]
    for name, facts in cubins.items():
        if facts["machine"] != EM_CUDA or facts["arch"] != arch:
            problems.append(
                f"{name}: asked for sm_{arch}, made is {facts['bytes']} bytes for sm_{facts['arch']}"
            )
    if problems or not expect["kernels"]:
        return failed(joined(problems or ["no kernel was asked for"]))
    if "error" not in evidence["control"]:
        return failed(f"control: sm_{expect['bogus']} does not exist, and compiled all the same")
    size, seconds = sum(cubin["bytes"] for cubin in cubins.values()), compiled["compile_seconds"]
    what = f"{' and '.join(expect['kernels'])} for sm_{arch} ({size} bytes, {seconds:.1f} s)"
    return passed(f"compiled {what}, and refused sm_{expect['bogus']}")


CLAIMS = {"flash-attn-4": judge}
