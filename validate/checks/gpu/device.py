"""device: the container must see the GPUs of its host, by NVML, by libcuda and by torch.

The claim holds the host's inventory. A container that sees other GPUs computes somewhere else, or
not at all.
"""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict

from validate.claims import Claim
from validate.environment import nvml
from validate.environment.nvml import Gpu
from validate.harness.forked import attempt, list_mapped_files
from validate.judging import Finding, cause, failed, joined, listed, passed, plural, suspects
from validate.kernels.judge import dotted
from validate.kernels.runner import environment


class Inventory(TypedDict):
    """The host's driver and GPUs."""

    driver: str
    gpus: Sequence[Gpu]


class DeviceExpect(TypedDict):
    """What the claim expects of the container's GPUs."""

    inventory: Inventory | None  # None: the host could not tell
    archs: Sequence[str]  # those of the image, for people to read


class DeviceEvidence(TypedDict):
    """What the container sees. Each view has `gpus` and other facts, or `error` if it failed."""

    nvml: Mapping[str, Any]
    cuda: Mapping[str, Any]
    torch: Mapping[str, Any]
    libcuda: list[str]  # the files of the driver's library that this process has loaded
    environment: Mapping[str, str]


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, DeviceEvidence]]:
    """List the GPUs that this container sees, by the driver (NVML and libcuda) and by torch.

    Yields the subject of each claim with what each of the three answered, or its error; the files
    of libcuda that are in the process; and environment variables that may explain a fault.
    """
    # Read the variables first, because torch sets some of its own when it is imported.
    environment_before_torch = environment()
    for claim in claims:
        evidence: DeviceEvidence = {
            "nvml": attempt(nvml.read_by_nvml),
            "cuda": attempt(nvml.read_by_cuda),
            "torch": attempt(read_by_torch),
            "libcuda": list_mapped_files(r"/libcuda\.so"),
            "environment": environment_before_torch,
        }
        yield claim.subject, evidence


def read_by_torch() -> dict[str, Any]:
    """Return torch's version, its CUDA, the architectures it is built for, the GPUs it sees.

    Each GPU has its name, its compute capability ([9, 0]) and its memory in bytes. Raises what
    torch raises if it can't initialise CUDA.
    """
    torch = importlib.import_module("torch")
    torch.cuda.init()
    gpus = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        gpus.append(
            {
                "name": properties.name,
                "capability": [properties.major, properties.minor],
                "memory": properties.total_memory,
            }
        )
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "archs": torch.cuda.get_arch_list(),
        "gpus": gpus,
    }


_MIG_MARK = " MIG "
"""libcuda names a slice of a GPU so: `NVIDIA A100-SXM4-40GB MIG 1g.5gb`."""


def judge(_subject: str, expect: DeviceExpect, evidence: DeviceEvidence) -> Finding:
    """Pass if a container sees the GPUs of its host, through a single driver library.

    The driver (libcuda) and torch listed the GPUs that they see in the container. Both must see the
    same, and those that the host has, or slices of them. The host's list (`inventory`) may not be
    known: then it is not compared.

    Fails if a list could not be read, if they do not agree, and if no or several libcudas are
    loaded. The reason then ends with suspicious environment variables.
    """
    for reader, answer in (("libcuda", evidence["cuda"]), ("torch", evidence["torch"])):
        if "error" in answer:
            error = cause(answer["error"])
            return failed(f"{reader} can't list the GPUs: {error}{suspects(evidence)}")

    inventory = expect.get("inventory")
    problems = [*find_inventory_problems(inventory, evidence), *find_view_problems(evidence)]
    libraries = evidence["libcuda"]
    if len(libraries) != 1:
        problems.append(f"{len(libraries)} driver libraries are loaded: {listed(list(libraries))}")
    if problems:
        return failed(f"{joined(problems)}{suspects(evidence)}")

    gpus = evidence["cuda"]["gpus"]
    count = plural(len(gpus), "GPU")
    names = listed([describe_gpu(gpu) for gpu in gpus])
    driver = evidence["nvml"].get("driver", "?")
    source = "as the host says" if inventory else "as libcuda and torch both say"
    return passed(f"{count}, {names}, driver {driver}, {source}")


def find_inventory_problems(inventory: Inventory | None, evidence: DeviceEvidence) -> Iterator[str]:
    """Yield sentences on how the container's GPUs and driver differ from the host's inventory.

    GPUs are compared by name and compute capability. Nothing is yielded without an inventory.
    """
    if inventory is None:
        return
    host_gpus = sort_gpus(inventory["gpus"])
    seen_gpus = sort_gpus(evidence["cuda"]["gpus"])
    # The host's inventory lists whole GPUs, but a container may get slices of them (MIG). Then each
    # slice must belong to one of these GPUs, and numbers are not compared.
    if any(_MIG_MARK in gpu["name"] for gpu in seen_gpus):
        yield from describe_foreign_slices(inventory["gpus"], evidence["cuda"]["gpus"])
    elif len(host_gpus) != len(seen_gpus):
        # With another number of GPUs, it can't be told which of them belong together.
        yield (
            f"the host gave the container {plural(len(host_gpus), 'GPU')}, and programs there see "
            f"{len(seen_gpus)}"
        )
        return
    else:
        for index, (host_gpu, seen_gpu) in enumerate(zip(host_gpus, seen_gpus, strict=True)):
            if not is_same_model(host_gpu, seen_gpu):
                seen, expected = describe_gpu(seen_gpu), describe_gpu(host_gpu)
                yield f"GPU {index} is {seen} in the container, and {expected} on the host"

    # The library in the container must be that of the host's driver. Each version may be unknown.
    library_version = evidence["nvml"].get("driver")
    host_version = inventory["driver"]
    if library_version and host_version and library_version != host_version:
        yield (
            f"the driver's library in the container is {library_version}, and the host's driver is "
            f"{host_version}"
        )


def describe_foreign_slices(host_gpus: Sequence[Gpu], seen_gpus: Sequence[Gpu]) -> Iterator[str]:
    """Yield a sentence for each slice of a GPU (MIG) that belongs to no GPU of the host.

    The numbers of GPUs cannot be compared: a process sees a single slice, however many GPUs the
    host has.
    """
    for seen_gpu in seen_gpus:
        # The name of a slice begins with that of its GPU.
        whole_gpu: Gpu = {**seen_gpu, "name": seen_gpu["name"].partition(_MIG_MARK)[0]}
        if not any(is_same_model(host_gpu, whole_gpu) for host_gpu in host_gpus):
            yield f"{describe_gpu(seen_gpu)} in the container is a slice of no GPU of the host"


def find_view_problems(evidence: DeviceEvidence) -> Iterator[str]:
    """Yield a problem if libcuda sees no GPU, or if torch sees other GPUs than libcuda.

    Only compute capabilities are compared, of the GPUs in the order of `sort_gpus`. The problem
    names the GPUs, for people.
    """
    cuda_gpus = sort_gpus(evidence["cuda"]["gpus"])
    torch_gpus = sort_gpus(evidence["torch"]["gpus"])
    if not cuda_gpus:
        yield "the driver's library in the container (libcuda) sees no GPU"
    cuda_capabilities = [gpu["capability"] for gpu in cuda_gpus]
    torch_capabilities = [gpu["capability"] for gpu in torch_gpus]
    if cuda_capabilities != torch_capabilities:
        cuda_sees = listed([gpu["name"] for gpu in cuda_gpus]) or "nothing"
        torch_sees = listed([gpu["name"] for gpu in torch_gpus]) or "nothing"
        yield f"the driver sees {cuda_sees}, and torch sees {torch_sees}"


def is_same_model(gpu: Gpu, other: Gpu) -> bool:
    """Return whether two GPUs have the same name and compute capability."""
    return (gpu["name"], gpu["capability"]) == (other["name"], other["capability"])


def describe_gpu(gpu: Gpu) -> str:
    """Return a GPU's name and compute capability: `NVIDIA H200 (9.0)`."""
    return f"{gpu['name']} ({dotted(gpu['capability'])})"


def sort_gpus(gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return GPUs by name and capability: NVML orders them by bus and CUDA by speed."""
    return sorted(gpus, key=lambda gpu: (gpu["name"], gpu["capability"]))


CLAIMS = {"device": judge}
NEXT_STEPS = {
    "device": {
        "driver libraries are loaded": "remove the libcuda.so that the image brings (`apt-get "
        "remove 'cuda-compat-*'`) in your Dockerfile or base image, then build and validate the "
        "image again",
        "the host's driver is": "restart Docker (`sudo systemctl restart docker`), which then "
        "gives containers the host's new driver, and validate again",
        "system not yet initialized": "on the host, run `sudo systemctl enable --now "
        "nvidia-fabricmanager`, as GPUs with NVSwitch (HGX, DGX) wait for the Fabric Manager; its "
        "version must be exactly the driver's (`systemctl status nvidia-fabricmanager` says why it "
        "does not start); then validate again",
        "can't list the GPUs": "run `nvidia-smi` on the host. If it fails there, too, mend the "
        "host's driver: install it again, or start the host anew (`sudo dmesg` says more). If only "
        "`docker run --rm --gpus all IMAGE nvidia-smi` fails, restart Docker (`sudo systemctl "
        "restart docker`). If both work, start the host anew. Then validate again",
        "": "compare `nvidia-smi -L` on the host with `docker run --rm --gpus all IMAGE nvidia-smi "
        "-L`; if they differ, take CUDA_VISIBLE_DEVICES and NVIDIA_VISIBLE_DEVICES out of your "
        "Dockerfile and of the environment of Docker, or let `docker context use` name the engine "
        "of this machine; then validate again",
    }
}
