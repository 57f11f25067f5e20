"""Rebuilds after a small pin moved: ours by the command line, the conventional image in the engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.builder import Builder
from benchmarks.results import alternating, load_around
from benchmarks.session import SUBJECT, ProjectCopy, Session, conventional_context, project_copy
from images.config import paths
from images.context.render import Context
from images.errors import Problem, UserError
from images.locking import lock_file
from images.locking.inputs import Package
from images.locking.lock_file import Lock
from images.planning.image import Image

MOVED = "liger-kernel"
"""The small pin that moves."""


def measure(session: Session) -> dict[str, Any]:
    """Seconds to rebuild when one small pin has moved, of ours (validated, too) and of the conventional image.

    Of the conventional side Debian's packages and pip are in the build cache, as on the day before.
    """
    runs = []
    with project_copy(session.engine) as (project, image):
        locked = lock_file.read(image, project.root / "locks")
        others = other_versions(locked.versions(image.layers)[MOVED])
        project.build(image)
        ours = session.engine.inspect(str(image.name)).layers
        base = json.loads((project.out / str(image.name) / "build.json").read_text())["base"]["reference"]
        with session.baseline(project, base) as baseline, session.builder() as builder:
            host = session.host.files()
            before = conventional_context(image, locked, baseline.run_id, host)
            builder.build(before, target="system")
            session.engine.untag(builder.run_id)
            theirs = _conventional(builder, before)["layers"]
            for number, side in enumerate(alternating(["ours", "conventional"], session.repeat)):
                package = others[number // 2 % len(others)]
                if side == "ours":
                    run = _ours(project, image, locked, package)
                    known = ours
                else:
                    light = tuple(package if one.name == MOVED else one for one in locked.layers["light"])
                    moved = replace(locked, layers={**locked.layers, "light": light})
                    run, known = (
                        _conventional(builder, conventional_context(image, moved, baseline.run_id, host)),
                        theirs,
                    )
                runs.append({"side": side, **_counted(run, known)})
                session.say(f"{side}, {package.name} {package.version}: built in {run['seconds']:.1f} s")
    return {"image": SUBJECT, "moved": MOVED, "runs": runs}


def _ours(project: ProjectCopy, image: Image, locked: Lock, package: Package) -> dict[str, Any]:
    """Move the pin in the matrix and in the lock, and build by the command line: until the image has its name."""
    project.change({"stacks": {str(image.name.torch): {package.name: package.version}}})
    project.lock(project.image(str(image.name)), locked, {package.name: package})
    with load_around() as load:
        usage = project.build(image)
    built = json.loads((project.out / str(image.name) / "build.json").read_text())
    sizes = dict(zip(built["layers"], built["layer_bytes"], strict=False))
    validated = round(usage.seconds, 2)
    return {
        "seconds": built["seconds"],
        "validated": validated,
        "layers": built["layers"],
        "sizes": sizes,
        "load": load,
    }


def _conventional(builder: Builder, context: Context) -> dict[str, Any]:
    """Build the image on what the cache has of it, and forget it."""
    with builder.nothing_new_kept(), load_around() as load:
        result = builder.build(context)
        layers = builder.engine.inspect(result.image_id).layers
    return {"seconds": round(result.seconds, 2), "layers": layers, "load": load}


def _counted(run: dict[str, Any], before: Sequence[str]) -> dict[str, Any]:
    """A run with the layers and bytes that changed, in place of all of them."""
    changed = [digest for digest in run.pop("layers") if digest not in before]
    sizes = run.pop("sizes", {})
    return {**run, "layers_changed": len(changed), "bytes_changed": sum(sizes.get(digest, 0) for digest in changed)}


def other_versions(present: str) -> list[Package]:
    """The moved package at other versions, with hashes, as other locks of the project have it. Raises UserError."""
    found: dict[str, Package] = {}
    for file in sorted((paths.RESOURCES / "locks").glob("*/light.txt")):
        for package in lock_file.parse_requirements(file.read_bytes(), str(file)):
            if package.name == MOVED and package.version != present:
                found[package.version] = package
    if not found:
        cause, then = "every lock has the same version of it", "name another package as MOVED in benchmarks/rebuild.py"
        raise UserError(Problem(where=MOVED, cause=cause, then=then))
    return list(found.values())
