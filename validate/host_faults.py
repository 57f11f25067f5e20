"""Finds faults of the machine, which say nothing about the image that runs there.

A claim that fails on a GPU is UNPROVEN if one of these is found (judge.py). Each fault of a host is
a function, whose docstring names the cause and a source. Faults are read from what was measured:
facts of the host (environment/host.py), and the numbers that came with an error
(harness/error_codes.py). The wording of an error decides nothing: known wordings are in hints.yaml,
for people.

Xid numbers: https://docs.nvidia.com/deploy/xid-errors/. CUDA's error numbers: cuda.h, CUresult,
which the runtime shares.
"""

import errno
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from validate.environment.host import HostFacts

# --- facts of the host


def of_machine(facts: HostFacts) -> list[str]:
    """Return what is wrong with a machine, a sentence each; nothing if it has no NVIDIA GPU."""
    faults: list[str] = []
    for find in _OF_MACHINE:
        faults.extend(find(facts))
    for number, gpu in enumerate(facts["gpus"]):
        faults.extend(f"GPU {number}: {fault}" for fault in of_gpu(gpu))
    return faults


def gpu_is_off_the_bus(facts: HostFacts) -> Iterator[str]:
    """Yield a sentence for each GPU that no longer answers on the PCI bus (Xid 79).

    It is the power, the riser, the heat or the GPU itself.
    """
    for gpu in facts["pci"]:
        if not gpu["answers"]:
            yield f"GPU {gpu['address']} has fallen off the bus"


def kernel_module_is_not_loaded(facts: HostFacts) -> Iterator[str]:
    """Yield a fault if the machine has GPUs of NVIDIA, and no kernel module of NVIDIA is loaded.

    The module was not built for this kernel, Secure Boot refuses it, or nouveau has the GPU.
    https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/
    """
    # Under WSL (Linux in Windows) no module is needed. `windows_driver_is_silent` is about that.
    needs_no_module = facts["under_wsl"] or _lacks_answer_of_windows(facts)
    if facts["module_loaded"] or needs_no_module or not facts["pci"]:
        return
    count = len(facts["pci"])
    yield f"no NVIDIA kernel module is loaded for {count} GPU{'s' * (count > 1)} on the bus"


def windows_driver_is_silent(facts: HostFacts) -> Iterator[str]:
    """Yield a fault if the driver of Windows does not let WSL use the GPU.

    The GPU is in TCC mode, WSL is old, or a Linux driver is installed inside it:
    microsoft/WSL#10289, microsoft/WSL#11865
    """
    if _lacks_answer_of_windows(facts):
        yield f"Windows' driver does not answer: {facts['nvml_error']}"


def driver_is_silent(facts: HostFacts) -> Iterator[str]:
    """Yield a fault if NVIDIA's kernel module is loaded, and does not answer its library (NVML).

    The library is of another release (NVML's error 18), or the cgroup has taken the devices from
    this container (999).
    https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/troubleshooting.html
    """
    if facts["module_loaded"] and facts["nvml_error"]:
        yield f"the host's driver does not answer: {facts['nvml_error']}"


def device_files_are_missing(facts: HostFacts) -> Iterator[str]:
    """Yield a sentence for each device file that the host lacks, so that no container can get it.

    nvidia-modprobe, which makes them, did not run before the container was started.
    https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/troubleshooting.html
    """
    if not facts["module_loaded"]:
        return
    for file in ("/dev/nvidiactl", "/dev/nvidia-uvm"):
        if file in facts["missing_files"]:
            yield f"{file}: no such device on the host"


HARDWARE_XIDS = {
    48: "double bit ECC error",
    64: "a row of memory could not be remapped",
    74: "NVLink error",
    79: "off the bus",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "GSP does not answer",
    120: "GSP error",
    140: "unrecovered ECC error",
}
"""Xid -> what NVIDIA calls it. Others come of programs (13, 31, 43), so they may be the image's."""


def driver_logged_a_fault(facts: HostFacts) -> Iterator[str]:
    """Yield the last three faults in the driver's log, each as its text in the log.

    A fault is an error of hardware by its Xid (NVIDIA's number of an error), or an entry without an
    Xid: a GPU that the driver could not start (RmInitAdapter,
    NVIDIA/open-gpu-kernel-modules#326), or a module of another release.

    facts: what was read of the machine; its `log` has the driver's entries.
    """
    # Without a module, kernel_module_is_not_loaded says what is wrong, and the log is an old one.
    if not facts["module_loaded"]:
        return
    faults: list[str] = []
    for entry in facts["log"]:
        # An entry without an Xid is always a fault: the facts have no others (LogEntry).
        if entry["xid"] is None or entry["xid"] in HARDWARE_XIDS:
            faults.append(entry["text"])
    yield from faults[-3:]


def mig_lacks_its_device_files(facts: HostFacts) -> Iterator[str]:
    """Yield a fault if a GPU is divided by MIG, and the host has no /dev/nvidia-caps.

    MIG's instances are reached through it (NVIDIA's MIG user guide).
    """
    has_instances = any(gpu["instances"] for gpu in facts["gpus"])
    if has_instances and "/dev/nvidia-caps" in facts["missing_files"]:
        yield "/dev/nvidia-caps: no such device on the host, and MIG's instances need it"


_OF_MACHINE: tuple[Callable[[HostFacts], Iterator[str]], ...] = (
    gpu_is_off_the_bus,
    windows_driver_is_silent,
    kernel_module_is_not_loaded,
    driver_is_silent,
    device_files_are_missing,
    driver_logged_a_fault,
    mig_lacks_its_device_files,
)


def _lacks_answer_of_windows(facts: HostFacts) -> bool:
    """Return whether NVML got no answer from the driver of Windows, which WSL uses."""
    return bool(not facts["module_loaded"] and facts["nvml_error"] and facts["windows_driver"])


# --- the health of a GPU: numbers by name (nvml.read_health); a name is absent if NVML can't tell

_EXCLUSIVE, _PROHIBITED = 3, 2
"""NVML_COMPUTEMODE_EXCLUSIVE_PROCESS and _PROHIBITED (nvml.h)."""
_FABRIC_READY, _FABRIC_NONE = 3, 0
"""NVML_GPU_FABRIC_STATE_COMPLETED and _NOT_SUPPORTED (nvml.h)."""


def of_gpu(gpu: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a GPU."""
    faults: list[str] = []
    for find in _OF_GPU:
        faults.extend(find(gpu))
    return faults


def memory_has_uncorrectable_errors(gpu: Mapping[str, Any]) -> Iterator[str]:
    """Yield a fault if memory had errors that could not be corrected.

    https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/
    """
    count = gpu.get("ecc", [0])[0]
    if count:
        yield f"{count} uncorrectable ECC errors since the driver started"


def memory_rows_are_not_remapped(gpu: Mapping[str, Any]) -> Iterator[str]:
    """Yield a fault if broken rows of memory are in use until the GPU is reset (same page)."""
    # The first two numbers count rows that were remapped.
    pending_and_failed = gpu.get("remapped", [])[2:]
    if any(pending_and_failed):
        yield "rows of memory wait for remapping, or could not be remapped"


def mig_has_no_instance(gpu: Mapping[str, Any]) -> Iterator[str]:
    """Yield a fault if MIG is on and has no instance: programs then find no device.

    NVIDIA's MIG user guide.
    """
    is_on = gpu.get("mig", [0])[0]
    if is_on and not gpu["instances"]:
        yield "MIG is on and has no instance"


def compute_mode_lets_nobody_in(gpu: Mapping[str, Any]) -> Iterator[str]:
    """Yield a fault if the compute mode is prohibited, or exclusive and the GPU is taken.

    `nvidia-smi -c` sets it: https://docs.nvidia.com/deploy/mps/
    """
    mode = gpu.get("mode", [0])[0]
    if mode == _PROHIBITED or (mode == _EXCLUSIVE and gpu["processes"]):
        yield "its compute mode lets no further process in"


def memory_is_taken(gpu: Mapping[str, Any]) -> Iterator[str]:
    """Yield a fault if other processes hold more than half of the memory.

    On a shared machine, checks of ours ran out of it then.
    """
    used, total = gpu.get("memory", [0, 0])
    if used * 2 > total:
        # Bytes >> 20 are MiB.
        yield f"other processes hold {used >> 20} of {total >> 20} MiB"


def fabric_is_not_ready(gpu: Mapping[str, Any]) -> Iterator[str]:
    """Yield a fault if the fabric manager does not run, or is of another release than the driver.

    pytorch/pytorch#35710
    """
    state = gpu.get("fabric", _FABRIC_NONE)
    if state not in (_FABRIC_NONE, _FABRIC_READY):
        yield f"the NVLink fabric is not ready (state {state})"


_OF_GPU: tuple[Callable[[Mapping[str, Any]], Iterator[str]], ...] = (
    memory_has_uncorrectable_errors,
    memory_rows_are_not_remapped,
    mig_has_no_instance,
    compute_mode_lets_nobody_in,
    memory_is_taken,
    fabric_is_not_ready,
)


# --- numbers that came with an error

CUDA_ERRORS = {
    # cudaErrorDevicesUnavailable
    46: "the GPU is taken: exclusive compute mode, or MIG without an instance",
    # cudaErrorECCUncorrectable
    214: "the GPU's memory had an error that could not be corrected",
    # cudaErrorNvlinkUncorrectable
    220: "an NVLink connection failed",
    # cudaErrorSystemNotReady: pytorch/pytorch#35710
    802: "the GPUs wait for the fabric manager",
}
"""Not among them: 803 and 804, which an image's own libcuda (forward compatibility) brings about;
209, no code for this GPU; 100 and 999, which hidden devices bring about."""
_SYMBOL_NOT_FOUND = 500
"""CUDA_ERROR_NOT_FOUND: a library has no symbol of this name."""
_STARTING_CALLS = ("cuInit", "cudaGetDeviceCount")
"""The calls by which a program starts the driver."""


def of_evidence(evidence: object) -> str:
    """Return the first fault of the machine that explains an error in the evidence; empty: none."""
    for error in _errors_in(evidence):
        fault = of_error(error)
        if fault:
            return fault
    return ""


def of_error(error: Mapping[str, Any]) -> str:
    """Return the fault of the machine that an error's numbers stand for; empty if for none.

    error: an exception as harness.forked.describe_error records it (ErrorEvidence). The keys that
        are read here are there only if the exception had such a number: `cuda_error` and the
        `cuda_call` that gave it, `errno` and the `failed_call`, `nccl_transport`.
    """
    code, call = error.get("cuda_error"), error.get("cuda_call")
    if code in CUDA_ERRORS:
        return CUDA_ERRORS[code]
    # If a call that starts the driver gives this number, a library of the driver is missing: the
    # container's tool does not bring in libnvdxgdmal.so.1 (NVIDIA/nvidia-container-toolkit#520). If
    # any other call gives it, a library of the image lacks a symbol.
    if code == _SYMBOL_NOT_FOUND and call in _STARTING_CALLS:
        return "the container lacks libraries of Windows' driver: its toolkit is too old"
    # `nccl_transport` is there only if NCCL could not start that transport. For this one, the
    # fabric manager does not run, or the container may not use multicast: NVIDIA/nccl#1672,
    # pytorch/pytorch#177472.
    if error.get("nccl_transport") == "NVLS":
        return "NCCL can't set NVLink SHARP's multicast up"

    # A call of the kernel or of libibverbs, and the error number that it gave.
    system_call, status = str(error.get("failed_call", "")), error.get("errno")
    # Expandable segments are shared by taking another process's file descriptor:
    # pytorch/pytorch#165685.
    if system_call.startswith("pidfd_") and status == errno.EPERM:
        return "the container may not take another process's file descriptors: it lacks SYS_PTRACE"
    # NCCL's troubleshooting page: --ulimit memlock=-1.
    if system_call.startswith("ibv_") and status == errno.ENOMEM:
        return "the container may not lock the memory that InfiniBand needs"
    return ""


def _errors_in(evidence: object) -> Iterator[Mapping[str, Any]]:
    """Yield every recorded exception in a piece of evidence, however deep."""
    if isinstance(evidence, Mapping):
        error = evidence.get("error")
        if isinstance(error, Mapping):
            yield error
        for value in evidence.values():
            yield from _errors_in(value)
    elif isinstance(evidence, list | tuple):
        for value in evidence:
            yield from _errors_in(value)
