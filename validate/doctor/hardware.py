"""What there is to train on and with, asked of the driver and of torch in processes of their own: both may crash."""

import json
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
from validate.doctor.advice import Disk, Gpu, Hardware, Stack
from validate.environment import container_memory

_MARK = "validate:found:"
_SECONDS = 120
_HERE = Path(__file__).resolve().parent
CLAIMS = _HERE.parent.parent / "claims.json"
"""Beside the suite, where the build put them."""
_IMPORTS = {
    "flash-attn": "flash_attn",
    "flash-attn-4": "flash_attn.cute",
    "xformers": "xformers.ops",
    "bitsandbytes": "bitsandbytes",
    "transformers": "transformers",
}
"""What settings depend on, and the module whose import shows that it works."""
_INSTALLED = ("axolotl", "colossalai", "deepspeed", "unsloth")
"""Frameworks whose import takes long or a GPU: that they are installed is enough."""

_SAY = """
import json
import sys
def say(**facts):
    print("\\n" + MARK + json.dumps(facts), flush=True)
"""
_ASK_DRIVER = """
sys.path.insert(0, sys.argv[1])
from validate import host_faults
from validate.environment import host, nvml
errors = []
for call in (nvml.computing, nvml.managed):
    try:
        say(**{call.__name__: call()})
    except nvml.DriverError as error:
        errors.append(f"{error}")
for error in (*errors[:1], *host_faults.of_machine(host.read())):
    say(error=error)
"""
_ASK_TORCH = """
import importlib
import os
import shutil
import subprocess
from importlib import metadata, util
def failing(error):
    return f"{type(error).__name__}: {error}"
def assembled(arch):
    triton = util.find_spec("triton")
    files = []
    for name in ["ptxas-blackwell", "ptxas"][arch < 100 :]:
        files.append(os.environ.get("TRITON_" + name.upper().replace("-", "_") + "_PATH", ""))
        if triton:
            files.append(os.path.join(os.path.dirname(triton.origin), "backends/nvidia/bin", name))
    try:
        assembler = next(filter(os.path.isfile, files))
        asked = subprocess.run([assembler, "--help"], capture_output=True, text=True, timeout=20)
    except (StopIteration, OSError, subprocess.SubprocessError):
        return True
    return "'sm_" not in asked.stdout or f"'sm_{arch}'" in asked.stdout
try:
    torch = importlib.import_module("torch")
except BaseException as error:
    say(torch_error=failing(error))
else:
    say(torch=torch.__version__, cuda=torch.version.cuda)
    try:
        say(archs=torch._C._cuda_getArchFlags().split())
    except AttributeError:
        pass
    try:
        torch.cuda.init()
        for index in range(torch.cuda.device_count()):
            found = torch.cuda.get_device_properties(index)
            unified = bool(getattr(found, "is_integrated", 0))
            gpu = {"name": found.name, "capability": [found.major, found.minor], "memory": found.total_memory}
            say(gpu={**gpu, "unified": unified, "assembled": assembled(found.major * 10 + found.minor)})
    except BaseException as error:
        say(cuda_error=failing(error))
for name in json.loads(sys.argv[2]):
    try:
        say(package=[name, metadata.version(name)])
    except metadata.PackageNotFoundError:
        pass
for name, module in json.loads(sys.argv[1]).items():
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        continue
    try:
        importlib.import_module(module)
        say(package=[name, version])
    except BaseException as error:
        say(broken=[name, failing(error)])
say(closing=True)
"""


@dataclass(frozen=True, kw_only=True)
class Found:
    """Everything that was found, and what stood in the way."""

    hardware: Hardware
    stack: Stack
    troubles: tuple[str, ...] = ()
    """Error texts of the driver, torch and packages."""


def detect() -> Found:
    """Look at this machine. Raises nothing that a broken driver, torch or package can cause."""
    driver = _ask(_ASK_DRIVER, [str(_HERE.parent.parent)], isolated=True)
    torch = _ask(_ASK_TORCH, [json.dumps(_IMPORTS), json.dumps(_INSTALLED)], isolated=False)
    found = interpret(driver, torch, _machine())
    return replace(found, stack=replace(found.stack, code=claimed_code(CLAIMS)))


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
        disks=tuple(_disks()),
        visible=tuple(number.strip() for number in numbers if number.strip()),
    )


def claimed_code(claims: Path) -> dict[str, tuple[str, ...]]:
    """Package -> targets, by the image's own claims `device-code`; empty where there are none (a base of somebody
    else)."""
    try:
        rows = ClaimSet.loads(claims.read_text(encoding="utf-8")).claims
        return {
            row.subject: tuple(
                f"{'compute' if how == 'jit' else 'sm'}_{arch}"
                for arch, how in sorted(row.expect["archs"].items(), key=lambda item: int(item[0]))
            )
            for row in rows
            if row.check == "device-code" and row.expect["kind"] == "kernels"
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def interpret(driver: Sequence[Mapping[str, Any]], torch: Sequence[Mapping[str, Any]], machine: Hardware) -> Found:
    """What the two processes said, as one picture: torch's GPUs, or the driver's where there is no torch. Pure.

    `machine`: everything but the GPUs and the driver.
    """
    said = {key: value for facts in torch for key, value in facts.items()}
    nothing: dict[str, Any] = {"driver": "", "gpus": []}
    managed = next((facts["managed"] for facts in driver if "managed" in facts), nothing)
    by_torch = "torch" in said
    gpus = [facts["gpu"] for facts in torch if "gpu" in facts] if by_torch else managed["gpus"]
    found = tuple(
        Gpu(
            name=gpu["name"],
            capability=(gpu["capability"][0], gpu["capability"][1]),
            memory=gpu["memory"],
            mig=" MIG " in f"{gpu['name']} ",
            unified=gpu.get("unified", False),
            assembled=gpu.get("assembled", True),
        )
        for gpu in gpus
    )
    troubles = list[str]()
    for facts in (*driver, *torch):
        troubles += [facts[key] for key in ("error", "torch_error", "cuda_error") if key in facts]
        troubles += [": ".join(facts["broken"])] if "broken" in facts else []
    return Found(
        hardware=replace(machine, gpus=found, driver=managed["driver"], visible=machine.visible if by_torch else ()),
        stack=Stack(
            torch=said.get("torch", ""),
            archs=tuple(said.get("archs", ())),
            packages=dict(facts["package"] for facts in torch if "package" in facts),
        ),
        troubles=tuple(dict.fromkeys(troubles)),
    )


def _ask(question: str, arguments: Sequence[str], *, isolated: bool) -> list[dict[str, Any]]:
    """The answers of a Python process; how it ended is one more, if it did not end well."""
    flags = ("-I", "-S") if isolated else ()
    source = _SAY.replace("MARK", repr(_MARK)) + question
    try:
        done = subprocess.run(
            [sys.executable, *flags, "-c", source, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        whom = "the driver" if isolated else "a program that imports torch and its packages"
        return [*_answers(error.stdout or b""), {"error": f"{whom} gave no answer in {_SECONDS} s"}]
    except OSError as error:
        return [{"error": f"Python does not start: {error}"}]
    answers = _answers(done.stdout)
    if done.returncode:
        tail = done.stderr.decode("utf-8", "replace").strip().splitlines()[-3:]
        answers.append({"error": f"a process ended with status {done.returncode}: {' | '.join(tail)}"})
    return answers


def _answers(output: bytes) -> list[dict[str, Any]]:
    lines = output.decode("utf-8", "replace").splitlines()
    return [json.loads(line[len(_MARK) :]) for line in lines if line.startswith(_MARK) and line.endswith("}")]


def _disks() -> list[Disk]:
    """Where checkpoints and downloads go: this folder, and the cache of Hugging Face's libraries."""
    cache = os.environ.get("HF_HOME") or os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    disks = [*_disk(Path.cwd(), "checkpoints"), *_disk(Path(cache), "downloads")]
    if len(disks) == 2 and len({(one.writable, Path(one.path).stat().st_dev) for one in disks}) == 1:
        disks = [replace(disks[0], holds="checkpoints and downloads")]
    return disks


def _disk(folder: Path, holds: str) -> Iterator[Disk]:
    """The room of a folder, or of the nearest one above it that is there."""
    for one in (folder, *folder.parents):
        with suppress(OSError):
            free = shutil.disk_usage(one).free
            yield Disk(path=str(one), holds=holds, free=free, writable=os.access(one, os.W_OK))
            return
