"""Report what the driver and the machine say, in a process that a broken driver may crash."""

from collections.abc import Sequence

from validate import host_faults
from validate.doctor.answers import report
from validate.environment import host, nvml


def main(_arguments: Sequence[str] = ()) -> int:
    """Report the GPUs, by CUDA and by NVML, and what is wrong with the machine."""
    errors = []
    for fact, read in (("computing", nvml.read_by_cuda), ("managed", nvml.read_by_nvml)):
        try:
            report(**{fact: read()})
        except nvml.DriverError as error:
            errors.append(str(error))

    # Without a driver both fail, with the same cause.
    for error_text in errors[:1]:
        report(error=error_text)
    for fault in host_faults.of_machine(host.read()):
        report(error=fault)
    return 0
