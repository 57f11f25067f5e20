"""What Slurm and Ray cost beside one machine: eight images, judged one at a time by each. `nox -s overhead` calls it.

It has clusters, images and a registry of its own. The work is the same everywhere, so what is beside it is the
executor's or ours; what an executor takes by itself is measured by as many jobs that do nothing.
"""

import argparse
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from images.bench import overhead_page, results
from images.bench.data import OverheadData, OverheadRun
from images.bench.parts.session import load_around
from images.bench.stats import turns
from images.engine import Engine, private_engine
from images.errors import Problem, UserError
from tests.support import fleet_images
from tests.support.broken_images import NAME
from tests.support.fleet_comparison import command_of, judged_by, site
from tests.support.fleet_faults import FleetCommand
from tests.support.ray_cluster import ray_cluster
from tests.support.slurm_cluster import slurm_cluster

PART, PART_OVER, IMAGES = "overhead", "overhead-whole", 8
_EMPTY_TASKS = """
import sys, ray
ray.init(address=sys.argv[1], runtime_env={"working_dir": sys.argv[2]}, log_to_driver=False, logging_level="ERROR")
task = ray.remote(lambda: None).options(resources={"engine": 1}, num_cpus=1)
ray.get([task.remote() for _ in range(int(sys.argv[3]))])
"""
_EMPTY_JOBS = """
import sys, submitit
executor = submitit.SlurmExecutor(folder=sys.argv[2])
executor.update_parameters(partition="cpu", time=10, cpus_per_task=1, ntasks_per_node=1, array_parallelism=256)
for job in executor.map_array(int, range(int(sys.argv[3]))):
    while not job.done():
        __import__("time").sleep(1)
"""
_say = logging.getLogger("truetag.overhead").warning


@dataclass(frozen=True, kw_only=True)
class Side:
    """An executor, by its command, and the program that gives it jobs which do nothing."""

    command: FleetCommand
    empty: str = ""
    address: str = ""

    def measured(self, folder: Path) -> OverheadRun:
        """The command once, and the empty jobs after it. Raises AssertionError where it did not judge all."""
        with load_around() as load:
            run = judged_by(self.command, folder / "judged")
        (folder / "empty").mkdir()
        return {
            "executor": self.command.executor,
            "seconds": round(run.seconds, 2),
            "work": round(run.work, 2),
            "empty": round(self._nothing(folder / "empty") if self.empty else 0.0, 2),
            "load": load,
        }

    def _nothing(self, folder: Path) -> float:
        words = [sys.executable, "-c", self.empty, self.address, str(folder), str(len(self.command.images))]
        start = time.monotonic()
        subprocess.run(words, check=True, env={**os.environ, **self.command.environment}, capture_output=True)
        return time.monotonic() - start


def measured(folder: Path, engine: Engine, over: str, repeat: int, say: Callable[[str], object]) -> OverheadData:
    """Each executor so many times, in turns.

    `over`: the image that the eight lie over, held to its whole static tier; empty: the small one, to three claims.
    """
    with site(folder) as (fleet, host), ExitStack() as stack:
        also = "true" if over else fleet_images.SLOW
        tags = stack.enter_context(fleet_images.thin_images(engine, "truetag-overhead", IMAGES, {}, also, parent=over))
        slurm = stack.enter_context(slurm_cluster(folder / "slurm", {"n1": ""}))
        address = stack.enter_context(ray_cluster([engine.facts.url]))
        command = command_of(tags, fleet, host, engine)
        sides = _sides(replace(command, claims=()) if over else command, slurm.environment, address)
        judged_by(sides["ray"].command, folder / "first")  # sends the images to the registry
        runs = list[OverheadRun]()
        for number, names in enumerate(turns(list(sides), repeat)):
            for name in names:
                runs.append(sides[name].measured(folder / f"{number}-{name}"))
                say(f"{name}: {runs[-1]['seconds']} s, {runs[-1]['work']} s of them trials")
    return {"jobs": IMAGES, "over": over, "runs": runs}


def _sides(local: FleetCommand, slurm: Mapping[str, str], ray: str) -> Mapping[str, Side]:
    return {
        "local": Side(command=local),
        "slurm": Side(command=local.on("slurm", slurm), empty=_EMPTY_JOBS),
        "ray": Side(command=local.on("ray", {"RAY_ADDRESS": ray}), empty=_EMPTY_TASKS, address=ray),
    }


def main(arguments: Sequence[str]) -> None:
    """Measure, put the entry into the file of results, and print its table. Raises UserError."""
    asked = _asked(arguments)
    results.read(asked.out)  # a file that can't take the result is told before anything is measured
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # users' workers find the bytecode of those before them
    start, began, commit = time.monotonic(), results.now(), results.revision()
    with private_engine.open_engine(None, say=_say) as engine, tempfile.TemporaryDirectory() as name:
        _require_possible(engine)
        data = measured(Path(name), engine, asked.over, asked.repeat, _say)
        machine = results.machine(engine)
    seconds = time.monotonic() - start
    entry = results.entry(data, machine, commit, began=began, seconds=seconds, finished=True)
    results.keep(asked.out, PART_OVER if asked.over else PART, entry)
    sys.stdout.write(f"{overhead_page.section(data)}\n{asked.out}; `nox -s generate` renews docs/benchmarks.md\n")


def _asked(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"nox -s {PART} --", description="What executors cost beside the trials.")
    parser.add_argument("--out", type=Path, default=results.FILE, metavar="FILE", help="where the result goes")
    over = f"lay the images over this one, whole (its claims are those of {NAME})"
    parser.add_argument("--over", choices=("", NAME), metavar="NAME", default="", help=over)
    parser.add_argument("--repeat", type=int, choices=range(1, 100), metavar="N", default=3, help="times of each")
    return parser.parse_args(arguments)


def _require_possible(engine: Engine) -> None:
    if os.geteuid() != 0:
        raise UserError(Problem(where=PART, cause="starts Slurm's daemons, which need root", then="give it as root"))
    if engine.find(NAME) is None:
        cause, then = "the engine lacks it, and the small images are cut from it", f"nox -s build -- {NAME}"
        raise UserError(Problem(where=NAME, cause=cause, then=then))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(str(error))
