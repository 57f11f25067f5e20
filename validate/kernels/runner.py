"""Runs the GPU kernels of the table and measures how far their results are from plain torch's."""

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
from validate.kernels import SEED, Case, Kernel, Mark, SeededRandom, dtype_of, kernel_of
from validate.kernels._evidence import CaseEvidence, DeviceFacts, KernelEvidence, Output
from validate.kernels._timeline import CLAIMED, PLAIN, profile_kernels

CONTROL_SCALE = {"bfloat16": 1.05, "float8": 1.05}
"""The tolerance must notice a result scaled by this, or by 1.01 in all other dtypes. bfloat16's own
error is near 0.5 % a product."""
_ENVIRONMENT = re.compile(
    r"TRITON_(?!CACHE_DIR)\w+|TORCHDYNAMO_\w+|TORCH_COMPILE_\w+|TORCHINDUCTOR_(?!CACHE_DIR)\w+"
    r"|BNB_\w+|XFORMERS_(?!IGNORE_FLASH)\w+"
    r"|CUDA_LAUNCH_BLOCKING|PYTORCH_NO_CUDA_MEMORY_CACHING|OMP_NUM_THREADS"
    r"|FLASH_ATTENTION_\w+|NVIDIA_TF32_OVERRIDE|TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"
    r"|CUDA_VISIBLE_DEVICES|LD_PRELOAD"
)
"""Names of variables that change how things are computed. They stand in the evidence, because a
fault may be due to one of them."""


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, KernelEvidence]]:
    """Run the GPU kernel that each claim is about, and yield the claim's subject and the result.

    All checks of kernels share this function.
    """
    # torch sets variables of its own when it is imported, so ours are read first.
    variables = environment()
    for claim in claims:
        evidence = attempt(partial(_examine_claim, claim))
        yield claim.subject, {**evidence, "environment": variables}


def _examine_claim(claim: Claim) -> KernelEvidence:
    """Run the kernel of a claim. Importing its file may raise, so `attempt` calls this."""
    kernel = kernel_of(claim.check, claim.subject)
    return examine(claim.subject, kernel, cases=claim.expect["cases"])


def environment() -> dict[str, str]:
    """Return the variables of this process that change how things are computed."""
    variables = {}
    for name, value in sorted(os.environ.items()):
        if _ENVIRONMENT.fullmatch(name):
            variables[name] = value
    return variables


def examine(
    subject: str, kernel: Kernel, *, cases: Sequence[str] | None = None, device: str = "cuda"
) -> KernelEvidence:
    """Run a GPU kernel, and return its errors, and which CUDA kernels and libraries were used.

    `kernel` says what is run: cases, which are compared with plain torch, and observations, which
    measure something else. If the GPU is too old or too new for it (`gated`), or the library
    refuses (`declined`), the evidence says why and nothing is run. An error in a case is the
    evidence of that case. On a device other than `cuda`, for a rehearsal, only results are
    measured.

    subject: the kernel's name, which seeds the inputs.
    cases: names of the cases to run; None: all.
    """
    torch = importlib.import_module("torch")
    if device != "cuda":
        evidence: KernelEvidence = {}
        _run_cases(torch, subject, kernel, cases, device, evidence)
        return evidence

    # No versions are given: the host knew them when it made the claim.
    evidence = {"device": device_facts(torch)}
    reason = kernel.gpu_obstacle(_read_capability(torch), {})
    if reason:
        return {**evidence, "gated": reason}
    if kernel.declines:
        evidence["declined"] = list(kernel.declines(SeededRandom(torch, subject, device)))
        if evidence["declined"]:
            return evidence

    # Sort the kernels of the profile by the names of all versions, so that the evidence shows which
    # of them ran, whatever version is here.
    patterns: list[str] = []
    for names in kernel.expected_kernels.values():
        patterns.extend(name.pattern for name in names)

    def run(mark: Mark) -> None:
        _run_cases(torch, subject, kernel, cases, device, evidence, mark)

    # `run` also writes the results of the cases and observations into the evidence.
    evidence["kernels"] = profile_kernels(torch, run, patterns)
    evidence["libraries"] = {pattern: list_mapped_files(pattern) for pattern in kernel.libraries}
    return evidence


def _run_cases(
    torch: Any,
    subject: str,
    kernel: Kernel,
    cases: Sequence[str] | None,
    device: str,
    evidence: KernelEvidence,
    mark: Mark = lambda _stretch: None,
) -> None:
    """Run all cases of a GPU kernel, and put their results into `evidence`.

    A case compares the kernel with plain torch for one set of inputs. A kernel may also have
    figures that are measured in another way (`kernel.observe`); they are measured after the cases.
    An error of a case is put in place of its result. The profiler calls this, and again with the
    same inputs if it lost something; the results are then replaced.

    subject: the kernel's name, which seeds the inputs.
    cases: names of the cases to run; None: all.
    device: where they run, `cuda` or `cpu`.
    evidence: gets the keys `cases` and `observed`.
    mark: tells the profiler which case begins.
    """
    # Case -> why this GPU cannot run it.
    gated: Mapping[str, str] = {}
    if device == "cuda":
        gated = kernel.find_cases_beyond(_read_capability(torch))

    by_case: dict[str, CaseEvidence] = {}
    for name, make_case in kernel.cases.items():
        if cases is not None and name not in cases:
            continue
        if name in gated:
            by_case[name] = {"gated": gated[name], "dtype": dtype_of(name)}
        else:
            rng = SeededRandom(torch, f"{subject}/{name}", device, mark)
            by_case[name] = attempt(partial(compare, rng, make_case))
    evidence["cases"] = by_case

    if kernel.observe is not None:
        rng = SeededRandom(torch, subject, device, mark)
        if kernel.figures:
            # Figures are measured by running this kernel, so the profile must see it run.
            rng.begin(CLAIMED)
        else:
            # Facts alone may be read without running anything on the device. What runs for them
            # belongs to no stretch.
            rng.begin(None)
        evidence["observed"] = attempt(partial(kernel.observe, rng))


def device_facts(torch: Any) -> DeviceFacts:
    """Return the GPU as torch sees it in this process."""
    return {
        "name": torch.cuda.get_device_name(0),
        "capability": list(_read_capability(torch)),
        "torch": torch.__version__,
    }


def compare(rng: SeededRandom, make_case: Callable[[SeededRandom], Case]) -> CaseEvidence:
    """Run one case of a kernel, and compare its outputs and gradients with exact ones.

    Returns the relative errors of the kernel, of plain torch in the same dtype, and of results that
    were spoiled on purpose (controls). Exact results are plain torch's on the CPU, in float64 or,
    for whole numbers, int64.

    make_case: draws the inputs with the random numbers of `rng`, and returns the case.
    """
    case = make_case(rng)
    torch = rng.torch
    dtype = getattr(torch, case.dtype)

    # The exact computation starts from the same rounded inputs as the kernel, so that the rounding
    # of inputs does not count as the kernel's error.
    exact_dtype = torch.float64 if dtype.is_floating_point else torch.int64
    rounded = {name: _cast(value, dtype) for name, value in case.inputs.items()}
    exact_inputs = {name: _cast(value, exact_dtype) for name, value in rounded.items()}
    exact_results = _compute_results(rng, case, case.plain, exact_inputs)

    # On the device, first by plain torch and then by the kernel. `begin` marks in the profile which
    # of the two runs, so that each CUDA kernel is known to belong to one of them.
    on_device = {name: value.to(rng.device) for name, value in rounded.items()}
    rng.begin(PLAIN)
    if dtype.is_floating_point:
        plain_results = _compute_results(rng, case, case.plain, on_device)
    else:
        # Whole numbers are not rounded: plain torch's result is the exact one.
        plain_results = exact_results
    rng.begin(CLAIMED)
    results = _compute_results(rng, case, case.run, on_device)
    rng.begin(None)

    outputs: dict[str, Output] = {}
    for name, result in results.items():
        outputs[name] = {
            "backward": _is_gradient(name),
            "error": relative_error(result, exact_results[name]),
            "plain_error": relative_error(plain_results[name], exact_results[name]),
        }
    return {
        "dtype": case.dtype,
        "shapes": {name: list(tensor.shape) for name, tensor in case.inputs.items()},
        "finite": all(bool(torch.isfinite(result).all()) for result in results.values()),
        "outputs": outputs,
        "controls": _measure_controls(case, results, exact_results),
    }


def _measure_controls(
    case: Case, results: Mapping[str, Any], reference: Mapping[str, Any]
) -> dict[str, dict[str, float]]:
    """Return control -> result -> error, of results that are spoiled here on purpose.

    Each result is scaled by a few percent, and each forward result is spoiled by the case's own
    controls, such as by swapping heads. The tolerance must notice all of them.

    results: those of the kernel, by name. reference: the exact ones.
    """
    scale = CONTROL_SCALE.get(case.dtype, 1.01)
    scaled = {}
    for name, value in results.items():
        scaled[name] = relative_error(value.double() * scale, reference[name])

    controls = {f"scaled by {scale}": scaled}
    for control, spoil in case.controls.items():
        controls[control] = {}
        for name, value in results.items():
            if not _is_gradient(name):
                controls[control][name] = relative_error(spoil(value), reference[name])
    return controls


def _is_gradient(name: str) -> bool:
    """Return whether a result of `_compute_results` is a gradient."""
    return name.startswith("gradient ")


def _cast(value: Any, dtype: Any) -> Any:
    """Return a tensor in another dtype, if both are floating-point or neither is.

    So in a case of floating-point numbers, tensors of indices and lengths stay as they are.
    """
    if value.is_floating_point() == dtype.is_floating_point:
        return value.to(dtype)
    return value


def _compute_results(
    rng: SeededRandom, case: Case, function: Callable[..., Any], inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the outputs of a function and the gradients of a case's `grad_inputs`, on the CPU.

    An output is named as the function names it, or `output` if it returns one tensor; a gradient
    is named `gradient INPUT`. The inputs are not changed.

    function: the case's `run` or `plain`.
    """
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
        # The backward pass starts from the same numbers whichever function computed the outputs.
        upstream = [_draw_upstream(rng, name, value) for name, value in outputs.items()]
        differentiated = [leaves[name] for name in case.grad_inputs]
        gradients = torch.autograd.grad(list(outputs.values()), differentiated, upstream)
        for name, gradient in zip(case.grad_inputs, gradients, strict=True):
            results[f"gradient {name}"] = gradient.detach().cpu()
    return results


def _draw_upstream(rng: SeededRandom, name: str, output: Any) -> Any:
    """Return the gradient of an output from which a backward pass starts.

    It is the same in every dtype and on every device: small whole numbers, which no dtype rounds,
    and 1 for a scalar.
    """
    generator = rng.torch.Generator().manual_seed(SEED ^ zlib.crc32(name.encode()))
    if not output.dim():
        return rng.torch.ones_like(output)
    numbers = rng.torch.randint(-4, 5, tuple(output.shape), generator=generator)
    return numbers.to(device=output.device, dtype=output.dtype)


def _read_capability(torch: Any) -> tuple[int, int]:
    """Return the compute capability of the first GPU."""
    major, minor = torch.cuda.get_device_capability(0)
    return major, minor
