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
_CUDA_TEXT = re.compile(r"CUDA error: (?P<text>[^\n]+)")
"""`CUDA error: uncorrectable ECC error encountered`."""
_DEVICE_COUNT = re.compile(
    r"Unexpected error from (?P<call>cudaGetDeviceCount)\(\).*Error (?P<number>\d+): ", re.DOTALL
)
"""What `torch.cuda.init` raises where the driver does not start (torch/cuda/__init__.py):
`Unexpected error from cudaGetDeviceCount(). ... Error 802: system not yet initialized`."""
_ERRNOS = {os.strerror(number): number for number in (errno.EPERM, errno.ENOMEM)}
"""The kernel's text of an error number -> the number: `Operation not permitted` -> 1."""
_FAILED_CALL = re.compile(
    rf"\b(?P<call>pidfd_\w+|ibv_\w+)(?:: | failed with error )(?P<text>{'|'.join(_ERRNOS)})"
)
"""torch's `pidfd_getfd: Operation not permitted`; NCCL's `Call to ibv_reg_mr failed with error
...`."""
_NVLS = re.compile(r"\bnvls\.cc:\d+|\(NVLS\)")
"""A line of NCCL's transport/nvls.cc, or the last error that this file sets."""


def codes_of(error: BaseException) -> ErrorCodes:
    """Return the error numbers that an exception of CUDA, NCCL or the kernel carries; {} if none.

    For example `{"cuda_error": 214}`, or `{"failed_call": "pidfd_getfd", "errno": 1}`.
    """
    if isinstance(error, DriverError):
        # Calls that do not start with `cu` are NVML's, whose numbers have other meanings.
        if error.call.startswith("cu"):
            return {"cuda_error": error.code, "cuda_call": error.call}
        return {}
    if not isinstance(error, RuntimeError):
        return {}

    message = str(error)
    codes = _cuda_codes(error, message)
    # A call of the kernel or of InfiniBand's library: its name, and the text of its error number.
    if failed := _FAILED_CALL.search(message):
        codes["failed_call"] = failed["call"]
        codes["errno"] = _ERRNOS[failed["text"]]
    if type(error).__name__ == "DistBackendError" and _NVLS.search(message):
        codes["nccl_transport"] = "NVLS"
    return codes


def _cuda_codes(error: RuntimeError, message: str) -> ErrorCodes:
    """Return CUDA's number of an error that torch raised, as `{"cuda_error": NUMBER}`.

    It stands in an attribute of the error or in its `message`, or the message has a text whose
    number is known. Empty if it is no error of CUDA, or its text is not known.
    """
    # torch.AcceleratorError has the number from torch 2.8 on (pytorch/pytorch#152023).
    attribute = getattr(error, "error_code", None)
    if isinstance(attribute, int):
        return {"cuda_error": attribute}

    # Older releases of torch print the text alone.
    if cuda_error := _CUDA_TEXT.search(message):
        number = _RUNTIME_TEXTS.get(cuda_error["text"].strip())
        return {"cuda_error": number} if number else {}

    # Where the driver does not start, the message has the number and names the call.
    if at_start := _DEVICE_COUNT.search(message):
        return {"cuda_call": at_start["call"], "cuda_error": int(at_start["number"])}
    return {}
