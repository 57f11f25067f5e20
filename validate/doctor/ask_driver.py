"""Report what the driver and the machine say, in a process that a broken driver may crash."""

from collections.abc import Sequence

from validate import host_faults
from validate.doctor.answers import report
from validate.environment import host, nvml


def main(_arguments: Sequence[str] = ()) -> int:
    """Report the GPUs, as CUDA and as NVML see them, and what is wrong with the machine.

    The facts are "computing" (nvml.read_by_cuda), "managed" (nvml.read_by_nvml), and any number of
    "error". Always returns 0.
    """
    error_texts = []
    try:
        report(computing=nvml.read_by_cuda())
    except nvml.DriverError as error:
        error_texts.append(str(error))
    try:
        report(managed=nvml.read_by_nvml())
    except nvml.DriverError as error:
        error_texts.append(str(error))

    # If there is no driver, both fail, with the same cause.
    if error_texts:
        report(error=error_texts[0])
    for fault in host_faults.of_machine(host.read()):
        report(error=fault)
    return 0
