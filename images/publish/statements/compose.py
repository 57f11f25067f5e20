"""The statements of a published image, made of what is attached to it, and their check against it. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from images.publish.attachments import PROVENANCE, SBOM, PublishedImage
from images.publish.statements import intoto, spdx, test_results
from images.publish.statements.intoto import Statement
from validate.claims import ClaimSet


def statements(image: PublishedImage, claims: ClaimSet) -> tuple[Statement, ...]:
    """One statement of each type. Raises UserError for attestations that are of another image.

    The image must be sound (`checks.require_sound`). `claims`: those that the matrix writes for it.
    """
    provenance, sbom = (content(image, kind) for kind in (PROVENANCE, SBOM))
    predicates = {
        intoto.TEST_RESULT: test_results.predicate(image.attestations, claims),
        intoto.CYCLONEDX: json.loads(sbom),
        intoto.SPDX: spdx.document(sbom),
    }
    place, digest = str(image.repository), image.manifest.digest
    made = [intoto.statement(kind, said, repository=place, digest=digest) for kind, said in predicates.items()]
    return (*made, Statement(predicate_type=intoto.PROVENANCE, payload=provenance))


def content(image: PublishedImage, artifact_type: str) -> bytes:
    """The file of the first attachment of a type. Raises LookupError where there is none."""
    (file,) = image.of(artifact_type)[0].files.values()
    return file


def faults(image: PublishedImage, said: Sequence[Statement]) -> Iterator[str]:
    """Where verified statements are not what is attached to the image."""
    for one in said:
        try:
            found = list(_faults(image, one))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            found = [f"can't be read: {type(error).__name__}: {error}"]
        yield from (f"the {intoto.NAMES[one.predicate_type]}: {fault}" for fault in found)


def _faults(image: PublishedImage, said: Statement) -> Iterator[str]:
    sboms = [content for one in image.of(SBOM) for content in one.files.values()]
    if said.predicate_type == intoto.TEST_RESULT:
        yield from test_results.faults(said.predicate, image.attestations)
    elif said.predicate_type == intoto.PROVENANCE:
        if said.payload not in [content for one in image.of(PROVENANCE) for content in one.files.values()]:
            yield "is not the one that is attached"
    elif said.predicate_type == intoto.CYCLONEDX:
        if said.predicate not in [json.loads(content) for content in sboms]:
            yield "is not the one that is attached"
    elif spdx.urls(said.predicate) not in [spdx.cyclonedx_urls(content) for content in sboms]:
        yield "lists other packages than the attached SBOM"
