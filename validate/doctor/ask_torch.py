"""Report what torch and other packages say, in a process that any of them may crash."""

import importlib
import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata, util
from pathlib import Path
from typing import Any

from validate.doctor.answers import report

_IMPORTED = {
    "flash-attn": "flash_attn",
    "flash-attn-4": "flash_attn.cute",
    "xformers": "xformers.ops",
    "bitsandbytes": "bitsandbytes",
    "transformers": "transformers",
}
"""Package that settings depend on -> the module whose import shows that it works."""
_INSTALLED = ("axolotl", "colossalai", "deepspeed", "unsloth")
"""Frameworks whose import takes long, or needs a GPU: that they are installed is enough."""
_TWO_ASSEMBLERS_FROM = 100
"""The first architecture for which Triton has an assembler of its own, ptxas-blackwell."""


def main(_arguments: Sequence[str] = ()) -> int:
    """Report torch, its GPUs, and the packages."""
    _report_torch()
    for name in _INSTALLED:
        with suppress(metadata.PackageNotFoundError):
            report(package=[name, metadata.version(name)])
    for name, module in _IMPORTED.items():
        _report_imported(name, module)
    return 0


def _report_torch() -> None:
    """Print torch's version, the GPUs it has code for, and the GPUs of this machine.

    Each fact is printed as soon as it is known, because torch may crash the process at the next
    one. If something raises, its error is printed, and nothing after it is asked for.
    """
    try:
        torch: Any = importlib.import_module("torch")
    except BaseException as error:  # a broken package may raise anything, SystemExit too
        report(torch_error=_write_error(error))
        return

    report(torch=torch.__version__, cuda=torch.version.cuda)
    # "archs" are the GPUs that this torch has code for: `sm_80 sm_90`. A torch for CPUs has no such
    # function.
    with suppress(AttributeError):
        report(archs=torch._C._cuda_getArchFlags().split())

    try:
        torch.cuda.init()
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            # 90 for compute capability 9.0, as in `sm_90`.
            arch = properties.major * 10 + properties.minor
            gpu = {
                "name": properties.name,
                "capability": [properties.major, properties.minor],
                "memory": properties.total_memory,  # in bytes
                # Whether the GPU shares its memory with the CPU.
                "unified": bool(getattr(properties, "is_integrated", 0)),
                # Whether Triton's assembler (ptxas) knows the GPU.
                "assembled": _triton_assembles(arch),
            }
            report(gpu=gpu)
    except BaseException as error:
        report(cuda_error=_write_error(error))


def _report_imported(name: str, module: str) -> None:
    """Report the version of a package whose module can be imported, or the error of the import.

    `name` is the package's, as pip knows it, and `module` what is imported. Nothing is reported of
    a package that is not installed.
    """
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return
    try:
        importlib.import_module(module)
        report(package=[name, version])
    except BaseException as error:  # a broken package may raise anything, SystemExit too
        report(broken=[name, _write_error(error)])


def _triton_assembles(arch: int) -> bool:
    """Return whether the ptxas that Triton takes for an architecture (103 for sm_103) knows it.

    ptxas is the assembler of CUDA, which makes machine code for a GPU. True if there is no ptxas,
    it does not run, or it does not list its targets: then nothing is known against it.
    """
    # Triton takes the first of these that exists. For new GPUs ptxas-blackwell comes before ptxas,
    # and of each, the one that a variable names comes before the one that Triton brought.
    triton = util.find_spec("triton")
    names = ["ptxas-blackwell", "ptxas"] if arch >= _TWO_ASSEMBLERS_FROM else ["ptxas"]
    candidates = []
    for name in names:
        variable = f"TRITON_{name.upper().replace('-', '_')}_PATH"
        candidates.append(os.environ.get(variable, ""))
        if triton and triton.origin:
            folder = Path(triton.origin).parent / "backends" / "nvidia" / "bin"
            candidates.append(str(folder / name))

    # A variable that is not set is an empty candidate, which is no file.
    assembler = next(filter(os.path.isfile, candidates), None)
    if assembler is None:
        return True

    # Its help lists the targets: `Allowed values for this option: 'sm_75','sm_80', ...`.
    try:
        command = [assembler, "--help"]
        process = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return True
    lists_targets = "'sm_" in process.stdout
    return not lists_targets or f"'sm_{arch}'" in process.stdout


def _write_error(error: BaseException) -> str:
    """Return `ImportError: no such file` for an exception."""
    return f"{type(error).__name__}: {error}"
