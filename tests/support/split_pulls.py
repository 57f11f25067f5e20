"""Pulls one image with NVIDIA's libraries in one layer, as images have them, and in layers of their own.

By hand, as root, on an idle machine with 30 GB of free disk; ROUNDS pulls of each, in turns, by an empty engine:

    python -m tests.support.split_pulls ROUNDS [26.1|28.5]
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from images.bench import loopback
from images.bench.builder import UNMARKED
from images.bench.empty_engine import EmptyEngine, empty_engine
from images.bench.parts.base_pull import pulled
from images.bench.parts.delivery import Served
from images.bench.parts.session import SUBJECT, BenchmarkRun, load_around
from images.bench.project_copy import ProjectCopy, project_copy
from images.bench.stats import there_and_back
from images.commands import common, trials
from images.context.hosting import host_settings
from images.engine import ignore
from images.engine.progress import Progress
from images.planning.image import Image
from images.publish.compression import Compression
from images.publish.push import PushJob, Tally, push
from images.registry.client import Registry
from images.registry.reference import Reference, Repository

SPLIT = [
    ["nvidia-cuda-*", "nvidia-cufft*", "nvidia-cufile*", "nvidia-curand*", "nvidia-cusolver*", "nvidia-cusparse"],
    ["nvidia-cublas*", "nvidia-cusparselt*"],
    ["nvidia-cudnn*"],
]
"""Close to what docs/benchmarks.md proposes for updates. With zstd 625, 559, 339 and 265 MB in place of 1,788."""
CUTS: Mapping[str, Sequence[Sequence[str]]] = {"whole": (), "split": SPLIT}


def main(rounds: int, version: str) -> None:
    """Build and push both cuts, then pull them. Prints a line a pull; raises UserError where one can't be had."""
    with trials.open_engine(None) as engine, Progress() as progress, project_copy(engine, SUBJECT) as (project, image):
        bench = BenchmarkRun(
            engine=engine,
            host=host_settings(),
            sources=common.sources(),
            progress=progress,
            repeat=rounds,
            pinned_bases=trials.pinned_bases(),
        )
        store = project.root / "registry"
        store.mkdir()
        served = Served(loopback.program(store, bench.say), store)
        with loopback.serving(served.program, store) as host:
            for cut in CUTS:
                _publish(bench, project, image, f"{host}/{cut}")
        home = store.with_name("engine")
        with (
            empty_engine(version, home, bench.host, bench.say) as empty,
            loopback.serving(served.program, store) as host,
        ):
            for round_ in there_and_back(list(CUTS), rounds):
                for cut in round_:
                    _pull(replace(bench, engine=empty.engine), empty, served, f"{host}/{cut}:1")


def _publish(bench: BenchmarkRun, project: ProjectCopy, image: Image, place: str) -> None:
    """Build a cut, push it with zstd, and forget it."""
    project.change({"library_layers": [list(layer) for layer in CUTS[place.rpartition("/")[2]]]})
    context = project.rendered(image, bench.acquired(image))
    room = project.root / "room"
    room.mkdir(exist_ok=True)
    with bench.builder() as builder, builder.nothing_at_all_kept(), Registry(Repository.parse(place)) as target:
        builder.build(context, builder.run_id, UNMARKED)
        info = bench.engine.inspect(builder.run_id)
        job = PushJob(engine=bench.engine, info=info, target=target, wanted=(Compression.ZSTD,), cache=room)
        ((_, manifest),) = push(job, Tally(where=place, on_event=ignore))
        target.put(manifest, "1")


def _pull(bench: BenchmarkRun, empty: EmptyEngine, served: Served, reference: str) -> None:
    there = Reference.parse(reference)
    with Registry(there.repository) as registry:
        layers = registry.get(there.identifier).layers
    os.sync()
    for layer in layers:
        served.read(layer.digest)
    used = empty.processor_seconds()
    try:
        with load_around() as load:
            pull = pulled(bench, reference, layers)
        used = empty.processor_seconds() - used
        sizes = ", ".join(f"{layer.size / 1e6:.0f}" for layer in layers)
        bench.say(
            f"{there.repository.name}: {pull['seconds']:.1f} s for {pull['bytes'] / 1e6:.0f} MB"
            f" in {len(layers)} layers, {used:.1f} s of processor time, others {load['busy']:.0%}; MB: {sizes}"
        )
    finally:
        bench.engine.untag(reference)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "26.1")
