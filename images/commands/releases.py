"""What `publish`, `promote` and `verify` share: the release policy of the matrix, and how a result is told."""

from collections.abc import Callable, Mapping

import typer

from images.building import validating
from images.commands import common
from images.config.matrix import Sources
from images.config.names import ImageName
from images.config.platforms import Platform
from images.config.schema import GATE
from images.context import labels as image_labels
from images.engine import host_gpus
from images.locking import lock_file
from images.planning import plan
from images.planning.image import Image
from images.publish.gate import ReleasePolicy, parse_tiers
from images.publish.release import PublishResult
from validate.claims import ClaimSet
from validate.evidence import Evidence


def policy(
    gate: str, sources: Sources, claims_of: Callable[[Mapping[str, str], Evidence], ClaimSet | None]
) -> ReleasePolicy:
    """What the matrix asks of an image, with another gate where one is given."""
    return ReleasePolicy(
        gate=parse_tiers(gate) if gate else sources.matrix.gate,
        alias_gate=sources.matrix.gate,
        aliases_of=lambda name: [
            alias for alias, meant in sources.matrix.aliases.items() if meant == name
        ],
        claims_of=claims_of,
        row_of=lambda name: row_of(name, sources),
    )


def policy_of_published(gate: str, sources: Sources | None) -> ReleasePolicy:
    """The same for published images. Without a matrix they are held to their own claims, and no tag is known."""
    if sources:
        return policy(gate, sources, lambda labels, run: claims_of_published(labels, run, sources))
    asked = parse_tiers(gate) if gate else GATE
    return ReleasePolicy(
        gate=asked,
        alias_gate=asked,
        aliases_of=lambda _name: (),
        claims_of=lambda _labels, run: run.claim_set,
        own_claims=True,
    )


def row_of(name: str, sources: Sources) -> tuple[str, ...]:
    """The images of a name's row in the matrix, linux/amd64 first; a name that the matrix has no row for, alone."""
    row = sources.matrix.row(ImageName.parse(name))
    names = sorted(row.names(), key=lambda one: one.platform is not Platform.AMD64) if row else ()
    return tuple(map(str, names)) or (name,)


def claims_of(image: Image, labels: Mapping[str, str], run: Evidence, sources: Sources) -> ClaimSet:
    """The claims that today's matrix writes for an image with these labels on the machine of a validation run."""
    return validating.claims_of(
        image, sources, labels, (), (), attachment=host_gpus.of_host(run.host)
    )


def claims_of_published(
    labels: Mapping[str, str], run: Evidence, sources: Sources
) -> ClaimSet | None:
    """The same of a published image; None where the matrix makes another image of its name, or has no lock of it.

    An alias or a new row gives the whole matrix another revision, and changes nothing of this image.
    """
    name, revision = (
        labels.get(f"{image_labels.LABELS}.{key}", "") for key in ("image", "matrix-revision")
    )
    image = next((one.image for one in plan.plan(sources) if one.name == name), None)
    if image is None or (revision != image.revision and not image_labels.describe(labels, image)):
        return None
    if not lock_file.is_present(image, sources.workspace.locks):
        return None
    return claims_of(image, labels, run, sources)


def tell(result: PublishResult) -> None:
    """References and tags on stdout; what stayed or was left out on stderr."""
    for image in result.images:
        typer.echo(f"{image.reference} ({image.compressed_size / 1e6:.0f} MB)")
    for tag, reference in result.indexes.items():
        typer.echo(f"{reference} (index for several platforms: {tag})")
    typer.echo(f"tags: {' '.join(result.tags)}")
    for reason in (*result.left_out, *result.unmoved_aliases):
        common.say(reason)
    if not result.signed:
        common.say("not signed: give --key cosign.key (publish) or cosign.pub (promote)")
