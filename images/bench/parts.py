"""What is measured, a part at a time. Each part gets a bench and gives plain data: every value, not the median alone.

To add a part: a function from Bench to data, its row in PARTS, and a section in page.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from images.bench import accounting, loopback, results, sides, squeeze, synthetic
from images.bench.accounting import Layer
from images.bench.running import Ran
from images.bench.sides import Kitchen, kitchen
from images.bench.stats import turns
from images.bench.workbench import PROFILE, Workbench, workbench, written_context
from images.building import uncached
from images.building.uncached import OwnLayer
from images.config import paths
from images.config.matrix import Sources
from images.context import base_images
from images.context.hosting import HostSettings
from images.context.render import Context, content_of
from images.engine import Engine
from images.engine.buildkit import BuildEvent, BuildResult, LayerPulled
from images.engine.failures import step_name
from images.engine.progress import Progress
from images.errors import Problem, UserError, problem_of
from images.host.hashing import sha256
from images.locking import lock_file
from images.locking.lock_file import Lock
from images.locking.uv import Package
from images.planning import plan
from images.planning.image import Image
from images.registry.client import Registry
from images.registry.distribution import Descriptor, require_one_image
from images.registry.reference import Reference

SUBJECT = "cu130-torch211"
"""The image that is compared. CUDA 13 is the first whose whole toolkit is on the index: a devel base can be made."""
SIZES = (100, 1_000, 5_000, 10_000)
"""Images in the matrices that the planner is given."""
MOVED = "liger-kernel"
"""The small pin that moves."""
ARCH = "sm90"
SHORT = 12
"""Digits of a layer's digest that an engine says while it pulls."""
PULLED = 10
"""Images of the matrix that are pulled one after another."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What a part has to work with."""

    engine: Engine
    host: HostSettings
    sources: Sources
    progress: Progress
    repeat: int
    pinned_bases: Mapping[str, str] = field(default_factory=dict)
    so_far: Mapping[str, Any] = field(default_factory=dict)
    """What this very run measured of the part before it was interrupted."""
    weighed: Sequence[Layer] = ()
    """What any run weighed."""
    keep: Callable[[dict[str, Any]], None] = lambda _data: None
    """Puts what a long part has so far into the file: an interrupted run goes on there."""

    def say(self, text: str) -> None:
        self.progress.say("bench", text)

    @contextmanager
    def kitchen(self) -> Iterator[Kitchen]:
        """Ends any build of ours when it is left in a hurry."""
        try:
            with kitchen(self.engine, self.host, self.progress.job("bench")) as it:
                yield it
        except KeyboardInterrupt:
            self.engine.cancel()
            raise


Part = Callable[[Bench], dict[str, Any]]


# --- the planner --------------------------------------------------------------------------------------------------


def planner(it: Bench) -> dict[str, Any]:
    """Processor seconds of `plan --json` in a copy of the project, locks read, the start of Python included."""
    rows = []
    for count in SIZES:
        with TemporaryDirectory() as folder:
            place = Workbench(Path(folder), it.engine, Path(folder, "out"))
            place.copy()
            (place.root / "matrix.yaml").write_text(synthetic.text(it.sources, count), encoding="utf-8")
            files = dict(synthetic.locks(one.image for one in plan.plan(place.sources()) if one.image))
            lock_file.write(files, place.root / "locks")
            _planned(place)  # Python compiles the copy's modules
            runs = [_planned(place) for _ in range(it.repeat)]
            found = json.loads((place.root / "plan.json").read_text())["images"]
        it.say(f"plan --json of {count} images: {runs[-1]['cpu']:.2f} s of CPU")
        accepted = sum(row["status"] == "accepted" for row in found)
        locks = len({path.partition("/")[0] for path in files})
        locked = sum(row["lock"] == "present" for row in found)
        rows.append({"images": len(found), "accepted": accepted, "locks": locks, "locked": locked, "runs": runs})
    return {"sizes": rows}


def _planned(place: Workbench) -> dict[str, Any]:
    with (place.root / "plan.json").open("wb") as stream, _loaded() as load:
        ran = place.run("plan", "--json", output=stream)
    return {"cpu": round(ran.cpu, 3), "seconds": round(ran.seconds, 3), "peak": ran.peak, "load": load}


# --- builds from nothing ------------------------------------------------------------------------------------------


def cold(it: Bench) -> dict[str, Any]:
    """Seconds from a context to an image, without build cache and without wheels, and of the floor below both."""
    with workbench(it.engine, SUBJECT) as (bench, image), it.kitchen() as own:
        locked = lock_file.read(image, bench.root / "locks")
        command = _by_command(own, bench, image)
        ours = written_context(bench.out / str(image.name) / "context")
        base = _base(bench, image)
        with _standin(it, bench, base) as standin:
            weighs = it.engine.inspect(standin.word).size
            conventional = sides.conventional_context(image, locked, standin.word, it.host.files())
            measured = {
                "ours": lambda: _timed(it, lambda own: own.build(ours, own.word, cold=True)),
                "conventional": lambda: _timed(it, lambda own: own.build(conventional, own.word, cold=True)),
                "floor": lambda: _floor(it, image, locked, bench),
            }
            runs = [
                {"side": side, **measured[side]()} for round_ in turns(list(measured), it.repeat) for side in round_
            ]
            pulls = _base_pulls(it, standin, base, bench.root / "registry")
        packages = sum(len(locked.layers[layer]) for layer in (*image.layers, "toolkit"))
    return {
        "image": SUBJECT,
        "packages": packages,
        "standin_bytes": weighs,
        "host_peak": command.peak,
        "runs": runs,
        **pulls,
    }


def _by_command(own: Kitchen, bench: Workbench, image: Image) -> Ran:
    """Build an image by the command line without build cache, prove it, and forget it."""
    bench.set_apart(own.word)
    with own.nothing_at_all_kept():
        ran = bench.build(image, "--no-cache")
        bench.forget(image)
    return ran


def _base_pulls(it: Bench, standin: Kitchen, base: str, folder: Path) -> dict[str, Any]:
    """Seconds to pull the conventional base from a registry on this machine; where there are none, the reason.

    The stand-in is gone after it. `base`: what ours stands on; the stand-in's lowest layers, which the engine keeps.
    """
    try:
        pulls = _pulls_here(it, standin, base, folder)
    except (UserError, OSError) as error:
        problem = error.problems[0] if isinstance(error, UserError) else problem_of(error)
        reason = it.host.redact(str(replace(problem, then="")))
        it.say(f"the pull of the conventional base is not timed: {reason}\n    next: {problem.then}")
        return {"base_pulls": [], "base_not_pulled": reason}
    return {"base_pulls": pulls, "base_not_pulled": ""}


def _pulls_here(it: Bench, standin: Kitchen, base: str, folder: Path) -> list[dict[str, Any]]:
    if not it.engine.facts.local:
        cause = "is on another machine, and the registry on this one"
        raise UserError(Problem(where="the engine", cause=cause, then=f"measure where it runs: {_again('cold')}"))
    with loopback.registry(folder, say=it.say) as host:
        return pulled_anew(it, standin, f"{host}/standin:1", it.engine.inspect(base).layers)


def _again(part: str) -> str:
    return f"`nox -s bench -- --only {part}`"


def pulled_anew(it: Bench, kitchen: Kitchen, reference: str, kept: Sequence[str]) -> list[dict[str, Any]]:
    """Push a kitchen's image, take it away with its layers, and pull it, `repeat` times. Raises UserError.

    `kept`: layers that stay in the engine. Any other one that does makes the seconds too few: an error, then.
    """
    it.engine.tag(kitchen.word, reference)
    try:
        it.engine.push(reference)
        sides.clear(kitchen)
        wanted = _blobs(reference, it.engine.inspect(reference).layers, kept)
        return [_pulled(it, reference, wanted) for _ in range(it.repeat)]
    finally:
        it.engine.untag(reference)


def _blobs(reference: str, layers: Sequence[str], kept: Sequence[str]) -> list[Descriptor]:
    """What the registry has of an image's layers, less those that are kept. Raises UserError."""
    there = Reference.parse(reference)
    with Registry(there.repository) as registry:
        manifest = registry.get(there.identifier)
    require_one_image(manifest, reference)
    new = accounting.changed(kept, layers)
    return [blob for layer, blob in zip(layers, manifest.layers, strict=True) if layer in new]


def _pulled(it: Bench, reference: str, wanted: Sequence[Descriptor]) -> dict[str, Any]:
    came: set[str] = set()

    def note(event: BuildEvent) -> None:
        if isinstance(event, LayerPulled):
            came.add(event.layer)

    it.engine.untag(reference)
    with _loaded() as load:
        start = time.monotonic()
        it.engine.pull(reference, on_event=note)
        seconds = time.monotonic() - start
    expected = {blob.digest.removeprefix("sha256:")[:SHORT]: blob.size for blob in wanted}
    if strangers := came - expected.keys():
        cause = f"{len(strangers)} layers came from the registry that the engine should have kept"
        then = f"leave the images of this engine alone meanwhile, then {_again('cold')}"
        raise UserError(Problem(where=reference, cause=cause, then=then), code=1)
    if held := expected.keys() - came:
        cause = f"{len(held)} of {len(expected)} layers did not come from the registry: the engine still holds them"
        docker = f"docker -H {it.engine.facts.url}"
        then = f"`{docker} builder prune --all`, remove images on the same base (`{docker} image ls`), {_again('cold')}"
        raise UserError(Problem(where=reference, cause=cause, then=then), code=1)
    size = sum(expected.values())
    it.say(f"pulled {size / 1e6:.0f} MB in {seconds:.1f} s")
    return {"seconds": round(seconds, 2), "load": load, "bytes": size, "layers": len(came)}


def _floor(it: Bench, image: Image, locked: Lock, bench: Workbench) -> dict[str, Any]:
    with _loaded() as load:
        seconds = sides.floor(image, locked, bench.root, os.environ)
    it.say(f"the floor: {seconds:.1f} s")
    return {"seconds": round(seconds, 2), "load": load, "steps": []}


def _timed(it: Bench, make: Callable[[Kitchen], BuildResult]) -> dict[str, Any]:
    """One build in a kitchen of its own, which is cleared after it."""
    with it.kitchen() as own, _loaded() as load:
        result = make(own)
        info = it.engine.inspect(result.image_id)
    it.say(f"{len(info.layers)} layers, {info.size / 1e9:.2f} GB in {result.seconds:.1f} s")
    return {"seconds": round(result.seconds, 2), "load": load, "bytes": info.size, "steps": _steps(result)}


def _steps(result: BuildResult) -> list[dict[str, Any]]:
    return [
        {"name": step_name(step.name, 120), "seconds": round(step.seconds, 2), "cached": step.cached}
        for step in result.steps
        if step.seconds >= 0.1
    ]


def _base(bench: Workbench, image: Image) -> str:
    """What our image was built on, as FROM took it."""
    return str(json.loads((bench.out / str(image.name) / "build.json").read_text())["base"]["reference"])


@contextmanager
def _standin(it: Bench, bench: Workbench, base: str) -> Iterator[Kitchen]:
    """The kitchen that has a stand-in for NVIDIA's devel image. Made from what the caches hold; not measured."""
    devel = bench.image(f"{SUBJECT}-devel")
    context = bench.rendered(devel, base)
    locked = lock_file.read(devel, bench.root / "locks")
    with it.kitchen() as own:
        own.build(sides.standin_context(context, devel, locked, base), own.word)
        sides.forget_steps(own)
        it.say(f"the stand-in for NVIDIA's devel base has {it.engine.inspect(own.word).size / 1e9:.2f} GB")
        yield own


# --- a small pin moves --------------------------------------------------------------------------------------------


def rebuild(it: Bench) -> dict[str, Any]:
    """Seconds to build again when one small pin has moved, of ours and of the conventional image; ours proven too."""
    with workbench(it.engine, SUBJECT) as (bench, image):
        locked = lock_file.read(image, bench.root / "locks")
        others = _other_versions(locked.versions(image.layers)[MOVED])
        bench.build(image)
        before = it.engine.inspect(str(image.name)).layers
        with _standin(it, bench, _base(bench, image)) as standin, it.kitchen() as own:
            own.build(
                sides.conventional_context(image, locked, standin.word, it.host.files()), own.word, target="system"
            )
            it.engine.untag(own.word)
            _, usual = _conventional(it, own, image, locked, standin.word)
            measured = {
                "ours": lambda package: _moved(it, bench, image, locked, package, before),
                "conventional": lambda package: _conventional_again(
                    it, own, image, locked, standin.word, package, usual
                ),
            }
            runs = [
                {"side": side, **measured[side](others[number % len(others)])}
                for number, round_ in enumerate(turns(list(measured), it.repeat))
                for side in round_
            ]
    return {"image": SUBJECT, "moved": MOVED, "runs": runs}


def _moved(
    it: Bench, bench: Workbench, image: Image, locked: Lock, package: Package, before: Sequence[str]
) -> dict[str, Any]:
    """Move the pin in the matrix and in the lock, and build by the command line: until the image has its name."""
    bench.change({"stacks": {str(image.name.torch): {package.name: package.version}}})
    bench.lock(bench.image(str(image.name)), locked, {package.name: package})
    with _loaded() as load, watched(it.engine, f"{image.name}-candidate") as seen:
        ran = bench.build(image)
    built = json.loads((bench.out / str(image.name) / "build.json").read_text())
    layers = accounting.changed(before, built["layers"])
    made = [step["name"] for step in built["steps"] if not step["cached"] and "] RUN" in step["name"]]
    it.say(f"{package.name} {package.version}: built in {seen[0]:.1f} s, proven in {ran.seconds:.1f} s")
    return {
        "to": package.version,
        "seconds": round(seen[0], 2),
        "in_engine": built["seconds"],
        "proven": round(ran.seconds, 2),
        "layers_changed": len(layers),
        "bytes_changed": sum(
            size for digest, size in zip(built["layers"], built["layer_bytes"], strict=False) if digest in layers
        ),
        "steps_run": [name[:80] for name in made],
        "peak": ran.peak,
        "load": load,
    }


@contextmanager
def watched(engine: Engine, name: str) -> Iterator[list[float]]:
    """Gets the seconds from here until an image of that name is in the engine.

    Raises UserError if none ever was, and what the engine raised when it was asked.
    """
    seen: list[float] = []
    over = threading.Event()
    engine.untag(name)
    start = time.monotonic()

    def look() -> None:
        while not seen and not over.wait(0.1):
            if engine.find(name):
                seen.append(time.monotonic() - start)

    with ThreadPoolExecutor(max_workers=1) as pool:
        watching = pool.submit(look)
        try:
            yield seen
        finally:
            over.set()
    watching.result()
    if not seen:
        then = f"{_again('rebuild')} measures it again"
        raise UserError(Problem(where=name, cause="was never seen in the engine", then=then), code=1)


def _other_versions(present: str) -> list[Package]:
    """The moved package at other versions, with hashes, as other locks of the project have it. Raises UserError."""
    found: dict[str, Package] = {}
    for file in sorted(paths.workspace().locks.glob("*/light.txt")):
        for package in lock_file.parse_requirements(file.read_bytes(), str(file)):
            if package.name == MOVED and package.version != present:
                found[package.version] = package
    if not found:
        then = "name another package as MOVED in images/bench/parts.py"
        raise UserError(Problem(where=MOVED, cause="every lock has the same version of it", then=then))
    return list(found.values())


def _conventional_again(
    it: Bench, own: Kitchen, image: Image, locked: Lock, base: str, package: Package, before: Sequence[str]
) -> dict[str, Any]:
    """The same pin in a requirements file; Debian's packages and pip are in the build cache, as on the day before."""
    light = tuple(package if one.name == package.name else one for one in locked.layers["light"])
    moved = replace(locked, layers={**locked.layers, "light": light})
    found, layers = _conventional(it, own, image, moved, base)
    return {**found, "layers_changed": len(accounting.changed(before, layers))}


def _conventional(
    it: Bench, own: Kitchen, image: Image, locked: Lock, base: str
) -> tuple[dict[str, Any], Sequence[str]]:
    """Build the conventional image on what the cache has of it, and forget it: what was measured, and its layers."""
    context = sides.conventional_context(image, locked, base, it.host.files())
    with own.nothing_new_kept(), _loaded() as load:
        result = own.build(context, own.word)
        layers = it.engine.inspect(result.image_id).layers
    it.say(f"the conventional image again: {result.seconds:.1f} s")
    return {"seconds": round(result.seconds, 2), "load": load, "steps": _steps(result)}, layers


# --- bytes --------------------------------------------------------------------------------------------------------


def pull(it: Bench) -> dict[str, Any]:
    """Bytes to pull and to keep: the image for all archs, for one, with NVIDIA's libraries sliced, conventional."""
    found = dict(it.so_far)
    with workbench(it.engine, SUBJECT) as (bench, image), it.kitchen() as own:
        base = _acquired(it, image)
        one_arch = bench.image(f"{SUBJECT}-{ARCH}-{PROFILE}")
        _weigh_as_built(it, own, "all archs", bench.rendered(image, base), base, found)
        _weigh_as_built(it, own, "one arch", bench.rendered(one_arch, base), base, found)
        with _standin(it, bench, base) as standin:
            locked = lock_file.read(image, bench.root / "locks")
            conventional = sides.conventional_context(image, locked, standin.word, it.host.files())
            _weigh_as_built(it, own, "conventional", conventional, standin.word, found)
        sliced = bench.with_nvidia_sliced().rendered(one_arch, base)
        _weigh_as_built(it, own, "one arch, NVIDIA's sliced", sliced, base, found)
        devel = bench.rendered(bench.image(f"{SUBJECT}-devel"), base)
        _weigh_as_built(it, own, "all archs, devel", devel, base, found)
    return found


def sequence(it: Bench) -> dict[str, Any]:
    """Bytes that each of the matrix's first images fetches into an engine that holds those before it.

    Each step of each image is run anew: a layer that two share came out the same twice.
    """
    found = dict(it.so_far)
    locks = lock_file.states(one.image for one in plan.plan(it.sources) if one.image)
    named = [name for name, status in locks.items() if status is lock_file.Status.PRESENT][:PULLED]
    with TemporaryDirectory() as folder, it.kitchen() as own:
        project = Workbench(paths.RESOURCES, it.engine, Path(folder))
        for name in named:
            image = project.image(name)
            base = _acquired(it, image)
            _weigh_anew(it, own, name, project.rendered(image, base), base, found)
    found["order"] = named
    return found


def _weigh_as_built(it: Bench, own: Kitchen, label: str, context: Context, base: str, found: dict[str, Any]) -> None:
    """Weigh an image as builds make it, from what the build cache has."""
    if made_from := _not_weighed(it, label, context, base, found):
        with own.nothing_at_all_kept():
            _weigh(it, own.build(context, own.word, marked=False), label, made_from, found)


def _weigh_anew(it: Bench, own: Kitchen, label: str, context: Context, base: str, found: dict[str, Any]) -> None:
    """Weigh an image that has nothing from the build cache, without the layer that it stands apart on."""
    if made_from := _not_weighed(it, label, context, base, found):
        with own.nothing_new_kept():
            built = own.build(context, own.word, anew=True)
            lent = uncached.own_layer(own.engine, built.image_id, base, own.word)
            _weigh(it, built, label, made_from, found, lent)


def _not_weighed(it: Bench, label: str, context: Context, base: str, found: dict[str, Any]) -> str:
    """What an image is made from, as a digest; empty where this run weighed the same before it was interrupted."""
    made_from = digest(context, it.engine.inspect(base).id)
    if found.setdefault("images", {}).get(label, {}).get("made_from") == made_from:
        it.say(f"{label}: weighed before, from the same files")
        return ""
    return made_from


def _weigh(
    it: Bench, built: BuildResult, label: str, made_from: str, found: dict[str, Any], lent: OwnLayer | None = None
) -> None:
    """`lent`: a layer of the image that is none of what is weighed."""
    weighed: dict[str, Any] = found.setdefault("weighed", {})

    def note(layer: Layer) -> None:
        it.say(f"{layer.digest[:19]}: {layer.tar / 1e6:.0f} MB, {layer.gzip / 1e6:.0f} with gzip")
        weighed[layer.digest] = layer.as_json()
        it.keep(found)

    known = [*it.weighed, *map(Layer.from_json, weighed.values())]
    layers = squeeze.Scale(known, note).layers(it.engine, built.image_id, but=lent.digest if lent else "")
    size = it.engine.inspect(built.image_id).size - (lent.size if lent else 0)
    weighed.update((layer.digest, layer.as_json()) for layer in layers)
    weighs = accounting.weight(layers)
    it.say(f"{label}: {weighs.gzip / 1e6:.0f} MB with gzip, {weighs.zstd / 1e6:.0f} zstd, {size / 1e6:.0f} on disk")
    found["images"][label] = {"made_from": made_from, "bytes": size, "layers": [layer.digest for layer in layers]}
    it.keep(found)


def digest(context: Context, base: str) -> str:
    """What an image is made from: its context, but for the host's settings, and the ID of the image below it."""
    content = hashlib.sha256(base.encode())
    for path, file in sorted(context.items()):
        if not path.startswith("host/"):
            content.update(f"{path}\0{sha256(content_of(file))}\0".encode())
    return content.hexdigest()[:16]


def _acquired(it: Bench, image: Image) -> str:
    return base_images.acquire(it.engine, image.base, pinned=it.pinned_bases, host=it.host, say=it.say).reference


# --- from start to verdict ----------------------------------------------------------------------------------------


def trial(it: Bench) -> dict[str, Any]:
    """Seconds from the command to its verdict, a tier at a time, of an image that is built already."""
    with workbench(it.engine, SUBJECT) as (bench, image):
        bench.build(image)
        tiers = [
            {"tier": tier, **_judged(it, bench, image, tier)} for _ in range(it.repeat) for tier in ("static", "cpu")
        ]
    return {"image": SUBJECT, "tiers": tiers}


def _judged(it: Bench, bench: Workbench, image: Image, tier: str) -> dict[str, Any]:
    file = bench.root / "verdict.json"
    with _loaded() as load:
        ran = bench.run("validate", str(image.name), "--tier", tier, "--json", str(file))
    claims = json.loads(file.read_text())["claims"]
    it.say(f"{tier}: {len(claims)} claims in {ran.seconds:.1f} s")
    return {"claims": len(claims), "seconds": round(ran.seconds, 2), "peak": ran.peak, "load": load}


@contextmanager
def _loaded() -> Iterator[dict[str, float]]:
    """What others used of the machine before what is inside, and the load averages around it."""
    load = {"busy": results.busy_now(), "before": results.load_now()}
    yield load
    load["after"] = results.load_now()


PARTS: Mapping[str, Part] = {
    "plan": planner,
    "cold": cold,
    "rebuild": rebuild,
    "pull": pull,
    "sequence": sequence,
    "trial": trial,
}
"""What `--only` names, in the order in which they run."""
