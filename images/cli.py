"""The command line: reads arguments, calls the part that does the work, prints. Results: stdout; talk: stderr."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from images import (
    bases,
    build,
    carried,
    choose,
    gate,
    generate,
    gpus,
    lock,
    matrix,
    metadata,
    plan,
    private_engine,
    promises,
    publish,
    render,
    schemas,
    source_wheels,
    tables,
)
from images import selectors as select
from images import wheelhouse as wheelhouses
from images.engine import Engine, connect
from images.errors import Problem, UserError, problem_of
from images.hosting import host_settings
from images.image import Image
from images.matrix import ROOT, Sources
from images.plan import Planned
from images.progress import Progress
from images.registry import Reference, Registry, Repository
from validate import hints, report
from validate.claims import ClaimSet, Tier
from validate.judge import explain, judge
from validate.judging import Status

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
_INTERRUPTED = 130
"""Exit status after SIGINT: 128 + 2, as shells have it."""
talk = Console(stderr=True, highlight=False)

Selectors = Annotated[list[str] | None, typer.Argument(metavar="SELECTOR...", help=f"Which images: {select.HELP}.")]
OneName = Annotated[str, typer.Argument(metavar="NAME", help="An image name, as `plan` prints it.")]
EngineUrl = Annotated[str | None, typer.Option("--engine", metavar="URL", help="Docker Engine; else DOCKER_HOST.")]
Gpus = Annotated[str, typer.Option("--gpus", metavar=gpus.HELP, help="How the trial's container gets the host's GPUs.")]
Out = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where results go.")]
Tiers = Annotated[
    list[Tier] | None,
    typer.Option("--tier", help="What to measure (repeat it); default: all that this machine can."),
]
ToRepository = Annotated[str, typer.Option("--to", metavar="REGISTRY/REPOSITORY", help="Where it is published.")]
GateTiers = Annotated[
    str, typer.Option("--gate", metavar="TIERS", help="Tiers that must be proven (static,cpu); default: the matrix's.")
]
RemoteRef = Annotated[str, typer.Argument(metavar="REF", help="A published image: HOST/NAME:TAG or HOST/NAME@DIGEST.")]
PublicKey = Annotated[str, typer.Option("--key", metavar="KEY", help="Believe only what this cosign key signed.")]
Check = Annotated[bool, typer.Option("--check", help="Write nothing; fail if something would change.")]


def main() -> NoReturn:
    """Run a verb. Ends the process: 0 well, 1 a step or a verdict failed, 2 wrong input, 130 interrupted."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        code = app(standalone_mode=False)
    except UserError as error:
        for problem in error.problems:
            _print_problem(problem)
        sys.exit(error.code)
    except BrokenPipeError:  # whoever read the output has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_INTERRUPTED)
    except OSError as error:
        _print_problem(problem_of(error))
        sys.exit(1)
    except (typer.Abort, KeyboardInterrupt):
        _stopped()
    except typer.TyperException as error:
        message = getattr(error, "format_message", error.__str__)()
        _print_problem(Problem(where=" ".join(sys.argv[1:]), cause=message, then="`python -m images VERB --help`"))
        sys.exit(2)
    if code == _INTERRUPTED:  # what Typer makes of an interrupt, without a word
        _stopped()
    sys.exit(code if isinstance(code, int) else 0)


@app.command("plan")
def plan_verb(
    selectors: Selectors = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable, on stdout and nothing else.")] = False,
) -> None:
    """Every image, accepted or refused, and why."""
    sources = _sources()
    planned = plan.select(selectors or [], sources)
    states = {image.name: str(lock.state(image.image).status) if image.image else "" for image in planned}
    if as_json:
        typer.echo(json.dumps({"images": [tables.as_json(image, states[image.name]) for image in planned]}, indent=1))
        return
    Console(width=None if sys.stdout.isatty() else 150, highlight=False).print(tables.plan(planned, states))


@app.command("lock")
def lock_verb(
    selectors: Selectors = None,
    check: Check = False,
    upgrade: Annotated[bool, typer.Option("--upgrade", help="Take the newest of what no pin holds.")] = False,
) -> None:
    """Resolve images into hash-pinned locks under locks/."""
    sources = _sources()
    images = _accepted(selectors or [], sources, default_index_only=not selectors)
    others = [image.image for image in plan.plan(sources) if image.image]
    files = lock.update(images, others, upgrade=upgrade, tell=lambda text: talk.print(text, style="dim"))
    stale = lock.differing(files)
    if check and stale:
        then = f"`nox -s lock{' -- ' + ' '.join(selectors) if selectors else ''}`"
        raise UserError([Problem(where=f"locks/{path}", cause="is not current", then=then) for path in stale], code=1)
    if not check:
        lock.write(files)
    typer.echo(f"{len(images)} locks, {len(stale)} files {'changed' if stale else 'changed: all were current'}")


@app.command("render")
def render_verb(
    selectors: Annotated[list[str], typer.Argument(metavar="SELECTOR...")],
    out: Out = Path("out"),
    base: Annotated[str, typer.Option("--base", help="What FROM names; default: the base's own reference.")] = "",
) -> None:
    """Write the build context of images; plain `docker build` accepts it."""
    pinned = _pinned_bases()
    host = host_settings()
    sources = _sources()
    for image in _accepted(selectors, sources):
        digest = pinned.get(image.base.reference, "")
        reference = base or (f"{image.base.reference}@{digest}" if digest else image.base.reference)
        origin = "given" if base else "digest" if digest else "tag"
        ground = render.Ground(reference=reference, origin=origin, digest=digest)
        locked = lock.read(image)
        missing = {pin.name: f"{pin.requirement}: `render` fetches no wheel" for pin in image.pins if pin.optional}
        suite = carried.suite(image, build.pins_of(locked), missing, facts=sources.facts)
        extras = render.Extras(host=host.files(), missing=missing, suite=suite)
        context = render.render(image, locked.files, ground, extras)
        folder = out / str(image.name) / "context"
        build.write(context, folder)
        talk.print(f"{folder}: `docker build -t {image.name} {folder}`")


@app.command("build")
def build_verb(
    selectors: Annotated[list[str], typer.Argument(metavar="SELECTOR...")],
    engine: EngineUrl = None,
    base: Annotated[str, typer.Option("--base", metavar="auto|REF", help="What to build on.")] = "auto",
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Builds at once.")] = 1,
    wheelhouse: Annotated[Path | None, typer.Option("--wheelhouse", help="Folder of wheels that no index has.")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="An optional package that can't be had is an error.")
    ] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Reach no network: every wheel lies in the wheelhouse.")
    ] = False,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Build every step anew.")] = False,
    tier: Tiers = None,
    gpus: Gpus = gpus.AUTO,
    out: Out = Path("out"),
) -> None:
    """Build images and prove them. An image gets its name only if nothing that could be judged has failed."""
    sources = _sources()
    images = _accepted(selectors, sources)
    order = build.Order(
        out=out,
        cache=_cache(),
        facts=sources.facts,
        base=base,
        wheelhouse=wheelhouse,
        strict=strict,
        offline=offline,
        no_cache=no_cache,
        tiers=tier or (),
        gpus=gpus,
        pinned_bases=_pinned_bases(),
        compiled=source_wheels.keeper(sources.matrix, wheelhouses.default()),
    )
    for image in images:
        lock.read(image)
        for warning in image.warnings:
            talk.print(f"[yellow]{image.name}[/]: {escape(warning)}")
    host = host_settings()
    for warning in host.warnings:
        _say(warning)
    with _open(engine) as docker_engine, Progress() as progress:
        results = build.build_all(docker_engine, images, order, host, progress, jobs)
    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
    problems: list[Problem] = []
    for result in results:
        if isinstance(result, UserError):
            problems += result.problems
            continue
        console.print(tables.verdict(result.verdict))
        if result.withheld:
            problems.append(_withheld(result, out))
        else:
            console.print(
                f"[green]{result.name}[/] is proven as far as this machine can: {out / result.name}/report.md"
            )
    if problems:
        raise UserError(problems, code=1)


@app.command("wheels")
def wheels_verb(
    name: OneName,
    packages: Annotated[
        list[str] | None, typer.Argument(metavar="PACKAGE...", help="Which; default: all that the image pins.")
    ] = None,
    engine: EngineUrl = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=0, help="Compilers at once; 0: cores and memory.")] = 0,
    again: Annotated[bool, typer.Option("--again", help="Compile what is kept already, too.")] = False,
    sdists: Annotated[
        Path | None, typer.Option("--sdists", metavar="FOLDER", help="Take source archives from here, by hash.")
    ] = None,
    out: Out = Path("out"),
) -> None:
    """Compile packages that are published as source only. What was compiled before is taken, not compiled again."""
    sources = _sources()
    (image,) = _accepted([name], sources, exactly_one=True)
    chosen = packages or source_wheels.packages(image, sources.matrix)
    if not chosen:
        known = ", ".join(sources.matrix.sources)
        cause = f"pins nothing that is compiled here ({known})"
        raise UserError(Problem(where=name, cause=cause, then=f"name one: `nox -s wheels -- {name} PACKAGE`"))
    recipes = [source_wheels.recipe(image, package, sources.matrix) for package in chosen]
    order = source_wheels.Order(
        out=out,
        facts=sources.facts,
        house=wheelhouses.default(),
        jobs=jobs,
        again=again,
        sdists=sdists,
        pinned_bases=_pinned_bases(),
    )
    with _open(engine) as docker_engine, Progress() as progress:
        made = [source_wheels.make(docker_engine, image, one, order, host_settings(), progress) for one in recipes]
    for one in made:
        typer.echo(str(one))


@app.command("validate")
def validate_verb(
    name: OneName,
    image: Annotated[str, typer.Option("--image", metavar="REF", help="The image to try; default: NAME itself.")] = "",
    tier: Tiers = None,
    gpus: Gpus = gpus.AUTO,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write verdict.json there.")] = None,
    engine: EngineUrl = None,
    out: Out = Path("out"),
) -> None:
    """Judge an image against a name's claims."""
    sources = _sources()
    (wanted,) = _accepted([name], sources, exactly_one=True)
    locked = lock.read(wanted)
    reference = image or str(wanted.name)
    with _open(engine, install=False) as docker_engine:
        info = docker_engine.inspect(reference)
        missing = render.declared_missing(wanted, info.labels)
        attachment, tiers = build.find_gpus(docker_engine, wanted, gpus, tier or ())
        talk.print(str(attachment), style="dim", highlight=False)
        claims = promises.promises(
            wanted,
            None if render.on_given_base(info.labels) else build.pins_of(locked),
            missing,
            facts=sources.facts,
            inventory=attachment.inventory,
            no_gpu="" if attachment.attached else attachment.reason,
        )
        talk.print(f"trying {reference} ({info.id[:19]})", style="dim")
        evidence, verdict = build.prove(docker_engine, reference, claims, tiers, attachment)
    if json_file:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(report.json_data(verdict), indent=1) + "\n")
    else:
        build.record_trial(out / "validate" / reference.replace("/", "_").replace(":", "_"), evidence, verdict)
    Console(width=None if sys.stdout.isatty() else 150, highlight=False).print(tables.verdict(verdict))
    raise typer.Exit(1 if verdict.of(Status.FAIL) else 0)


@app.command("judge")
def judge_verb(
    evidence: Annotated[Path, typer.Argument(metavar="FILE", help="An evidence.json of a build or a trial.")],
    tier: Annotated[list[Tier] | None, typer.Option("--tier", help="Judge these alone (repeat it).")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write verdict.json there.")] = None,
) -> None:
    """Judge a recorded run again, by the claims it was measured for. Needs no engine."""
    recorded = schemas.read_evidence(evidence)
    verdict = explain(judge(recorded.promised, recorded, tier or tuple(Tier)), hints.known())
    if json_file:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(report.json_data(verdict), indent=1) + "\n")
    Console(width=None if sys.stdout.isatty() else 150, highlight=False).print(tables.verdict(verdict))
    raise typer.Exit(1 if verdict.of(Status.FAIL) else 0)


@app.command("publish")
def publish_verb(
    name: OneName,
    to: ToRepository,
    gate_text: GateTiers = "",
    key: Annotated[str, typer.Option("--key", metavar="KEY", help="Sign with cosign: a private key.")] = "",
    image: Annotated[str, typer.Option("--image", metavar="REF", help="The image to push; default: NAME itself.")] = "",
    proof: Annotated[
        Path | None, typer.Option("--proof", metavar="FOLDER", help="Its verdict and evidence; default: out/NAME.")
    ] = None,
    engine: EngineUrl = None,
) -> None:
    """Push a proven image, attach proof, SBOM and provenance, and move its tags last."""
    sources = _sources()
    (wanted,) = _accepted([name], sources, exactly_one=True)
    repository = Repository.parse(to)
    with _open(engine, install=False) as docker_engine, Progress() as progress:
        reference = image or str(wanted.name)
        order = publish.Order(
            name=wanted.name,
            repository=repository,
            proof=proof or Path("out") / str(wanted.name),
            gate=gate.parse_tiers(gate_text) if gate_text else sources.matrix.gate,
            whole_gate=sources.matrix.gate,
            aliases=_aliases_of(str(wanted.name), sources),
            promised=_promised(wanted, docker_engine.inspect(reference).labels, sources),
            locks=lock.written(lock.read(wanted)),
            source=_commit(),
            key=key,
        )
        done = publish.publish(
            docker_engine,
            reference,
            order,
            say=lambda text: progress.say(str(wanted.name), text, "dim"),
            on_event=progress.job(str(wanted.name)),
        )
    _tell_published(done)


@app.command("promote")
def promote_verb(reference: RemoteRef, to: ToRepository, gate_text: GateTiers = "", key: PublicKey = "") -> None:
    """Take a published image over into another repository of its registry, by digest, and move the tags there."""
    sources = _sources()
    done = publish.promote(
        Reference.parse(reference),
        Repository.parse(to),
        tiers=gate.parse_tiers(gate_text) if gate_text else sources.matrix.gate,
        whole_gate=sources.matrix.gate,
        aliases=lambda name: _aliases_of(name, sources),
        promised=lambda remote: _promised_of(remote, sources),
        key=key,
    )
    _tell_published(done)


@app.command("verify")
def verify_verb(
    reference: RemoteRef,
    key: PublicKey = "",
    unsigned: Annotated[bool, typer.Option("--unsigned", help="Take an image that nobody signed.")] = False,
    gate_text: GateTiers = "",
) -> None:
    """Check a published image: its signature, what is attached, and its labels against what was measured."""
    sources = _sources()
    digest, checks = publish.verify(
        Reference.parse(reference),
        tiers=gate.parse_tiers(gate_text) if gate_text else sources.matrix.gate,
        promised=lambda remote: _promised_of(remote, sources),
        key=key,
        unsigned=unsigned,
    )
    Console(width=None if sys.stdout.isatty() else 150, highlight=False).print(tables.checks(digest, checks))
    raise typer.Exit(0 if all(check.status is Status.PASS for check in checks) else 1)


@app.command("choose")
def choose_verb(
    gpu: Annotated[str, typer.Option("--gpu", metavar="MODEL", help="RTX 4090, say; default: this machine's.")] = "",
    arch: Annotated[str, typer.Option("--arch", metavar="SM", help="Its architecture, where no table has it.")] = "",
    driver: Annotated[str, typer.Option("--driver", metavar="VERSION", help="Its driver, as nvidia-smi says.")] = "",
    profile: Annotated[str, typer.Option("--profile", metavar="NAME", help="What to train with.")] = "none",
    torch: Annotated[str, typer.Option("--torch", metavar="RANGE", help="'>=2.7', say.")] = "",
    python: Annotated[str, typer.Option("--python", metavar="X.Y", help="Default: each image's own default.")] = "",
    devel: Annotated[bool, typer.Option("--devel", help="With a whole CUDA toolkit.")] = False,
    source: Annotated[str, typer.Option("--from", metavar="REPOSITORY", help="Only what is published there.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable, on stdout and nothing else.")] = False,
) -> None:
    """Which image to pull for a machine, why, and why not the nearest others."""
    sources = _sources()
    machine = choose.machine(gpu, arch, driver) if gpu or arch else _this_machine(driver)
    images = [planned.image for planned in plan.plan(sources) if planned.image]
    if source:
        with Registry(Repository.parse(source)) as published:
            tags = set(published.tags())
        images = [image for image in images if str(image.name) in tags]
    known = sorted({image.profile for image in images if image.profile})
    if profile != "none" and profile not in known:
        then = f"there are none, {', '.join(known)}" if known else "there is only none"
        raise UserError(Problem(where=f"--profile {profile}", cause="no image has this profile", then=then))
    wish = choose.Wish(
        profile=None if profile == "none" else profile, torch=choose.torch_range(torch), python=python, devel=devel
    )
    choice = choose.choose(images, machine, wish, sources.facts)
    if as_json:
        typer.echo(json.dumps(choice.as_json(), indent=1))
    else:
        for line in choose.told(choice, machine, source):
            typer.echo(line)
    raise typer.Exit(0 if choice.fitting else 1)


@app.command("pin")
def pin_verb(engine: EngineUrl = None) -> None:
    """Record the digests of the base images in locks/bases.yaml. Needs a registry."""
    sources = _sources()
    with _open(engine) as docker_engine:
        _write(bases.pin(docker_engine, plan.bases(sources)), check=False, remedy="")


@app.command("engine")
def engine_verb(
    action: Annotated[str, typer.Argument(metavar="status|start|stop")] = "status",
) -> None:
    """Show, start or stop the private Docker Engine."""
    if action == "start":
        with private_engine.open_engine(None, say=_say) as docker_engine:
            typer.echo(f"{docker_engine.facts.url} (engine {docker_engine.facts.version})")
    elif action == "stop":
        typer.echo("stopped" if private_engine.stop() else "was not running")
    elif action == "status":
        with connect(None) as docker_engine:
            facts = docker_engine.facts
            typer.echo(f"{facts.url} (engine {facts.version}, {facts.cpus} cores, data in {facts.data_root})")
    else:
        raise UserError(Problem(where=action, cause="is nothing an engine does", then="say status, start or stop"))


@app.command("facts")
def facts_verb(
    requirement: Annotated[str, typer.Argument(metavar="NAME==VERSION", help="A release on the package index.")],
    python: Annotated[str, typer.Option("--python", help="The Python to read it for.")] = "3.11",
) -> None:
    """What a release requires, as a row for images/facts.yaml."""
    source = f"Requires-Dist of its METADATA, read {date.today()} (`python -m images facts`)"
    typer.echo(metadata.as_row(metadata.read(requirement, python), source), nl=False)


@app.command("generate")
def generate_verb(check: Check = False) -> None:
    """Renew the files that are made from others: schemas, tables in the docs."""
    _write(generate.files(_sources()), check=check, remedy="nox -s generate")


def _this_machine(driver: str) -> choose.Machine:
    """The GPUs of this machine, with another driver where one is named. Raises UserError where there is none."""
    found = next((seen for folder in ("", *gpus.DRIVER_FOLDERS) if (seen := gpus.inventory(folder))), None)
    if found is None:
        then = "say which one is meant: --gpu 'RTX 4090' --driver 550.90, or --arch sm89"
        raise UserError(Problem(where="choose", cause="no NVIDIA GPU can be read on this machine", then=then))
    machine = choose.machine_of(found)
    return replace(machine, driver=choose.driver(driver)) if driver else machine


def _aliases_of(name: str, sources: Sources) -> list[str]:
    return [alias for alias, meant in sources.matrix.aliases.items() if meant == name]


def _promised(image: Image, labels: Mapping[str, str], sources: Sources) -> ClaimSet:
    """What today's matrix promises of an image with these labels."""
    lock_pins = None if render.on_given_base(labels) else build.pins_of(lock.read(image))
    return promises.promises(image, lock_pins, render.declared_missing(image, labels), facts=sources.facts)


def _promised_of(remote: publish.Remote, sources: Sources) -> ClaimSet | None:
    """The same of a published image; None where it was built from another matrix."""
    name, revision = (remote.labels.get(f"{render.LABELS}.{key}", "") for key in ("image", "matrix-revision"))
    planned = next((one for one in plan.plan(sources) if one.name == name), None)
    if planned is None or planned.image is None or revision != planned.image.revision:
        return None
    return _promised(planned.image, remote.labels, sources)


def _commit() -> str:
    """The checkout's commit; empty where files differ from it, or there is no git."""
    try:
        changed = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True)
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return "" if changed.stdout.strip() else head.stdout.strip()


def _tell_published(done: publish.Published) -> None:
    seconds = ", ".join(f"{stage} {taken:.1f} s" for stage, taken in done.seconds.items())
    typer.echo(f"{done.reference} ({done.bytes / 1e6:.0f} MB in layers; {seconds})")
    typer.echo(f"tags: {' '.join(done.tags)}")
    for reason in done.kept_back:
        _say(reason)
    if not done.signed:
        _say("not signed: give --key cosign.key (publish) or cosign.pub (promote)")


def _sources() -> Sources:
    sources = matrix.load()
    plan.check(sources)
    return sources


def _accepted(
    selectors: list[str], sources: Sources, *, default_index_only: bool = False, exactly_one: bool = False
) -> list[Image]:
    """The accepted images that selectors mean. Raises UserError for refused ones, with every reason."""
    planned = plan.select(selectors, sources)
    if exactly_one and len(planned) != 1:
        names = ", ".join(image.name for image in planned)
        raise UserError(
            Problem(where=" ".join(selectors), cause=f"means {len(planned)} images: {names}", then="name one")
        )
    if default_index_only:
        planned = tuple(image for image in planned if image.image and image.image.index is None)
    elif refused := [image for image in planned if not image.accepted]:
        if len(refused) == len(planned) or any(image.name in selectors for image in refused):
            raise UserError([_refusal(image) for image in refused])
        for image in refused:
            talk.print(f"[yellow]{image.name}[/] is refused and left out: {escape('; '.join(image.reasons))}")
    return [image.image for image in planned if image.image]


def _refusal(image: Planned) -> Problem:
    return Problem(
        where=image.name, cause=f"is refused: {'; '.join(image.reasons)}", then="`nox -s plan` shows all images"
    )


def _withheld(result: build.Built, out: Path) -> Problem:
    return Problem(
        where=result.name,
        cause=f"{result.withheld}: it stays {result.name}-candidate",
        then=f"read {out / result.name}/report.md; `docker run --rm -it {result.name}-candidate` looks inside",
    )


def _write(files: dict[str, bytes], *, check: bool, remedy: str) -> None:
    """Write files below the project's root, or (`check`) say which are not current and fail."""
    stale = [path for path, content in files.items() if not _same(ROOT / path, content)]
    if check:
        if stale:
            raise UserError([Problem(where=path, cause="is not current", then=f"`{remedy}`") for path in stale], code=1)
        typer.echo(f"{len(files)} files are current")
        return
    for path in stale:
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_bytes(files[path])
        typer.echo(f"wrote {path}")
    if not stale:
        typer.echo(f"{len(files)} files were current")


def _same(path: Path, content: bytes) -> bool:
    return path.is_file() and path.read_bytes() == content


def _open(url: str | None, *, install: bool = True) -> Engine:
    return private_engine.open_engine(url, say=_say) if install else connect(url)


def _say(text: str) -> None:
    talk.print(text, style="yellow")


def _pinned_bases() -> dict[str, str]:
    file = ROOT / bases.PINS_FILE
    return dict(bases.load_pins(file.read_text(encoding="utf-8", errors="replace"))) if file.is_file() else {}


def _cache() -> Path:
    """Where downloads are kept: outside the project, so that clones share them."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "truetag"
    except RuntimeError:  # an unknown uid without HOME
        then = "set HOME or XDG_CACHE_HOME to a folder that can be written"
        raise UserError(Problem(where="HOME", cause="this user has no home folder", then=then)) from None


def _stopped() -> NoReturn:
    talk.print("[red]stopped[/]: nothing is left running, and nothing got a name")
    sys.exit(_INTERRUPTED)


def _print_problem(problem: Problem) -> None:
    where = f"[bold]{escape(problem.where)}[/]: " if problem.where else ""
    talk.print(f"[red]error[/] {where}{escape(problem.cause)}", soft_wrap=True)
    if problem.then:
        talk.print(f"      next: {escape(problem.then)}", soft_wrap=True)
