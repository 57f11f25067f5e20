"""From a registry to the first training step: pull until unpacked, start, import, one step on the CPU.

Each side is pushed into a registry on this machine: by the engine, one thread a layer, or by us, on all cores. Then an
empty engine pulls, in a network of its own with links of several speeds, from a registry over the same files. Before
each pull the registry's files of the image are read once: whether they come from the disk is then not left to what ran
before.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import loopback, network
from benchmarks.builder import Builder
from benchmarks.empty_engine import empty_engine
from benchmarks.results import alternating, load_around
from benchmarks.session import ARCH, PROFILE, SUBJECT, TEMPLATES, Session, conventional_context, project_copy
from images.context.render import Context
from images.engine import ContainerSpec, Engine
from images.errors import Problem, UserError
from images.locking import lock_file
from images.publish.push import push
from images.registry.client import Registry
from images.registry.reference import Reference

CONVENTIONAL, ALL_ARCHS, ONE_ARCH = "conventional", "all archs", "one arch"
_COMPRESSION = "gzip"
"""Of all layers, and the tag of each side in the registry."""
_ROOM = 40_000_000_000
"""Bytes of disk: images in two engines, and all sides in a registry."""
_LONGEST = 600.0
"""Seconds for a container until its first step."""
_CHUNK = 1 << 20
_RETRY = "`python -m benchmarks --only delivery`"


def measure(session: Session) -> dict[str, Any]:
    """Seconds of pushes, and from a registry to the first step, on each link."""
    data: dict[str, Any] = {"image": SUBJECT, "images": {}, "pushes": [], "runs": [], "blocked": []}
    facts = session.engine.facts
    require_here(shutil.disk_usage(facts.data_root).free if facts.local else None)
    with project_copy(session.engine) as (project, image):
        store = project.root / "registry"
        store.mkdir()
        program, base = loopback.program(store, session.say), session.acquired(image)
        one_arch = project.image(f"{SUBJECT}-{ARCH}-{PROFILE}")
        with loopback.serving(program, store) as host:
            with session.baseline(project, base) as baseline:
                locked = lock_file.read(image, project.root / "locks")
                conventional = conventional_context(image, locked, baseline.run_id, session.host.files())
                push_side(session, CONVENTIONAL, conventional, host, data)
            push_side(session, ALL_ARCHS, project.rendered(image, base), host, data)
            push_side(session, ONE_ARCH, project.rendered(one_arch, base), host, data)
        pull_sides(session, program, store, project.root / "engine", data)
    return data


def require_here(free: int | None) -> None:
    """Raises UserError for an engine on another machine (`free` is None), or for too small a disk."""
    if free is None:
        cause, then = "is on another machine, and the registry on this one", "measure where it runs"
    elif free < _ROOM:
        cause = f"has {free / 1e9:.0f} GB free on its disk, and images and registry need {_ROOM / 1e9:.0f} GB"
        then = "remove images and build cache that nobody needs"
    else:
        return
    raise UserError(Problem(where="the engine", cause=cause, then=f"{then}, then {_RETRY}"), code=1)


def tag(host: str, side: str) -> Reference:
    return Reference.parse(f"{host}/{side.replace(' ', '-')}:{_COMPRESSION}")


def push_side(session: Session, side: str, context: Context, host: str, data: dict[str, Any]) -> None:
    """Build a side, and push it into the registry at `HOST:PORT`; the engine pushes some of them, too."""

    def timed(by: str, pushed: Callable[[], object], there: Reference) -> None:
        os.sync()  # what was built before is no part of it
        with load_around() as load:
            start = time.monotonic()
            pushed()
            seconds = round(time.monotonic() - start, 2)
        with Registry(there.repository) as registry:
            size = sum(layer.size for layer in registry.get(there.identifier).layers)
        session.say(f"{there} pushed by {by}: {size / 1e6:.0f} MB in {seconds:.1f} s")
        run = {"side": side, "compression": there.identifier, "by": by, "seconds": seconds, "bytes": size}
        data["pushes"].append({**run, "load": load})

    with session.builder() as builder, builder.nothing_at_all_kept():
        data["images"][side] = builder.build(context, marked=False).image_id
        if side != ONE_ARCH:
            there = tag(host, side if side == CONVENTIONAL else f"{side} by engine")
            session.engine.tag(builder.run_id, str(there))
            try:
                timed("the engine", lambda: _docker_push(session.engine, there), there)
            finally:
                session.engine.untag(str(there))
        if side != CONVENTIONAL:
            there = tag(host, side)
            timed("truetag", lambda: _push(builder, there), there)


def _docker_push(engine: Engine, there: Reference) -> None:
    for message in engine.sdk.push(str(there), stream=True, decode=True):
        if "error" in message:
            raise UserError(Problem(where=str(there), cause=message["error"], then="does the registry run?"), code=1)


def _push(builder: Builder, there: Reference) -> None:
    info = builder.engine.inspect(builder.run_id)
    with tempfile.TemporaryDirectory() as room, Registry(there.repository) as target:
        manifest, _sent = push(builder.engine, info, target, Path(room))
        target.put(manifest, there.identifier)


@dataclass(frozen=True)
class Place:
    """An empty engine on a link, a registry that it pulls from, and the folder with the registry's content."""

    engine: Engine
    link: str
    host: str
    store: Path


def pull_sides(session: Session, program: str, store: Path, home: Path, data: dict[str, Any]) -> None:
    """Add the runs of each side on each link; why there are none, too: an hour's other values count."""

    def blocked(what: str, error: Exception) -> None:
        told = str(replace(error.problems[0], then="")) if isinstance(error, UserError) else repr(error)
        data["blocked"].append({"what": what, "reason": session.host.redact(told)})
        session.say(f"{what} is not measured: {told}")

    try:
        with empty_engine(home) as engine, loopback.serving(program, store) as host:
            for link in network.LINKS:
                network.shape(link)
                failed = set[str]()
                for side in alternating(list(data["images"]), session.repeat):
                    try:
                        if side not in failed:
                            data["runs"].append(_pull_and_step(session, Place(engine, link, host, store), side))
                    except (UserError, OSError, ValueError, LookupError) as error:
                        failed.add(side)
                        blocked(f"{side} ({_COMPRESSION}) on engine {engine.facts.version}, {link}", error)
    except (UserError, OSError) as error:
        blocked("an empty engine", error)


def _pull_and_step(session: Session, place: Place, side: str) -> dict[str, Any]:
    engine, there = place.engine, tag(place.host, side)
    with Registry(there.repository) as registry:
        layers = registry.get(there.identifier).layers
    os.sync()  # what was written before is no part of a pull, and the registry's disk is none either
    for layer in layers:
        _read(place.store, layer.digest)
    engine.untag(str(there))
    try:
        with load_around() as load:
            start = time.monotonic()
            engine.pull(str(there))
            seconds = time.monotonic() - start
        size = sum(layer.size for layer in layers)
        require_slower_than(place.link, size, seconds)
        step, image_id = first_step(engine, str(there)), engine.inspect(str(there)).id
    finally:
        engine.untag(str(there))
    session.say(f"{side}, {place.link}: {seconds:.1f} s to pull, {step['stepped']:.1f} to a step")
    run = {"side": side, "compression": _COMPRESSION, "engine": engine.facts.version, "link": place.link}
    return {**run, "image_id": image_id, "bytes": size, "seconds": round(seconds, 2), **step, "load": load}


def _read(store: Path, digest: str) -> None:
    """Have a blob in the page cache, as far as there is room. Raises OSError."""
    kind, _, value = digest.partition(":")
    with (store / "data/docker/registry/v2/blobs" / kind / value[:2] / value / "data").open("rb", buffering=0) as blob:
        while blob.read(_CHUNK):
            """What was read is not looked at."""


def require_slower_than(link: str, size: int, seconds: float) -> None:
    """See that a pull of so many bytes took the time that its link needs for them. Raises UserError."""
    least = 0.9 * (size - network.BURST) * 8 / network.bits_per_second(link)
    if seconds < least:
        cause = f"passed {size / 1e6:.0f} MB in {seconds:.1f} s, which takes {least:.1f} s: it is not slowed down"
        then = f"see what `tc qdisc show dev lo` says there, then {_RETRY}"
        raise UserError(Problem(where=f"the link of {link}", cause=cause, then=then), code=1)


def first_step(engine: Engine, image: str) -> dict[str, float]:
    """Seconds from the creation of a container until all is `imported` and a step is done, and the step's `loss`."""
    program = (TEMPLATES / "first_step.py").read_text(encoding="utf-8")
    start = time.monotonic()
    with engine.container(ContainerSpec(image, ["python3", "-c", program], read_only=False)) as container:
        finished = container.run(_LONGEST)
    if finished.code:
        cause = f"no training step: {' '.join(finished.stderr.split())[-300:] or f'status {finished.code}'}"
        then = f"`docker run --rm {image} python3 -c ...` with benchmarks/templates/first_step.py"
        raise UserError(Problem(where=image, cause=cause, then=then), code=1)
    told = json.loads(finished.stdout.splitlines()[-1])
    times = {name: round(told[name] - start, 2) for name in ("imported", "stepped")}
    return {**times, "loss": told["loss"]}
