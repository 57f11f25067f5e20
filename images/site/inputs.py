"""What a site is made from, and how index.json is made from it.

Nothing here reads a file: images/commands/site.py does, and puts what it read into SiteInputs.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

from images.config import selectors
from images.config.matrix import Sources
from images.config.names import ImageName
from images.errors import command
from images.nightly.results import BreakageLine, JobLine
from images.planning import chooser, plan
from images.planning.image import Image
from images.planning.plan import Planned
from images.site.index import ImageRow, Index, RefusedRow
from images.site.runs import Published, Run, newest_first
from images.site.status import ImageStatus, TierRun, image_status
from validate.claims import Claim, Tier

_SHOWN_RUNS = 10
"""Runs that are shown of an image for each tier and GPU, so that pages stay small.

results/ has all of them.
"""


@dataclass(frozen=True, kw_only=True)
class SiteInputs:
    """Everything a site is made from, read beforehand."""

    sources: Sources
    today: date
    runs: Sequence[Run] = ()
    nightly: Sequence[JobLine | BreakageLine] = ()
    """Oldest first."""
    repository: str = ""
    published: Mapping[str, Published] = field(default_factory=dict)
    """Image -> its tag in the registry."""
    closures: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Lock -> distribution -> version."""
    lock_hashes: Mapping[str, str] = field(default_factory=dict)
    """Lock -> its short hash, as nightly runs record it."""
    blocked: Mapping[str, str] = field(default_factory=dict)
    """Lock -> why no image of it can be built, with the next command; the others can."""
    claims: Mapping[str, Sequence[Claim]] = field(default_factory=dict)
    """Image -> what the matrix claims of it today; one that is not here is shown by its runs
    alone."""
    layers: Mapping[str, Mapping[str, Collection[str]]] = field(default_factory=dict)
    """Image -> layer -> the digests by which builds of today are known (locks/layers.json)."""


def make_index(inputs: SiteInputs) -> Index:
    """Return the content of index.json: what the site says of each image of matrix.yaml.

    Images that can be built come with what was validated, those that the plan refuses with the
    reasons.
    """
    planned_images = plan_images(inputs)
    images = []
    for planned in planned_images:
        if planned.image:
            images.append(_image_row(planned.name, planned.image, inputs))
    return Index(
        date=inputs.today,
        revision=inputs.sources.revision,
        gate=list(inputs.sources.matrix.gate),
        repository=inputs.repository,
        images=images,
        refused=list(_refused_rows(planned_images, inputs.sources)),
    )


def plan_images(inputs: SiteInputs) -> tuple[Planned, ...]:
    """Return every image of the site, accepted or refused, newest torch first.

    They are the images of the matrix, and images outside it that were validated: an image for one
    GPU architecture, for example. Accepted ones have an `image`, refused ones have `reasons`.
    """
    matrix_images = plan.plan(inputs.sources)
    names_in_matrix = {planned.name for planned in matrix_images}
    validated_names = {run.image for run in inputs.runs}
    other_images = []
    for text in sorted(validated_names - names_in_matrix):
        # Runs may be of images with any name: leave out what is no name of ours.
        name = selectors.image_name(text)
        if name:
            other_images.append(plan.plan_one(name, inputs.sources))
    images = (*matrix_images, *other_images)
    return tuple(sorted(images, key=lambda planned: planned.image_name.torch, reverse=True))


def _image_row(name: str, image: Image, inputs: SiteInputs) -> ImageRow:
    """Return what index.json says of an image that the matrix accepts.

    That is how to get it, what was validated of it, and its packages. `inputs` has all that was
    recorded and published.
    """
    matrix = inputs.sources.matrix
    published = inputs.published.get(name)
    pins = {pin.name: pin.version for pin in image.pins}

    status = image_status(
        [run for run in inputs.runs if run.image == name],
        pins=pins,
        layers=inputs.layers.get(name, {}),
        claims=inputs.claims.get(name, ()),
        lock=inputs.lock_hashes.get(image.lock_name, ""),
        published_digest=published.digest if published else "",
    )

    if published:
        # People pull this very image, whatever the pins and the lock are today.
        get = f"docker pull {inputs.repository}:{name}"
        own_tags = published.tags
        blocked = ""
    else:
        # People build it. `blocked` is the reason why it cannot be built, such as a missing lock.
        blocked = inputs.blocked.get(image.lock_name, "")
        get = _build_command(name, image, is_blocked=bool(blocked))
        own_tags = (name,)

    summary = chooser.summarize(image, inputs.sources.facts, blocked, status.passed_on)
    aliases = [alias for alias, target in matrix.aliases.items() if target == name]
    return ImageRow(
        **summary.model_dump(),
        tags=[*own_tags, *aliases],
        pins=pins,
        warnings=list(image.warnings),
        status=status.sentence,
        digest=status.digest,
        bytes=_image_size(newest_first(inputs.runs), name, status.digest),
        published=published.reference if published else "",
        transfer=published.bytes if published else 0,
        get=get,
        validation=status.validation(matrix.gate),
        runs=_shown_runs(status),
        page=f"images/{name}.html",
    )


def _image_size(runs: Sequence[Run], name: str, digest: str) -> int:
    """Return an image's unpacked size in bytes; 0 if no run recorded it.

    It is the size of this digest if a run recorded that, else of the newest build that was
    measured. `runs`: of all images, newest first.
    """
    measured = [run for run in runs if run.size and run.image == name]
    sizes = [run.size for run in measured]
    sizes_of_digest = [run.size for run in measured if run.digest == digest]
    newest_sizes = sizes_of_digest or sizes
    return newest_sizes[0] if newest_sizes else 0


def _build_command(name: str, image: Image, *, is_blocked: bool) -> str:
    """Return the command that builds an image.

    `is_blocked`: the image has no usable lock, so the command that locks it comes first.
    """
    build = command("build", name)
    return f"{command('lock', image.lock_name)} && {build}" if is_blocked else build


def _shown_runs(status: ImageStatus) -> list[TierRun]:
    """Return the runs that an image's page shows, in their order: newest first.

    They are the newest ones (_SHOWN_RUNS) of each tier and GPU model, and those that decide whether
    the image is validated, however old they are.
    """
    decisive = status.deciding
    shown = []
    counts: Counter[tuple[Tier, str]] = Counter()
    for run in status.runs:
        counts[run.tier, run.gpus] += 1
        if counts[run.tier, run.gpus] <= _SHOWN_RUNS or run in decisive:
            shown.append(run)
    return shown


def _refused_rows(planned_images: Sequence[Planned], sources: Sources) -> Iterator[RefusedRow]:
    """Yield what index.json says of each image of matrix.yaml that the plan refuses.

    That is why, and which accepted images differ least. Images outside the matrix are left out:
    nobody asked for them. `planned_images`: all images, accepted (they have an `image`) or refused.
    """
    names_in_matrix: set[ImageName] = set()
    for row in sources.matrix.images:
        names_in_matrix.update(row.names())
    accepted = [planned for planned in planned_images if planned.image]
    for planned in planned_images:
        if planned.image_name in names_in_matrix and not planned.image:
            yield RefusedRow(
                name=planned.name,
                torch=planned.torch,
                reasons=list(planned.reasons),
                nearest=list(plan.nearest(planned.image_name, accepted)),
            )
