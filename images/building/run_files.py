"""Writes what a build leaves on disk: build context, build.json, files of its validation run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from images.context.labels import LABELS, BaseContext
from images.context.prose import to_markdown
from images.context.render import Context
from images.context.templates import environment
from images.engine import Engine, ImageInfo
from images.engine.buildkit import BuildResult
from images.errors import command, failed, root_cause, wrong
from images.host import checkout
from images.host.cache import write_whole
from images.host.hashing import sha256
from images.locking import lock_file
from images.locking.lock_file import Lock
from images.planning.image import Image
from images.wheels.prebuilt import Gathered
from validate import report
from validate.evidence import Evidence
from validate.judge import ClaimVerdict, Verdict
from validate.judging import Status

if TYPE_CHECKING:
    from images.validation.derived_image import Changes

INPUTS = "inputs.json"
VALIDATION_FILES = (
    "evidence.json",
    "verdict.json",
    "junit.xml",
    "report.md",
    "changes.json",
)
"""What `record_validation` writes, the last one for a derived image only."""
_NOT_IN_XML = dict.fromkeys(
    [*range(9), 11, 12, *range(14, 32), 0xFFFE, 0xFFFF, *range(0xD800, 0xE000)], "\ufffd"
)
"""Characters that XML 1.0 can't hold, not even escaped -> what takes their place. The output of a
crashed probe may have them."""


def write_context(context: Context, folder: Path) -> None:
    """Write a build context to disk, for people to read and for plain `docker build`.

    `context`: path below `folder` -> content, or a file of this machine (a wheel) that is linked or
    copied there. Files of an earlier context are removed. Files below host/ may hold index
    addresses with passwords: only this user can read them. Raises OSError.
    """
    current = {folder / path for path in context}
    for old in sorted(folder.rglob("*")):
        if (old.is_file() or old.is_symlink()) and old not in current:
            old.unlink()

    for path, content in context.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        if isinstance(content, bytes):
            # The mode is set before there is any content. 0o666 less the umask is the usual one.
            target.touch(mode=0o600 if path.startswith("host/") else 0o666)
            target.write_bytes(content)
            continue
        # A hard link saves the copy of a wheel. A symbolic one would lead out of the context.
        try:
            target.hardlink_to(content.resolve())
        except OSError:  # another file system
            shutil.copyfile(content, target)


def record_build(
    folder: Path,
    name: str,
    engine: Engine,
    info: ImageInfo,
    result: BuildResult,
    base: BaseContext,
    gathered: Gathered,
    source: BuildSource,
) -> None:
    """Write build.json of an image: from what and how it was built.

    name: the image's, without a suffix such as -canary.
    info: the built image, as the engine knows it.
    result: the build steps with their times.
    base: the base image.
    gathered: the wheels that no index has, and why some of them are missing.
    source: the commit, and digests of the locks.

    In the file, `layers` has the diff IDs of all layers. `layer_bytes` has the sizes of those that
    have any, by the image's history, the lowest first.
    """
    # The history begins with the last step.
    history = reversed(engine.history(info.handle))
    layer_sizes = [size for _step, size in history if size]
    steps = []
    for step in result.steps:
        seconds = round(step.seconds, 2)
        steps.append({"name": step.name, "seconds": seconds, "cached": step.cached})
    record = {
        "image": name,
        "digest": info.digest,
        "bytes": info.size,
        "layers": list(info.layers),
        "layer_bytes": layer_sizes,
        "seconds": round(result.seconds, 1),
        "steps": steps,
        "base": base_as_json(base),
        "engine": {"version": engine.facts.version, "cpus": engine.facts.cpus},
        "wheels": gathered.digests(),
        "missing": dict(gathered.missing),
        **source,
    }
    write_json(folder / "build.json", record)


def base_as_json(base: BaseContext) -> dict[str, str]:
    """Return how build.json and inputs.json name a base."""
    return {"reference": base.reference, "origin": base.origin, "digest": base.digest}


class BuildSource(TypedDict):
    """What an image was built from; build.json has it for the provenance."""

    commit: str
    """Empty: it was not built from a clean checkout."""
    locks: dict[str, str]
    """Lock file -> sha256."""


def build_source(root: Path, lock: Lock) -> BuildSource:
    """Return the commit of the checkout at `root`, and the digests of a lock's files."""
    locks = {path: sha256(content) for path, content in lock_file.serialize(lock).items()}
    return BuildSource(commit=checkout.commit(root), locks=locks)


def write_inputs(
    folder: Path, image: Image, base: BaseContext, gathered: Gathered, source: BuildSource
) -> None:
    """Write inputs.json beside a rendered context: what another builder can't know of the image.

    The other builder is `docker build` or buildx, on the context in `folder`. Of what it built,
    `make_build_record` makes the build.json with this file. `base`: what the image stands on.
    `gathered`: the wheels that steps get as files. `source`: commit and locks.
    """
    inputs = {
        "image": str(image.name),
        "revision": image.revision,
        "base": base_as_json(base),
        "wheels": gathered.digests(),
        **source,
    }
    write_json(folder / INPUTS, inputs)


def make_build_record(folder: Path, info: ImageInfo, missing: Mapping[str, str]) -> dict[str, Any]:
    """Return the build.json of an image that `docker build` or buildx made of a rendered context.

    `folder`: where `render` wrote the context and its inputs.json. `missing`: optional package ->
    why the image goes without it. Raises UserError if the folder has no rendered context, or if the
    image's labels contradict its inputs: it is another image, or was built from another matrix.
    """
    render_again = (
        f"`{command('render', folder.name)}` writes the folder anew; build the image from it "
        f"(`docker build {folder / 'context'}`), then validate that image"
    )
    try:
        inputs = json.loads((folder / INPUTS).read_bytes())
        expected_labels = {
            "image": inputs["image"],
            "matrix-revision": inputs["revision"],
            "base": inputs["base"]["reference"],
            "base-origin": inputs["base"]["origin"],
        }
        made_from = {key: inputs[key] for key in ("base", "wheels", "commit", "locks")}
    except (OSError, ValueError, LookupError, TypeError) as error:
        cause = f"can't be read as `{command('render')}` wrote it: {root_cause(error)}"
        then = f"{render_again}, all with the same --out"
        raise wrong(str(folder / INPUTS), cause, then) from None

    contradictions = []
    for key, expected in expected_labels.items():
        label = info.labels.get(f"{LABELS}.{key}", "")
        if label != expected:
            has = label or "missing"
            contradictions.append(f"{key} is {has}, and {folder / INPUTS} has {expected}")
    if contradictions:
        cause = (
            "this image was not built from the folder that `render` wrote: its label "
            f"{'; '.join(contradictions)}"
        )
        then = (
            f"{render_again}; or, if you meant another image, validate it by the name in its label"
        )
        raise failed(info.digest[:19], cause, then)

    return {
        "image": inputs["image"],
        "digest": info.digest,
        "bytes": info.size,
        "layers": list(info.layers),
        "engine": {"version": "buildx"},
        **made_from,
        "missing": dict(missing),
    }


def record_validation(
    folder: Path, evidence: Evidence, verdict: Verdict, changes: Changes | None = None
) -> None:
    """Write the files of a validation run: evidence, verdict and reports.

    They are evidence.json, verdict.json, junit.xml and report.md, and with `changes` also
    changes.json. `changes`: what an image that a user built on top of ours (a derived image)
    changed of it; None: it is no derived image, or was not compared. Raises OSError.
    """
    # Files that programs read are written whole or not at all; reports for people need not be.
    write_whole(folder / "evidence.json", f"{evidence.dumps()}\n".encode())
    (folder / "junit.xml").write_text(junit(verdict), encoding="utf-8")
    markdown = report.markdown(verdict)
    if changes:
        lines = [
            "",
            "What it changed of its base image:",
            "",
            *(f"- {line}" for line in changes.lines()),
            "",
        ]
        markdown += "\n".join(lines)
        write_json(folder / "changes.json", asdict(changes))
    (folder / "report.md").write_text(to_markdown(markdown))
    # Last, because a fleet takes this file for the end of a job.
    write_json(folder / "verdict.json", report.json_data(verdict))


def remove_validation(folder: Path) -> None:
    """Remove evidence, verdict and reports of an earlier run: they are about another image."""
    for file in VALIDATION_FILES:
        (folder / file).unlink(missing_ok=True)


def write_json(file: Path, content: object) -> None:
    """Write JSON to a file, whole or not at all."""
    write_whole(file, f"{json.dumps(content, indent=1)}\n".encode())


def junit(verdict: Verdict) -> str:
    """Return a verdict as JUnit XML, for CI systems, with a test for each claim.

    A claim that failed is a failure. So is a required one that is not PASS for another reason, such
    as UNPROVEN (not measured): CI systems show a skipped test as green. Any other claim that is not
    PASS is skipped.
    """
    failures, skipped = [], []
    for judged in verdict.claims:
        if judged.status is Status.PASS:
            continue
        if judged.claim.required or judged.status is Status.FAIL:
            failures.append(judged)
        else:
            skipped.append(judged)
    # A verdict without any required claim is UNPROVEN although no claim is a failure. The template
    # then adds a failure for the whole.
    lacks_failure = verdict.overall is not Status.PASS and not failures
    page = environment(html=True).get_template("junit.xml.j2")
    text = page.render(
        verdict=verdict,
        failed=failures,
        skipped=skipped,
        nothing=lacks_failure,
        summary=report.summary(verdict),
        # A function: the template calls it for each claim that is not PASS.
        told=_failure_text,
    )
    # What a probe printed may have characters that XML can't hold.
    return text.translate(_NOT_IN_XML)


def _failure_text(judged: ClaimVerdict) -> str:
    """Return the text below a claim that did not hold, in lines.

    They are what was claimed, advice for each known error that explains it, the next step,
    and what its probe (the program that measures it) printed, if that did not complete; else the
    last line is empty.
    """
    advice = [report.advice(hint) for hint in judged.hints]
    if judged.next_step:
        advice.append(f"next: {judged.next_step}")
    # There is a `probe` in the evidence only if the measurement broke off.
    probe = judged.evidence.get("probe")
    log = ""
    if isinstance(probe, Mapping):
        log = str(probe.get("log", ""))
    return "\n".join([judged.claim.statement, *advice, log])
