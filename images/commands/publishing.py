"""From a proven image to the people: pushed, moved, checked, chosen."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from images.chooser import choose
from images.chooser import machine as choose_machine
from images.commands import common, tables, trials
from images.commands.options import (
    EngineUrl,
    GateTiers,
    OneName,
    PublicKey,
    RemoteRef,
    ToRepository,
)
from images.config import paths
from images.engine import gpus
from images.engine.progress import Progress
from images.errors import Problem, UserError
from images.locking import lock_file
from images.planning import plan
from images.publish import gate, publication
from images.registry.client import Registry
from images.registry.reference import Reference, Repository
from images.site import published
from validate.judging import Status


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
    sources = common.sources()
    (wanted,) = common.accepted([name], sources, exactly_one=True)
    repository = Repository.parse(to)
    with trials.open_engine(engine, install=False) as docker_engine, Progress() as progress:
        reference = image or str(wanted.name)
        order = publication.Order(
            name=wanted.name,
            repository=repository,
            proof=proof or paths.in_workspace(Path("out", str(wanted.name))),
            gate=gate.parse_tiers(gate_text) if gate_text else sources.matrix.gate,
            whole_gate=sources.matrix.gate,
            aliases=common.aliases_of(str(wanted.name), sources),
            promised=trials.promised(wanted, docker_engine.inspect(reference).labels, sources),
            locks=lock_file.written(lock_file.read(wanted)),
            source=common.commit(),
            key=key,
        )
        done = publication.publish(
            docker_engine,
            reference,
            order,
            say=lambda text: progress.say(str(wanted.name), text, "dim"),
            on_event=progress.job(str(wanted.name)),
        )
    _tell_published(done)


def promote_verb(reference: RemoteRef, to: ToRepository, gate_text: GateTiers = "", key: PublicKey = "") -> None:
    """Take a published image over into another repository of its registry, by digest, and move the tags there."""
    sources = common.sources()
    done = publication.promote(
        Reference.parse(reference),
        Repository.parse(to),
        tiers=gate.parse_tiers(gate_text) if gate_text else sources.matrix.gate,
        whole_gate=sources.matrix.gate,
        aliases=lambda name: common.aliases_of(name, sources),
        promised=lambda remote: trials.promised_of(remote, sources),
        key=key,
    )
    _tell_published(done)


def verify_verb(
    reference: RemoteRef,
    key: PublicKey = "",
    unsigned: Annotated[bool, typer.Option("--unsigned", help="Take an image that nobody signed.")] = False,
    gate_text: GateTiers = "",
) -> None:
    """Check a published image: its signature, what is attached, and its labels against what was measured."""
    sources = common.sources()
    digest, checks = publication.verify(
        Reference.parse(reference),
        tiers=gate.parse_tiers(gate_text) if gate_text else sources.matrix.gate,
        promised=lambda remote: trials.promised_of(remote, sources),
        key=key,
        unsigned=unsigned,
    )
    common.results().print(tables.checks(digest, checks))
    raise typer.Exit(0 if all(check.status is Status.PASS for check in checks) else 1)


def choose_verb(
    gpu: Annotated[str, typer.Option("--gpu", metavar="MODEL", help="RTX 4090, say; default: this machine's.")] = "",
    arch: Annotated[str, typer.Option("--arch", metavar="SM", help="Its architecture, where no table has it.")] = "",
    driver: Annotated[str, typer.Option("--driver", metavar="VERSION", help="Its driver, as nvidia-smi says.")] = "",
    profile: Annotated[str, typer.Option("--profile", metavar="NAME", help="What to train with.")] = "none",
    torch: Annotated[str, typer.Option("--torch", metavar="RANGE", help="'>=2.7', say.")] = "",
    python: Annotated[str, typer.Option("--python", metavar="X.Y", help="Default: each image's own default.")] = "",
    devel: Annotated[bool, typer.Option("--devel", help="With a whole CUDA toolkit.")] = False,
    source: Annotated[str, typer.Option("--from", metavar="REPOSITORY", help="Only what is published there.")] = "",
    index: Annotated[
        str, typer.Option("--published", metavar="URL|FILE", help="What a site's index.json says, and no matrix.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable, on stdout and nothing else.")] = False,
) -> None:
    """Which image to pull for a machine, why, and why not the nearest others."""
    if index and source:
        cause = "each says which images there are"
        raise UserError(Problem(where="--from and --published", cause=cause, then="give one of them"))
    machine = choose_machine.parse(gpu, arch, driver) if gpu or arch else _this_machine(driver)
    rows = published.read(index).images if index else []
    offers = [row.summary for row in rows] if index else _planned(source)
    known = sorted({one.profile for one in offers if one.profile})
    if profile != "none" and profile not in known:
        then = f"there are none, {', '.join(known)}" if known else "there is only none"
        raise UserError(Problem(where=f"--profile {profile}", cause="no image has this profile", then=then))
    wish = choose.Wish(
        profile=None if profile == "none" else profile, torch=choose.torch_range(torch), python=python, devel=devel
    )
    choice = choose.rank(offers, machine, wish)
    if as_json:
        typer.echo(json.dumps(choice.as_json(), indent=1))
    else:
        said = {row.name: choose.Known(get=row.get, told=row.sentence) for row in rows}
        for line in choose.told(choice, machine, source, said):
            typer.echo(line)
    raise typer.Exit(0 if choice.fitting else 1)


def _planned(source: str) -> list[choose.ImageSummary]:
    """The plan's images; with a repository, those that are published there."""
    sources = common.sources()
    offers = [choose.summary(planned.image, sources.facts) for planned in plan.plan(sources) if planned.image]
    if not source:
        return offers
    with Registry(Repository.parse(source)) as registry:
        tags = set(registry.tags())
    return [one for one in offers if one.name in tags]


def _this_machine(driver: str) -> choose_machine.Machine:
    """The GPUs of this machine, with another driver where one is named. Raises UserError where there is none."""
    found = next((seen for folder in ("", *gpus.DRIVER_FOLDERS) if (seen := gpus.inventory(folder))), None)
    if found is None:
        then = "say which one is meant: --gpu 'RTX 4090' --driver 550.90, or --arch sm89"
        raise UserError(Problem(where="choose", cause="no NVIDIA GPU can be read on this machine", then=then))
    machine = choose_machine.detected(found)
    return replace(machine, driver=choose_machine.parse_driver(driver)) if driver else machine


def _tell_published(done: publication.Published) -> None:
    seconds = ", ".join(f"{stage} {taken:.1f} s" for stage, taken in done.seconds.items())
    typer.echo(f"{done.reference} ({done.bytes / 1e6:.0f} MB in layers; {seconds})")
    typer.echo(f"tags: {' '.join(done.tags)}")
    for reason in done.kept_back:
        common.say(reason)
    if not done.signed:
        common.say("not signed: give --key cosign.key (publish) or cosign.pub (promote)")
