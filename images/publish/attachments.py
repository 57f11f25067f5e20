"""What is attached to a published image: signed statements, in the place where cosign keeps them.

| tag, beside the image `sha256:DIGEST` | holds |
|---|---|
| `sha256-DIGEST.att` | statements (`statements.py`), a layer each: `cosign verify-attestation` reads it |
| `sha256-DIGEST.sig` | signatures of the image, also of an index: `cosign verify` reads it |

cosign 2 and 3, Kyverno and policy-controller read both. Registries need no referrers API for it. Statements that nobody
signed stand there, too, for who publishes without a key: cosign leaves them aside. What others put there stays.
"""

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from images.config.platforms import Platform
from images.context.labels import LABELS
from images.errors import Problem, failed, wrong
from images.publish import signing, statements
from images.publish.statements import Attestation, Statement
from images.registry import distribution
from images.registry.client import Registry
from images.registry.distribution import CREATED, OCI_CONFIG, Descriptor, Manifest, image_manifest
from images.registry.errors import RegistryError
from images.registry.reference import Repository
from validate.evidence import Evidence

_ENVELOPE = "application/vnd.dsse.envelope.v1+json"
_SIMPLE_SIGNING = "application/vnd.dev.cosign.simplesigning.v1+json"
_SIGNATURE = "dev.cosignproject.cosign/signature"
_LARGEST_SIGNED = 1 << 16
"""Bytes of what cosign signs: a digest and our tags. Whoever may push can put anything there."""
_TYPE = "predicateType"
_TAGS, _DATE, _COUNTER = "dev.truetag.tags", "dev.truetag.date", "dev.truetag.counter"
"""Annotations of a signature: the tags that are to name what it signs, when that was signed (RFC 3339, UTC), and a
number that is higher than that of all signatures of this key in the repository before."""
_WRITES = 5
"""How often a tag is written at most where other machines write it at the same time."""


class Signed(NamedTuple):
    """What a key signed of a digest. The last one is the greatest, whatever clocks said."""

    counter: int
    """Milliseconds since 1970, or more where a clock went back; 0 of cosign's own, and of ours that read no layers."""
    date: str
    tags: str


@dataclass(frozen=True, kw_only=True)
class PublishedImage:
    """A published image, as far as it can be read without its layers."""

    repository: Repository
    manifest: Manifest
    config: Mapping[str, Any]
    """The image's configuration (OCI image specification)."""
    statements: tuple[Statement, ...]

    @property
    def reference(self) -> str:
        return f"{self.repository}@{self.manifest.digest}"

    @property
    def image_id(self) -> str:
        """The digest that verdicts name: of the configuration."""
        return self.manifest.config.digest

    @property
    def labels(self) -> Mapping[str, str]:
        return dict((self.config.get("config") or {}).get("Labels") or {})

    @property
    def name(self) -> str:
        """As its label has it; empty where it has none."""
        return self.labels.get(f"{LABELS}.image", "")

    @property
    def created(self) -> str:
        """When it was validated, as whoever published it first wrote; of older images, when they were built."""
        annotations = self.manifest.data.get("annotations") or {}
        return str(annotations.get(CREATED) or self.config.get("created") or "")

    @property
    def platform(self) -> str:
        """`linux/arm64`, as the configuration has it; empty where it has none."""
        return distribution.platform_of(self.config)

    @property
    def compressed_size(self) -> int:
        """Bytes of all layers, as the registry holds them."""
        return sum(layer.size for layer in self.manifest.layers)

    def of(self, predicate_type: str) -> tuple[Statement, ...]:
        return tuple(one for one in self.statements if one.predicate_type == predicate_type)

    @property
    def origin_exception(self) -> str:
        """Why it was published although the origin of its layers is UNPROVEN; empty: no test result names that."""
        found = (one.origin_exception for one in self.of(statements.TEST_RESULT))
        return next(filter(None, found), "")

    @property
    def attestations(self) -> tuple[Attestation, ...]:
        """Every validation run, judged again.

        Raises UserError for one of another image, and for a test result that is not what its evidence says.
        """
        found: dict[bytes, Attestation] = {}
        for one in self.of(statements.TEST_RESULT):
            try:
                runs = {
                    file: found.get(file) or statements.attested(file, self.reference)
                    for file in one.evidence
                }
                others = {run.verdict.digest for run in runs.values()} - {self.image_id}
                faults = statements.test_result_faults(one, tuple(runs.values()))
                if self.manifest.digest not in one.subjects:
                    cause = f"its test result is of {', '.join(sorted(one.subjects))}"
                elif others:
                    cause = f"the attestation is of {min(others)[:19]}, the image is {self.image_id[:19]}"
                elif fault := next(faults, ""):
                    cause = f"its test result is not what the evidence says: {fault}"
                else:
                    found |= runs
                    continue
            except statements.UNREADABLE as error:
                cause = f"its test result can't be read: {type(error).__name__}: {error}"
            raise failed(self.reference, cause, "don't use it")
        return tuple(found.values())

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Of every validation run. Raises UserError as `attestations` does."""
        return tuple(one.evidence for one in self.attestations)


def load(
    source: Registry, manifest: Manifest, *, platform: str = "", with_statements: bool = True
) -> PublishedImage:
    """Read an image's configuration, and the statements that are attached to it; of an index, for a platform.

    Raises UserError.
    """
    if manifest.is_index:
        where = f"{source.repository}@{manifest.digest}"
        digests = {entry.platform: entry.digest for entry in manifest.manifests}
        if platform in digests:
            return load(source, source.get(digests[platform]), with_statements=with_statements)
        if platform:
            raise failed(
                where, f"the index has no image for {platform}", f"publish the image for {platform}"
            )
        listed = ", ".join(
            f"{source.repository}@{digest} ({one})" for one, digest in digests.items()
        )
        raise wrong(
            where, "is an index of images for several platforms", f"name one of them: {listed}"
        )
    config = json.loads(source.blob(manifest.config))
    there, found = (
        source.find(attached_tag(manifest.digest, "att")) if with_statements else None,
        list[Statement](),
    )
    for layer in there.layers if there else ():
        if layer.media_type == _ENVELOPE and layer.annotations.get(_TYPE) in statements.NAMES:
            with suppress(
                *statements.UNREADABLE
            ):  # it counts for nothing: whoever may push may put anything there
                found.append(Statement.from_envelope(source.blob(layer)))
    return PublishedImage(
        repository=source.repository, manifest=manifest, config=config, statements=tuple(found)
    )


def load_all(source: Registry, manifest: Manifest) -> tuple[PublishedImage, ...]:
    """The images of an index, with what is attached to them; of another manifest, the image. Raises UserError."""
    if not manifest.is_index:
        return (load(source, manifest),)
    if not manifest.manifests:
        raise failed(
            f"{source.repository}@{manifest.digest}", "is an empty index", "publish its images anew"
        )
    return tuple(load(source, source.get(entry.digest)) for entry in manifest.manifests)


def index_of(images: Sequence[PublishedImage]) -> Manifest:
    """The index of some images, linux/amd64 first. The same images give the same bytes."""
    ranked = sorted(images, key=lambda image: (image.platform != Platform.AMD64, image.platform))
    return distribution.index(
        [replace(image.manifest.descriptor, platform=image.platform) for image in ranked]
    )


def counted(image: PublishedImage, key: str) -> PublishedImage:
    """The image with the statements that count: with a public key those about it that the key signed, without one all.

    Raises CosignError where cosign can't tell.
    """
    if not key:
        return image
    own = [
        one for one in image.statements if one.signature and image.manifest.digest in one.subjects
    ]
    with ThreadPoolExecutor(max_workers=4) as pool:
        valid = list(
            pool.map(lambda one: signing.is_signature(one.signature, one.signed_bytes, key), own)
        )
    return replace(
        image, statements=tuple(one for one, holds in zip(own, valid, strict=True) if holds)
    )


def attach(
    target: Registry, image: PublishedImage, new: Sequence[Statement], key: str
) -> PublishedImage:
    """Sign (with a private key) and store statements beside those that count. Returns the image with them.

    What a new test result supersedes goes, where this key, or without one nobody, signed it. Raises UserError.
    """
    there = {one.payload for one in image.statements}
    made = [one for one in new if one.payload not in there]
    if key:
        # cosign takes half a second for each, most of it to open the key.
        with ThreadPoolExecutor(max_workers=4) as pool:
            signatures = list(pool.map(lambda one: signing.sign_bytes(one.signed_bytes, key), made))
        made = [
            replace(one, signature=signature)
            for one, signature in zip(made, signatures, strict=True)
        ]
    old = [
        one
        for one in image.statements
        if any(each.supersedes(one) for each in made) and (key or not one.signature)
    ]
    for one in made:
        target.put_blob(one.envelope)
    _write(
        target,
        attached_tag(image.manifest.digest, "att"),
        [_layer(one) for one in made],
        [_layer(one) for one in old],
    )
    return replace(image, statements=(*(one for one in image.statements if one not in old), *made))


def sign_image(
    target: Registry, digest: str, key: str, public: str, tags: Collection[str] = ()
) -> None:
    """Sign an image or an index, and that these tags are to name it, for readers with `cosign verify`.

    Once, unless one of them was signed for another one since. Tags, date and counter are annotations of cosign's
    (`cosign verify -a`). `public`: the key's. Raises UserError.
    """
    named = " ".join(sorted(tags))
    is_known = any(
        found.counter and found.tags == named for found in signed(target, digest, public)
    )
    if is_known and all(last_signed(target, public, tag)[1] == digest for tag in tags):
        return
    counter = max(time.time_ns() // 1_000_000, last_signed(target, public)[0].counter + 1)
    date = datetime.now(UTC).isoformat(timespec="milliseconds")
    payload = {
        "critical": {
            "identity": {"docker-reference": str(target.repository)},
            "image": {"docker-manifest-digest": digest},
            "type": "cosign container image signature",
        },
        "optional": {_TAGS: named, _DATE: date, _COUNTER: str(counter)},
    }
    content = json.dumps(payload, separators=(",", ":")).encode()
    target.put_blob(content)
    signature = Descriptor.of(
        _SIMPLE_SIGNING, content, annotations={_SIGNATURE: signing.sign_bytes(content, key)}
    )
    _write(target, attached_tag(digest, "sig"), [signature])


def signed(source: Registry, digest: str, key: str) -> Iterator[Signed]:
    """What a public key signed of an image or an index. Raises UserError."""
    return (
        said
        for said, content, by in _claims(source, digest)
        if signing.is_signature(by, content, key)
    )


def last_signed(source: Registry, key: str, tag: str = "") -> tuple[Signed, str]:
    """What a public key signed last in a repository, or last for a tag, and its digest (empty: nothing).

    Nobody can tell what whoever may write there deleted. Raises UserError.
    """
    digests = [
        one.removesuffix(".sig").replace("-", ":", 1)
        for one in source.tags()
        if one.endswith(".sig")
    ]
    with ThreadPoolExecutor(max_workers=8) as pool:
        claims = pool.map(lambda one: list(_claims(source, one)), digests)
        ranked = sorted(
            [(*one, digest) for digest, every in zip(digests, claims, strict=True) for one in every]
        )
    for said, content, by, digest in reversed(ranked):
        if (not tag or tag in said.tags.split()) and signing.is_signature(by, content, key):
            return said, digest
    return Signed(0, "", ""), ""


def _claims(source: Registry, digest: str) -> Iterator[tuple[Signed, bytes, str]]:
    """What is said to be signed of a digest: what, the bytes, and their signature, which may be anybody's."""
    there = source.find(attached_tag(digest, "sig"))
    for layer in there.layers if there else ():
        signature = layer.annotations.get(_SIGNATURE, "")
        if layer.media_type != _SIMPLE_SIGNING or not signature or layer.size > _LARGEST_SIGNED:
            continue
        content = source.blob(layer)
        with suppress(*statements.UNREADABLE):
            said = json.loads(content)
            own = said["optional"] or {}
            found = Signed(
                int(own.get(_COUNTER, 0)), str(own.get(_DATE, "")), str(own.get(_TAGS, ""))
            )
            if said["critical"]["image"]["docker-manifest-digest"] == digest:
                yield found, content, signature


def copy(source: Registry, target: Registry, digest: str, key: str) -> None:
    """What is attached to a manifest that both repositories have, beside what others left there. Raises UserError.

    Statements that newer ones supersede go, where this public key, or without one nobody, signed both.
    """
    manifest, superseded = target.find(digest), list[Descriptor]()
    if manifest and not manifest.is_index:
        there = [counted(load(place, manifest), key).statements for place in (source, target)]
        new, old = ([one for one in found if key or not one.signature] for found in there)
        superseded = [_layer(one) for one in old if any(each.supersedes(one) for each in new)]
    for tag in (attached_tag(digest, "att"), attached_tag(digest, "sig")):
        if found := source.find(tag):
            mount_blobs(source, target, found)
            _write(
                target, tag, found.layers, [one for one in superseded if one not in found.layers]
            )


def mount_blobs(source: Registry, target: Registry, manifest: Manifest) -> None:
    """Let the target have all blobs that a manifest names. Nothing is sent. Raises UserError."""
    sizes = {blob.digest: blob.size for blob in (manifest.config, *manifest.layers)}
    for digest, size in sizes.items():
        if not target.mount(digest, source.repository, size):
            cause = f"the registry does not mount {digest[:19]} of {source.repository}"
            raise failed(
                str(target.repository),
                cause,
                "both repositories must be readable with the same login",
            )


def attached_tag(digest: str, kind: str) -> str:
    """Where cosign keeps the attestations (`att`) or the signatures (`sig`) of a digest."""
    return f"{digest.replace(':', '-')}.{kind}"


def _layer(one: Statement) -> Descriptor:
    # The empty annotation is where the signature of an image stands; cosign wants it (pkg/oci/static).
    return Descriptor.of(
        _ENVELOPE, one.envelope, annotations={_SIGNATURE: "", _TYPE: one.predicate_type}
    )


def _write(
    target: Registry, tag: str, new: Sequence[Descriptor], old: Collection[Descriptor] = ()
) -> None:
    """Let a tag of cosign name layers beside what others left under it, without old ones. The blobs are there.

    Reading back detects a concurrent writer that overwrote it: registries have no conditional write.
    """
    for writes_left in reversed(range(_WRITES + 1)):
        there = target.find(tag)
        layers = there.layers if there else ()
        wanted = [*(one for one in layers if one not in old and one not in new), *new]
        if all(one in layers for one in new) and not any(one in layers for one in old):
            return
        if writes_left:
            empty = "0001-01-01T00:00:00Z"  # as cosign writes it: registries and clients take the tag for an image
            data = {
                "architecture": "",
                "created": empty,
                "history": [{"created": empty} for _ in wanted],
                "os": "",
                "rootfs": {"type": "layers", "diff_ids": [one.digest for one in wanted]},
                "config": {},
            }
            config = json.dumps(data, separators=(",", ":")).encode()
            target.put_blob(config)
            target.put(image_manifest(Descriptor.of(OCI_CONFIG, config), wanted), tag)
    cause = "concurrent writers keep overwriting it"
    then = "give the command again when no other machine publishes this image"
    raise RegistryError(Problem(where=f"{target.repository}:{tag}", cause=cause, then=then))
