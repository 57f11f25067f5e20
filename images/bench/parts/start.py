"""A training process on a GPU: seconds until it trains, and memory of host and GPU, whole images beside pruned ones.

It takes images that the engine has, as machines with a GPU need not be those that build. The GPU must be idle: what is
taken of its memory counts as the process's. Nothing here checks that.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from images.bench.data import StartData, StartMode, StartRun
from images.bench.parts.session import SUBJECT, BenchmarkRun, load_around, retry_command
from images.bench.parts.sizes import ARCH
from images.bench.stats import there_and_back
from images.config.paths import TEMPLATES
from images.engine import ContainerSpec, Engine
from images.engine import gpus as gpu_access
from images.engine.gpus import Attachment
from images.errors import Problem, UserError

PART = "start"
SIDES = {
    "all archs": SUBJECT,
    "one arch": f"{SUBJECT}-{ARCH}",
    "one arch, NVIDIA's pruned": f"{SUBJECT}-{ARCH}:nvidia-pruned",
}
"""Side -> the engine's image; two at least are compared. The last is `{SUBJECT}-{ARCH}`, built with
`prune: {nvidia: true}`, and so tagged.
"""
MODES: tuple[StartMode, ...] = (
    {"cold": True, "loading": "LAZY"},
    {"cold": False, "loading": "LAZY"},
    {"cold": True, "loading": "EAGER"},
    {"cold": False, "loading": "EAGER"},
)
"""Page cache, and CUDA_MODULE_LOADING. A cold run leaves what it read in the cache for the warm one after it: each way
of loading reads other files, so each has its own.
"""
_LEAST = 2
_DROP = Path("/proc/sys/vm/drop_caches")
_LONGEST = 600.0
"""Seconds for one process."""


def start(bench: BenchmarkRun) -> StartData:
    """Each image in each mode, `repeat` times. Raises UserError without a GPU, an image, or a program that ends."""
    gpus = gpu_access.attach(bench.engine, gpu_access.AUTO, min_driver="0")
    found = images_of(bench.engine, gpus)
    data: StartData = {"gpu": str(gpus), "images": found, "runs": []}
    for order in there_and_back(list(found), bench.repeat):
        for side in order:
            for mode in MODES:
                data["runs"].append(_run(bench, side, gpus, mode))
                bench.keep(data)
    return data


def images_of(engine: Engine, gpus: Attachment) -> dict[str, str]:
    """Side -> ID of its image, of those that the engine has. Raises UserError where nothing can be compared here."""
    if not engine.facts.local or not gpus.attached:
        elsewhere = "the engine runs on another machine, which keeps its own page cache"
        cause = gpus.reason if engine.facts.local else elsewhere
        raise UserError(Problem(where=PART, cause=cause, then=f"{retry_command(PART)} on a machine with a GPU"), code=1)
    found = {side: engine.inspect(name).id for side, name in SIDES.items() if engine.find(name)}
    if len(found) < _LEAST:
        missing = " ".join(name for side, name in SIDES.items() if side not in found and ":" not in name)
        cause = f"the engine has {len(found)} of the images"
        then = f"`nox -s build -- {missing}`, then {retry_command(PART)}"
        raise UserError(Problem(where=PART, cause=cause, then=then), code=1)
    return found


def _run(bench: BenchmarkRun, side: str, gpus: Attachment, mode: StartMode) -> StartRun:
    spec = _spec(bench.engine, SIDES[side], gpus, mode["loading"])
    if mode["cold"]:
        forget_files()
    with load_around() as load:
        began, told = time.monotonic(), _measured(bench.engine, spec)
    at = {name: round(seconds - began, 2) for name, seconds in told["at"].items()}
    bench.say(f"{side}, {_described(mode)}: {at['first step']:.1f} s to the first step")
    memory = told["memory"]
    return {
        "side": side,
        "mode": mode,
        "at": at,
        "host_peak": memory["host_peak"],
        "gpu_context": memory["gpu_context"],
        "gpu_beside": memory["gpu_beside"],
        "losses": told["losses"],
        "load": load,
    }


def forget_files() -> None:
    """Empty this machine's page cache. Raises UserError for who may not."""
    os.sync()
    try:
        _DROP.write_text("3\n")
    except OSError as error:
        cause, then = f"can't be written: {error.strerror}", f"{retry_command(PART)} as root, on the machine itself"
        raise UserError(Problem(where=str(_DROP), cause=cause, then=then), code=1) from None


def _described(mode: StartMode) -> str:
    return f"{'cold' if mode['cold'] else 'warm'} page cache, {mode['loading'].lower()} loading"


def _spec(engine: Engine, image: str, gpus: Attachment, loading: str) -> ContainerSpec:
    program = (TEMPLATES / "bench" / "gpu_start.py").read_text(encoding="utf-8")
    return ContainerSpec(
        image,
        ["python3", "-c", program],
        read_only=False,
        env={**gpus.environment(engine.inspect(image).env), "CUDA_MODULE_LOADING": loading},
        binds=gpus.binds,
        devices=gpus.devices,
        device_requests=gpus.device_requests,
    )


def _measured(engine: Engine, spec: ContainerSpec) -> Mapping[str, Any]:
    """What templates/bench/gpu_start.py says in a new container. Raises UserError."""
    with engine.container(spec) as container:
        finished = container.run(_LONGEST)
    if finished.exit.code:
        cause = f"no training step: {' '.join(finished.stderr.split())[-300:] or f'status {finished.exit.code}'}"
        then = f"`nox -s validate -- {spec.image.partition(':')[0]} --tier gpu` says what of the image fails there"
        raise UserError(Problem(where=spec.image, cause=cause, then=then), code=1)
    told: Mapping[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return told
