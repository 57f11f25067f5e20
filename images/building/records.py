"""What a build leaves on disk: the context, build.json, and the files of its trial."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from images.context.base_images import AcquiredBase
from images.context.render import Context
from images.engine import Engine, ImageInfo
from images.engine.buildkit import BuildResult
from images.validation.child import Changes
from images.wheels import prebuilt
from validate import page, report
from validate.evidence import Evidence
from validate.judge import Verdict

_TRIAL_FILES = ("evidence.json", "verdict.json", "junit.xml", "report.md", "report.html", "changes.json")


@dataclass(frozen=True, kw_only=True)
class BuildRecord:
    """What an image was built from, and how long that took."""

    image: str
    info: ImageInfo
    result: BuildResult
    base: AcquiredBase
    gathered: prebuilt.Gathered


def write_context(context: Context, folder: Path) -> None:
    """Write a context to disk, for reading and for plain `docker build`. Files of an earlier one are removed.

    Index addresses with passwords may be among the host's settings: nobody else can read those.
    """
    wanted = {folder / path for path in context}
    for old in sorted(folder.rglob("*")):
        if (old.is_file() or old.is_symlink()) and old not in wanted:
            old.unlink()
    for path, content in context.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        if isinstance(content, bytes):
            target.touch(mode=0o600 if path.startswith("host/") else 0o666)
            target.write_bytes(content)
        else:
            _place(content.resolve(), target)


def _place(file: Path, target: Path) -> None:
    """Place a large file in a context; copy only across file systems. A symlink would lead out of the context."""
    try:
        target.hardlink_to(file)
    except OSError:
        shutil.copyfile(file, target)


def record_build(folder: Path, built: BuildRecord, engine: Engine) -> None:
    """Write build.json: digest, layers, steps and their times, base, wheels."""
    info, result, base = built.info, built.result, built.base
    history = engine.history(info.id)
    facts = {
        "image": built.image,
        "digest": info.id,
        "bytes": info.size,
        "layers": list(info.layers),
        "layer_bytes": [entry.size for entry in reversed(history) if entry.size],
        "seconds": round(result.seconds, 1),
        "steps": [
            {"name": step.name, "seconds": round(step.seconds, 2), "cached": step.cached} for step in result.steps
        ],
        "base": {"reference": base.reference, "origin": str(base.origin), "digest": base.digest},
        "engine": {"version": engine.facts.version, "cpus": engine.facts.cpus},
        "wheels": built.gathered.digests(),
        "missing": dict(built.gathered.missing),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "build.json").write_text(json.dumps(facts, indent=1) + "\n")


def recorded_layers(folder: Path) -> tuple[str, ...]:
    """Diff IDs of the image that a build recorded in this folder; none where there is no readable record."""
    try:
        return tuple(map(str, json.loads((folder / "build.json").read_text())["layers"]))
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def recorded_seconds(folder: Path) -> float:
    """What the last build and its trial took; 0 where there is no readable record.

    A worker's job is recorded as a whole, with the push. Else it is the build, and each probe by itself.
    """
    try:
        build = json.loads((folder / "build.json").read_text())
        if "worker" in build:
            return float(build["worker"]["seconds"])
        probes = json.loads((folder / "evidence.json").read_text())["records"]
        return float(build["seconds"]) + sum(float(one["seconds"]) for one in probes)
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0


def record_trial(folder: Path, evidence: Evidence, verdict: Verdict, changes: Changes | None = None) -> None:
    """Write evidence.json, verdict.json, junit.xml, report.md and report.html; of a child changes.json, too."""
    record_evidence(folder, evidence)
    (folder / "verdict.json").write_text(json.dumps(report.json_data(verdict), indent=1) + "\n")
    (folder / "junit.xml").write_text(report.junit(verdict))
    told = "\n".join(["", "Beside its parent:", "", *(f"- {line}" for line in changes.lines()), ""]) if changes else ""
    (folder / "report.md").write_text(report.markdown(verdict) + told)
    if changes:
        (folder / "changes.json").write_text(json.dumps(asdict(changes), indent=1) + "\n")
    (folder / "report.html").write_text(page.html(verdict, evidence.host), encoding="utf-8")


def record_evidence(folder: Path, evidence: Evidence) -> None:
    """Write evidence.json, whole or not at all: whoever is killed while writing leaves the one before."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "evidence.json.partial"
    partial.write_text(evidence.dumps() + "\n")
    partial.replace(folder / "evidence.json")


def forget_trial(folder: Path) -> None:
    """Remove what an earlier trial left: its verdict does not belong to the evidence that comes."""
    for name in _TRIAL_FILES:
        (folder / name).unlink(missing_ok=True)
