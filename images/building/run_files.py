"""What a build leaves on disk: the context, build.json, and the files of its validation run.

Of these, report.html needs nothing else: no script, no font, no request.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from images.context.labels import LABELS, BaseContext
from images.context.render import Context
from images.context.templates import environment
from images.engine import Engine, ImageInfo
from images.engine.buildkit import BuildResult
from images.errors import command, failed, wrong
from images.host import checkout
from images.host.cache import write_whole
from images.host.hashing import sha256
from images.locking import lock_file
from images.locking.lock_file import Lock
from images.planning.image import Image
from images.wheels.prebuilt import Gathered
from validate import report
from validate.claims import Tier
from validate.evidence import Evidence
from validate.judge import ClaimVerdict, Verdict
from validate.judging import Status

if TYPE_CHECKING:
    from images.validation.child import Changes

BAKE, INPUTS = "docker-bake.json", "inputs.json"
VALIDATION_FILES = (
    "evidence.json",
    "verdict.json",
    "junit.xml",
    "report.md",
    "report.html",
    "changes.json",
)
_EVIDENCE_CHARACTERS = 4000
"""A claim's evidence in the page; evidence.json has all of it."""
_TIERS = {
    Tier.STATIC: "its files, read",
    Tier.CPU: "its code, run without a GPU",
    Tier.GPU: "its kernels, run on a GPU",
    Tier.MULTIGPU: "several GPUs together",
}
_NOT_IN_XML = dict.fromkeys(
    [*range(9), 11, 12, *range(14, 32), 0xFFFE, 0xFFFF, *range(0xD800, 0xE000)], "\ufffd"
)
"""Characters that XML 1.0 can't hold, not even escaped; the output of a crashed probe may have them."""


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
            try:  # a symlink would lead out of the context
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
    source: Mapping[str, Any],
) -> None:
    """Write build.json: digest, layers, steps and their times, base, wheels, and its source (`source`)."""
    sizes = [size for _, size in reversed(engine.history(info.id)) if size]
    steps = [
        {"name": step.name, "seconds": round(step.seconds, 2), "cached": step.cached}
        for step in result.steps
    ]
    write_json(
        folder / "build.json",
        {
            "image": name,
            "digest": info.id,
            "bytes": info.size,
            "layers": list(info.layers),
            "layer_bytes": sizes,
            "seconds": round(result.seconds, 1),
            "steps": steps,
            "base": {"reference": base.reference, "origin": base.origin, "digest": base.digest},
            "engine": {"version": engine.facts.version, "cpus": engine.facts.cpus},
            "wheels": gathered.digests(),
            "missing": dict(gathered.missing),
            **source,
        },
    )


def source(root: Path, lock: Lock) -> dict[str, Any]:
    """What an image is built from and does not tell, for its provenance: commit, lock files with their sha256."""
    locks = {path: sha256(content) for path, content in lock_file.written(lock).items()}
    return {"commit": checkout.commit(root), "locks": locks}


def write_inputs(
    folder: Path, image: Image, base: BaseContext, gathered: Gathered, source: Mapping[str, Any]
) -> None:
    """Write inputs.json beside a rendered context: the part of build.json that whoever builds it does not know."""
    inputs = {
        "image": str(image.name),
        "revision": image.revision,
        "base": {"reference": base.reference, "origin": base.origin, "digest": base.digest},
        "wheels": gathered.digests(),
        **source,
    }
    write_json(folder / INPUTS, inputs)


def bake(images: Sequence[Image], repository: str = "") -> dict[str, Any]:
    """The content of docker-bake.json, the input of `docker buildx bake`: a target an image.

    Contexts are `NAME/context` beside it. Images are tagged `NAME-candidate`: only a validation run gives the name.
    `repository`: where they are pushed; empty: into the engine that buildx works for. Caches, attestations and other
    outputs are buildx's own affair: `docker buildx bake --set '*.cache-to=...'`. Pure.
    """
    targets = {
        str(image.name): {
            "context": f"{image.name}/context",
            "dockerfile": "Dockerfile",
            "platforms": [str(image.name.platform)],
            "tags": [
                f"{repository}:{image.name}-candidate"
                if repository
                else f"{image.local_name}-candidate"
            ],
            "output": ["type=registry" if repository else "type=docker"],
            # With BuildKit's own attestation the push would be an index of two manifests, which `publish` refuses.
            "attest": ["type=provenance,disabled=true"],
        }
        for image in images
    }
    return {"group": {"default": {"targets": list(targets)}}, "target": targets}


def built_elsewhere(folder: Path, info: ImageInfo, missing: Mapping[str, str]) -> dict[str, Any]:
    """build.json of an image that `docker build` or buildx made of a rendered context, from that context's inputs.

    Raises UserError: no context was rendered in this folder, or the image's labels are not of its inputs: it is another
    image, or one of another matrix.
    """
    again = f"render and build it anew: `{command('render', folder.name)}`"
    try:
        inputs = json.loads((folder / INPUTS).read_bytes())
        wanted = {"image": inputs["image"], "matrix-revision": inputs["revision"]}
        wanted |= {"base": inputs["base"]["reference"], "base-origin": inputs["base"]["origin"]}
        made_from = {key: inputs[key] for key in ("base", "wheels", "commit", "locks")}
    except (OSError, ValueError, LookupError, TypeError) as error:
        cause = f"is not what `{command('render')}` wrote: {error}"
        raise wrong(str(folder / INPUTS), cause, f"{again}, with the same --out") from None
    labels = {key: info.labels.get(f"{LABELS}.{key}", "") for key in wanted}
    differing = [key for key in wanted if labels[key] != wanted[key]]
    if others := [
        f"{key} is {labels[key] or 'not said'}, rendered was {wanted[key]}" for key in differing
    ]:
        raise failed(info.id[:19], f"its labels say otherwise: {'; '.join(others)}", again)
    return {
        "image": inputs["image"],
        "digest": info.id,
        "bytes": info.size,
        "layers": list(info.layers),
        "engine": {"version": "buildx"},
        **made_from,
        "missing": dict(missing),
    }


def record_validation(
    folder: Path, evidence: Evidence, verdict: Verdict, changes: Changes | None = None
) -> None:
    """Write evidence.json, verdict.json, junit.xml, report.md and report.html; of a child changes.json, too."""
    write_whole(folder / "evidence.json", f"{evidence.dumps()}\n".encode())
    (folder / "junit.xml").write_text(junit(verdict), encoding="utf-8")
    told = (
        "\n".join(["", "Beside its parent:", "", *(f"- {line}" for line in changes.lines()), ""])
        if changes
        else ""
    )
    (folder / "report.md").write_text(report.markdown(verdict) + told)
    if changes:
        write_json(folder / "changes.json", asdict(changes))
    (folder / "report.html").write_text(html(verdict, evidence.host), encoding="utf-8")
    write_json(
        folder / "verdict.json", report.json_data(verdict)
    )  # last: a fleet takes it for the end of a job


def write_json(file: Path, content: object) -> None:
    write_whole(file, f"{json.dumps(content, indent=1)}\n".encode())


def junit(verdict: Verdict) -> str:
    """JUnit XML. A required claim that is not PASS is a failure here: CI systems show a skip as green."""
    bad = [one for one in verdict.claims if one.status is not Status.PASS]
    failed = [one for one in bad if one.claim.required or one.status is Status.FAIL]
    page = environment(html=True).get_template("junit.xml.j2")
    text = page.render(
        verdict=verdict,
        failed=failed,
        skipped=[one for one in bad if one not in failed],
        nothing=verdict.overall is not Status.PASS and not failed,
        summary=report.summary(verdict),
        told=_told,
    )
    return text.translate(_NOT_IN_XML)


def _told(one: ClaimVerdict) -> str:
    probe = one.evidence.get("probe")
    log = str(probe.get("log", "")) if isinstance(probe, Mapping) else ""
    return "\n".join([one.claim.statement, *map(report.advice, one.hints), log])


def html(verdict: Verdict, host: Mapping[str, Any]) -> str:
    """The whole page. `host` is the evidence's: engine, cores, driver, GPUs."""
    gpus = []
    for gpu in host.get("gpus") or ():
        capability = ".".join(map(str, gpu.get("capability") or ()))
        memory = f", {gpu['memory'] / 1000**3:.0f} GB" if gpu.get("memory") else ""
        gpus.append(
            f"{gpu.get('name', 'GPU')}{f' ({capability}{memory})' if capability else memory}"
        )
    tiers = [
        (tier, what, [one for one in verdict.claims if one.claim.tier is tier])
        for tier, what in _TIERS.items()
    ]
    page = environment(html=True).get_template("report.html.j2")
    return page.render(
        verdict=verdict,
        host=host,
        summary=report.summary(verdict),
        failed=verdict.claims_with(Status.FAIL),
        gpus="; ".join(gpus),
        tiers=[row for row in tiers if row[2]],
        evidence=_evidence,
    )


def _evidence(one: ClaimVerdict) -> str:
    """Escaped; quotes stay, which keeps the page small."""
    shown = json.dumps(one.evidence, indent=1, ensure_ascii=False, default=str)
    if (more := len(shown) - _EVIDENCE_CHARACTERS) > 0:
        shown = f"{shown[:_EVIDENCE_CHARACTERS]}\n... {more} more characters in evidence.json"
    return escape(shown, quote=False)
