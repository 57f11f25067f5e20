"""Verbs of what others read: `attest`, `admission`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from images.commands import common, trials
from images.commands.options import RemoteRef, grouped
from images.errors import Problem, UserError, problem_of
from images.publish import admission, attachments, checks, index, signing
from images.publish.admission import AdmissionRule, Reader
from images.publish.attachments import PublishedImage
from images.publish.statements import attest, compose, intoto
from images.registry.client import Registry
from images.registry.reference import Reference, Repository
from validate.claims import ClaimSet, Tier


def attest_verb(
    reference: RemoteRef,
    key: Annotated[str, typer.Option("--key", metavar="KEY", help="Sign with cosign: a private key.")] = "",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Write the predicates there instead; sign nothing.")
    ] = None,
) -> None:
    """Sign what is attached to a published image as statements for cosign and admission controllers."""
    if bool(key) == bool(out):
        cause = "one of them says what to do with the statements"
        raise UserError(Problem(where="--key and --out", cause=cause, then="give one of them"))
    if key:
        signing.require(key)
        signing.require_password(key)
    wanted = Reference.parse(reference)
    with Registry(wanted.repository) as registry:
        images = [_counted(one, key) for one in index.load(registry, registry.get(wanted.identifier))]
        for image in images:
            checks.require_sound(image)
        for image in images:
            claims = trials.claims_of_published(image.labels, common.sources())
            if out:
                _write(out / image.platform if len(images) > 1 else out, image, claims)
            else:
                _sign(registry, image, key, claims)


def _counted(image: PublishedImage, key: str) -> PublishedImage:
    """The image with what the key has signed, where it has: anybody who may push may attach."""
    found = attachments.counted_by_signer(image, key)
    if key and not found.attachments:
        common.say(f"{image.reference} is not signed with this key: the statements are of all that is attached")
        return image
    return found


def _sign(registry: Registry, image: PublishedImage, key: str, claims: ClaimSet | None) -> None:
    for digest in attest.attest(registry, image, key, claims):
        common.say(f"the registry deletes no manifest: {digest[:19]}, an earlier statement, stays listed")
    for kind, name in intoto.NAMES.items():
        typer.echo(f"{image.reference}  {name}  {kind}")


def _write(folder: Path, image: PublishedImage, claims: ClaimSet | None) -> None:
    """One JSON file of each predicate. On stdout, with tabs between: the file, its type, the image by digest."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for one in compose.statements(image, attest.known(image, claims)):
            path = folder / f"{intoto.file_name(one.predicate_type)}.json"
            path.write_bytes(intoto.dumps(one.predicate))
            typer.echo(f"{path}\t{one.predicate_type}\t{image.reference}")
    except OSError as error:
        raise UserError(problem_of(error, str(folder)), code=1) from None


@dataclass(frozen=True, kw_only=True)
class RuleArguments:
    """What an image must show to be admitted."""

    key: Annotated[Path, typer.Option("--key", metavar="FILE", help="The public key of who publishes: cosign.pub.")]
    images: Annotated[
        list[str], typer.Option("--images", metavar="REPOSITORY", help="Whose images it is about; repeat it.")
    ]
    tier: Annotated[list[Tier] | None, typer.Option("--tier", help="What must have passed; default: gpu.")] = None
    days: Annotated[int, typer.Option("--days", min=1, help="How old a verdict may be.")] = 30


@grouped
def admission_verb(
    reader: Annotated[Reader, typer.Argument(metavar="policy-controller|kyverno|cosign", help="Who reads the policy.")],
    rule: RuleArguments,
) -> None:
    """Print a policy that admits only images whose tiers passed within some days."""
    wanted = AdmissionRule(
        repositories=[Repository.parse(one) for one in rule.images],
        key=_public_key(rule.key),
        tiers=tuple(dict.fromkeys(rule.tier or [Tier.GPU])),
        days=rule.days,
    )
    typer.echo(admission.policy(wanted, reader, datetime.now(UTC)), nl=False)


def _public_key(path: Path) -> str:
    """Raises UserError for what is no public key in PEM: a private one must not end in a policy."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UserError(Problem(where=f"--key {path}", cause=cause, then="give the file cosign.pub")) from None
    if not text.lstrip().startswith("-----BEGIN PUBLIC KEY-----"):
        then = "`cosign public-key --key KEY` prints the public key of a private one"
        raise UserError(Problem(where=f"--key {path}", cause="is no public key in PEM", then=then))
    return text
