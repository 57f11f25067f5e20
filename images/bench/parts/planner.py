"""The planner: `plan --json` with matrices of several sizes."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from images.bench import synthetic
from images.bench.data import PlanData, PlanRun, PlanSize
from images.bench.parts.session import BenchmarkRun, load_around
from images.bench.project_copy import ProjectCopy
from images.locking import lock_file
from images.planning import plan

SIZES = (100, 1_000, 5_000, 10_000)
"""Images in the matrices that the planner is given."""


def planner(bench: BenchmarkRun) -> PlanData:
    """Processor seconds of `plan --json` in a copy of the project, locks read, the start of Python included."""
    return {"sizes": [_size(bench, count) for count in SIZES]}


def _size(bench: BenchmarkRun, count: int) -> PlanSize:
    with TemporaryDirectory() as folder:
        project = ProjectCopy(Path(folder), bench.engine, Path(folder, "out"))
        project.copy()
        (project.root / "matrix.yaml").write_text(synthetic.text(bench.sources, count), encoding="utf-8")
        files = dict(synthetic.locks(one.image for one in plan.plan(project.sources()) if one.image))
        lock_file.write(files, project.root / "locks")
        _planned(project)  # Python compiles the copy's modules
        runs = [_planned(project) for _ in range(bench.repeat)]
        found = json.loads((project.root / "plan.json").read_text())["images"]
    bench.say(f"plan --json of {count} images: {runs[-1]['cpu']:.2f} s of CPU")
    return {
        "images": len(found),
        "accepted": sum(row["status"] == "accepted" for row in found),
        "locks": len({path.partition("/")[0] for path in files}),
        "locked": sum(row["lock"] == "present" for row in found),
        "runs": runs,
    }


def _planned(project: ProjectCopy) -> PlanRun:
    with (project.root / "plan.json").open("wb") as stream, load_around() as load:
        usage = project.run("plan", "--json", output=stream)
    return {"cpu": round(usage.cpu, 3), "seconds": round(usage.seconds, 3), "peak": usage.peak, "load": load}
