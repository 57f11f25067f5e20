"""Verbs of published images: `publish`, `promote`, `verify`, `choose`."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from images.chooser import choose
from images.chooser import machine as choose_machine
from images.commands import common, tables, trials
from images.commands.options import (
    EngineUrl,
    GateTiers,
    PublicKey,
    RemoteRef,
    ToRepository,
    grouped,
)
from images.config import paths, platforms
from images.config.matrix import Sources
from images.config.schema import GATE
from images.context.labels import LABELS
from images.engine import Engine, gpus
from images.engine.progress import Progress
from images.errors import Problem, UserError, problem_of
from images.locking import lock_file
from images.planning import plan
from images.planning.image import Image
from images.publish import gate, promote, publication, signing, verify
from images.publish.compression import Compression
from images.publish.policy import ReleasePolicy
from images.publish.publication import PublishResult, Source
from images.publish.unpublished_image import PublishOptions
from images.registry.client import Registry
from images.registry.reference import Reference, Repository
from images.site import published, records
from images.site.index import ImageRow
from validate.claims import ClaimSet, Tier
from validate.judging import Status


class LayerCompression(StrEnum):
    """How layers are stored: one variant of the image, or several."""

    GZIP = "gzip"
    ZSTD = "zstd"
    ZSTD_CHUNKED = "zstd:chunked"
    BOTH = "both"
    ALL = "all"

    @property
    def compressions(self) -> tuple[Compression, ...]:
        match self:
            case LayerCompression.BOTH:
                return (Compression.GZIP, Compression.ZSTD)
            case LayerCompression.ALL:
                return tuple(Compression)
            case _:
                return (Compression(self.value),)


@dataclass(frozen=True, kw_only=True)
class PublishArguments:
    """Which image is published, and what is attached to it."""

    image: Annotated[str, typer.Option("--image", metavar="REF", help="The image to push; default: NAME itself.")] = ""
    attestation: Annotated[
        Path | None,
        typer.Option("--attestation", metavar="FOLDER", help="Its verdict and evidence; default: out/NAME."),
    ] = None
    key: Annotated[str, typer.Option("--key", metavar="KEY", help="Sign with cosign: a private key.")] = ""
    all_platforms: Annotated[
        bool,
        typer.Option("--all-platforms", help="NAME and the images of its row for other platforms, under one tag."),
    ] = False
    drop_platforms: Annotated[
        bool, typer.Option("--drop-platforms", help="Let NAME lose a platform that it has an image for there.")
    ] = False
    compression: Annotated[
        LayerCompression,
        typer.Option(
            "--compression",
            help="Of its layers; both: NAME as gzip, NAME-zstd as zstd; all: NAME-zstd-chunked for podman, too.",
        ),
    ] = LayerCompression.BOTH


@dataclass(frozen=True, kw_only=True)
class PublishRequest:
    """An image to publish. `reference`: `--image`; empty: its name."""

    options: PublishOptions
    reference: str = ""


@grouped
def publish_verb(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Image names, as `plan` prints them.")],
    to: ToRepository,
    what: PublishArguments,
    gate_text: GateTiers = "",
    engine: EngineUrl = None,
) -> None:
    """Push a validated image, attach attestation, SBOM and provenance, and move its tags last.

    Several NAMEs are published one by one.
    """
    sources = common.sources()
    rows = _rows(list(dict.fromkeys(names)), what, sources)
    if what.key:
        signing.require(what.key)
        signing.require_password(what.key)
    wishes = [[_wish_of(one, row, to, what, gate_text, sources) for one in row] for row in rows]
    ends = _published_here(wishes, engine)
    failed: list[UserError] = []
    for end in _with_the_last_error(ends, " ".join(names)):
        if isinstance(end, UserError):
            failed.append(end)
        else:
            _print_result(end)
    if failed:
        code = failed[0].code if len(rows) == 1 else 1
        raise UserError([problem for error in failed for problem in error.problems], code=code)


def _with_the_last_error(ends: Iterator[PublishResult | UserError], names: str) -> Iterator[PublishResult | UserError]:
    """The ends, and what ended them all: no engine, no cluster, a full disk. What failed before is told, too."""
    try:
        yield from ends
    except UserError as error:
        yield error
    except OSError as error:
        yield UserError(problem_of(error, names), code=1)


def _published_here(
    wishes: Sequence[Sequence[PublishRequest]], engine: str | None
) -> Iterator[PublishResult | UserError]:
    """From this machine's engine, one row after another. One that fails stops no other."""
    with trials.open_engine(engine, install=False) as docker_engine:
        for row in wishes:
            yield _published_row(docker_engine, row)


def _published_row(engine: Engine, row: Sequence[PublishRequest]) -> PublishResult | UserError:
    name = str(row[0].options.name)
    found = [Source(reference=one.reference or str(one.options.name), options=one.options) for one in row]
    with Progress() as progress:
        try:
            return publication.publish_together(
                engine, found, say=lambda text: progress.say(name, text, "dim"), on_event=progress.job(name)
            )
        except UserError as error:
            return error
        except OSError as error:
            return UserError(problem_of(error, name), code=1)


def _wish_of(
    image: Image, row: Sequence[Image], to: str, what: PublishArguments, gate_text: str, sources: Sources
) -> PublishRequest:
    options = PublishOptions(
        name=image.name,
        repository=Repository.parse(to),
        attestation=what.attestation or paths.in_workspace(Path("out", str(image.name))),
        policy=_policy(gate_text, sources, lambda labels: _claims_of(row, labels, sources)),
        locks=lock_file.written(lock_file.read(image, sources.workspace.locks)),
        cache=common.cache() / "push",
        compressions=what.compression.compressions,
        source=common.commit(sources.workspace.root),
        key=what.key,
        drop_platforms=what.drop_platforms,
    )
    return PublishRequest(options=options, reference=what.image)


def _rows(names: Sequence[str], what: PublishArguments, sources: Sources) -> list[list[Image]]:
    """What is published together: each image alone, or (`--all-platforms`) its row, linux/amd64 first.

    Raises UserError for options that mean one image.
    """
    if (what.image or what.attestation) and (len(names) > 1 or what.all_platforms):
        where = "--all-platforms" if what.all_platforms else " ".join(names)
        cause = "--image and --attestation mean one image"
        index = "publish each platform's image by its own name: the last one makes the index"
        then = index if what.all_platforms else "publish each image by a command of its own, or leave them out"
        raise UserError(Problem(where=where, cause=cause, then=then))
    wanted = [image for name in names for image in common.accepted([name], sources, exactly_one=True)]
    if not what.all_platforms:
        return [[image] for image in wanted]
    rows = dict.fromkeys(common.row_of(str(image.name), sources) for image in wanted)
    return [[image for name in row for image in common.accepted([name], sources, exactly_one=True)] for row in rows]


def _claims_of(images: Sequence[Image], labels: Mapping[str, str], sources: Sources) -> ClaimSet | None:
    """Of an image to publish by today's matrix; of one that is there already only where it was built from it."""
    name = labels.get(f"{LABELS}.image", "")
    named = next((image for image in images if str(image.name) == name), None)
    if named is None and name in common.row_of(str(images[0].name), sources):
        return trials.claims_of_published(labels, sources)
    return trials.claims_of(named or images[0], labels, sources)


def promote_verb(
    reference: RemoteRef,
    to: ToRepository,
    gate_text: GateTiers = "",
    key: PublicKey = "",
    drop_platforms: Annotated[
        bool, typer.Option("--drop-platforms", help="Let an index replace one there that has more platforms.")
    ] = False,
) -> None:
    """Promote a published image into another repository of its registry, by digest, and move the tags there."""
    policy = _policy_of_published(gate_text, common.sources())
    source, target = Reference.parse(reference), Repository.parse(to)
    _print_result(promote.promote(source, target, policy, key=key, drop_platforms=drop_platforms))


def verify_verb(
    reference: RemoteRef,
    key: PublicKey = "",
    unsigned: Annotated[bool, typer.Option("--unsigned", help="Accept an image that nobody signed.")] = False,
    gate_text: GateTiers = "",
) -> None:
    """Check a published image: its signature, what is attached, and its labels against what was measured."""
    sources = common.sources_if_any()
    policy = _policy_of_published(gate_text, sources) if sources else _policy_without_matrix(gate_text)
    found = verify.verify(Reference.parse(reference), policy, key=key, unsigned=unsigned)
    common.results().print(tables.checks(found.reference, found.checks))
    raise typer.Exit(0 if found.passed else 1)


def _policy_of_published(gate_text: str, sources: Sources) -> ReleasePolicy:
    return _policy(gate_text, sources, lambda labels: trials.claims_of_published(labels, sources))


def _policy_without_matrix(gate_text: str) -> ReleasePolicy:
    """For who has an installed package alone: the image is held to its own claims, and no tag is known."""
    asked = gate.parse_tiers(gate_text) if gate_text else GATE
    return ReleasePolicy(
        gate=asked,
        alias_gate=asked,
        aliases_of=lambda _name: (),
        claims_of=lambda _labels: None,
        no_claims="no matrix.yaml is here",
    )


def _policy(
    gate_text: str, sources: Sources, claims_of: Callable[[Mapping[str, str]], ClaimSet | None]
) -> ReleasePolicy:
    return ReleasePolicy(
        gate=gate.parse_tiers(gate_text) if gate_text else sources.matrix.gate,
        alias_gate=sources.matrix.gate,
        aliases_of=lambda name: common.aliases_of(name, sources),
        claims_of=claims_of,
        row_of=lambda name: common.row_of(name, sources),
    )


def _print_result(result: PublishResult) -> None:
    seconds = ", ".join(f"{stage} {taken:.1f} s" for stage, taken in result.seconds.items())
    for number, (compression, reference) in enumerate(result.references.items()):
        size = f"{result.bytes[compression] / 1e6:.0f} MB in {compression} layers"
        typer.echo(f"{reference} ({size}{'' if number else f'; {seconds}'})")
    for tag, reference in result.indexes.items():
        typer.echo(f"{reference} (index for several platforms: {tag})")
    typer.echo(f"tags: {' '.join(result.tags)}")
    for reason in result.left_out:
        common.say(reason)
    for reason in result.unmoved_aliases:
        common.say(reason)
    if not result.signed:
        common.say("not signed: give --key cosign.key (publish) or cosign.pub (promote)")


@dataclass(frozen=True, kw_only=True)
class MachineArguments:
    """The machine to choose for."""

    gpu: Annotated[str, typer.Option("--gpu", metavar="MODEL", help="RTX 4090, say; default: this machine's.")] = ""
    arch: Annotated[str, typer.Option("--arch", metavar="SM", help="Its architecture, where no table has it.")] = ""
    driver: Annotated[str, typer.Option("--driver", metavar="VERSION", help="Its driver, as nvidia-smi says.")] = ""


@dataclass(frozen=True, kw_only=True)
class WishArguments:
    """What the image must have."""

    profile: Annotated[str, typer.Option("--profile", metavar="NAME", help="What to train with.")] = "none"
    torch: Annotated[str, typer.Option("--torch", metavar="RANGE", help="'>=2.7', say.")] = ""
    python: Annotated[str, typer.Option("--python", metavar="X.Y", help="Default: each image's own default.")] = ""
    devel: Annotated[bool, typer.Option("--devel", help="With the devel toolkit: nvcc and all headers.")] = False


@dataclass(frozen=True, kw_only=True)
class OfferArguments:
    """Where the images to choose from are listed."""

    source: Annotated[str, typer.Option("--from", metavar="REPOSITORY", help="Only what is published there.")] = ""
    index: Annotated[
        str, typer.Option("--published", metavar="URL|FILE", help="What a site's index.json says, and no matrix.")
    ] = ""


@grouped
def choose_verb(
    machine: MachineArguments,
    wish: WishArguments,
    offered: OfferArguments,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable, on stdout and nothing else.")] = False,
) -> None:
    """Which image to pull for a machine, why, and why not the nearest others."""
    if offered.index and offered.source:
        cause = "each says which images there are"
        raise UserError(Problem(where="--from and --published", cause=cause, then="give one of them"))
    found = _machine(machine)
    rows = published.read(offered.index).images if offered.index else []
    offers = [row.summary for row in rows] if offered.index else _planned(offered.source)
    choice = choose.rank(offers, found, _wish(wish, offers))
    if as_json:
        typer.echo(json.dumps(choice.as_json(), indent=1))
    else:
        said = {row.name: _of_site(row) for row in rows} if offered.index else _recorded(offers, offered.source)
        for line in choose.told(choice, found, said):
            typer.echo(line)
    raise typer.Exit(0 if choice.fitting else 1)


def _of_site(row: ImageRow) -> choose.Known:
    gpu = (one.verdict for one in row.runs if one.tier is Tier.GPU and one.current)
    return choose.Known(get=row.get, told=row.sentence, ran=Status.PASS in gpu)


def _recorded(offers: Sequence[choose.ImageSummary], source: str) -> dict[str, choose.Known]:
    """What results/runs.jsonl says of the gpu tiers of images that are built here, or pulled from `source`."""
    lines, known = records.read(paths.workspace().results), {}
    for one in offers:
        run = records.gpu_run(lines, one.name)
        known[one.name] = choose.Known(
            get=f"docker pull {source}:{one.name}" if source else paths.as_given(f"nox -s build -- {one.name}"),
            told=records.gpu_sentence(run),
            ran=run is not None and run.tiers[Tier.GPU].verdict is Status.PASS,
        )
    return known


def _wish(wish: WishArguments, offers: Sequence[choose.ImageSummary]) -> choose.Wish:
    """Raises UserError for a profile that no image has."""
    known = sorted({one.profile for one in offers if one.profile})
    if wish.profile != "none" and wish.profile not in known:
        then = f"there are none, {', '.join(known)}" if known else "there is only none"
        raise UserError(Problem(where=f"--profile {wish.profile}", cause="no image has this profile", then=then))
    return choose.Wish(
        profile=None if wish.profile == "none" else wish.profile,
        torch=choose.torch_range(wish.torch),
        python=wish.python,
        devel=wish.devel,
    )


def _planned(source: str) -> list[choose.ImageSummary]:
    """The plan's images; with a repository, those that are published there."""
    sources = common.sources()
    images = [planned.image for planned in plan.plan(sources) if planned.image]
    states = lock_file.states(images, sources.workspace.locks)
    offers = [
        choose.summary(image, sources.facts, locked=bool(source) or states[str(image.name)] is lock_file.Status.PRESENT)
        for image in images
    ]
    if not source:
        return offers
    with Registry(Repository.parse(source)) as registry:
        tags = set(registry.tags())
    return [one for one in offers if one.name in tags]


def _machine(wanted: MachineArguments) -> choose_machine.Machine:
    """The machine that is named, else this one. Raises UserError where that has no GPU."""
    if wanted.gpu or wanted.arch:
        return choose_machine.parse(wanted.gpu, wanted.arch, wanted.driver)
    found = next((seen for folder in ("", *gpus.DRIVER_FOLDERS) if (seen := gpus.inventory(folder))), None)
    if found is None:
        then = "say which one is meant: --gpu 'RTX 4090' --driver 550.90, or --arch sm89"
        raise UserError(Problem(where="choose", cause="no NVIDIA GPU can be read on this machine", then=then))
    machine = choose_machine.detected(found, platforms.of_machine(platform.machine()))
    return replace(machine, driver=choose_machine.parse_driver(wanted.driver)) if wanted.driver else machine
