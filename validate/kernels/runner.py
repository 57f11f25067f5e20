"""Turns a kernel of the table into evidence: its results beside plain torch's, and what really ran."""

import importlib
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from validate.claims import Claim
from validate.harness.forked import attempt, mapped
from validate.harness.reference import relative
from validate.kernels import SEED, Case, Kernel, Mark, SeededRandom, dtype_of, kernel
from validate.kernels._timeline import ASKED, PLAIN, profiled

CONTROL_SCALE = {"bfloat16": 1.05, "float8": 1.05}
"""A result scaled so must be told apart; 1.01 for all other dtypes. bfloat16's own error is near 0.5 % a product."""
_ENVIRONMENT = re.compile(
    r"TRITON_(?!CACHE_DIR)\w+|TORCHDYNAMO_\w+|TORCH_COMPILE_\w+|TORCHINDUCTOR_(?!CACHE_DIR)\w+|BNB_\w+|XFORMERS_(?!IGNORE_FLASH)\w+"
    r"|CUDA_LAUNCH_BLOCKING|PYTORCH_NO_CUDA_MEMORY_CACHING|OMP_NUM_THREADS"
    r"|FLASH_ATTENTION_\w+|NVIDIA_TF32_OVERRIDE|TORCH_ALLOW_TF32_CUBLAS_OVERRIDE|CUDA_VISIBLE_DEVICES|LD_PRELOAD"
)
"""Variables that send a computation another way: they stand in the evidence, as the usual culprits."""


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the evidence of each kernel that is asked for: the `measure` of all probes of kernels."""
    before = environment()  # torch itself sets variables once it is imported
    for claim in claims:
        found = attempt(lambda: examine(claim.subject, kernel(claim.check, claim.subject), cases=claim.expect["cases"]))  # noqa: B023
        yield claim.subject, {**found, "environment": before}


def environment() -> dict[str, str]:
    """The variables of this process that send computations another way."""
    return {name: value for name, value in sorted(os.environ.items()) if _ENVIRONMENT.fullmatch(name)}


def examine(subject: str, row: Kernel, *, cases: Sequence[str] | None = None, device: str = "cuda") -> dict[str, Any]:
    """Run a kernel's cases (these, or all) and observations. What raises in one case is that case's evidence."""
    torch = importlib.import_module("torch")
    evidence: dict[str, Any] = {"device": device_facts(torch) if device == "cuda" else {}}
    if device == "cuda" and (reason := row.supports(_capability(torch), {})):
        return {**evidence, "gated": reason}
    if row.declines:
        evidence["declined"] = list(row.declines(SeededRandom(torch, subject, device)))
        if evidence["declined"]:
            return evidence

    gated = row.gated(_capability(torch)) if device == "cuda" else {}

    def compared(name: str, mark: Mark) -> Mapping[str, Any]:
        if name in gated:
            return {"gated": gated[name], "dtype": dtype_of(name)}
        return attempt(partial(compare, SeededRandom(torch, f"{subject}/{name}", device, mark), row.cases[name]))

    def work(mark: Mark = lambda _stretch: None) -> None:
        evidence["cases"] = {name: compared(name, mark) for name in row.cases if cases is None or name in cases}
        if row.observe is not None:
            rng = SeededRandom(torch, subject, device, mark)
            # Where nothing is measured but facts, nothing need run on the device.
            rng.begin(ASKED if row.figures else None)
            evidence["observed"] = attempt(partial(row.observe, rng))

    if device == "cuda":
        # The names of all versions: what ran here is told by any of them.
        names = [name.pattern for names in row.expected_kernels.values() for name in names]
        evidence["kernels"] = profiled(torch, work, names)
        evidence["libraries"] = {pattern: mapped(pattern) for pattern in row.libraries}
    else:
        work()
    return evidence


def device_facts(torch: Any) -> dict[str, Any]:
    """The GPU as torch sees it in this process."""
    return {"name": torch.cuda.get_device_name(0), "capability": list(_capability(torch)), "torch": torch.__version__}


def compare(rng: SeededRandom, make: Callable[[SeededRandom], Case]) -> dict[str, Any]:
    """Relative errors of a case: of the kernel, of plain torch in the same dtype, of each control.

    The reference is plain torch in float64 on the CPU, on the inputs as rounded to the case's dtype.
    """
    case = make(rng)
    torch = rng.torch
    dtype = getattr(torch, case.dtype)
    exact = torch.int64 if not dtype.is_floating_point else torch.float64
    rounded = {name: _cast(torch, value, dtype) for name, value in case.inputs.items()}
    reference = _results(rng, case, case.plain, {n: _cast(torch, v, exact) for n, v in rounded.items()})
    on_device = {name: value.to(rng.device) for name, value in rounded.items()}
    rng.begin(PLAIN)
    plain = _results(rng, case, case.plain, on_device) if dtype.is_floating_point else reference
    rng.begin(ASKED)
    found = _results(rng, case, case.run, on_device)
    rng.begin(None)
    scale = CONTROL_SCALE.get(case.dtype, 1.01)
    controls = {f"scaled by {scale}": {n: relative(v.double() * scale, reference[n]) for n, v in found.items()}}
    forward = {name: value for name, value in found.items() if not name.startswith("gradient ")}
    for control, spoil in case.controls.items():
        controls[control] = {name: relative(spoil(value), reference[name]) for name, value in forward.items()}
    return {
        "dtype": case.dtype,
        "shapes": {name: list(value.shape) for name, value in case.inputs.items()},
        "finite": all(bool(torch.isfinite(value).all()) for value in found.values()),
        "outputs": {
            name: {
                "backward": name not in forward,
                "error": relative(value, reference[name]),
                "plain_error": relative(plain[name], reference[name]),
            }
            for name, value in found.items()
        },
        "controls": controls,
    }


def _cast(torch: Any, value: Any, dtype: Any) -> Any:
    """Floating-point inputs in another dtype; others (indices, lengths) as they are. Integer cases cast integers."""
    return value.to(dtype) if value.is_floating_point() == dtype.is_floating_point else value


def _results(rng: SeededRandom, case: Case, function: Callable[..., Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Outputs and gradients of one way to compute, by name, on the CPU."""
    torch = rng.torch
    inputs = {n: v.clone().requires_grad_(True) if n in case.grad_inputs else v.clone() for n, v in inputs.items()}
    given = function(**inputs)
    outputs = given if isinstance(given, Mapping) else {"output": given}
    results = {name: value.detach().cpu() for name, value in outputs.items()}
    if case.grad_inputs:
        upstream = [_upstream(rng, name, value) for name, value in outputs.items()]
        gradients = torch.autograd.grad(list(outputs.values()), [inputs[n] for n in case.grad_inputs], upstream)
        results.update({f"gradient {n}": g.detach().cpu() for n, g in zip(case.grad_inputs, gradients, strict=True)})
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
