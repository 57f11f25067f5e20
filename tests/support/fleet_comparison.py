"""Judges the same images here, on Slurm with four nodes and on Ray with three engines, and compares.

By hand, with clusters, engines and a registry of its own; it prints a table in Markdown:

    python -m tests.support.fleet_comparison                 # twelve images, three of them broken
    python -m tests.support.fleet_comparison cu126-torch27   # the same over a whole image

A whole image is pulled into two empty engines, and takes 25 GB of disk meanwhile.
"""

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import loopback
from images.engine import Engine, connect
from images.fleet.folder import JobFolder
from images.fleet.model import JobRecord
from tests.support import fleet_images
from tests.support.fleet_faults import FleetCommand, verdicts
from tests.support.other_engine import other_engine
from tests.support.ray_cluster import ray_cluster
from tests.support.slurm_cluster import slurm_cluster

_FLEET = "workers: {cpu: {slurm: {partition: cpu, minutes: 20}, ray: {resources: {engine: 1}}}}\n"


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one executor did: digest -> verdict and record, and seconds from the command's start to its end."""

    found: Mapping[str, Any]
    records: Mapping[str, JobRecord]
    seconds: float

    @property
    def work(self) -> float:
        """Seconds that workers spent on validation runs, added up."""
        return sum(record.seconds for record in self.records.values())


def compared(folder: Path, engine: Engine, parent: str = "") -> None:
    """Twelve images over a parent, else over the small image. Raises AssertionError where a verdict is another."""
    with site(folder) as (fleet, host), ExitStack() as stack:
        tags = stack.enter_context(
            fleet_images.thin_images(engine, "truetag-compared", 9, fleet_images.BREAKAGES, parent=parent)
        )
        slurm = stack.enter_context(slurm_cluster(folder / "slurm", dict.fromkeys(("n1", "n2", "n3", "n4"), "")))
        others = [stack.enter_context(other_engine(suite)) for suite in ("trixie", "sid")]
        for other in others:
            stack.enter_context(other.lend(int(host.rpartition(":")[2])))
        urls = [engine.facts.url, *(other.url for other in others)]
        address = stack.enter_context(ray_cluster(urls))
        command = command_of(tags, fleet, host, engine)
        local = judged_by(command, folder / "local")
        assert sorted(one for one, _ in local.found.values()) == ["FAIL"] * 3 + ["PASS"] * 9, local.found
        on_slurm = judged_by(command.on("slurm", slurm.environment), folder / "on-slurm")
        _fetch_parent([other.url for other in others], folder / "on-slurm")
        on_ray = judged_by(command.on("ray", {"RAY_ADDRESS": address}), folder / "on-ray")
        _print_who(engine, tags, (local, on_slurm, on_ray))
        assert on_slurm.found == local.found and on_ray.found == local.found
        assert len({one.worker.engine for one in on_ray.records.values()}) == len(urls), "an engine judged nothing"


@contextmanager
def site(folder: Path) -> Iterator[tuple[Path, str]]:
    """fleet.yaml, and a registry."""
    fleet = folder / "fleet.yaml"
    fleet.write_text(_FLEET)
    with loopback.registry(folder / "registry") as host:
        yield fleet, host


def command_of(tags: Sequence[str], fleet: Path, host: str, engine: Engine) -> FleetCommand:
    """`fleet run` about these images, through the registry."""
    options = ("--fleet", str(fleet), "--staging", f"{host}/fleet", "--tier", "static")
    return FleetCommand(images=tuple(tags), options=options, environment={"DOCKER_HOST": engine.facts.url})


def _fetch_parent(urls: Sequence[str], judged: Path) -> None:
    """Have the empty engines fetch one image, or the full one has judged all before they have their first."""
    folder = JobFolder(judged)
    jobs = [job for key in folder.job_keys() if (job := folder.job(key))]
    for url in urls:
        with connect(url) as engine:
            engine.pull(jobs[0].reference)


def judged_by(command: FleetCommand, folder: Path) -> Run:
    """A command to its end. Raises AssertionError where it did not judge every image."""
    start = time.monotonic()
    done = command.run(folder)
    seconds = time.monotonic() - start
    found = verdicts(folder)
    assert len(found) == len(command.images), done.stdout + done.stderr
    records = {one.digest: one for one in JobFolder(folder).records().values()}
    return Run(found=found, records=records, seconds=seconds)


def _print_who(engine: Engine, tags: Sequence[str], runs: Sequence[Run]) -> None:
    local, on_slurm, on_ray = runs
    _tell("| image | digest | verdict here | on Slurm | by | on Ray | by |")
    _tell("|---|---|---|---|---|---|---|")
    for tag in tags:
        digest = engine.inspect(tag).id
        cells = [tag.removeprefix("truetag-compared-"), digest[7:19], local.found[digest][0]]
        for run in (on_slurm, on_ray):
            same = "same" if run.found[digest] == local.found[digest] else f"OTHER: {run.found[digest]}"
            worker = run.records[digest].worker
            cells += [same, f"{worker.node.rpartition('/')[2]}, engine {worker.engine}"]
        _tell(f"| {' | '.join(cells)} |")
    took = ", ".join(f"{name} {run.seconds:.0f} s" for name, run in zip(("here", "Slurm", "Ray"), runs, strict=True))
    _tell(f"\n{took}")


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(parent: str = "") -> None:
    """`parent`: what the images lie over; empty: the small image."""
    with tempfile.TemporaryDirectory(prefix="truetag-fleet-") as name, connect(None) as engine:
        compared(Path(name), engine, parent)


if __name__ == "__main__":
    main(*sys.argv[1:])
