"""Error numbers of CUDA, NCCL and the kernel, read from the exception that torch raises.

torch has CUDA's number as an attribute from 2.8 on, and other numbers never. So they are read here,
where the exception is recorded, from the fixed form in which these libraries print them. Judges
look at the numbers only.
"""

import errno
import os
import re
from typing import TypedDict

from validate.environment.nvml import DriverError


class ErrorCodes(TypedDict, total=False):
    """Numbers of an error. A key is absent where the exception does not have its number."""

    cuda_error: int
    """CUresult of the driver, which the runtime's cudaError_t shares."""
    cuda_call: str
    """The CUDA function that returned it."""
    failed_call: str
    """The system call, or the call of libibverbs, that failed."""
    errno: int
    nccl_transport: str
    """The part of NCCL that could not start: `NVLS`."""


class Raised(TypedDict):
    """An exception as evidence: the value of the key `error`."""

    kind: str
    """The name of its class, or `crash` if the process died."""
    message: str


class ErrorEvidence(Raised, ErrorCodes, total=False):
    """An exception with its numbers. `log` is the end of the output of a fork that raised it."""

    log: str


_RUNTIME_TEXTS = {
    "all CUDA-capable devices are busy or unavailable": 46,
    "CUDA-capable device(s) is/are busy or unavailable": 46,
    "uncorrectable ECC error encountered": 214,
    "uncorrectable NVLink error detected during the execution": 220,
    "system not yet initialized": 802,
}
"""Text of cudaGetErrorString -> its number. torch before 2.8 reports only `CUDA error: TEXT`."""
_CUDA_TEXT = re.compile(r"CUDA error: ([^\n]+)")
_DEVICE_COUNT = re.compile(
    r"Unexpected error from (cudaGetDeviceCount)\(\).*Error (\d+): ", re.DOTALL
)
"""What `torch.cuda.init` raises where the driver does not start (torch/cuda/__init__.py)."""
_ERRNOS = {os.strerror(number): number for number in (errno.EPERM, errno.ENOMEM)}
_FAILED_CALL = re.compile(rf"\b(pidfd_\w+|ibv_\w+)(?:: | failed with error )({'|'.join(_ERRNOS)})")
"""torch's `pidfd_getfd: Operation not permitted`; NCCL's `Call to ibv_reg_mr failed with error
...`."""
_NVLS = re.compile(r"\bnvls\.cc:\d+|\(NVLS\)")
"""A line of NCCL's transport/nvls.cc, or the last error that this file sets."""


def codes_of(error: BaseException) -> ErrorCodes:
    """Return the numbers that an exception of CUDA, NCCL or the kernel has; else an empty dict."""
    if isinstance(error, DriverError):
        # Calls that do not start with `cu` are NVML's, whose numbers have other meanings.
        if error.call.startswith("cu"):
            return {"cuda_error": error.code, "cuda_call": error.call}
        return {}
    if not isinstance(error, RuntimeError):
        return {}

    message = str(error)
    codes = _cuda_codes(error, message)
    if call := _FAILED_CALL.search(message):
        codes["failed_call"] = call[1]
        codes["errno"] = _ERRNOS[call[2]]
    if type(error).__name__ == "DistBackendError" and _NVLS.search(message):
        codes["nccl_transport"] = "NVLS"
    return codes


def _cuda_codes(error: RuntimeError, message: str) -> ErrorCodes:
    """Return CUDA's number of an error of torch, from its attribute or else from its message."""
    # torch.AcceleratorError has it from torch 2.8 on (pytorch/pytorch#152023).
    number = getattr(error, "error_code", None)
    if isinstance(number, int):
        return {"cuda_error": number}

    if text := _CUDA_TEXT.search(message):
        # A text that is not in the table gives no number.
        known_number = _RUNTIME_TEXTS.get(text[1].strip())
        return {"cuda_error": known_number} if known_number else {}

    if device_count := _DEVICE_COUNT.search(message):
        return {"cuda_call": device_count[1], "cuda_error": int(device_count[2])}
    return {}
