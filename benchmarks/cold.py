"""Builds from nothing: ours, the conventional image, and the lower bound of both."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from uv import find_uv_bin

from benchmarks import running
from benchmarks.results import alternating, load_around
from benchmarks.session import SUBJECT, Session, conventional_context, project_copy, step_times
from images.context.render import Context
from images.locking import lock_file, uv
from images.locking.inputs import Target, lock_inputs
from images.locking.lock_file import Lock
from images.planning.image import Image


def measure(session: Session) -> dict[str, Any]:
    """Seconds from a context to an image, without build cache and without wheels, and of the lower bound."""
    with project_copy(session.engine) as (project, image):
        locked = lock_file.read(image, project.root / "locks")
        base = session.acquired(image)
        ours = project.rendered(image, base)
        with session.baseline(project, base) as baseline:
            conventional = conventional_context(image, locked, baseline.run_id, session.host.files())
            sides: dict[str, Callable[[], dict[str, Any]]] = {
                "ours": lambda: _built(session, ours),
                "conventional": lambda: _built(session, conventional),
                "lower bound": lambda: _lower_bound(session, image, locked, project.root),
            }
            runs = [{"side": side, **sides[side]()} for side in alternating(list(sides), session.repeat)]
        packages = sum(len(locked.layers[layer]) for layer in (*image.layers, "toolkit"))
    return {"image": SUBJECT, "packages": packages, "runs": runs}


def _built(session: Session, context: Context) -> dict[str, Any]:
    """One cold build by a builder of its own, which is cleared after it."""
    rest(session)
    with session.builder() as builder, load_around() as load:
        result = builder.build(context, cold=True)
        info = session.engine.inspect(result.image_id)
    session.say(f"{len(info.layers)} layers, {info.size / 1e9:.2f} GB in {result.seconds:.1f} s")
    return {"seconds": round(result.seconds, 2), "load": load, "steps": step_times(result)}


def rest(session: Session) -> None:
    """Wait as long as the session says, with all that was written on the disk."""
    os.sync()
    time.sleep(session.rest)


def _lower_bound(session: Session, image: Image, locked: Lock, beside: Path) -> dict[str, Any]:
    """An image's wheels, downloaded and unpacked by uv outside Docker: all at once, no bytecode, no copy.

    `beside` is a folder on the disk to measure. Nobody who ends up with these files can leave any of this out.
    """
    rest(session)
    target = lock_inputs(image)
    with TemporaryDirectory(dir=beside) as folder, ThreadPoolExecutor() as pool, load_around() as load:
        start = time.monotonic()
        jobs = [
            pool.submit(_unpack, Path(folder), name, [locked.files[f"{layer}.txt"] for layer in layers], target)
            for name, layers in (("toolkit", ("toolkit",)), ("packages", image.layers))
        ]
        for job in jobs:
            job.result()
        seconds = time.monotonic() - start
    session.say(f"the lower bound: {seconds:.1f} s")
    return {"seconds": round(seconds, 2), "load": load, "steps": []}


def _unpack(place: Path, name: str, files: Sequence[bytes], target: Target) -> None:
    requirements = place / f"{name}.txt"
    requirements.write_bytes(b"".join(files))
    command = [find_uv_bin(), "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--link-mode", "hardlink"]
    command += ["--python-version", target.python, "--python-platform", target.platform, "--only-binary", ":all:"]
    command += ["--target", str(place / name), "--cache-dir", str(place / f"cache-{name}"), "-r", str(requirements)]
    running.run(command, cwd=place, env=uv.environment(os.environ))
