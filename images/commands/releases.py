"""Functions that `publish`, `promote` and `verify` share: release policy, and printed results."""

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
from images.planning import plan
from images.planning.image import Image
from images.publish.gate import ReleasePolicy, parse_tiers
from images.publish.release import PublishResult
from validate.claims import ClaimSet
from validate.evidence import Evidence

FindClaims = Callable[[Mapping[str, str], Evidence], ClaimSet | None]
"""Returns today's claims for the labels of an image and its validation run; None: it has none."""


def policy(gate: str, sources: Sources, find_claims: FindClaims) -> ReleasePolicy:
    """Return what the matrix requires of an image before it is published.

    `gate` is the option `--gate`: the tiers (groups of checks) that an image must have passed, such
    as `static,cpu`; if it is empty, the gate of the matrix holds. `find_claims` returns today's
    claims for an image, from its labels and its validation run.
    """

    def aliases_of(name: str) -> list[str]:
        """Return the other tags of an image, such as `latest`."""
        return [alias for alias, image in sources.matrix.aliases.items() if image == name]

    required_tiers = parse_tiers(gate) if gate else sources.matrix.gate
    return ReleasePolicy(
        gate=required_tiers,
        alias_gate=sources.matrix.gate,
        aliases_of=aliases_of,
        claims_of=find_claims,
        row_of=lambda name: row_of(name, sources),
    )


def policy_of_published(gate: str, sources: Sources | None) -> ReleasePolicy:
    """Return what an image that is published already must have passed.

    `gate` is the option --gate: tiers (groups of checks) such as `static,cpu`. If it is empty, the
    gate in matrix.yaml holds. An installed truetag may have no matrix.yaml (`sources` is None).
    Then the default gate is assumed, each image is judged by the claims in its own evidence, and
    nothing is known of aliases.
    """
    if sources:

        def find_claims(labels: Mapping[str, str], run: Evidence) -> ClaimSet | None:
            return claims_of_published(labels, run, sources)

        return policy(gate, sources, find_claims)
    tiers = parse_tiers(gate) if gate else GATE
    return ReleasePolicy(
        gate=tiers,
        alias_gate=tiers,
        aliases_of=lambda _name: (),
        claims_of=lambda _labels, run: run.claim_set,
        without_matrix=True,
        gate_is_assumed=not gate,
    )


def row_of(name: str, sources: Sources) -> tuple[str, ...]:
    """Return the names of the same image for every platform, linux/amd64 first.

    They are a row of the matrix. Returns only the name itself if no row makes it.
    """
    row = sources.matrix.row(ImageName.parse(name))
    if not row:
        return (name,)
    names = sorted(row.names(), key=lambda row_name: row_name.platform is not Platform.AMD64)
    return tuple(map(str, names)) or (name,)


def claims_of(image: Image, labels: Mapping[str, str], run: Evidence, sources: Sources) -> ClaimSet:
    """Return the claims that today's matrix writes for an image with these labels.

    They are those for the machine on which the validation run was measured.
    """
    attachment = host_gpus.of_host(run.host)
    return validating.claims_of(image, sources, labels, (), (), attachment=attachment)


def claims_of_published(
    labels: Mapping[str, str], run: Evidence, sources: Sources
) -> ClaimSet | None:
    """Return the claims that today's matrix.yaml makes about an image that is published already.

    Claims are statements about an image that a validation run tests. `labels` are the image's, and
    `run` is the validation run that was published with it. Returns None if today's matrix.yaml has
    no image of that name, or if the name means another build there. Raises UserError, which names
    the verb `lock`, if the image has no lock, or one that is stale or damaged.
    """
    name = labels.get(f"{image_labels.LABELS}.image", "")
    images = {planned.name: planned.image for planned in plan.plan(sources)}
    image = images.get(name)
    if image is None:
        return None

    # The revision is a hash of matrix.yaml. If it is another one, the image may still be the same:
    # a new alias changes the revision, but no image. Then the labels decide.
    revision = labels.get(f"{image_labels.LABELS}.matrix-revision", "")
    is_same_matrix = revision == image.revision
    if not is_same_matrix and not image_labels.match_todays_build(labels, image):
        return None

    return claims_of(image, labels, run, sources)


def print_result(result: PublishResult) -> None:
    """Print references and tags on stdout, and on stderr what was left out and why."""
    for image in result.images:
        typer.echo(f"{image.reference} ({image.compressed_size / 1e6:.0f} MB)")
    for tag, reference in result.indexes.items():
        typer.echo(f"{reference} (index for several platforms: {tag})")
    typer.echo(f"tags: {' '.join(result.tags)}")
    for reason in (*result.left_out, *result.unmoved_tags):
        common.say(reason)
    if not result.signed:
        common.say("not signed: give --key cosign.key (publish) or cosign.pub (promote)")
