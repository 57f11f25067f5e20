"""The planner: `plan --json` of the project's own matrix, locks read, the start of Python included."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.results import load_around
from benchmarks.session import ProjectCopy, Session


def measure(session: Session) -> dict[str, Any]:
    """Processor seconds and memory of the whole command."""
    with TemporaryDirectory() as folder:
        project = ProjectCopy(Path(folder), session.engine, Path(folder, "out"))
        project.copy()
        found = project.root / "plan.json"
        _planned(project, found)  # Python compiles the copy's modules
        runs = [_planned(project, found) for _ in range(session.repeat)]
        images = json.loads(found.read_text())["images"]
    session.say(f"plan --json of {len(images)} images: {runs[-1]['cpu']:.2f} s of CPU")
    return {"images": len(images), "locks": sum(row["lock"] == "present" for row in images), "runs": runs}


def _planned(project: ProjectCopy, found: Path) -> dict[str, Any]:
    with found.open("wb") as stream, load_around() as load:
        usage = project.run("plan", "--json", output=stream)
    return {"cpu": round(usage.cpu, 3), "seconds": round(usage.seconds, 3), "peak": usage.peak, "load": load}
