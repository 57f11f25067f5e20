"""The validation runs that the site shows, from three sources.

They are the lines of results/runs.jsonl, nightly runs, and the attestations of published images.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import NamedTuple

from images.config.names import ImageName
from images.errors import failed
from images.nightly import results
from images.nightly.results import Job, JobLine, Outcome
from images.publish import attachments
from images.publish.attachments import PublishedImage
from images.publish.tags import ImageVersion, immutable_tag
from images.registry.client import Registry
from images.site import records
from images.site.records import RunLine
from images.validation.rows import ClaimRow, TierCount
from validate.claims import Tier
from validate.judging import plural

_JUDGED_OUTCOMES = (Outcome.PASS, Outcome.FAIL, Outcome.UNPROVEN)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One image, validated once. The verdicts hold for `digest` and for nothing else."""

    image: str
    digest: str
    moment: datetime | None
    """When it was measured. None: not recorded."""
    tiers: Mapping[Tier, TierCount]
    source: str
    """Where it is recorded: a line of runs.jsonl, a month's file of nightly runs, or a published
    image."""
    gpus: tuple[str, ...] = ()
    """Names as the driver has them, one a GPU."""
    claims: tuple[ClaimRow, ...] = ()
    """Those that are open have a reason.

    Empty for nightly runs: their lines have only claims that did not pass.
    """
    packages: Mapping[str, str] = field(default_factory=dict)
    """Distribution -> version, as `pins` measured them."""
    payload: Mapping[str, str] = field(default_factory=dict)
    """Layers and settings of the image (images/engine/configuration.py); empty: not recorded."""
    lock: str = ""
    """Short hash of the lock that a nightly run built the image from; empty: not recorded."""
    size: int = 0
    """Of the image, unpacked, in bytes; 0: not recorded."""

    @property
    def date(self) -> date | None:
        """Return the day it was measured, UTC; None: not recorded."""
        return self.moment.astimezone(UTC).date() if self.moment else None


@dataclass(frozen=True, kw_only=True)
class Published:
    """A tag of an image's own name, as a registry has it."""

    reference: str
    """`HOST/NAME@sha256:...`."""
    digest: str
    """Of its configuration: the one that verdicts name."""
    bytes: int
    """Sum of the compressed layers: what a pull transfers."""
    tags: tuple[str, ...]


class PublishedRuns(NamedTuple):
    """What a registry has of some images."""

    tags: dict[str, Published]
    """By the image's name."""
    runs: list[Run]
    """The runs that the attestations of the tagged images record."""


def recorded_runs(folders: Iterable[Path]) -> list[Run]:
    """Return the runs of each FOLDER/runs.jsonl, without experiments.

    Raises UserError that names all lines of a file that can't be read.
    """
    runs = []
    for folder in folders:
        for line in records.read(folder):
            if not line.experiment:
                runs.append(run_of_record(line, f"{records.LINES} {line.id}"))
    return runs


def run_of_record(line: RunLine, source: str) -> Run:
    """Return the run that a line of runs.jsonl, or one made from an attestation, records."""
    return Run(
        image=line.image,
        digest=line.digest,
        moment=line.date,
        tiers=line.tiers,
        source=source,
        gpus=tuple(line.gpus),
        claims=tuple(line.rows()),
        packages=line.packages,
        payload=line.payload,
        size=line.bytes,
    )


def nightly_runs(lines: Sequence[JobLine | results.BreakageLine]) -> Iterator[Run]:
    """Yield the runs of the nightly control jobs that judged an image.

    Control jobs build it with its locked versions. Canary jobs are left out: they build with the
    newest versions, so with others than the image that people get. So are lines about breakages.
    """
    for line in lines:
        if not isinstance(line, JobLine) or line.job is not Job.CONTROL:
            continue
        if line.outcome in _JUDGED_OUTCOMES and line.digest:
            yield Run(
                image=line.image,
                digest=line.digest,
                moment=line.date,
                tiers=line.tiers,
                source=f"results/nightly/{line.date:%Y-%m}.jsonl",
                gpus=tuple(line.gpus),
                lock=line.versions,
                size=line.bytes,
            )


def newest_first(runs: Iterable[Run]) -> list[Run]:
    """Return the runs sorted by the time they were measured. Runs without a date come last."""
    beginning = datetime.min.replace(tzinfo=UTC)
    return sorted(runs, key=lambda run: (run.moment or beginning, run.source), reverse=True)


def load_published(
    registry: Registry, names: Sequence[str], key: str, report_progress: Callable[[str], None]
) -> PublishedRuns:
    """Read the tags of these images from a registry, and the runs that are attested there.

    An attestation holds validation runs of an image, and is attached to it. An image's name is also
    its tag; images without one are left out. With `key`, a public key, only attestations that it
    signed count; how many others were ignored is reported. Without a key (empty) all of them count.
    Raises UserError if the registry refuses access, or an attestation contradicts its evidence or
    its tag.
    """
    existing_tags = set(registry.tags())
    published = PublishedRuns({}, [])
    for name in names:
        if name not in existing_tags:
            continue
        # The tag may name an index: then read its image for this platform.
        platform = ImageName.parse(name).platform
        image = attachments.load(registry, registry.get(name), platform=platform)
        trusted = attachments.drop_untrusted(image, key)
        ignored = len(image.statements) - len(trusted.statements)
        if ignored:
            report_progress(f"{name}: {plural(ignored, 'attachment')} ignored: not signed by --key")
        published.tags[name] = _describe_published(name, image, existing_tags)
        published.runs.extend(_attested_runs(name, trusted))
    return published


def _describe_published(
    name: str, image: PublishedImage, existing_tags: Collection[str]
) -> Published:
    """Return what a registry has of an image: its tags, digest and size.

    `name` is the image's, and also a tag of it. `existing_tags` are all tags of its repository.
    """
    tags = [name]
    # The dated tag of this very build, which never moves, may be there, too. An image with
    # unreadable labels has no version, and so no such tag.
    version = ImageVersion.from_labels(image.labels, image.created)
    if version:
        dated_tag = immutable_tag(name, version.created, image.image_id)
        if dated_tag in existing_tags:
            tags.append(dated_tag)
    return Published(
        reference=image.reference,
        digest=image.image_id,
        bytes=image.compressed_size,
        tags=tuple(tags),
    )


def _attested_runs(name: str, image: PublishedImage) -> Iterator[Run]:
    """Yield the validation runs that are attached to a published image, as its attestations.

    `name` is the image's, and the tag that names it. Raises UserError for an attestation that is
    about another image or contradicts its evidence.
    """
    for number, attestation in enumerate(image.attestations, 1):
        verdict = attestation.verdict
        if verdict.image != name:
            cause = f"its attestation is of {verdict.image}, the tag says {name}"
            raise failed(image.reference, cause, f"publish {name} anew, or delete this tag")
        # Made into a line first, as runs.jsonl has them, so that both sources are read alike.
        line = records.make_run_line(attestation.evidence, verdict, f"attestation-{number}")
        yield run_of_record(line, f"{image.reference} (attestation {number})")
