"""Measure how long an image takes to build from nothing, beside two other ways to its packages.

    python -m tools.cold_build cu130-torch211 --repeat 3

Three sides are measured in turns, on one engine and without any cache:

- `ours`: the build of `nox -s build`, from its context to an image.
- `conventional`: a Dockerfile as people write it, on the same base, with the same lock and pip.
- `lower bound`: uv downloads and unpacks the same wheels outside of Docker. Nobody who ends up with
  these files can leave any of this out.

A build needs 11 GB of free disk. It removes what it added to the engine's build cache. That can't
be told from what others add meanwhile, so use an engine of your own. `--short` leaves all large
packages out.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from uv import find_uv_bin

from images.building import contexts
from images.building.contexts import BuildOptions
from images.commands import common
from images.commands.common import tell as say
from images.context import base_images
from images.context.hosting import HostSettings, host_settings
from images.context.labels import BaseContext
from images.context.render import Context
from images.engine import Engine, private_engine
from images.engine.buildkit import BuildEvent
from images.engine.progress import Progress
from images.errors import failed
from images.locking import lock_file, uv
from images.locking.inputs import LockInputs, lock_inputs
from images.reproduction.cold_builds import nothing_new_kept, on_own_layer, with_own_wheels
from tools import run

TOOLKIT = "toolkit.txt"
"""The lock of CUDA's compiler and headers. Other layers have some of its packages, too, in other
versions."""
SHORT = ("light.txt", TOOLKIT, "tools.txt", "debian.txt")
"""The locks that `--short` leaves as they are: two packages of Python only, and what steps of the
build fail without."""

_CONVENTIONAL = """\
FROM {base}
ENV DEBIAN_FRONTEND=noninteractive
RUN --mount=type=bind,source=host,target=/run/host . /run/host/env \\
    && apt-get update \\
    && apt-get install -y --no-install-recommends \\
       build-essential ca-certificates curl git python3 python3-dev python3-venv \\
    && rm -rf /var/lib/apt/lists/*
COPY locks /locks
RUN --mount=type=bind,source=host,target=/run/host . /run/host/env \\
    && python3 -m venv /opt/venv \\
    && {pip} --target /usr/local/cuda -r /locks/{toolkit} \\
    && {pip} {requirements}
ENV PATH="/opt/venv/bin:$PATH"
CMD ["bash"]
"""
_PIP = "/opt/venv/bin/pip install --no-cache-dir --no-deps --require-hashes"


def main(
    name: Annotated[str, typer.Argument(help="The image.")] = "cu130-torch211",
    repeat: Annotated[int, typer.Option(min=1, help="Runs of each side.")] = 3,
    short: Annotated[bool, typer.Option("--short", help="Small packages only, once.")] = False,
    engine: Annotated[str | None, typer.Option(help="Docker Engine; else DOCKER_HOST.")] = None,
) -> None:
    """Measure the cold build of an image beside two other ways, and print a table."""
    sources = common.sources(None)
    (image,) = common.select_accepted([name], sources, exactly_one=True)
    lock = lock_file.read(image, sources.workspace.locks)
    locks = {f"{layer}.txt": lock.files[f"{layer}.txt"] for layer in (*image.layers, "toolkit")}
    if short:
        repeat = 1
        locks = {file: content for file, content in locks.items() if file in SHORT}

    # The lower bound is measured on the disk of the project, not in a /tmp that may be in memory.
    out = sources.workspace.out
    out.mkdir(exist_ok=True)
    host = host_settings()
    with (
        private_engine.open_engine(engine, on_progress=say) as docker_engine,
        TemporaryDirectory(dir=out, prefix="cold-build-") as folder,
        Progress() as progress,
    ):
        base = base_images.acquire(
            docker_engine, image.base, root=sources.workspace.root, host=host, on_progress=say
        )
        # An empty cache, and no official wheel: what no index has would be on one side only.
        image = replace(image, prebuilt=())
        options = BuildOptions(
            sources=sources,
            host=host,
            out=Path(folder),
            cache=Path(folder),
        )
        ours = dict(contexts.prepare(image, lock, base, options).files)
        # Some layers have a part of a lock, so all that are left out are emptied here.
        for path in ours:
            if short and path.startswith("locks/") and path[len("locks/") :] not in SHORT:
                ours[path] = b""
        target = lock_inputs(image)
        conventional = conventional_context(locks, target, base, host)

        def build(context: Context, *, is_ours: bool) -> float:
            """Build a context of this engine from nothing, and return the seconds."""
            on_event = progress.job(name)
            return build_cold(docker_engine, context, host, on_event, is_ours=is_ours)

        sides: dict[str, Callable[[], float]] = {
            "ours": lambda: build(ours, is_ours=True),
            "conventional": lambda: build(conventional, is_ours=False),
            "lower bound": lambda: unpack_wheels(locks, target, Path(folder)),
        }
        seconds = measure_in_turns(sides, repeat)
        facts = docker_engine.facts

    packages = sum(content.count(b"==") for content in locks.values())
    typer.echo(f"{name} ({packages} packages), Docker {facts.version}, {facts.cpus} cores")
    for line in table(seconds):
        typer.echo(line)


def conventional_context(
    locks: Mapping[str, bytes], target: LockInputs, base: BaseContext, host: HostSettings
) -> Context:
    """Return the context of a Dockerfile that installs these locks with pip."""
    options = [f"-r /locks/{file}" for file in locks if file != TOOLKIT]
    if target.index:
        options.insert(0, f"--extra-index-url {target.index}")
    dockerfile = _CONVENTIONAL.format(
        base=base.reference, pip=_PIP, toolkit=TOOLKIT, requirements=" ".join(options)
    )
    context: dict[str, bytes | Path] = {**host.files(), "Dockerfile": dockerfile.encode()}
    for file, content in locks.items():
        context[f"locks/{file}"] = content
    return context


def build_cold(
    engine: Engine,
    context: Context,
    host: HostSettings,
    on_event: Callable[[BuildEvent], None],
    *,
    is_ours: bool,
) -> float:
    """Return the seconds from a context to an image, and remove everything that was made.

    No step comes from a cache, and no wheel. Our own images get their configuration written anew,
    which is a part of their build (`Engine.fix_id`).
    """
    run_id = uuid.uuid4().hex[:12]
    tag = f"truetag-cold-build:{run_id}"
    context = on_own_layer(with_own_wheels(context, run_id), run_id)
    network = host.network(local=engine.facts.local, rootless=engine.facts.rootless)
    with nothing_new_kept(engine, tag):
        start = time.monotonic()
        result = engine.build(
            context,
            tag,
            network=network,
            no_cache=True,
            unpack=not is_ours,
            on_event=on_event,
            redact=host.redact,
        )
        if is_ours:
            engine.fix_id(result.image_id, tag)
        return time.monotonic() - start


def unpack_wheels(locks: Mapping[str, bytes], target: LockInputs, folder: Path) -> float:
    """Return the seconds in which uv downloads and unpacks the wheels of all locks.

    The toolkit and all other packages are unpacked at the same time, each into a folder of its own.
    Nothing is compiled, and nothing is copied: files are linked.
    """
    others = b"".join(content for file, content in locks.items() if file != TOOLKIT)
    with TemporaryDirectory(dir=folder) as place, ThreadPoolExecutor() as pool:
        start = time.monotonic()
        jobs = []
        for number, content in enumerate((locks[TOOLKIT], others)):
            jobs.append(pool.submit(_unpack, Path(place, str(number)), content, target))
        for job in jobs:
            job.result()
        return time.monotonic() - start


def _unpack(place: Path, requirements: bytes, target: LockInputs) -> None:
    """Unpack the wheels of a requirements file below a new folder. Raises UserError."""
    place.mkdir()
    (place / "lock.txt").write_bytes(requirements)
    command = [find_uv_bin(), "pip", "install", "--quiet", "--no-config", "--no-deps"]
    command += ["--require-hashes", "--only-binary", ":all:", "--link-mode", "hardlink"]
    command += ["--python-version", target.python, "--python-platform", target.platform]
    command += ["--target", str(place / "packages"), "--cache-dir", str(place / "cache")]
    if target.index:
        command += ["--extra-index-url", target.index]
    command += ["-r", str(place / "lock.txt")]
    process = subprocess.run(
        command, env=uv.environment(os.environ), capture_output=True, text=True, check=False
    )
    if process.returncode != 0:
        then = "give the command again, with an image whose packages all have wheels"
        raise failed("uv", process.stderr.strip(), then)


def measure_in_turns(
    sides: Mapping[str, Callable[[], float]], repeat: int
) -> dict[str, list[float]]:
    """Return the seconds of each side, measured `repeat` times.

    The sides take turns: what changes on the machine then hits all.
    """
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(repeat):
        for side, measure in sides.items():
            # What the run before has written is on the disk before the next one begins.
            os.sync()
            seconds[side].append(measure())
            say(f"{side}: {seconds[side][-1]:.1f} s")
    return seconds


def table(seconds_of_sides: Mapping[str, Sequence[float]]) -> list[str]:
    """Return a Markdown table with a row for each side."""
    rows = ["| side | median | all |", "|---|---|---|"]
    for side, seconds in seconds_of_sides.items():
        every = ", ".join(f"{value:.1f}" for value in sorted(seconds))
        rows.append(f"| {side} | {statistics.median(seconds):.1f} s | {every} s |")
    return rows


if __name__ == "__main__":
    run(main)
