"""The numbers that come with an exception: what CUDA, NCCL and the kernel answered.

Torch gives CUDA's number as an attribute only from 2.8 on, and other numbers never. So they are
read here once, where the exception is recorded, from the fixed form in which these libraries print
a number or a name of theirs. Judges look at the numbers only.
"""

import errno
import os
import re
from typing import TypedDict

from validate.environment.nvml import DriverError


class ErrorCodes(TypedDict, total=False):
    """What is known of an error; a key is there only where its number is."""

    cuda_error: int
    """CUresult of the driver, which the runtime's cudaError_t shares."""
    cuda_call: str
    """The call that returned it, where the error names one."""
    failed_call: str
    """The system call, or the call of libibverbs, that failed."""
    errno: int
    nccl_transport: str
    """The part of NCCL that could not start: `NVLS`."""


class Raised(TypedDict):
    """An exception as evidence: `error` of what was measured."""

    kind: str
    """The name of its class; `crash`: the process died."""
    message: str


class ErrorEvidence(Raised, ErrorCodes, total=False):
    """The same with its numbers, and of a fork with the end of what it printed."""

    log: str


_RUNTIME_TEXTS = {
    "all CUDA-capable devices are busy or unavailable": 46,
    "CUDA-capable device(s) is/are busy or unavailable": 46,
    "uncorrectable ECC error encountered": 214,
    "uncorrectable NVLink error detected during the execution": 220,
    "system not yet initialized": 802,
}
"""cudaGetErrorString -> its number: `CUDA error: TEXT` is all that torch before 2.8 says of an error."""
_CUDA_TEXT = re.compile(r"CUDA error: ([^\n]+)")
_COUNTING = re.compile(r"Unexpected error from (cudaGetDeviceCount)\(\).*Error (\d+): ", re.DOTALL)
"""torch/cuda: what `torch.cuda.init` raises where the driver does not start."""
_ERRNOS = {os.strerror(number): number for number in (errno.EPERM, errno.ENOMEM)}
_FAILED_CALL = re.compile(rf"\b(pidfd_\w+|ibv_\w+)(?:: | failed with error )({'|'.join(_ERRNOS)})")
"""torch's `pidfd_getfd: Operation not permitted`; NCCL's `Call to ibv_reg_mr failed with error ...`."""
_NVLS = re.compile(r"\bnvls\.cc:\d+|\(NVLS\)")
"""NCCL's transport/nvls.cc, or the last error that this file leaves."""


def codes_of(error: BaseException) -> ErrorCodes:
    """Return the numbers of an exception; nothing for one that is not of these libraries."""
    if isinstance(error, DriverError):
        # NVML numbers its answers differently.
        return (
            {"cuda_error": error.code, "cuda_call": error.call}
            if error.call.startswith("cu")
            else {}
        )
    if not isinstance(error, RuntimeError):
        return {}

    codes: ErrorCodes = {}
    message = str(error)
    number = getattr(error, "error_code", None)  # torch.AcceleratorError: pytorch/pytorch#152023
    if isinstance(number, int):
        codes["cuda_error"] = number
    elif text := _CUDA_TEXT.search(message):
        known = _RUNTIME_TEXTS.get(text[1].strip())
        if known:
            codes["cuda_error"] = known
    elif counting := _COUNTING.search(message):
        codes["cuda_call"], codes["cuda_error"] = counting[1], int(counting[2])

    if call := _FAILED_CALL.search(message):
        codes["failed_call"], codes["errno"] = call[1], _ERRNOS[call[2]]
    if type(error).__name__ == "DistBackendError" and _NVLS.search(message):
        codes["nccl_transport"] = "NVLS"
    return codes
