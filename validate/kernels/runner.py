"""Turns a kernel of the table into evidence: its results beside plain torch's, and what really ran."""

import importlib
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from validate.claims import Claim
from validate.harness.forked import attempt, list_mapped_files
from validate.harness.reference import relative_error
from validate.kernels import SEED, Case, Kernel, Mark, SeededRandom, dtype_of, kernel
from validate.kernels._evidence import CaseEvidence, DeviceFacts, KernelEvidence, Output
from validate.kernels._timeline import ASKED, PLAIN, profiled

CONTROL_SCALE = {"bfloat16": 1.05, "float8": 1.05}
"""A result scaled so must be told apart; 1.01 for all other dtypes. bfloat16's own error is near 0.5 % a product."""
_ENVIRONMENT = re.compile(
    r"TRITON_(?!CACHE_DIR)\w+|TORCHDYNAMO_\w+|TORCH_COMPILE_\w+|TORCHINDUCTOR_(?!CACHE_DIR)\w+|BNB_\w+|XFORMERS_(?!IGNORE_FLASH)\w+"
    r"|CUDA_LAUNCH_BLOCKING|PYTORCH_NO_CUDA_MEMORY_CACHING|OMP_NUM_THREADS"
    r"|FLASH_ATTENTION_\w+|NVIDIA_TF32_OVERRIDE|TORCH_ALLOW_TF32_CUBLAS_OVERRIDE|CUDA_VISIBLE_DEVICES|LD_PRELOAD"
)
"""Variables that send a computation another way: they stand in the evidence, as the usual culprits."""


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, KernelEvidence]]:
    """Yield the evidence of each kernel that is asked for: the `measure` of all probes of kernels."""
    # torch itself sets variables once it is imported.
    before = environment()
    for claim in claims:
        evidence = attempt(partial(_examine_claim, claim))
        yield claim.subject, {**evidence, "environment": before}


def _examine_claim(claim: Claim) -> KernelEvidence:
    """Run the kernel of a claim. Its file may raise as it is imported: that is evidence, too."""
    return examine(claim.subject, kernel(claim.check, claim.subject), cases=claim.expect["cases"])


def environment() -> dict[str, str]:
    """The variables of this process that send computations another way."""
    return {
        name: value for name, value in sorted(os.environ.items()) if _ENVIRONMENT.fullmatch(name)
    }


def examine(
    subject: str, row: Kernel, *, cases: Sequence[str] | None = None, device: str = "cuda"
) -> KernelEvidence:
    """Run a kernel's cases (these, or all) and observations. What raises in one case is that case's evidence."""
    torch = importlib.import_module("torch")
    if device != "cuda":
        evidence: KernelEvidence = {}
        _run_cases(torch, subject, row, cases, device, evidence)
        return evidence

    evidence = {"device": device_facts(torch)}
    reason = row.supports(_capability(torch), {})
    if reason:
        return {**evidence, "gated": reason}
    if row.declines:
        evidence["declined"] = list(row.declines(SeededRandom(torch, subject, device)))
        if evidence["declined"]:
            return evidence

    # The names of all versions: what ran here is found by any of them.
    patterns = [name.pattern for names in row.expected_kernels.values() for name in names]
    evidence["kernels"] = profiled(
        torch, lambda mark: _run_cases(torch, subject, row, cases, device, evidence, mark), patterns
    )
    evidence["libraries"] = {pattern: list_mapped_files(pattern) for pattern in row.libraries}
    return evidence


def _run_cases(
    torch: Any,
    subject: str,
    row: Kernel,
    cases: Sequence[str] | None,
    device: str,
    evidence: KernelEvidence,
    mark: Mark = lambda _stretch: None,
) -> None:
    """Run cases and observations, and write what they gave into the evidence. A profiler may ask for it again."""
    gated = row.gated(_capability(torch)) if device == "cuda" else {}
    by_case: dict[str, CaseEvidence] = {}
    for name, make in row.cases.items():
        if cases is not None and name not in cases:
            continue
        if name in gated:
            by_case[name] = {"gated": gated[name], "dtype": dtype_of(name)}
        else:
            rng = SeededRandom(torch, f"{subject}/{name}", device, mark)
            by_case[name] = attempt(partial(compare, rng, make))
    evidence["cases"] = by_case

    if row.observe is not None:
        rng = SeededRandom(torch, subject, device, mark)
        # Where nothing is measured but facts, nothing need run on the device.
        rng.begin(ASKED if row.figures else None)
        evidence["observed"] = attempt(partial(row.observe, rng))


def device_facts(torch: Any) -> DeviceFacts:
    """Return the GPU as torch sees it in this process."""
    return {
        "name": torch.cuda.get_device_name(0),
        "capability": list(_capability(torch)),
        "torch": torch.__version__,
    }


def compare(rng: SeededRandom, make: Callable[[SeededRandom], Case]) -> CaseEvidence:
    """Return relative errors of a case: of the kernel, of plain torch in the same dtype, of each control.

    The reference is plain torch in float64 on the CPU, on the inputs as rounded to the case's dtype.
    """
    case = make(rng)
    torch = rng.torch
    dtype = getattr(torch, case.dtype)
    exact = torch.float64 if dtype.is_floating_point else torch.int64
    rounded = {name: _cast(torch, value, dtype) for name, value in case.inputs.items()}
    exact_inputs = {name: _cast(torch, value, exact) for name, value in rounded.items()}
    reference = _results(rng, case, case.plain, exact_inputs)

    on_device = {name: value.to(rng.device) for name, value in rounded.items()}
    rng.begin(PLAIN)
    plain = _results(rng, case, case.plain, on_device) if dtype.is_floating_point else reference
    rng.begin(ASKED)
    results = _results(rng, case, case.run, on_device)
    rng.begin(None)

    outputs: dict[str, Output] = {}
    for name, value in results.items():
        outputs[name] = {
            "backward": name.startswith("gradient "),
            "error": relative_error(value, reference[name]),
            "plain_error": relative_error(plain[name], reference[name]),
        }
    return {
        "dtype": case.dtype,
        "shapes": {name: list(value.shape) for name, value in case.inputs.items()},
        "finite": all(bool(torch.isfinite(value).all()) for value in results.values()),
        "outputs": outputs,
        "controls": _controls(case, results, reference),
    }


def _controls(
    case: Case, results: Mapping[str, Any], reference: Mapping[str, Any]
) -> dict[str, dict[str, float]]:
    """Return the errors of results that were spoiled on purpose."""
    scale = CONTROL_SCALE.get(case.dtype, 1.01)
    scaled = {
        name: relative_error(value.double() * scale, reference[name])
        for name, value in results.items()
    }
    controls = {f"scaled by {scale}": scaled}
    for control, spoil in case.controls.items():
        controls[control] = {}
        for name, value in results.items():
            if not name.startswith("gradient "):
                controls[control][name] = relative_error(spoil(value), reference[name])
    return controls


def _cast(torch: Any, value: Any, dtype: Any) -> Any:
    """Floating-point inputs in another dtype; others (indices, lengths) as they are. Integer cases cast integers."""
    return value.to(dtype) if value.is_floating_point() == dtype.is_floating_point else value


def _results(
    rng: SeededRandom, case: Case, function: Callable[..., Any], inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return outputs and gradients of one way to compute, by name, on the CPU."""
    torch = rng.torch
    leaves = {}
    for name, value in inputs.items():
        leaves[name] = value.clone()
        if name in case.grad_inputs:
            leaves[name].requires_grad_(True)

    returned = function(**leaves)
    outputs = returned if isinstance(returned, Mapping) else {"output": returned}
    results = {name: value.detach().cpu() for name, value in outputs.items()}
    if case.grad_inputs:
        upstream = [_upstream(rng, name, value) for name, value in outputs.items()]
        asked = [leaves[name] for name in case.grad_inputs]
        gradients = torch.autograd.grad(list(outputs.values()), asked, upstream)
        for name, gradient in zip(case.grad_inputs, gradients, strict=True):
            results[f"gradient {name}"] = gradient.detach().cpu()
    return results


def _upstream(rng: SeededRandom, name: str, output: Any) -> Any:
    """The same gradient for every way to compute: small whole numbers, which no dtype rounds; 1 for a scalar."""
    generator = rng.torch.Generator().manual_seed(SEED ^ zlib.crc32(name.encode()))
    if not output.dim():
        return rng.torch.ones_like(output)
    whole = rng.torch.randint(-4, 5, tuple(output.shape), generator=generator)
    return whole.to(device=output.device, dtype=output.dtype)


def _capability(torch: Any) -> tuple[int, int]:
    major, minor = torch.cuda.get_device_capability(0)
    return major, minor
