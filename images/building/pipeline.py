"""From a planned image to a proven one: context -> engine -> trial -> name. One at a time, or many at once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from images.config import paths
from images.config.facts import Facts
from images.context import base_images, render
from images.context.base_images import AcquiredBase
from images.context.hosting import HostSettings
from images.context.render import Context
from images.engine import BuildSpec, Engine, ImageInfo, gpus
from images.engine.buildkit import BuildResult
from images.engine.gpus import NO_GPU, Attachment
from images.engine.progress import Progress
from images.errors import Problem, UserError, problem_of
from images.locking import lock_file
from images.planning.image import Image
from images.validation import embedded, trial
from images.validation.claims.context import ClaimContext
from images.validation.claims.image import image_claims
from images.wheels import prebuilt
from images.wheels.prebuilt import FindWheel
from validate import hints, page, report
from validate.claims import ClaimSet, Tier
from validate.evidence import Evidence, Record
from validate.judge import Verdict, explain, judge
from validate.judging import Status

ROOM_NEEDED = 11 * 1000**3
"""Bytes a cold build wants free where the engine keeps its data: images have 6 to 9 GB, and the installer keeps the
wheels of the smaller layers, less than 2 GB. The largest layers are unpacked in place."""


ANYWHERE = (Tier.STATIC, Tier.CPU)
"""The tiers that every machine can judge: no image is named without them."""


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """How to build, as the command line says it."""

    out: Path
    cache: Path
    facts: Facts
    base: str = "auto"
    wheelhouse: Path | None = None
    strict: bool = False
    no_cache: bool = False
    offline: bool = False
    """No step reaches a network: all that is installed lies in the wheelhouse."""
    tiers: Sequence[Tier] = ()
    """What to judge; empty: what this machine can."""
    gpus: str = gpus.AUTO
    pinned_bases: Mapping[str, str] = field(default_factory=dict)
    compiled: FindWheel = lambda _image, _pin: None
    """Where wheels lie that were compiled here (`wheels.cache.wheel_finder`)."""
    locks: Path = field(default_factory=lambda: paths.workspace().locks)
    suffix: str = ""
    """Added to an image's name (-canary): what is built to be tried never takes the name itself."""


@dataclass(frozen=True, kw_only=True)
class Built:
    """What came of one image."""

    name: str
    info: ImageInfo
    result: BuildResult
    verdict: Verdict
    withheld: str
    """Why it stays `NAME-candidate`; empty if it got its name."""


def build(engine: Engine, image: Image, options: BuildOptions, host: HostSettings, progress: Progress) -> Built:
    """Build one image, prove it, and name it if nothing that could be judged has failed.

    Writes `out/NAME/`. Raises UserError: no lock, no base, no room, a contradiction with the base, a failed step.
    """
    name = f"{image.name}{options.suffix}"
    locked = lock_file.read(image, options.locks)
    attachment, tiers = find_gpus(engine, image, options.gpus, options.tiers)
    progress.say(name, str(attachment), "dim")
    base = base_images.acquire_for(
        engine,
        image,
        options.base,
        pinned=options.pinned_bases,
        host=host,
        say=lambda text: progress.say(name, text, "yellow"),
    )
    gathered = prebuilt.gather(
        image,
        wheelhouse=options.wheelhouse,
        cache=options.cache / "wheels",
        kept=base_images.base_context(base).kept,
        compiled=options.compiled,
    )
    _tell_missing(gathered.missing, options, name, progress)
    stock = prebuilt.stock(locked, base_images.base_context(base).kept, options.wheelhouse) if options.offline else {}
    custom = base.python is not None
    claimed = ClaimContext.of(image, locked, options.facts, missing=gathered.missing, custom_base=custom)
    extras = render.Extras(
        host=host.files(),
        wheels={**gathered.files, **stock},
        missing=gathered.missing,
        offline=options.offline,
        suite=embedded.suite(claimed),
    )
    context = render.render(image, locked.files, base_images.base_context(base), extras)
    folder = options.out / name
    write(context, folder / "context")
    candidate = f"{name}-candidate"
    network = host.network(local=engine.facts.local, offline=options.offline)
    engine.untag(candidate)  # what an earlier build left: from here on the tag is this one's, or nobody's
    result = engine.build(
        context,
        candidate,
        BuildSpec(network_mode=network, no_cache=options.no_cache),
        on_event=progress.job(name),
        redact=host.redact,
    )
    claims = image_claims(claimed.on_host(attachment))
    evidence, verdict = prove(
        engine, result.image_id, claims, tiers, attachment, lambda record: _tell(progress, name, record)
    )
    info = engine.inspect(result.image_id)
    record(folder, info, result, engine, base, gathered, evidence, verdict)
    withheld = why_withheld(verdict, tiers)
    if not withheld:
        give_name(engine, result.image_id, name)
    return Built(name=name, info=info, result=result, verdict=verdict, withheld=withheld)


def find_gpus(engine: Engine, image: Image, wanted: str, tiers: Sequence[Tier]) -> tuple[Attachment, Sequence[Tier]]:
    """How the trial gets GPUs, and the tiers to judge: with none asked for, those that this host's GPUs allow.

    Raises UserError: a way that can't be had, a driver below the image's floor.
    """
    gpus.parse(wanted)
    if tiers and Tier.GPU not in tiers and Tier.MULTIGPU not in tiers:
        return NO_GPU, tiers
    attachment = gpus.attach(engine, wanted, min_driver=image.min_driver)
    if tiers or not attachment.attached:
        return attachment, tiers or ANYWHERE
    several = attachment.inventory is not None and len(attachment.inventory.gpus) > 1
    return attachment, (*ANYWHERE, Tier.GPU, *([Tier.MULTIGPU] if several else []))


def give_name(engine: Engine, image_id: str, name: str) -> None:
    """Name the very image that was judged: by now a build beside this one may have made another candidate."""
    engine.tag(image_id, name)
    candidate = engine.find(f"{name}-candidate")
    if candidate and candidate.id == image_id:
        engine.untag(f"{name}-candidate")


def why_withheld(verdict: Verdict, tiers: Sequence[Tier]) -> str:
    """Why an image stays a candidate; empty if it earned its name: what any machine can judge was, and none failed."""
    if failed := verdict.of(Status.FAIL):
        return f"{len(failed)} claims failed"
    left_out = [tier for tier in ANYWHERE if tier not in tiers]
    return f"the {' and '.join(left_out)} tier was left out" if left_out else ""


def build_all(
    engine: Engine, images: Sequence[Image], options: BuildOptions, host: HostSettings, progress: Progress, jobs: int
) -> list[Built | UserError]:
    """Build several images, `jobs` at once. One that fails does not stop the others; an interrupt stops all."""

    def one(image: Image) -> Built | UserError:
        name = f"{image.name}{options.suffix}"
        try:
            built = build(engine, image, options, host, progress)
        except UserError as error:
            return _given_up(name, error, progress)
        except OSError as error:
            return _given_up(name, UserError(problem_of(error, name), code=1), progress)
        progress.finish(built.name, _summary(built), ok=not built.withheld)
        return built

    cold = [image for image in images if engine.find(str(image.name)) is None]
    _room(engine, min(jobs, len(cold)))
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        running = [pool.submit(one, image) for image in images]
        try:
            wait(running, return_when=FIRST_EXCEPTION)
        except BaseException:
            for future in running:
                future.cancel()
            engine.cancel()
            raise
    return [future.result() for future in running]


def _given_up(name: str, error: UserError, progress: Progress) -> UserError:
    progress.finish(name, error.problems[0].cause, ok=False)
    return error


def prove(
    engine: Engine,
    reference: str,
    claims: ClaimSet,
    tiers: Sequence[Tier],
    attachment: Attachment = NO_GPU,
    on_record: Callable[[Record], None] = lambda _record: None,
) -> tuple[Evidence, Verdict]:
    """Try an image, judge what was measured, and explain what is known."""
    evidence = trial.run(engine, reference, claims, trial.Trial(tiers=tiers, gpus=attachment, on_record=on_record))
    return evidence, explain(judge(claims, evidence, tiers), hints.known())


def _room(engine: Engine, at_once: int) -> None:
    free, needed = engine.free_bytes(), ROOM_NEEDED * at_once
    if free is not None and free < needed:
        builds = f"{at_once} cold builds at once" if at_once > 1 else "a cold build"
        cause = f"{free / 1e9:.1f} GB free, {builds} may need {needed / 1e9:.0f} GB"
        then = "`docker system df` shows what to remove, `docker builder prune` empties the build cache"
        raise UserError(Problem(where=engine.facts.data_root, cause=cause, then=then), code=1)


def _tell_missing(missing: Mapping[str, str], options: BuildOptions, name: str, progress: Progress) -> None:
    if missing and options.strict:
        problems = [
            Problem(
                where=name,
                cause=f"goes without {reason}",
                then=f"`nox -s wheels -- {name}` compiles what `sources` in matrix.yaml has, or give --wheelhouse",
            )
            for reason in missing.values()
        ]
        raise UserError(problems, code=1)
    for reason in missing.values():
        progress.say(name, f"goes without {reason}", "yellow")


def _tell(progress: Progress, name: str, found: Record) -> None:
    progress.say(name, f"measured {found.probe} in {found.seconds:.1f} s ({found.outcome})", "dim")


def _summary(built: Built) -> str:
    counts = ", ".join(f"{len(built.verdict.of(status))} {status}" for status in Status if built.verdict.of(status))
    size = f"{built.info.size / 1e9:.2f} GB"
    state = f"stays {built.name}-candidate: {built.withheld}" if built.withheld else "named"
    return f"{built.verdict.overall} ({counts}), {size}, built in {built.result.seconds:.0f} s, {state}"


def write(context: Context, folder: Path) -> None:
    """A context to disk, for reading and for plain `docker build`. Files of an earlier one are removed.

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
    """A large file into a context, copied only across file systems. A symlink would lead out of the context."""
    try:
        target.hardlink_to(file)
    except OSError:
        shutil.copyfile(file, target)


def record(
    folder: Path,
    info: ImageInfo,
    result: BuildResult,
    engine: Engine,
    base: AcquiredBase,
    gathered: prebuilt.Gathered,
    evidence: Evidence,
    verdict: Verdict,
) -> None:
    """The outputs of a build: build.json, and the trial's."""
    history = engine.history(info.id)
    facts = {
        "image": verdict.image,
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
        "wheels": gathered.digests(),
        "missing": dict(gathered.missing),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "build.json").write_text(json.dumps(facts, indent=1) + "\n")
    record_trial(folder, evidence, verdict)


def record_trial(folder: Path, evidence: Evidence, verdict: Verdict) -> None:
    """evidence.json, verdict.json, junit.xml, report.md and report.html."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "evidence.json").write_text(evidence.dumps() + "\n")
    (folder / "verdict.json").write_text(json.dumps(report.json_data(verdict), indent=1) + "\n")
    (folder / "junit.xml").write_text(report.junit(verdict))
    (folder / "report.md").write_text(report.markdown(verdict))
    (folder / "report.html").write_text(page.html(verdict, evidence.host), encoding="utf-8")
