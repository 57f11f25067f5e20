"""Sign the statements of a published image with cosign and store them; check those that cosign accepts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from images.errors import Problem, UserError
from images.publish import signing
from images.publish.attachments import PublishedImage
from images.publish.statements import compose, intoto, store
from images.publish.statements.dsse import Envelope, signed_bytes
from images.publish.statements.intoto import Statement
from images.publish.statements.store import Signed
from images.registry.client import Registry
from validate.claims import ClaimSet


def attest(target: Registry, image: PublishedImage, key: str, claims: ClaimSet | None) -> tuple[str, ...]:
    """Sign what is not signed yet, and store it. Returns digests of replaced ones that the registry goes on to list.

    The image must be sound. Raises UserError: the matrix does not know the image, cosign's words, a registry's refusal.
    """
    statements = compose.statements(image, known(image, claims))
    public = signing.public_key(key)
    there = list(store.read(target, image.manifest.digest, public.key_id))
    # cosign takes half a second for each, most of it to open the key.
    with ThreadPoolExecutor(max_workers=len(statements)) as pool:
        found = list(pool.map(lambda one: signed(one, key, public, there), statements))
    return store.write(target, image.manifest.descriptor, public.key_id, found)


def known(image: PublishedImage, claims: ClaimSet | None) -> ClaimSet:
    """The claims, where the matrix knows the image. Raises UserError."""
    if claims is None:
        cause = "matrix.yaml does not know this image, so nobody can say whether its attestations have every claim"
        then = "attest it from the revision of its label dev.truetag.matrix-revision"
        raise UserError(Problem(where=image.reference, cause=cause, then=then), code=1)
    return claims


def signed(one: Statement, key: str, public: signing.PublicKey, there: Sequence[Signed]) -> Signed:
    """With the signature that is there, where it is valid: a signature differs from one time to the next."""
    content = signed_bytes(one.payload)
    for found in there:
        if found.envelope.payload == one.payload and signing.is_signature(found.envelope.signature, content, public):
            return found
    envelope = Envelope(payload=one.payload, signature=signing.sign_bytes(content, key))
    return Signed(predicate_type=one.predicate_type, envelope=envelope)


def faults(image: PublishedImage, key: str) -> Iterator[str]:
    """Why the statements that `cosign verify-attestation` accepts with a key are not those of the image."""
    for kind, name in intoto.NAMES.items():
        try:
            found = [intoto.read(payload) for payload in signing.statements(image.reference, key, kind)]
        except UserError as error:
            yield f"no {name}: {error.problems[0].cause}"
        else:
            yield from compose.faults(image, found)
