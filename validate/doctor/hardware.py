"""Find out what the machine and the image are, for `doctor`.

The driver and torch are asked in processes of their own, because both may crash.
"""

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from validate.claims import ClaimSet
from validate.doctor import answers
from validate.doctor.advice import Disk, Gpu, Hardware, Stack
from validate.environment import container_memory

_LONGEST_SECONDS = 120
_SUITE = Path(__file__).resolve().parent.parent
CLAIMS = _SUITE.parent / "claims.json"
"""The image's own claims, which the build put beside the suite."""

Facts = Mapping[str, Any]
"""What one line of a process reported (answers.report)."""


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What the machine and the image are, and the errors that the inspection met."""

    hardware: Hardware
    stack: Stack
    troubles: tuple[str, ...] = ()
    """Error texts of the driver, torch and packages."""


def inspect() -> Inspection:
    """Inspect this machine and this image.

    A broken driver, torch or package raises nothing: its error is one of the `troubles`. The image
    is its torch, its packages and the GPUs that these have code for.
    """
    # Ask in two processes, which may crash. The first one is isolated from the image's packages
    # (-S) and variables (-I). The second one imports torch as a user's program does.
    driver = ask([sys.executable, "-I", "-S", str(_SUITE), "doctor-driver"], "the driver")
    torch = ask(
        [sys.executable, str(_SUITE), "doctor-torch"],
        "a program that imports torch and its packages",
    )
    inspection = interpret(driver, torch, _inspect_machine())

    # The image's claims say for which GPUs each package has code.
    stack = replace(inspection.stack, code=claimed_code(CLAIMS))
    return replace(inspection, stack=stack)


def ask(command: Sequence[str], subject: str) -> list[dict[str, Any]]:
    """Run a command, and return the facts that it reports, a dictionary for each line.

    If it does not start, fails or takes too long, nothing is raised: the last of the facts is an
    `error` that says so. `subject`: who is asked, for that error.
    """
    try:
        process = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LONGEST_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        facts = answers.read(error.stdout or b"")
        return [*facts, {"error": f"{subject} gave no answer in {_LONGEST_SECONDS} s"}]
    except OSError as error:
        return [{"error": f"Python does not start: {error}"}]

    facts = answers.read(process.stdout)
    if process.returncode:
        last_lines = process.stderr.decode("utf-8", "replace").strip().splitlines()[-3:]
        text = f"a process ended with status {process.returncode}: {' | '.join(last_lines)}"
        facts.append({"error": text})
    return facts


def interpret(driver: Sequence[Facts], torch: Sequence[Facts], machine: Hardware) -> Inspection:
    """Return one picture of the facts that both processes reported.

    `driver`, `torch`: the facts of each line, such as {"managed": {"driver": ..., "gpus": [...]}}
    (ask_driver.py) or {"package": [name, version]} (ask_torch.py). The GPUs are those that torch
    sees, or the driver's if torch can't be imported. `machine`: everything but the GPUs and the
    driver.
    """
    # NVML's facts are in the line with `managed`. There is none if NVML failed.
    by_nvml: Facts = {"driver": "", "gpus": []}
    for facts in driver:
        if "managed" in facts:
            by_nvml = facts["managed"]

    # Torch's process reports some facts once, such as torch's version (`of_torch`), and has a line
    # for each package and each GPU.
    of_torch: dict[str, Any] = {}
    packages: dict[str, str] = {}
    gpus_of_torch = []
    for facts in torch:
        of_torch.update(facts)
        if "package" in facts:
            name, version = facts["package"]
            packages[name] = version
        if "gpu" in facts:
            gpus_of_torch.append(facts["gpu"])

    if "torch" in of_torch:
        gpus = gpus_of_torch
        visible = machine.visible
    else:
        # The driver lists all GPUs, whatever CUDA_VISIBLE_DEVICES says, so its entries do not
        # name these GPUs.
        gpus = by_nvml["gpus"]
        visible = ()

    hardware = replace(
        machine,
        gpus=tuple(_make_gpu(facts) for facts in gpus),
        driver=by_nvml["driver"],
        visible=visible,
    )
    stack = Stack(
        torch=of_torch.get("torch", ""), archs=tuple(of_torch.get("archs", ())), packages=packages
    )
    return Inspection(hardware=hardware, stack=stack, troubles=_find_troubles([*driver, *torch]))


def _make_gpu(facts: Facts) -> Gpu:
    """Return the GPU that torch or NVML, the driver's library, describes with these facts.

    NVML says less than torch: a default stands for what is missing. `unified` means that the CPU
    shares the GPU's memory, `assembled` that Triton's assembler knows the GPU.
    """
    major, minor = facts["capability"]
    name = facts["name"]
    return Gpu(
        name=name,
        capability=(major, minor),
        memory=facts["memory"],
        # A slice is called `NVIDIA A100-SXM4-40GB MIG 1g.5gb`. The name may also end with MIG.
        mig=" MIG " in f"{name} ",
        unified=facts.get("unified", False),
        assembled=facts.get("assembled", True),
    )


def _find_troubles(reported: Sequence[Facts]) -> tuple[str, ...]:
    """Return the errors among the facts that processes reported, each text once."""
    troubles = []
    for facts in reported:
        for kind in ("error", "torch_error", "cuda_error"):
            if kind in facts:
                troubles.append(facts[kind])
        if "broken" in facts:
            troubles.append(": ".join(facts["broken"]))
    return tuple(dict.fromkeys(troubles))


def claimed_code(claims_file: Path) -> dict[str, tuple[str, ...]]:
    """Return for which GPUs the packages of this image have kernels: package -> targets (`sm_80`).

    It is read from the file of claims that our images hold: what an image must have, written when
    it was built. Empty if there is no such file, as in an image that is not ours, or if it can't be
    read.
    """
    code = {}
    # Any of these is raised if the file is missing or damaged. What was read before then counts.
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        for claim in ClaimSet.loads(claims_file.read_text(encoding="utf-8")).claims:
            if claim.check == "device-code" and claim.expect["kind"] == "kernels":
                # Architecture (`80`) -> the kind of its code (`cubin`, `jit`).
                archs = sorted(claim.expect["archs"].items(), key=lambda item: int(item[0]))
                code[claim.subject] = tuple(_name_target(arch, kind) for arch, kind in archs)
    return code


def _name_target(arch: str, kind: str) -> str:
    """Return `compute_90` for PTX (`jit`), which the driver compiles, else `sm_90`."""
    return f"compute_{arch}" if kind == "jit" else f"sm_{arch}"


def _inspect_machine() -> Hardware:
    """Return all facts about the machine except for its GPUs and driver. Memory is in bytes.

    `visible` are the entries of CUDA_VISIBLE_DEVICES, which choose among the GPUs.
    """
    # The memory that processes can share; None if this container has no /dev/shm.
    shm = None
    if Path("/dev/shm").is_dir():
        shm = shutil.disk_usage("/dev/shm").total

    # The memory that a process may lock; None if there is no limit.
    locked_memory = None
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit != resource.RLIM_INFINITY:
        locked_memory = limit
    entries = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return Hardware(
        cpus=len(os.sched_getaffinity(0)),
        memory=container_memory(),
        shm=shm,
        locked_memory=locked_memory,
        infiniband=Path("/dev/infiniband").is_dir(),
        disks=tuple(disks()),
        visible=tuple(entry.strip() for entry in entries if entry.strip()),
    )


def disks() -> list[Disk]:
    """Return the disks of checkpoints (this folder) and of downloads (Hugging Face's cache).

    If both are on one device, and this user may write to both or to neither, it is returned once.
    A disk that cannot be read is left out.
    """
    cache = (
        os.environ.get("HF_HOME") or os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    )
    known_disks = []
    for folder, holds in ((Path.cwd(), "checkpoints"), (Path(cache), "downloads")):
        disk = _find_disk(folder, holds)
        if disk is not None:
            known_disks.append(disk)

    # Two disks on one device with the same permission are one element here.
    devices = {(disk.writable, Path(disk.path).stat().st_dev) for disk in known_disks}
    if len(known_disks) == 2 and len(devices) == 1:
        return [replace(known_disks[0], holds="checkpoints and downloads")]
    return known_disks


def _find_disk(folder: Path, holds: str) -> Disk | None:
    """Return the disk of a folder, or of the nearest folder above it that exists.

    None if none of them can be read. `holds`: what training writes there, for people
    (`checkpoints`).
    """
    for candidate in (folder, *folder.parents):
        try:
            free = shutil.disk_usage(candidate).free
        except OSError:
            continue
        writable = os.access(candidate, os.W_OK)
        return Disk(path=str(candidate), holds=holds, free=free, writable=writable)
    return None
