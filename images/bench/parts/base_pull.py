"""The pull of the conventional side's base, from a registry on this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence, Set
from dataclasses import replace
from pathlib import Path

from images.bench import accounting, loopback
from images.bench.builder import Builder
from images.bench.data import BasePull, BasePulls
from images.bench.parts.session import BenchmarkRun, load_around, retry_command
from images.engine.buildkit import BuildEvent, LayerPulled
from images.errors import Problem, UserError, problem_of
from images.registry.client import Registry
from images.registry.distribution import Descriptor, require_one_image
from images.registry.reference import Reference

_SHORT = 12
"""Digits of a layer's digest that an engine says while it pulls."""


def base_pulls(bench: BenchmarkRun, baseline: Builder, base: str, folder: Path) -> BasePulls:
    """Seconds to pull the baseline image from a registry on this machine; where there are none, the reason.

    The baseline image is gone after it. `base`: what ours stands on; the baseline's lowest layers, which the engine
    keeps.
    """
    try:
        pulls = _pulls_here(bench, baseline, base, folder)
    except (UserError, OSError) as error:
        problem = error.problems[0] if isinstance(error, UserError) else problem_of(error)
        reason = bench.host.redact(str(replace(problem, then="")))
        bench.say(f"the pull of the conventional base is not timed: {reason}\n    next: {problem.then}")
        return {"base_pulls": [], "base_not_pulled": reason}
    return {"base_pulls": pulls, "base_not_pulled": ""}


def _pulls_here(bench: BenchmarkRun, baseline: Builder, base: str, folder: Path) -> list[BasePull]:
    if not bench.engine.facts.local:
        cause, then = "is on another machine, and the registry on this one", retry_command("cold")
        raise UserError(Problem(where="the engine", cause=cause, then=f"measure where it runs: {then}"))
    with loopback.registry(folder, say=bench.say) as host:
        return uncached_pulls(bench, baseline, f"{host}/baseline:1", bench.engine.inspect(base).layers)


def uncached_pulls(bench: BenchmarkRun, builder: Builder, reference: str, kept: Sequence[str]) -> list[BasePull]:
    """Push a builder's image, remove it with its layers, and pull it, `repeat` times. Raises UserError.

    `kept`: layers that stay in the engine. Any other one that does makes the seconds too few: an error, then.
    """
    bench.engine.tag(builder.run_id, reference)
    try:
        bench.engine.push(reference)
        builder.clear()
        wanted = layers_to_pull(reference, bench.engine.inspect(reference).layers, kept)
        return [pulled(bench, reference, wanted) for _ in range(bench.repeat)]
    finally:
        bench.engine.untag(reference)


def layers_to_pull(reference: str, layers: Sequence[str], kept: Sequence[str]) -> list[Descriptor]:
    """What the registry has of an image's layers, less those that are kept. Raises UserError."""
    there = Reference.parse(reference)
    with Registry(there.repository) as registry:
        manifest = registry.get(there.identifier)
    require_one_image(manifest, reference)
    new = accounting.changed(kept, layers)
    return [blob for layer, blob in zip(layers, manifest.layers, strict=True) if layer in new]


def pulled(bench: BenchmarkRun, reference: str, wanted: Sequence[Descriptor], part: str = "cold") -> BasePull:
    """Pull an image once. Raises UserError when other layers than the wanted ones were transferred."""
    transferred: set[str] = set()

    def note(event: BuildEvent) -> None:
        if isinstance(event, LayerPulled):
            transferred.add(event.layer)

    bench.engine.untag(reference)
    with load_around() as load:
        start = time.monotonic()
        bench.engine.pull(reference, on_event=note)
        seconds = time.monotonic() - start
    expected = {blob.digest.removeprefix("sha256:")[:_SHORT]: blob.size for blob in wanted}
    _require_all(bench, reference, part, (expected.keys(), transferred))
    size = sum(expected.values())
    bench.say(f"pulled {size / 1e6:.0f} MB in {seconds:.1f} s")
    return {"seconds": round(seconds, 2), "load": load, "bytes": size, "layers": len(transferred)}


def _require_all(bench: BenchmarkRun, reference: str, part: str, layers: tuple[Set[str], Set[str]]) -> None:
    """`layers`: those that a pull should have transferred, and those that it did."""
    expected, transferred = layers
    if unexpected := transferred - expected:
        cause = f"{len(unexpected)} layers came from the registry that the engine should have kept"
        then = f"leave the images of this engine alone meanwhile, then {retry_command(part)}"
        raise UserError(Problem(where=reference, cause=cause, then=then), code=1)
    if held := expected - transferred:
        cause = f"{len(held)} of {len(expected)} layers did not come from the registry: the engine still holds them"
        docker = f"docker -H {bench.engine.facts.url}"
        images = f"remove images on the same base (`{docker} image ls`)"
        then = f"`{docker} builder prune --all`, {images}, {retry_command(part)}"
        raise UserError(Problem(where=reference, cause=cause, then=then), code=1)
