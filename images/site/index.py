"""The site's one model: what index.json says, and what every page shows. Pure; docs/schema/ has its schema."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import Field

from images.chooser import choose, models
from images.config.facts import Capability, MinorText, VersionText
from images.config.matrix import Sources
from images.config.names import Arch, ImageName, Minor
from images.errors import UserError
from images.nightly.results import BreakageLine, Change, Job, JobLine, Row
from images.planning import plan
from images.planning.plan import Planned
from images.site.runs import Published, Run, newest_first
from validate.claims import Tier
from validate.judging import Status

STALE_AFTER_DAYS = 14
_KEPT_PROOFS, _KEPT_SIZES, _KEPT_BUILDS = 10, 60, 10
"""Of an image: proofs a tier and GPU, sizes, changes between builds. results/ has them all, pages stay small."""
_ON_GPUS = (Tier.GPU, Tier.MULTIGPU)


class Standing(StrEnum):
    """What an image is worth today, by the runs of its current digest."""

    PROVEN = "proven"
    """Every tier of the gate is PASS, and nothing failed."""
    PARTLY = "partly"
    """Something is PASS, nothing failed, and a tier of the gate was never judged or could not be."""
    FAILS = "fails"
    NEVER = "never"


class ProofRow(Row):
    """One tier of an image, judged once."""

    tier: Tier
    gpus: str
    """`H100`, `2 x H200`; empty for the tiers without GPU."""
    verdict: Status
    """FAIL if a required claim failed; PASS only if there are required claims and every one passed; else UNPROVEN."""
    counts: dict[Status, int]
    """Claims by verdict, those that are not required among them."""
    date: date | None
    """The day it was measured, UTC; null: not known. Stale `stale_after_days` later."""
    digest: str
    """The image that was judged. The verdict is of no other."""
    current: bool
    """It is the image's `digest`."""
    source: str
    """Folder, file of nights, or published image that it was read from."""
    page: str
    """Path of the page with its claims and evidence; empty where only counts are kept."""


class SizeRow(Row):
    """An image's size on a day."""

    date: date | None
    bytes: Annotated[int, Field(gt=0)]
    digest: str


class BuildsRow(Row):
    """What differs between two builds that were recorded one after the other."""

    before: str
    """Digest."""
    after: str
    before_date: date | None
    after_date: date | None
    changes: list[Change]
    """Of the packages whose version was measured in both."""


class ImageRow(Row):
    """An image that the matrix accepts, or that was judged under its whole name."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    tags: list[str]
    """Its name and the aliases that mean it; with `published`, also the tag that never moves."""
    profile: str | None
    torch: VersionText
    python: MinorText
    default_python: bool
    """The matrix's own Python: the name does not spell it out."""
    devel: bool
    """Holds the whole toolkit."""
    arch: Capability | None
    """`9.0`: an image that was made for this architecture alone."""
    toolkit_cuda: MinorText
    wheel_cuda: MinorText
    """The CUDA that torch was compiled for."""
    archs: list[Capability]
    """Compute capabilities that all its libraries have machine code for, ascending."""
    ptx: list[Capability]
    """Those that torch has PTX of."""
    min_driver: VersionText
    """Oldest driver that runs it: the floor of the CUDA major."""
    native_driver: VersionText
    """First driver of the wheel's own CUDA; PTX needs it."""
    pins: dict[str, str]
    warnings: list[str]
    digest: str
    """Of the image whose proofs count: what the tag means, else what was judged last; empty: never built."""
    bytes: int
    """Size of that image, unpacked; 0: not recorded."""
    published: str
    """`HOST/NAME@sha256:...`; empty: not published, or the site was made without a registry."""
    transfer: int
    """Bytes of its compressed layers; 0 where it is not published."""
    get: Annotated[str, Field(pattern="^[ -~]+$")]
    """The command that gets it."""
    standing: Standing
    proven_on: date | None
    """Of a proven image: the day of its oldest tier of the gate."""
    proofs: list[ProofRow]
    """Newest first: the last ten of each tier and GPU, and what the standing rests on."""
    sizes: list[SizeRow]
    """Oldest first, the last sixty."""
    builds: list[BuildsRow]
    """Newest first, the last ten."""
    page: str
    badge: str

    def newest(self, tier: Tier, gpus: str = "") -> ProofRow | None:
        """The newest proof of a tier, of the current digest where there is one."""
        own = [one for one in self.proofs if (one.tier, one.gpus) == (tier, gpus)]
        return next((one for one in own if one.current), own[0] if own else None)

    @property
    def told(self) -> str:
        """What was proven of it, as one sentence."""
        current = sorted(deciding(self.proofs), key=lambda one: (list(Tier).index(one.tier), one.gpus))
        if not current:
            return "Never proven: no run of it was recorded."
        days = [one.date for one in current if one.date]
        since = f", oldest proof of {min(days)}" if days else ", on a day that nobody wrote down"
        verdicts = [f"{one.tier}{f' on {one.gpus}' if one.gpus else ''} {one.verdict}" for one in current]
        on_gpu = "" if any(one.tier is Tier.GPU for one in current) else "; never proven on a GPU"
        return f"Judged: {', '.join(verdicts)}{since}{on_gpu}."

    @property
    def offer(self) -> choose.ImageSummary:
        """The image as the rules of choosing see it."""
        return choose.ImageSummary(
            name=self.name,
            torch=self.torch,
            profile=self.profile,
            python=self.python,
            default_python=self.default_python,
            devel=self.devel,
            arch=Arch.parse(self.arch) if self.arch else None,
            toolkit_cuda=Minor.parse(self.toolkit_cuda),
            wheel_cuda=Minor.parse(self.wheel_cuda),
            archs=tuple(map(Arch.parse, self.archs)),
            ptx=tuple(map(Arch.parse, self.ptx)),
            min_driver=self.min_driver,
            native_driver=self.native_driver,
        )


class RefusedRow(Row):
    """A combination that can't be, or that we don't build."""

    name: str
    torch: str | None
    reasons: list[str]
    listed: bool
    """It is a row of matrix.yaml; else a CUDA and a torch that somebody may ask for."""
    nearest: list[str]
    """Accepted images that differ least."""


class Index(Row):
    """index.json: every image, what was proven of it and when, and what is refused. Paths are relative to it."""

    schema_version: Literal[1] = 1
    date: date
    """The day it was made, UTC."""
    revision: str
    """Short hash of matrix and facts."""
    stale_after_days: int
    gate: list[Tier]
    """What must be PASS before an image counts as proven."""
    repository: str
    """Where images are published; empty: the site was made without a registry."""
    images: list[ImageRow]
    refused: list[RefusedRow]

    def columns(self, tier: Tier) -> tuple[str, ...]:
        """The GPUs that a tier was ever judged on; one nameless column where it never was."""
        found = {one.gpus for image in self.images for one in image.proofs if one.tier is tier}
        return tuple(sorted(found)) or ("",)


@dataclass(frozen=True, kw_only=True)
class Known:
    """Everything a site is made from, read before."""

    sources: Sources
    today: date
    runs: Sequence[Run] = ()
    nights: Sequence[JobLine | BreakageLine] = ()
    repository: str = ""
    published: Sequence[Published] = ()
    closures: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Lock -> distribution -> version."""


def make(known: Known) -> Index:
    """Hold the plan and everything that was judged together."""
    everything = planned(known)
    accepted = [one for one in everything if one.accepted]
    return Index(
        date=known.today,
        revision=known.sources.revision,
        stale_after_days=STALE_AFTER_DAYS,
        gate=list(known.sources.matrix.gate),
        repository=known.repository,
        images=[_image(one, known) for one in accepted],
        refused=list(_refused(everything, accepted, known.sources)),
    )


def planned(known: Known) -> tuple[Planned, ...]:
    """The plan and images outside it that were judged (an arch image, say); newest torch first."""
    listed = plan.plan(known.sources)
    names = {one.name for one in listed}
    others = sorted({run.image for run in known.runs} - names)
    found = [plan.plan_one(name, known.sources) for text in others if (name := _name(text))]
    return tuple(sorted((*listed, *found), key=lambda one: one.image_name.torch, reverse=True))


def _name(text: str) -> ImageName | None:
    try:
        return ImageName.parse(text)
    except UserError:
        return None


def _image(it: Planned, known: Known) -> ImageRow:
    image = it.image
    if image is None:
        raise ValueError(f"{it.name} is refused")
    tag = next((one for one in known.published if one.image == it.name), None)
    runs = newest_first(one for one in known.runs if one.image == it.name)
    digest = tag.digest if tag else next((one.digest for one in runs if one.digest), "")
    proofs = [row for run in runs for row in _proofs(run, digest)]
    gate = known.sources.matrix.gate
    offer = choose.summary(image, known.sources.facts)
    aliases = [alias for alias, meant in known.sources.matrix.aliases.items() if meant == it.name]
    return ImageRow(
        name=it.name,
        tags=[*(tag.tags if tag else (it.name,)), *aliases],
        profile=offer.profile,
        torch=offer.torch,
        python=offer.python,
        default_python=offer.default_python,
        devel=offer.devel,
        arch=offer.arch.capability if offer.arch else None,
        toolkit_cuda=str(offer.toolkit_cuda),
        wheel_cuda=str(offer.wheel_cuda),
        archs=[arch.capability for arch in offer.archs],
        ptx=[arch.capability for arch in offer.ptx],
        min_driver=offer.min_driver,
        native_driver=offer.native_driver,
        pins={pin.name: pin.version for pin in image.pins},
        warnings=list(image.warnings),
        digest=digest,
        bytes=next((run.size for run in runs if run.digest == digest and run.size), 0),
        published=tag.reference if tag else "",
        transfer=tag.bytes if tag else 0,
        get=f"docker pull {known.repository}:{it.name}" if tag else f"nox -s build -- {it.name}",
        standing=_standing(proofs, gate),
        proven_on=_proven_on(proofs, gate),
        proofs=_kept(proofs),
        sizes=_sizes(runs)[-_KEPT_SIZES:],
        builds=list(_builds(runs))[:_KEPT_BUILDS],
        page=f"images/{it.name}.html",
        badge=f"badges/{it.name}.svg",
    )


def _proofs(run: Run, digest: str) -> Iterator[ProofRow]:
    """A tier on GPUs that saw none was not judged."""
    for tier, count in run.tiers.items():
        if tier in _ON_GPUS and not run.gpus:
            continue
        yield ProofRow(
            tier=tier,
            gpus=gpus_of(tier, run.gpus),
            verdict=count.verdict,
            counts=count.counts,
            date=run.date,
            digest=run.digest,
            current=bool(digest) and run.digest == digest,
            source=run.source,
            page=page_of(run) if run.claims else "",
        )


def page_of(run: Run) -> str:
    """Path of the page of one run: its name, then where it was found."""
    where = run.source.rpartition("/")[2].replace("@", "-").replace(":", "-").replace(" ", "-")
    plain = "".join(char for char in where if char.isalnum() or char in "-_.")
    return f"proofs/{run.image}/{plain}.html"


def gpus_of(tier: Tier, names: Sequence[str]) -> str:
    """`H100` for one GPU's tier, `2 x H200` for several GPUs' together; empty for tiers without."""
    if tier not in _ON_GPUS:
        return ""
    models = [_model(name) for name in names]
    distinct = sorted(set(models))
    if tier is Tier.GPU:
        return ", ".join(distinct)
    return ", ".join(f"{models.count(model)} x {model}" for model in distinct)


def _model(name: str) -> str:
    try:
        return models.find(name)[0]
    except UserError:  # a GPU that the table lacks keeps the name its driver gives it
        return name


def _standing(proofs: Sequence[ProofRow], gate: Sequence[Tier]) -> Standing:
    current = deciding(proofs)
    if any(one.verdict is Status.FAIL for one in current):
        return Standing.FAILS
    passed = {one.tier for one in current if one.verdict is Status.PASS}
    if gate and passed >= set(gate):
        return Standing.PROVEN
    return Standing.PARTLY if passed else Standing.NEVER


def _proven_on(proofs: Sequence[ProofRow], gate: Sequence[Tier]) -> date | None:
    if _standing(proofs, gate) is not Standing.PROVEN:
        return None
    days = [max((one.date for one in deciding(proofs) if one.tier is tier and one.date), default=None) for tier in gate]
    known = [day for day in days if day]
    return min(known) if len(known) == len(days) else None


def deciding(proofs: Sequence[ProofRow]) -> list[ProofRow]:
    """The newest proof of each tier and GPU, of the current digest."""
    found: dict[tuple[Tier, str], ProofRow] = {}
    for one in proofs:
        if one.current:
            found.setdefault((one.tier, one.gpus), one)
    return list(found.values())


def _kept(proofs: Sequence[ProofRow]) -> list[ProofRow]:
    found = deciding(proofs)
    seen: Counter[tuple[Tier, str]] = Counter()
    for one in proofs:
        seen[one.tier, one.gpus] += 1
        if seen[one.tier, one.gpus] <= _KEPT_PROOFS and one not in found:
            found.append(one)
    return [one for one in proofs if one in found]


def _sizes(runs: Sequence[Run]) -> list[SizeRow]:
    """Each build when it was first judged."""
    first = {run.digest: run for run in runs if run.size}
    oldest_first = reversed(newest_first(first.values()))
    return [SizeRow(date=run.date, bytes=run.size, digest=run.digest) for run in oldest_first]


def _builds(runs: Sequence[Run]) -> Iterator[BuildsRow]:
    newest_of: dict[str, Run] = {}
    for run in runs:
        if run.packages:
            newest_of.setdefault(run.digest, run)
    builds = list(newest_of.values())
    for after, before in pairwise(builds):
        yield BuildsRow(
            before=before.digest,
            after=after.digest,
            before_date=before.date,
            after_date=after.date,
            changes=changes(before.packages, after.packages),
        )


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[Change]:
    """What moved between two sets of packages, by name."""
    moved = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    return [Change(name=name, before=before.get(name, ""), after=after.get(name, ""), pinned=True) for name in moved]


def _refused(everything: Sequence[Planned], accepted: Sequence[Planned], sources: Sources) -> Iterator[RefusedRow]:
    """What the matrix lists and the plan refuses, then every other CUDA with every other torch."""
    listed = {row.name for row in sources.matrix.images}
    refused = {one.name: one for one in (*everything, *pairs(sources)) if not one.accepted}
    for name, one in refused.items():
        yield RefusedRow(
            name=name,
            torch=one.torch,
            reasons=list(one.reasons),
            listed=name in listed,
            nearest=list(plan.nearest(one.image_name, accepted)),
        )


def pairs(sources: Sources) -> tuple[Planned, ...]:
    """Every CUDA toolkit of the matrix with every torch of the facts, planned as if somebody asked for it."""
    cudas = sorted(map(Minor.parse, sources.matrix.toolkits))
    torches = sorted({Minor.parse(text) for text in sources.facts.torch}, reverse=True)
    return tuple(plan.plan_one(ImageName(cuda=cuda, torch=torch), sources) for torch in torches for cuda in cudas)


def nights_of(known: Known, image: str) -> tuple[JobLine | None, JobLine | None, tuple[BreakageLine, ...]]:
    """The newest control and canary of an image, and what nights found to break it, newest first."""
    own = [line for line in known.nights if line.image == image and not line.ranges]
    legs = [line for line in own if isinstance(line, JobLine)]
    newest = {leg: max((one for one in legs if one.job is leg), key=lambda one: one.date, default=None) for leg in Job}
    breakages = [line for line in own if isinstance(line, BreakageLine)]
    return newest[Job.CONTROL], newest[Job.CANARY], tuple(reversed(breakages))


def dumps(index: Index) -> bytes:
    """index.json."""
    return (json.dumps(index.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n").encode()


def generated() -> dict[str, bytes]:
    """Path below the project's root -> JSON Schema of index.json."""
    schema: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Index.model_json_schema()}
    text = json.dumps({**schema, "title": "index.json of the site"}, indent=1, sort_keys=True) + "\n"
    return {"docs/schema/index.schema.json": text.encode()}
