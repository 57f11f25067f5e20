"""What the machine and the image are, asked of the driver and of torch in processes of their own: both may crash."""

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from validate.claims import ClaimSet
from validate.doctor import answers
from validate.doctor.advice import Disk, Gpu, Hardware, Stack
from validate.environment import container_memory

_SECONDS = 120
_SUITE = Path(__file__).resolve().parent.parent
CLAIMS = _SUITE.parent / "claims.json"
"""Beside the suite, where the build put them."""

Facts = Mapping[str, Any]
"""What one line of a process reported."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """Everything that was found, and what stood in the way."""

    hardware: Hardware
    stack: Stack
    troubles: tuple[str, ...] = ()
    """Error texts of the driver, torch and packages."""


def detect() -> Found:
    """Look at this machine. Raises nothing that a broken driver, torch or package can cause."""
    # The driver is asked without the image's site packages, torch as a user's program imports it.
    driver = ask([sys.executable, "-I", "-S", str(_SUITE), "doctor-driver"], "the driver")
    torch = ask(
        [sys.executable, str(_SUITE), "doctor-torch"],
        "a program that imports torch and its packages",
    )
    found = interpret(driver, torch, _machine())
    return replace(found, stack=replace(found.stack, code=claimed_code(CLAIMS)))


def ask(command: Sequence[str], whom: str) -> list[dict[str, Any]]:
    """Return the facts that a process reports, and as one more how it ended, if it did not end well."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        return [
            *answers.read(error.stdout or b""),
            {"error": f"{whom} gave no answer in {_SECONDS} s"},
        ]
    except OSError as error:
        return [{"error": f"Python does not start: {error}"}]

    facts = answers.read(done.stdout)
    if done.returncode:
        tail = done.stderr.decode("utf-8", "replace").strip().splitlines()[-3:]
        facts.append(
            {"error": f"a process ended with status {done.returncode}: {' | '.join(tail)}"}
        )
    return facts


def interpret(driver: Sequence[Facts], torch: Sequence[Facts], machine: Hardware) -> Found:
    """Return one picture of what both processes reported: torch's GPUs, or the driver's if torch can't be imported.

    `machine`: everything but the GPUs and the driver.
    """
    managed: Facts = {"driver": "", "gpus": []}
    for facts in driver:
        managed = facts.get("managed", managed)

    merged: dict[str, Any] = {}
    packages: dict[str, str] = {}
    gpus_of_torch = []
    for facts in torch:
        merged.update(facts)
        if "package" in facts:
            name, version = facts["package"]
            packages[name] = version
        if "gpu" in facts:
            gpus_of_torch.append(facts["gpu"])

    has_torch = "torch" in merged
    gpus = gpus_of_torch if has_torch else managed["gpus"]
    return Found(
        hardware=replace(
            machine,
            gpus=tuple(_gpu(facts) for facts in gpus),
            driver=managed["driver"],
            # The driver numbers all GPUs, whatever the variable says.
            visible=machine.visible if has_torch else (),
        ),
        stack=Stack(
            torch=merged.get("torch", ""), archs=tuple(merged.get("archs", ())), packages=packages
        ),
        troubles=_troubles([*driver, *torch]),
    )


def _gpu(facts: Facts) -> Gpu:
    major, minor = facts["capability"]
    return Gpu(
        name=facts["name"],
        capability=(major, minor),
        memory=facts["memory"],
        mig=" MIG " in f"{facts['name']} ",
        unified=facts.get("unified", False),
        assembled=facts.get("assembled", True),
    )


def _troubles(reported: Sequence[Facts]) -> tuple[str, ...]:
    """Return the error texts, each once."""
    troubles = []
    for facts in reported:
        for kind in ("error", "torch_error", "cuda_error"):
            if kind in facts:
                troubles.append(facts[kind])
        if "broken" in facts:
            troubles.append(": ".join(facts["broken"]))
    return tuple(dict.fromkeys(troubles))


def claimed_code(claims: Path) -> dict[str, tuple[str, ...]]:
    """Return package -> targets, by the image's own claims `device-code`.

    Empty for a base of somebody else, which has no claims.
    """
    code = {}
    # Of a damaged file nothing is known, and doctor goes on.
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        for claim in ClaimSet.loads(claims.read_text(encoding="utf-8")).claims:
            if claim.check == "device-code" and claim.expect["kind"] == "kernels":
                archs = sorted(claim.expect["archs"].items(), key=lambda item: int(item[0]))
                code[claim.subject] = tuple(_target(arch, how) for arch, how in archs)
    return code


def _target(arch: str, how: str) -> str:
    """Return `compute_90` for code that the driver compiles, `sm_90` for machine code."""
    return f"{'compute' if how == 'jit' else 'sm'}_{arch}"


def _machine() -> Hardware:
    """Return everything but the GPUs and the driver."""
    shm = shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else None
    locked_memory, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    numbers = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return Hardware(
        cpus=len(os.sched_getaffinity(0)),
        memory=container_memory(),
        shm=shm,
        locked_memory=None if locked_memory == resource.RLIM_INFINITY else locked_memory,
        infiniband=Path("/dev/infiniband").is_dir(),
        disks=tuple(disks()),
        visible=tuple(number.strip() for number in numbers if number.strip()),
    )


def disks() -> list[Disk]:
    """Return where checkpoints and downloads go: this folder, and the cache of Hugging Face's libraries."""
    cache = (
        os.environ.get("HF_HOME") or os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    )
    found = [*_disk(Path.cwd(), "checkpoints"), *_disk(Path(cache), "downloads")]

    devices = {(disk.writable, Path(disk.path).stat().st_dev) for disk in found}
    if len(found) == 2 and len(devices) == 1:
        return [replace(found[0], holds="checkpoints and downloads")]
    return found


def _disk(folder: Path, holds: str) -> Iterator[Disk]:
    """Yield the disk of a folder, or of the nearest one above it that is there."""
    for place in (folder, *folder.parents):
        with suppress(OSError):
            free = shutil.disk_usage(place).free
            yield Disk(path=str(place), holds=holds, free=free, writable=os.access(place, os.W_OK))
            return
